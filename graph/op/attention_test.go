package op_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func reals(shape ...int) graph.Type { return graph.T(graph.F32, shape...) }

// TestAttentionFitsLimits looks at every variant for all sorts of sizes: bindings, workgroup memory and invocations
// that WebGPU guarantees, scratch memory linear in the sequence length, vectors only of whole fours.
func TestAttentionFitsLimits(t *testing.T) {
	var dims []int
	for dim := range 256 {
		dims = append(dims, dim+1)
	}
	for _, dim := range tier.Some(t, dims, func(_, dim int) bool { return dim%48 == 16 || dim%37 == 0 }) {
		q, kv, lse := reals(2, 300, 6, dim), reals(2, 300, 2, dim), reals(2, 6, 300)
		segments := graph.T(graph.U32, 2, 300)
		for _, c := range []graph.Case{
			{Op: new(op.AttentionOp), Inputs: []graph.Type{q, kv, kv}},
			{Op: &op.AttentionOp{Form: op.FromPosition}, Inputs: []graph.Type{q, kv, kv, graph.T(graph.U32, 1)}},
			{Op: new(op.AttentionGradOp), Inputs: []graph.Type{q, kv, kv, q, lse, q, lse}},
			{Op: &op.AttentionOp{Form: op.WithinSegments}, Inputs: []graph.Type{q, kv, kv, segments}},
			{Op: &op.AttentionGradOp{Segments: true}, Inputs: []graph.Type{q, kv, kv, q, lse, q, segments}},
			{Op: &op.AttentionGradOp{Segments: true, Window: 70}, Inputs: []graph.Type{q, kv, kv, q, lse, q, lse, segments}},
			{Op: &op.AttentionOp{Form: op.WithinSegments}, Inputs: []graph.Type{half(q), half(kv), half(kv), segments}},
			{Op: &op.AttentionGradOp{Segments: true}, Inputs: []graph.Type{half(q), half(kv), half(kv), q, lse, q, lse, segments}},
			{Op: &op.AttentionOp{Form: op.WithinSegments, Result: graph.F16, Window: 70},
				Inputs: []graph.Type{half(q), half(kv), half(kv), segments}},
			{Op: &op.AttentionGradOp{Segments: true}, Inputs: []graph.Type{half(q), half(kv), half(kv), half(q), lse, q, lse, segments}},
		} {
			if o, ok := c.Op.(*op.AttentionOp); dim%4 != 0 && (ok && o.Result.Float16() || !ok && c.Inputs[3].DType.Float16()) {
				continue // refused
			}
			for _, software := range []bool{false, true} {
				limits := target.Limits{MaxInvocations: 256, MaxWorkgroupMemory: 16384, Software: software, SubgroupSize: 32,
					Cooperative: []target.CooperativeMatrix{{M: 16, N: 16, K: 16, Input: "f16", Result: "f32"}}}
				variants := c.Op.Kernel(nodeFor(t, c)).(graph.Template).Variants(limits)
				assert.Equal(t, "naive", variants[0].Name)
				byMatrices := c.Inputs[0].DType == graph.F16 && dim%16 == 0 && dim <= 128
				if c.Op.Name() == "attention_grad" { // which takes more memory
					byMatrices = byMatrices && dim <= 80
				}
				assert.Equal(t, byMatrices, variants[len(variants)-1].Name == "matrices", "%s of dimension %d", c.Op.Name(), dim)
				if dim%4 == 0 && (len(c.Inputs) != 4 || c.Inputs[3].Shape[0] == 2) { // that is, without a position
					assert.True(t, slices.ContainsFunc(variants,
						func(c graph.Variant) bool { return c.Name == map[bool]string{true: "rows", false: "tiles"}[software] }), dim)
				}
				limits.SubgroupSize = 8
				narrow := c.Op.Kernel(nodeFor(t, c)).(graph.Template).Variants(limits)
				assert.NotEqual(t, "matrices", narrow[len(narrow)-1].Name, "a subgroup of 8 has no room")
				for _, candidate := range variants {
					for _, s := range candidate.Scratch {
						assert.LessOrEqual(t, s.Shape.Len(), 2*lse.Shape.Len())
					}
					for _, p := range candidate.Passes {
						name := fmt.Sprintf("%s of dimension %d, %s", c.Op.Name(), dim, candidate.Name)
						assert.LessOrEqual(t, len(p.Uses), 8, name)
						rounded := 0
						if p.Cooperative == nil { // that may be WebGPU's, which counts each variable as a multiple of 16 bytes
							rounded = 12 * strings.Count(p.Declarations, "var<workgroup>")
						}
						assert.LessOrEqual(t, p.WorkgroupMemory+rounded, 16384, name)
						assert.LessOrEqual(t, p.Workgroup, 256, name)
						assert.Positive(t, p.Groups, name)
						assert.Subset(t, p.Uses, p.Vec4, name)
						if dim%4 != 0 {
							assert.Empty(t, p.Vec4, name)
						}
					}
				}
			}
		}
	}
}

