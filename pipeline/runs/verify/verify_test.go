package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/gputest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/sidecar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// All cases of gpupipe verify on one backend, with fewer batches; in the core of the tests those of --quick.
func TestAllCases(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r, err := Run(context.Background(), Options{Devices: gputest.Backends()[:1], OpenDevice: gputest.Open, Batches: 10, Quick: !tier.All()})
	require.NoError(t, err)
	assert.True(t, r.OK)
	compared := 0
	for _, c := range r.Cases {
		assert.True(t, c.OK(), "%s: %s: %s %s %v", c.Claim, c.Name, c.Verdict, c.Detail, c.Difference)
		if c.Against != "" && c.Verdict != OK {
			compared++
			if !r.Devices[0].Kind.GPU() {
				assert.Equal(t, Equal, c.Verdict, c.Name)
			}
		}
	}
	const all, quick = 96, 15
	if tier.All() {
		assert.Equal(t, all, compared)
	} else {
		assert.Equal(t, quick, compared)
	}
	tier.Count(t, compared, all)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	assert.Empty(t, left)
}

const workerVariable = "GPUPIPE_VERIFY_TEST_WORKER" // is set in a process that serves a device

// TestMain runs the tests, or serves a device to one of them.
func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) == "" {
		os.Exit(m.Run())
	}
	if err := sidecar.Work(context.Background(), os.Stdin, os.Args[len(os.Args)-1], gputest.Open); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func openWorker(name string, silence time.Duration) (device.Device, error) {
	dev, err := sidecar.Open(sidecar.Options{Command: []string{os.Args[0]}, Env: []string{workerVariable + "=1"}, Device: name,
		Silence: silence})
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// Tensors that are rounded between stages have the same bits in worker processes.
func TestRoundedTensorsInProcesses(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r, err := Run(t.Context(), Options{Devices: []string{testdevice.Name}, OpenDevice: gputest.Open, OpenWorker: openWorker, Batches: 6,
		Filter: rounded})
	require.NoError(t, err)
	verdicts := map[Verdict]int{}
	for _, c := range r.Cases {
		assert.True(t, c.OK(), "%s: %s: %s %s %v", c.Claim, c.Name, c.Verdict, c.Detail, c.Difference)
		verdicts[c.Verdict]++
	}
	assert.Equal(t, map[Verdict]int{OK: 4, Equal: 4}, verdicts)
}

// One case of each invariant of the pipeline on every other backend, whose devices stay open from case to case: drivers
// take longer to compile than these cases to train. Package train tests that backends agree.
func TestOtherBackends(t *testing.T) {
	tier.Rest(t)
	for _, name := range gputest.Backends()[1:] {
		t.Run(name, func(t *testing.T) { verifyOneOfEach(t, name) })
	}
}

func verifyOneOfEach(t *testing.T, name string) {
	l := &lender{open: gputest.Open, devices: map[string][]device.Device{}}
	defer func() { assert.NoError(t, l.close()) }()
	var r Report
	kinds, err := r.kinds(l, []string{name})
	require.NoError(t, err)
	one := &trainer{lender: l, dir: t.TempDir(), batches: 6}
	require.NoError(t, one.writeText())
	checks := slices.DeleteFunc(one.plan(kinds, true), func(c check) bool {
		return !slices.ContainsFunc([]string{"1f1b, 2 stages", "muon, error feedback, tied, 2bw", "tied, 1 of 4 stale, 2bw", "depth 2"},
			func(part string) bool { return strings.Contains(c.Name, part) })
	})
	again := slices.IndexFunc(checks, func(c check) bool { return c.Claim == repeated })
	require.GreaterOrEqual(t, again, 0)
	checks = slices.Delete(append(checks, checks[again]), again, again+1) // it opens devices anew, so it comes last
	require.NoError(t, r.carryOut(t.Context(), checks, nil))
	claims := map[string]bool{}
	for _, c := range r.Cases {
		assert.True(t, c.OK(), "%s: %s: %s %s %v", c.Claim, c.Name, c.Verdict, c.Detail, c.Difference)
		if r.Devices[0].Kind == device.Software && c.Verdict != OK {
			assert.Equal(t, Equal, c.Verdict, c.Name)
		}
		claims[c.Claim] = true
	}
	assert.Equal(t, map[string]bool{synchronous: true, delayed: true, partlyStale: true, atDepth: true, resumed: true, repeated: true,
		sixteenBit: true, rounded: true}, claims)
}

// wrong is a device that flips one bit of a read.
type wrong struct {
	device.Device
	size int64 // of the reads in question, bytes
	left *int  // of them, up to the one that is altered
}

func (w wrong) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	p, err := w.Device.Read(b, offset, n)
	if n == w.size {
		if *w.left--; *w.left == 0 {
			p = flipped{p}
		}
	}
	return p, err
}

