package profile_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func kernel(scope, ops string, flops float64, bytes int64) exec.KernelInfo {
	return exec.KernelInfo{Label: scope + ": " + ops, Scope: scope, Candidate: "tiled", Flops: flops, Bytes: bytes}
}

// example is two steps of a model of eleven layers.
func example() *profile.Profile {
	var forward, backward, update []exec.KernelInfo
	forward = append(forward, kernel("embed", "embedding", 0, 4000))
	for i := range 11 {
		at := fmt.Sprintf("layers.%d", i)
		forward = append(forward, kernel(at, "matmul", 2e6, 1000), kernel(at, "square sum", 0, 8000))
		backward = append(backward, kernel(at+" backward", "matmul <add>", 2e6, 1000), kernel(at+" weights", "matmul", 2e6, 3000))
		update = append(update, kernel("optim "+at, "mul add where", 0, 20000))
	}
	times := func(kernels []exec.KernelInfo, each, copies time.Duration) exec.Times {
		t := exec.Times{Copies: copies}
		for range kernels {
			t.Kernels = append(t.Kernels, each)
		}
		return t
	}
	r := profile.NewRecorder("stage 0", device.Info{Name: "null:0", Adapter: "an <adapter>"}, profile.Peak{GFLOPS: 1000, GBps: 10})
	for range 2 {
		r.Add("forward", forward, times(forward, 10*time.Microsecond, time.Microsecond))
		r.Add("backward", backward, times(backward, 20*time.Microsecond, 0))
		r.Add("update", update, times(update, 4*time.Microsecond, 3*time.Microsecond))
	}
	return &profile.Profile{Title: "a <run>", Steps: 2, Ranks: []profile.Rank{r.Rank()}}
}

func TestSums(t *testing.T) {
	l := example().Ranks[0]
	assert.InDelta(t, 2*(23*10+1+22*20+11*4+3), l.DurationMicros, 1e-9)
	assert.InDelta(t, 2*4, l.Copies, 1e-9)
	var programs, phases, layers, kernels float64
	for i, p := range l.Programs {
		assert.Equal(t, []string{"forward", "backward", "update"}[i], p.Name)
		assert.Equal(t, 2, p.Calls)
		programs += p.Share
	}
	for i, p := range l.Phases {
		assert.Equal(t, []string{profile.Forward, profile.Backward, profile.Weights, profile.Optimizer, profile.Copies}[i], p.Name)
		phases += p.Share
	}
	for i, x := range l.Layers {
		want := "embed"
		if i > 0 {
			want = fmt.Sprint("layers.", i-1)
			assert.InDelta(t, 2*(2*10+2*20+4), x.DurationMicros, 1e-9)
			assert.Len(t, x.Phases, 4)
		}
		assert.Equal(t, want, x.Name)
		layers += x.DurationMicros
	}
	for _, k := range l.Kernels {
		kernels += k.DurationMicros
	}
	assert.InDelta(t, 1, programs, 1e-9)
	assert.InDelta(t, 1, phases, 1e-9)
	assert.InDelta(t, l.DurationMicros-l.Copies, layers, 1e-9)
	assert.InDelta(t, l.DurationMicros-l.Copies, kernels, 1e-9)
}

func TestRates(t *testing.T) {
	l := example().Ranks[0]
	found := map[string]profile.Kernel{}
	for _, k := range l.Kernels {
		assert.Equal(t, 2, k.Calls, k.Label)
		found[k.Label] = k
	}
	product := found["layers.3: matmul"] // 2e6 in 10 µs
	assert.InDelta(t, 200, product.GFLOPS, 1e-9)
	assert.InDelta(t, 0.1, product.GBps, 1e-9)
	assert.InDelta(t, 0.2, product.OfPeak, 1e-9)
	assert.Equal(t, "compute", product.Bound)
	norm := found["layers.3: square sum"] // 8000 bytes in 10 µs
	assert.Zero(t, norm.GFLOPS)
	assert.InDelta(t, 0.08, norm.OfPeak, 1e-9)
	assert.Equal(t, "memory", norm.Bound)
	assert.Equal(t, profile.Optimizer, found["optim layers.10: mul add where"].Phase)

	alike := l.Alike()
	assert.Len(t, alike, 6)
	assert.Equal(t, "backward", alike[0].Program)
	assert.Contains(t, alike[0].Label, "layers.*")
	assert.Equal(t, 22, alike[0].Calls)
	assert.InDelta(t, 2*11*20, alike[0].DurationMicros, 1e-9)
	for _, k := range alike {
		if k.Label == "layers.*: matmul" {
			assert.InDelta(t, 200, k.GFLOPS, 1e-9, "as each of them")
		}
	}
}

func TestNothingMeasuredIsNothingWrong(t *testing.T) {
	r := profile.NewRecorder("stage 0", device.Info{}, profile.Peak{})
	k := []exec.KernelInfo{kernel("head", "matmul", 5, 5)}
	r.Add("forward", k, exec.Times{Kernels: make([]time.Duration, 1)})
	p := &profile.Profile{Ranks: []profile.Rank{r.Rank(), profile.NewRecorder("stage 1", device.Info{}, profile.Peak{}).Rank()}}
	text, err := json.Marshal(p)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "NaN")
	assert.NoError(t, p.HTML(&strings.Builder{}))
	assert.NoError(t, p.Print(&strings.Builder{}, 0))
}

func TestPageAndTables(t *testing.T) {
	p := example()
	var page, text strings.Builder
	require.NoError(t, p.HTML(&page))
	assert.NotContains(t, page.String(), "<run>", "names are text")
	assert.NotContains(t, page.String(), "<adapter>")
	assert.NotContains(t, page.String(), "ZgotmplZ", "what the template thinks unsafe")
	assert.Contains(t, page.String(), "layers.10: matmul")
	assert.NotRegexp(t, `(src|href)="[^#"]`, page.String(), "the page needs nothing else")
	assert.Equal(t, 1+11*4, strings.Count(page.String(), "<rect"))
	require.NoError(t, p.Print(&text, 0))
	for _, want := range []string{"stage 0 on null:0: an <adapter>\n718 µs a step", "1000 GFLOP/s, 10 GB/s", "backward  61.3 %", "20 % c"} {
		assert.Contains(t, text.String(), want)
	}
	var back profile.Profile
	out, err := json.Marshal(p)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &back))
	assert.Equal(t, p.Ranks, back.Ranks)
}

func TestShare(t *testing.T) {
	p := profile.Peak{GFLOPS: 100, GBps: 10}
	for _, c := range []struct {
		gflops, gbps, of float64
		bound            string
	}{
		{50, 4, 0.5, "compute"}, {50, 6, 0.6, "memory"}, {104, 5, 1, "compute"}, {50, 60, 0.5, "compute"}, {400, 6, 0.6, "memory"},
		{400, 60, 0, ""}, {0, 0, 0, ""},
	} {
		of, bound := p.Share(c.gflops, c.gbps)
		assert.Equal(t, c.of, of, "%+v", c)
		assert.Equal(t, c.bound, bound, "%+v", c)
	}
	of, bound := profile.Peak{}.Share(1, 1)
	assert.Zero(t, of)
	assert.Empty(t, bound)
}