func half(t graph.Type) graph.Type { return graph.T(graph.F16, t.Shape...) }

func nodeFor(t *testing.T, c graph.Case) (n *graph.Node) {
	_, err := graph.Build(func(b *graph.Builder) {
		var in []*graph.Value
		for i, typ := range c.Inputs {
			in = append(in, b.Input(fmt.Sprint(i), typ))
		}
		n = b.Apply(c.Op, in...)[0].Node
	})
	require.NoError(t, err)
	return n
}

// TestAttentionDecodes computes the last queries with a cache, and finds what the whole sequence gave.
func TestAttentionDecodes(t *testing.T) {
	for _, window := range []int{0, 1, 3, 9, 100} {
		checkAttentionDecodes(t, window)
	}
}

func checkAttentionDecodes(t *testing.T, window int) {
	const length, heads, dim, last, cache = 9, 4, 5, 2, 12
	at := func(i int) float64 { return math.Sin(float64(i * i)) }
	whole := []*graph.Tensor{graph.NewTensor(reals(1, length, heads, dim)), graph.NewTensor(reals(1, length, 2, dim)),
		graph.NewTensor(reals(1, length, 2, dim))}
	for i, x := range whole {
		for j := range x.Data {
			x.Data[j] = at(1000*i + j)
		}
	}
	part := []*graph.Tensor{graph.NewTensor(reals(1, last, heads, dim)), graph.NewTensor(reals(1, cache, 2, dim)),
		graph.NewTensor(reals(1, cache, 2, dim)), graph.NewTensor(graph.T(graph.U32, 1))}
	copy(part[0].Data, whole[0].Data[(length-last)*heads*dim:])
	for i := 1; i <= 2; i++ {
		for j := range part[i].Data {
			part[i].Data[j] = math.NaN() // what the cache does not hold yet is not looked at
		}
		copy(part[i].Data, whole[i].Data)
		if forgotten := length - last + 1 - window; window > 0 && forgotten > 0 {
			for j := range forgotten * 2 * dim {
				part[i].Data[j] = math.NaN() // nor is what no query sees
			}
		}
	}
	part[3].Data[0] = length - last
	run := func(in []*graph.Tensor) []float64 {
		out := []*graph.Tensor{graph.NewTensor(in[0].Type), graph.NewTensor(reals(1, heads, in[0].Shape[1]))}
		o := &op.AttentionOp{Window: window}
		if len(in) > 3 {
			o.Form = op.FromPosition
		}
		o.Eval(in, out)
		return out[0].Data
	}
	assert.InDeltaSlice(t, run(whole)[(length-last)*heads*dim:], run(part), 1e-12, "window %d", window)
}

// TestAttentionInWindows gives each query the values that it has with the keys of its window alone.
func TestAttentionInWindows(t *testing.T) {
	const length, heads, dim = 9, 3, 5
	types := []graph.Type{reals(1, length, heads, dim), reals(1, length, 1, dim), reals(1, length, 1, dim)}
	in := graph.Case{Inputs: types}.Values(1)
	for _, window := range []int{1, 2, length - 1, length, length + 1} {
		whole := evaluate(t, &op.AttentionOp{Window: window}, in)[0].Data
		for i := range length {
			rows := func(x *graph.Tensor, from int) *graph.Tensor {
				row := len(x.Data) / length
				return &graph.Tensor{Type: reals(1, i+1-from, x.Shape[2], dim), Data: x.Data[from*row : (i+1)*row]}
			}
			first := max(i+1-window, 0)
			alone := []*graph.Tensor{rows(in[0], first), rows(in[1], first), rows(in[2], first)}
			got := evaluate(t, new(op.AttentionOp), alone)[0].Data
			const row = heads * dim
			assert.InDeltaSlice(t, got[len(got)-row:], whole[i*row:(i+1)*row], 1e-12, "query %d, window %d", i, window)
		}
	}
}