type flipped struct{ device.Pending }

func (f flipped) Wait() ([]byte, error) {
	b, err := f.Pending.Wait()
	if err == nil {
		b[1] ^= 0x80 // a change of less than a hundredth
	}
	return b, err
}

// A small error in one activation of a run is reported.
func TestOneWrongBitIsReported(t *testing.T) {
	const activations = 4 * 3 * 16 * 32 // bytes: 3 sequences of 16 tokens
	left := 2*4 + 3                     // the first stage reads them for the second, 4 a batch
	opened := map[string]bool{}         // the second device of a name, which is the second stage, alters none
	open := func(name string) (device.Device, error) {
		dev, err := gputest.Open(name)
		if opened[name] || err != nil {
			return dev, err
		}
		opened[name] = true
		return wrong{dev, activations, &left}, nil
	}
	r, err := Run(context.Background(), Options{Devices: []string{testdevice.Name}, OpenDevice: open, Batches: 6, Quick: true,
		Filter: "1f1b"})
	require.NoError(t, err)
	assert.False(t, r.OK)
	require.NotEmpty(t, r.Cases)
	c := r.Cases[0]
	assert.Equal(t, Differs, c.Verdict)
	require.NotNil(t, c.Difference)
	assert.Equal(t, 3, c.Difference.Batch, "%v", c.Difference)
	assert.Equal(t, "model.embed_tokens.weight", c.Difference.Tensor)
	assert.Positive(t, c.Difference.Count)
}

// Runs on a device that computes nothing are equal but do not pass.
func TestDeviceThatComputesNothingFails(t *testing.T) {
	open := func(string) (device.Device, error) { return null.New(null.Options{}), nil }
	r, err := Run(context.Background(), Options{OpenDevice: open, Batches: 6, Quick: true, Filter: "1 stage learns"})
	require.NoError(t, err)
	require.Len(t, r.Cases, 1)
	assert.Equal(t, Failed, r.Cases[0].Verdict)
	assert.Contains(t, r.Cases[0].Detail, "expected a falling loss")
	assert.False(t, r.OK)
}

func TestRefusedConfigs(t *testing.T) {
	failing := func(name string) (device.Device, error) { return nil, fmt.Errorf("no %q", name) }
	_, err := Run(context.Background(), Options{OpenDevice: failing, Devices: []string{"a"}})
	assert.ErrorContains(t, err, `no "a"`)
	open := func(string) (device.Device, error) { return null.New(null.Options{}), nil }
	_, err = Run(context.Background(), Options{OpenDevice: open, Filter: "nothing"})
	assert.ErrorContains(t, err, `--filter: no case contains "nothing"`)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Run(ctx, Options{OpenDevice: open})
	assert.ErrorIs(t, err, context.Canceled)
}

// badged is a device with another name.
type badged struct {
	device.Device
	name, adapter string
}

func (b badged) Info() device.Info {
	return device.Info{Name: b.name, Adapter: b.adapter, Kind: device.Discrete}
}

// Devices of one kind are verified together, and each kind apart. Mixed kinds need not agree to the last bit.
func TestKindsOfDevices(t *testing.T) {
	makes := map[string]string{"a:0": "red", "a:1": "blue", "a:2": "red"}
	l := &lender{devices: map[string][]device.Device{}, open: func(name string) (device.Device, error) {
		return badged{null.New(null.Options{}), name, makes[name]}, nil
	}}
	var r Report
	kinds, err := r.kinds(l, []string{"a:0", "a:1", "a:2", "a:0"})
	require.NoError(t, err)
	assert.Equal(t, []kind{{"a:0 red", []string{"a:0", "a:2", "a:0"}}, {"a:1 blue", []string{"a:1"}}}, kinds)
	assert.Len(t, r.Devices, 4)
	trainer := &trainer{lender: l, dir: t.TempDir(), batches: 6}
	alone, both := trainer.plan(kinds[:1], false), trainer.plan(kinds, false)
	assert.Len(t, both, 2*len(alone)+3)
	assert.Empty(t, alone[0].Device)
	assert.Equal(t, "a:0 red", both[0].Device)
	assert.Equal(t, "a:1 blue", both[len(alone)].Device)
	for i, name := range []string{"delay 1 on a:1 blue", "2 stages of all kinds", "opened anew"} {
		c := both[2*len(alone)+i]
		assert.Contains(t, c.Name, name)
		assert.Empty(t, c.Device)
	}
	require.NoError(t, l.close())
}

