package op_test

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// compute evaluates the one value that f builds from constants.
func compute(t *testing.T, f func(b *graph.Builder) *graph.Value) *graph.Tensor {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) { b.Output("y", f(b)) })
	require.NoError(t, err)
	out, err := eval.Run(g, nil, nil)
	require.NoError(t, err)
	return out["y"]
}

func f32(b *graph.Builder, name string, data ...float64) *graph.Value {
	return b.Constant(name, graph.T(graph.F32, len(data)), data)
}

func u32(b *graph.Builder, name string, data ...float64) *graph.Value {
	return b.Constant(name, graph.T(graph.U32, len(data)), data)
}

// The vectors are those published with Random123.
func TestThreefryKnownAnswers(t *testing.T) {
	const m = math.MaxUint32
	assert.Equal(t, [2]uint32{0x6b200159, 0x99ba4efe}, op.Threefry([2]uint32{0, 0}, [2]uint32{0, 0}))
	assert.Equal(t, [2]uint32{0x1cb996fc, 0xbb002be7}, op.Threefry([2]uint32{m, m}, [2]uint32{m, m}))
	assert.Equal(t, [2]uint32{0xc4923a9c, 0x483df7a0},
		op.Threefry([2]uint32{0x13198a2e, 0x03707344}, [2]uint32{0x243f6a88, 0x85a308d3}))
}

func TestRandomDistributions(t *testing.T) {
	const n = 100000
	bits := func(key float64) []float64 {
		return compute(t, func(b *graph.Builder) *graph.Value { return op.RandomBits(b, u32(b, "key", 1, key), n) }).Data
	}
	u := bits(2)
	mean, variance := stat.MeanVariance(u, nil)
	assert.InDelta(t, 0.5, mean/(1<<32), 0.004)
	assert.InDelta(t, 1.0/12, variance/(1<<32)/(1<<32), 0.001)
	d := compute(t, func(b *graph.Builder) *graph.Value {
		return op.Dropout(op.Full(b, graph.F32, 1, n), u32(b, "key", 1, 2), 0.3)
	}).Data
	assert.InDelta(t, 1, stat.Mean(d, nil), 0.01)
	assert.InDelta(t, 0, stat.Correlation(u, bits(3), nil), 0.015)
}

// Initial weights are a promise: these bits never change.
func TestInitNormal(t *testing.T) {
	w := op.InitNormal(1, "model.embed", 100001, 0.02)
	z := make([]float64, len(w))
	for i, x := range w {
		z[i] = float64(x) / 0.02
	}
	mean, variance := stat.MeanVariance(z, nil)
	assert.InDelta(t, 0, mean, 0.015)
	assert.InDelta(t, 1, variance, 0.02)
	below := 0.0
	for _, x := range z {
		if x < -1.5 {
			below++
		}
	}
	assert.InDelta(t, distuv.UnitNormal.CDF(-1.5), below/float64(len(z)), 0.003)
	assert.Equal(t, w[:7], op.InitNormal(1, "model.embed", 7, 0.02), "a prefix")
	assert.NotEqual(t, w[:7], op.InitNormal(2, "model.embed", 7, 0.02), "another seed")
	assert.NotEqual(t, w[:7], op.InitNormal(1, "model.head", 7, 0.02), "another name")

	// The same from the exact quantile: float32 rounding is all that may differ.
	key := op.Threefry([2]uint32{5, 1}, [2]uint32{fnvLow, fnvHigh})
	got := op.InitNormal(1<<32|5, "a", 2000, 1)
	for i, x := range got {
		block := op.Threefry(key, [2]uint32{uint32(i / 2), 0})
		want := distuv.UnitNormal.Quantile((float64(block[i%2]) + 0.5) / (1 << 32))
		require.InEpsilon(t, want, float64(x), 1e-7, "element %d", i)
	}
	assert.Equal(t, goldenInit, op.InitNormal(1, "w", 4, 0.02))
}

var goldenInit = []float32{-2.5350242e-05, 0.020550799, -0.0027215292, 0.017613297}

// FNV-1a of "a".
const fnvLow, fnvHigh = 0x8601ec8c, 0xaf63dc4c

func TestRoPETables(t *testing.T) {
	cos, sin := op.RoPETables(10000, 5, 8, op.RoPEScaling{})
	require.Len(t, cos, 20)
	angle := 3 * math.Pow(10000, -2.0*2/8)
	assert.InDelta(t, math.Cos(angle), cos[3*4+2], 1e-15)
	assert.InDelta(t, math.Sin(angle), sin[3*4+2], 1e-15)
}