// TestWindowsOfWholeSequencesChangeNoKernel finds the same kernels with a window that leaves nothing out as without
// one, and fewer operations with a shorter window.
func TestWindowsOfWholeSequencesChangeNoKernel(t *testing.T) {
	q, kv, lse := reals(2, 30, 6, 16), reals(2, 30, 3, 16), reals(2, 6, 30)
	kernel := func(o graph.Op, in []graph.Type) graph.Template {
		return o.Kernel(nodeFor(t, graph.Case{Op: o, Inputs: in})).(graph.Template)
	}
	for form, segments := range map[op.AttentionForm][]graph.Type{op.FromStart: nil, op.WithinSegments: {graph.T(graph.U32, 2, 30)}} {
		for _, c := range []struct {
			in       []graph.Type
			op       func(window int) graph.Op
			products float64
		}{
			{[]graph.Type{q, kv, kv}, func(window int) graph.Op { return &op.AttentionOp{Form: form, Window: window} }, 2},
			{[]graph.Type{q, kv, kv, q, lse, q}, func(window int) graph.Op {
				return &op.AttentionGradOp{Segments: segments != nil,
					Window: window}
			}, 5},
		} {
			in := append(c.in, segments...)
			for _, l := range []target.Limits{{Native: true}, {Software: true}, {MaxInvocations: 256, MaxWorkgroupMemory: 16384}} {
				want := kernel(c.op(0), in)
				for window, same := range map[int]bool{30: true, 31: true, math.MaxInt32: true, 29: false, 1: false} {
					got := kernel(c.op(window), in)
					assert.Equal(t, same, assert.ObjectsAreEqual(want.Variants(l), got.Variants(l)), "window %d", window)
					assert.Equal(t, same, want.Flops == got.Flops, "window %d", window)
				}
				assert.Equal(t, c.products*2*2*6*16*(30*4-(3+2+1)), kernel(c.op(4), in).Flops, "the first queries see fewer keys")
			}
		}
	}
}

// TestSegmentsAreTextsOfTheirOwn gives each document of a sequence the values that it has alone.
func TestSegmentsAreTextsOfTheirOwn(t *testing.T) {
	const length, heads, dim = 9, 4, 5
	types := []graph.Type{reals(1, length, heads, dim), reals(1, length, 2, dim), reals(1, length, 2, dim), graph.T(graph.U32, 1, length)}
	in := graph.Case{Inputs: types}.Values(1)
	copy(in[3].Data, []float64{7, 7, 7, 0, 2, 2, 2, 2, 9})
	whole := evaluate(t, &op.AttentionOp{Form: op.WithinSegments}, in)[0].Data
	for _, document := range [][2]int{{0, 3}, {3, 4}, {4, 8}, {8, 9}} {
		var part []*graph.Tensor
		for _, x := range in[:3] {
			row := len(x.Data) / length
			part = append(part, &graph.Tensor{Type: reals(1, document[1]-document[0], x.Shape[2], dim),
				Data: x.Data[document[0]*row : document[1]*row]})
		}
		row := heads * dim
		assert.InDeltaSlice(t, evaluate(t, new(op.AttentionOp), part)[0].Data, whole[document[0]*row:document[1]*row], 1e-12)
	}
}

