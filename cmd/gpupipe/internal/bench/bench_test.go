package bench_test

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/bench"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/profile"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every case fits WebGPU's default limits, and reports what it should.
func TestRunOnNull(t *testing.T) {
	dev := null.New(null.Options{})
	var seen []string
	rs, err := bench.Run(context.Background(), []device.Device{dev},
		bench.Options{Quick: true, Filter: regexp.MustCompile(`attention|512|adamw|entropy 2048|norm`),
			Progress: func(name string) { seen = append(seen, name) }})
	require.NoError(t, err)
	require.Len(t, rs, 1)
	r := rs[0]
	require.Len(t, seen, 1+len(r.Results)+len(r.Steps), "the peak, too")
	assert.Zero(t, r.Peak, "it computes nothing")
	require.Len(t, r.Steps, 1)
	for _, x := range r.Results {
		assert.Positive(t, x.DurationMicros, x.Name)
		assert.Equal(t, bench.Host, x.Clock, "%s: its commands take no time", x.Name)
		assert.NotEmpty(t, x.Kernels, x.Name)
		assert.Equal(t, strings.HasPrefix(x.Name, "matmul"), x.Ratio > 0, x.Name)
		assert.True(t, x.GFLOPS > 0 || x.GBps > 0, x.Name)
	}
	s := r.Steps[0]
	assert.EqualValues(t, 869504, s.Parameters)
	assert.Equal(t, 2048, s.Tokens)
	require.NotEmpty(t, s.Profile.Kernels)
	count := 0
	for _, k := range s.Profile.Kernels {
		count += k.Calls
	}
	assert.Greater(t, count, 2*len(s.Profile.Alike()), "layers share kernels")
	assert.Equal(t, bench.Host, s.Clock)
	assert.InEpsilon(t, 2048/s.DurationMicros*1e6, s.TokensPerSec, 1e-9)
	live, _ := dev.Allocated()
	assert.Zero(t, live, "everything is released")

	var back bench.Report
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, r.Results, back.Results)

	var table strings.Builder
	require.NoError(t, r.Print(&table, 0))
	assert.Contains(t, table.String(), "step tiny adamw: 869504 parameters")
}

func TestDispatch(t *testing.T) {
	dev := null.New(null.Options{})
	rs, err := bench.Run(context.Background(), []device.Device{dev}, bench.Options{Quick: true, Filter: regexp.MustCompile("^dispatch$")})
	require.NoError(t, err)
	r := rs[0]
	require.Len(t, r.Results, 2)
	for _, x := range r.Results {
		assert.Positive(t, x.DurationMicros, x.Name)
	}
	assert.GreaterOrEqual(t, r.Results[0].DurationMicros, r.Results[1].DurationMicros, "what the host does is part of the whole")
	live, _ := dev.Allocated()
	assert.Zero(t, live)
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := bench.Run(ctx, []device.Device{null.New(null.Options{})}, bench.Options{})
	require.ErrorIs(t, err, context.Canceled)
}

// Devices are measured in alternation, and compared case by case.
func TestSeveralDevices(t *testing.T) {
	devs := []device.Device{null.New(null.Options{}), null.New(null.Options{Name: "null:1"})}
	rs, err := bench.Run(context.Background(), devs, bench.Options{Quick: true, Filter: regexp.MustCompile("^dispatch$|norm")})
	require.NoError(t, err)
	require.Len(t, rs, 2)
	for i, r := range rs {
		assert.Equal(t, devs[i].Info(), r.Device)
		require.Len(t, r.Results, 3)
	}
	cs := bench.Compare(rs)
	require.Len(t, cs, 3)
	assert.Equal(t, "rmsnorm 2048×576 fwd+bwd", cs[0].Name)
	assert.Equal(t, []float64{rs[0].Results[0].DurationMicros, rs[1].Results[0].DurationMicros}, cs[0].DurationMicros)
	for _, d := range devs {
		live, _ := d.(*null.Device).Allocated()
		assert.Zero(t, live)
	}
}

func TestComparison(t *testing.T) {
	report := func(name string, micros float64, clock string) bench.Report {
		return bench.Report{Device: device.Info{Name: name},
			Results: []bench.Result{{Name: "matmul", DurationMicros: micros, Clock: clock}},
			Steps:   []bench.Step{{Name: "step", DurationMicros: 10 * micros, Clock: clock, KernelDurationMicros: 8 * micros}}}
	}
	rs := []bench.Report{report("a:0", 1000, bench.GPU), report("b:0", 1500, bench.GPU), report("c:0", 500, bench.Host)}
	ratios := []float64{1, 1.5, 0.5}
	assert.Equal(t, []bench.Comparison{
		{Name: "matmul", Clock: "gpu and host", DurationMicros: []float64{1000, 1500, 500}, Ratios: ratios},
		{Name: "step", Clock: "host", DurationMicros: []float64{10000, 15000, 5000}, Ratios: ratios},
		{Name: "step, kernels", Clock: "gpu and host", DurationMicros: []float64{8000, 12000, 4000}, Ratios: ratios},
	}, bench.Compare(rs))
	var table strings.Builder
	require.NoError(t, bench.PrintComparison(&table, rs))
	assert.Equal(t, "CASE           CLOCK         a:0    b:0     to a:0  c:0     to a:0\n"+
		"matmul         gpu and host  1 ms   1.5 ms  1.50    500 µs  0.50\n",
		strings.Join(strings.SplitAfter(table.String(), "\n")[:2], ""))
}

// On a device with timestamps results use them, and no kernel exceeds the peak by much. Kernels and peak are measured
// at different moments.
func TestClockOfADevice(t *testing.T) {
	tier.Rest(t)
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, dev.Close()) }()
	rs, err := bench.Run(context.Background(), []device.Device{dev},
		bench.Options{Quick: true, Filter: regexp.MustCompile("matmul 1003|norm")})
	require.NoError(t, err)
	assert.Positive(t, rs[0].Peak.GFLOPS)
	assert.Positive(t, rs[0].Peak.GBps)
	require.Len(t, rs[0].Results, 2)
	for i, x := range rs[0].Results {
		assert.Equal(t, bench.GPU, x.Clock)
		assert.Positive(t, x.OfPeak)
		assert.Equal(t, []string{"compute", "memory"}[i], x.Bound)
	}
	live, _ := dev.Allocated()
	assert.Zero(t, live)
}

func TestPeakOfNothing(t *testing.T) {
	p, err := bench.Peak(null.New(null.Options{}), bench.Options{})
	require.NoError(t, err)
	assert.Equal(t, profile.Peak{}, p)
}