// The frequencies are those that transformers 5.23 computes in f32 (ROPE_INIT_FUNCTIONS["llama3"] and ["yarn"]).
func TestRoPEScaling(t *testing.T) {
	for _, c := range []struct {
		theta       float64
		scaling     op.RoPEScaling
		frequencies []float64
	}{
		{500000, op.RoPEScaling{Factor: 8, Low: 1, High: 4, Original: 8192},
			[]float64{1, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06}},
		{10000, op.RoPEScaling{Factor: 32, Low: 1, High: 4, Original: 64},
			[]float64{1, 0.0363949612, 0.000784964475, 0.000124408456, 1.97174159e-05}},
		{1e6, op.RoPEScaling{Factor: 2, Low: 0.5, High: 3, Original: 256},
			[]float64{1, 0.099999994, 0.00499999942, 0.000500000024, 4.99999842e-05, 5.00000169e-06}},
		{500000, op.RoPEScaling{Factor: 8, Low: 1, High: 32, Original: 8192, YaRN: true, Attention: 1.2},
			[]float64{1, 0.193922758, 0.0376060307, 0.00516563747, 0.000589255593, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06}},
		{10000, op.RoPEScaling{Factor: 4, Low: 2, High: 16, Original: 64, YaRN: true, Attention: 1.5},
			[]float64{1, 0.0396223292, 0.0062797158, 0.000995267648, 0.000157739327}},
		{100, op.RoPEScaling{Factor: 2, Low: 1.9, High: 2, Original: 24, YaRN: true, Attention: 1},
			[]float64{1, 0.107721724, 0.023207942}},
	} {
		half := len(c.frequencies)
		cos, sin := op.RoPETables(c.theta, 2, 2*half, c.scaling)
		for i, f := range c.frequencies {
			assert.InEpsilon(t, f, math.Atan2(sin[half+i], cos[half+i]), 5e-7, "frequency %d of theta %v", i, c.theta)
			assert.InDelta(t, max(c.scaling.Attention, 1), math.Hypot(sin[half+i], cos[half+i]), 1e-12)
		}
	}
}

// A sequence continued at a position equals the tail of the whole.
func TestRoPEPosition(t *testing.T) {
	cos, sin := op.RoPETables(10000, 9, 4, op.RoPEScaling{})
	x := graph.Case{Inputs: []graph.Type{graph.T(graph.F32, 1, 8, 2, 4)}}.Values(1)[0]
	rotate := func(from int) []float64 {
		return compute(t, func(b *graph.Builder) *graph.Value {
			c := b.Constant("cos", graph.T(graph.F32, 9, 2), cos)
			s := b.Constant("sin", graph.T(graph.F32, 9, 2), sin)
			v := b.Constant("x", x.Type, x.Data)
			if from == 0 {
				return op.RoPE(v, c, s, nil)
			}
			return op.RoPE(op.Slice(v, 1, from, 8), c, s, u32(b, "p", float64(from)))
		}).Data
	}
	assert.Equal(t, rotate(0)[5*8:], rotate(5))
}

func TestTiesShareTheGradient(t *testing.T) {
	for name, f := range map[string]func(x, y *graph.Value) *graph.Value{
		"maximum": op.Maximum, "minimum": op.Minimum,
		"max": func(x, y *graph.Value) *graph.Value { return op.ReduceMax(op.Concat(0, x, y), nil, false) },
		"min": func(x, y *graph.Value) *graph.Value { return op.ReduceMin(op.Concat(0, x, y), nil, false) },
	} {
		d := compute(t, func(b *graph.Builder) *graph.Value {
			x, y := f32(b, "x", 2), f32(b, "y", 2)
			return op.Concat(0, autodiff.Gradients(f(x, y), nil, x, y)...)
		})
		assert.Equal(t, []float64{0.5, 0.5}, d.Data, name)
	}
}

func TestSaturation(t *testing.T) {
	at := []float64{-1e30, -100, 0, 100, 1e30}
	for name, c := range map[string]struct {
		f    func(*graph.Value) *graph.Value
		want []float64
	}{
		"tanh":    {op.Tanh, []float64{-1, -1, 0, 1, 1}},
		"sigmoid": {op.Sigmoid, []float64{0, 0, 0.5, 1, 1}},
		"erf":     {op.Erf, []float64{-1, -1, 0, 1, 1}},
		"gelu":    {op.GELU, []float64{0, 0, 0, 100, 1e30}},
		"silu":    {op.SiLU, []float64{0, 0, 0, 100, 1e30}},
	} {
		y := compute(t, func(b *graph.Builder) *graph.Value { return c.f(f32(b, "x", at...)) })
		assert.InDeltaSlice(t, c.want, y.Data, 1e-40, name)
	}
}

func TestBroadcasting(t *testing.T) {
	y := compute(t, func(b *graph.Builder) *graph.Value {
		return op.Add(op.Reshape(f32(b, "x", 10, 20), 2, 1), f32(b, "y", 1, 2, 3))
	})
	assert.Equal(t, graph.Shape{2, 3}, y.Shape)
	assert.Equal(t, []float64{11, 12, 13, 21, 22, 23}, y.Data)
}

func TestCrossEntropyCounts(t *testing.T) {
	for _, part := range []int{0, 1} {
		y := compute(t, func(b *graph.Builder) *graph.Value {
			logits := b.Constant("l", graph.T(graph.F32, 3, 2), []float64{1, 1, math.NaN(), 2, 0, 5})
			per, counted := op.CrossEntropy(logits, u32(b, "t", 0, 7, 1), op.CrossEntropyOptions{
				Weights: f32(b, "w", 2, 3, 0), Ignore: 7, ZLoss: 0.5,
			})
			return []*graph.Value{per, counted}[part]
		})
		lse := 1 + math.Ln2
		want := [][]float64{{2 * (math.Ln2 + 0.5*lse*lse), 0, 0}, {2, 0, 0}}[part]
		assert.InDeltaSlice(t, want, y.Data, 1e-14)
	}
}