func TestAttentionRefuses(t *testing.T) {
	q := reals(1, 3, 4, 8)
	for _, c := range []struct {
		form op.AttentionForm
		in   []graph.Type
		says string
	}{
		{"all", []graph.Type{q, q, q}, "the form is \"all\", expected none, position, segments or caches"},
		{"", []graph.Type{q, q, q, graph.T(graph.U32, 1)}, "got 4 inputs, expected q, k, v"},
		{"caches", []graph.Type{q, q, q}, "got 3 inputs, expected q, k, v, positions, slots"},
		{"", []graph.Type{q, q}, "got 2 inputs"},
		{"", []graph.Type{q, q, reals(1, 3, 2, 8)}, "expected one type"},
		{"", []graph.Type{q, reals(1, 3, 3, 8), reals(1, 3, 3, 8)}, "no multiple"},
		{"", []graph.Type{q, reals(2, 3, 4, 8), reals(2, 3, 4, 8)}, "equal batch"},
		{"", []graph.Type{reals(3, 4, 8), q, q}, "q is f32[3,4,8], expected [batch,sequence,heads,dim] of f32, f16 or bf16"},
		{"", []graph.Type{half(q), q, q}, "q is f16[1,3,4,8] and k is f32[1,3,4,8], expected one dtype"},
		{"", []graph.Type{graph.T(graph.U32, 1, 3, 4, 8), q, q}, "q is u32[1,3,4,8]"},
		{"", []graph.Type{reals(1, 1, 1, 257), reals(1, 1, 1, 257), reals(1, 1, 1, 257)}, "at most 256"},
		{"position", []graph.Type{q, q, q, reals(1)}, "position is f32[1], expected u32[1]"},
		{"segments", []graph.Type{q, q, q, graph.T(graph.U32, 3, 1)}, "segments are u32[3,1], expected u32[1,3]"},
		{"segments", []graph.Type{q, reals(1, 5, 4, 8), reals(1, 5, 4, 8), graph.T(graph.U32, 1, 5)}, "3 queries and 5 keys"},
	} {
		_, err := (&op.AttentionOp{Form: c.form}).Infer(c.in)
		assert.ErrorContains(t, err, c.says)
	}
	for _, c := range []struct {
		window int
		in     []graph.Type
		says   string
	}{
		{-1, []graph.Type{q, q, q}, "the window is -1, expected 0 to 2147483647"},
		{1 << 31, []graph.Type{q, q, q}, "the window is 2147483648, expected 0 to 2147483647"},
		{2, []graph.Type{q, reals(1, 1, 4, 8), reals(1, 1, 4, 8)}, "the last of 3 queries sees none of 1 keys in a window of 2"},
	} {
		_, err := (&op.AttentionOp{Window: c.window}).Infer(c.in)
		assert.EqualError(t, err, c.says)
		_, err = (&op.AttentionGradOp{Window: c.window}).Infer(append(c.in, q, reals(1, 4, 3), q))
		assert.EqualError(t, err, c.says)
	}
	_, err := new(op.AttentionGradOp).Infer([]graph.Type{q, q, q, q, reals(1, 3, 4), q})
	assert.ErrorContains(t, err, "input 4 is f32[1,3,4], expected f32[1,4,3]")
	_, err = new(op.AttentionGradOp).Infer([]graph.Type{half(q), half(q), half(q), graph.T(graph.BF16, q.Shape...), reals(1, 4, 3), q})
	assert.ErrorContains(t, err, "input 3 is bf16[1,3,4,8], expected f32[1,3,4,8]")
	_, err = (&op.AttentionOp{Result: graph.BF16}).Infer([]graph.Type{half(q), half(q), half(q)})
	assert.ErrorContains(t, err, "q is f16[1,3,4,8], expected bf16 and a head dimension that is a multiple of 4 where the result is bf16")
	six := half(reals(1, 3, 4, 6))
	_, err = (&op.AttentionOp{Result: graph.F16}).Infer([]graph.Type{six, six, six})
	assert.ErrorContains(t, err, "q is f16[1,3,4,6], expected f16 and a head dimension that is a multiple of 4")
	_, err = new(op.AttentionGradOp).Infer([]graph.Type{six, six, six, six, reals(1, 4, 3), reals(six.Shape...)})
	assert.ErrorContains(t, err, "input 3 is f16[1,3,4,6], expected f32[1,3,4,6]")
	lse := reals(1, 4, 3)
	_, err = new(op.AttentionGradOp).Infer([]graph.Type{q, q, q, q, lse, q, lse, lse})
	assert.ErrorContains(t, err, "got 8 inputs")
	_, err = (&op.AttentionGradOp{Segments: true}).Infer([]graph.Type{q, q, q, q, lse, q, graph.T(graph.U32, 1, 4)})
	assert.ErrorContains(t, err, "segments are u32[1,4], expected u32[1,3]")
	_, err = graph.Build(func(b *graph.Builder) {
		x := b.Input("x", q)
		autodiff.Gradients(op.Attention(x, x, x, b.Input("position", graph.T(graph.U32, 1))), nil, x)
	})
	assert.ErrorContains(t, err, "has no gradient")
}
