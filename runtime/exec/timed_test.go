package exec_test

import (
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ticking is a device whose i-th command takes 1<<i nanoseconds.
type ticking struct{ *null.Device }

type ticks []time.Duration

func (t ticks) Wait() ([]time.Duration, error) { return t, nil }

func (d ticking) RunTimed(l device.Loaded) (device.Timings, error) {
	m, err := d.Device.RunTimed(l)
	if err != nil {
		return nil, err
	}
	t, err := m.Wait()
	for i := range t {
		t[i] = 1 << i
	}
	return ticks(t), err
}

// untimed is a device without timestamps.
type untimed struct{ device.Device }

// passes takes the candidate that has most.
type passes struct{}

func (passes) Choose(_ device.Device, _ string, ks []shaders.Kernel, _ int) (int, error) {
	most := 0
	for i, k := range ks {
		if len(k.Passes) > len(ks[most].Passes) {
			most = i
		}
	}
	return most, nil
}

// profiled is a table looked up, a product with much to sum, joined with a part of itself, and attention.
func profiled(t *testing.T) *graph.Graph {
	g, err := graph.Build(func(b *graph.Builder) {
		table, ids := b.Variable("table", graph.T(graph.F32, 1000, 16)), b.Input("ids", graph.T(graph.U32, 1, 8))
		x, w := b.Input("x", graph.T(graph.F32, 24, 4096)), b.Variable("w", graph.T(graph.F32, 4096, 16))
		q := op.Reshape(op.Embedding(table, ids), 1, 8, 2, 8)
		y := op.MatMul(x, w, false, false)
		b.Output("o", op.Attention(q, q, q, nil))
		b.Output("y", op.Concat(0, y, y))
		b.Output("part", op.Exp(op.Slice(y, 0, 8, 16)))
	})
	require.NoError(t, err)
	return g
}

func TestPassesOfAKernelAreSummed(t *testing.T) {
	dev := ticking{null.New(null.Options{})}
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"p": profiled(t)}, exec.Options{Tune: passes{}})
	require.NoError(t, err)
	kernels, err := plan.Chosen("p")
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	m, err := s.RunTimed("p", nil)
	require.NoError(t, err)
	times, err := m.Wait()
	require.NoError(t, err)
	require.Len(t, times.Kernels, len(kernels))
	at, several := 0, 0
	for i, k := range kernels {
		n := len(k.Passes) + len(k.Parts)
		assert.EqualValues(t, (1<<n-1)<<at, times.Kernels[i], "%s: bits %d to %d", plan.Kernels("p")[i].Label, at, at+n-1)
		if at += n; n > 1 {
			several++
		}
	}
	assert.Positive(t, several)
	assert.EqualValues(t, (1<<3-1)<<at, times.Copies, "three outputs")
	assert.EqualValues(t, 1<<(at+3)-1, times.Total())

	plan, err = exec.NewPlan(untimed{dev}, map[string]*graph.Graph{"p": profiled(t)}, exec.Options{})
	require.NoError(t, err)
	u, err := plan.Load()
	require.NoError(t, err)
	_, err = u.RunTimed("p", nil)
	assert.ErrorIs(t, err, device.ErrNoTimestamps)
	assert.ErrorContains(t, err, `null:0: run "p"`)
	_, err = u.RunTimed("q", nil)
	assert.ErrorContains(t, err, `no program "q"`)
	require.NoError(t, u.Close())
}

// The work of a kernel that profiles report.
func TestWorkOfKernels(t *testing.T) {
	dev := null.New(null.Options{})
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"p": profiled(t)}, exec.Options{Tune: &nth{n: 0}})
	require.NoError(t, err)
	found := map[string]exec.KernelInfo{}
	for _, k := range plan.Kernels("p") {
		found[k.Label] = k
	}
	split, err := exec.NewPlan(dev, map[string]*graph.Graph{"p": profiled(t)}, exec.Options{Tune: passes{}})
	require.NoError(t, err)
	for i, k := range split.Kernels("p") {
		if k.Label == "matmul" {
			chosen, err := split.Chosen("p")
			require.NoError(t, err)
			require.NotEmpty(t, chosen[i].Scratch)
			want := found["matmul"].Bytes
			for _, n := range chosen[i].Scratch {
				want += 2 * n
			}
			assert.Equal(t, want, k.Bytes, "scratch is written, and read again")
		}
	}
	const pairs = 8 * 9 / 2
	for label, want := range map[string]exec.KernelInfo{
		"embedding": {Bytes: 4 * (8 + 8*16 + 8*16)}, // rows of the table that are looked up, not all of it
		"matmul":    {Bytes: 4 * (24*4096 + 4096*16 + 24*16), Flops: 2 * 24 * 4096 * 16},
		"attention": {Bytes: 4 * (8*16 + 8*16 + 2*8), Flops: 2 * 2 * 2 * 8 * pairs}, // q, k and v are one array here
		"exp":       {Bytes: 4 * 2 * 8 * 16},                                        // of half the product
	} {
		k, ok := found[label]
		if assert.True(t, ok, "%s is none of %v", label, found) {
			assert.Equal(t, want.Flops, k.Flops, label)
			assert.Equal(t, want.Bytes, k.Bytes, label)
		}
	}
}

// On a device with a clock the results are those of Run.
func TestTimedRunOnADevice(t *testing.T) {
	dev := testdevice.Device(t)
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"p": profiled(t)}, exec.Options{})
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	for i, name := range []string{"table", "w"} {
		require.NoError(t, s.WriteVariable(name, exec.F32Bytes(waves([]int{16000, 65536}[i]))))
	}
	require.NoError(t, s.SetInput("p", "x", exec.F32Bytes(waves(24*4096))))
	outputs := func() (bytes []byte) {
		for _, name := range []string{"o", "y", "part"} {
			p, err := s.Output("p", name)
			require.NoError(t, err)
			b, err := p.Wait()
			require.NoError(t, err)
			bytes = append(bytes, b...)
		}
		return bytes
	}
	require.NoError(t, s.Run("p"))
	want := outputs()
	m, err := s.RunTimed("p", nil)
	require.NoError(t, err)
	times, err := m.Wait()
	require.NoError(t, err)
	assert.Equal(t, want, outputs())
	assert.Positive(t, times.Total())
	for i, k := range s.Kernels("p") {
		assert.Positive(t, times.Kernels[i], k.Label)
	}
}

func waves(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%97)/97 - 0.5
	}
	return x
}