// Every setting is a valid config for any number of devices.
func TestSettings(t *testing.T) {
	trainer := &trainer{dir: t.TempDir(), batches: 6}
	require.NoError(t, trainer.writeText())
	devices := []string{"webgpu:0", "null"}
	for _, s := range []setting{undelayed("muon", true), on2BW(delayedBy("adamw", "error_feedback", false), 4)} {
		c := trainer.config(s, "x")
		assert.Empty(t, c.Pipeline.Devices)
		assert.Equal(t, clip, c.Train.GradClip)
		assert.Equal(t, devices[:min(2, c.Pipeline.Stages)], trainer.config(s.on(devices), "x").Pipeline.Devices)
	}
}

func result(losses []float64, values ...float32) *outcome {
	o := &outcome{}
	for i, l := range losses {
		o.records = append(o.records, metrics.Record{Step: i + 1, Values: map[string]float64{"loss": l, "grad_norm": 1}})
	}
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	o.tensors = []tensor{{safetensors.Tensor{Name: "w", DType: safetensors.F32, Shape: []int{2, len(values) / 2}}, data}}
	return o
}

func TestDifference(t *testing.T) {
	a := result([]float64{3, 2}, 0, 1, 2, 3)
	assert.Nil(t, difference(a, result([]float64{3, 2}, 0, 1, 2, 3)))
	d := difference(a, result([]float64{3, 2.5}, 0, 1, -2, 3.5))
	assert.Equal(t, &Difference{Batch: 2, Tensor: "w", Element: []int{1, 0}, Want: "2", Got: "-2", Count: 2, Of: 4, Tensors: 1}, d)
	assert.Equal(t, "from batch 2 on; w[1 0]: found -2, expected 2; 2 of its 4 elements differ, and 1 tensors", d.String())
	zero := difference(a, result([]float64{3, 2}, float32(math.Copysign(0, -1)), 1, 2, 3))
	assert.Equal(t, "-0", zero.Got, "bits, not values")
	assert.Equal(t, "from batch 1 on; found loss 4, expected loss 3", difference(a, result([]float64{4, 2}, 0, 1, 2, 3)).String())
	assert.Equal(t, 2, difference(a, result([]float64{3}, 0, 1, 2, 3)).Batch)
	assert.Equal(t, "w", difference(a, result([]float64{3, 2}, 0, 1)).Tensor, "of another shape")
	none := result([]float64{3, 2})
	none.tensors = nil
	assert.NotNil(t, difference(a, none))
	assert.NotNil(t, difference(none, a))
}

func TestJudging(t *testing.T) {
	a, b := result([]float64{3, 2}, 0, 1), result([]float64{3, 2.001}, 0, 1)
	var c Case
	c.judge(a, b, 0)
	assert.Equal(t, Differs, c.Verdict)
	c.judge(a, b, rounding)
	assert.Equal(t, Close, c.Verdict)
	assert.Nil(t, c.Difference)
	for _, loss := range []float64{2.1, math.NaN(), math.Inf(1)} {
		c.judge(a, result([]float64{3, loss}, 0, 1), rounding)
		assert.Equal(t, Differs, c.Verdict, loss)
	}
	assert.False(t, c.OK())
	c.judge(a, a, rounding)
	assert.Equal(t, Equal, c.Verdict)
}

// A run is stopped in the middle even where the device is done with all batches before the first step is reported.
func TestFastDeviceIsStopped(t *testing.T) {
	l := &lender{open: func(string) (device.Device, error) { return null.New(null.Options{}), nil }, devices: map[string][]device.Device{}}
	defer func() { assert.NoError(t, l.close()) }()
	fast := &trainer{lender: l, dir: t.TempDir(), batches: 6}
	require.NoError(t, fast.writeText())
	s := setting{name: "1 stage", devices: []string{"null:0"}}
	for range 5 {
		var c Case
		require.NoError(t, fast.interrupted(t.Context(), &c, s, s, s))
		assert.Equal(t, Equal, c.Verdict)
		assert.Equal(t, "stopped after batch 3", c.Detail)
	}
}
