package model_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

// In a precision, gradients have the same bits for every cut and for split and recomputed backward passes. They differ
// little from those of f32.
func TestStagesInPrecision(t *testing.T) {
	for _, tied := range []bool{false, true} {
		c := small()
		c.TieEmbeddings = tied
		o := model.StageOptions{Batch: 1, Microbatches: 2}
		data := []map[string]*graph.Tensor{microbatch(c, o.Inputs, 1, 0), microbatch(c, o.Inputs, 1, 1)}
		weights := initial(c, parts(t, c, nil, o)[0].Eval)
		exact, _ := train(t, parts(t, c, nil, o), weights, data, false)
		// the relative error of a rounding is up to half of it
		for d, unit := range map[graph.DType]float64{graph.F16: 0x1p-11, graph.BF16: 0x1p-8} {
			m := model.InPrecision(c, d)
			want, losses := train(t, parts(t, m, nil, o), weights, data, false)
			for _, cuts := range someCuts(c.Units()) {
				for _, o.Recompute = range []bool{false, true} {
					for _, separate := range []bool{false, true} {
						got, each := train(t, parts(t, m, cuts, o), weights, data, separate)
						require.Equal(t, losses, each, "%v cuts %v", d, cuts)
						for v, x := range want {
							require.Equal(t, x.Data, got[v].Data, "%v cuts %v: %s", d, cuts, v)
						}
					}
				}
			}
			o.Recompute = false
			for _, p := range c.Parameters() {
				g, g32 := gradient(c, want, p.Name), gradient(c, exact, p.Name)
				off := floats.Distance(g, g32, 2) / floats.Norm(g32, 2)
				assert.Less(t, off, 8*unit, "%v %s", d, p.Name)
				assert.NotZero(t, off, "%v %s", d, p.Name)
			}
		}
	}
}

// The gradients are those of the first element of the scale times the loss; the loss is what it is.
func TestScale(t *testing.T) {
	c := small()
	o := model.StageOptions{Batch: 1, Microbatches: 1}
	data := []map[string]*graph.Tensor{microbatch(c, o.Inputs, 1, 0)}
	weights := initial(c, parts(t, c, nil, o)[0].Eval)
	want, losses := train(t, parts(t, c, nil, o), weights, data, false)
	o.Scale = graph.Named{ID: "scale", Type: graph.T(graph.F32, 3)}
	weights["scale"] = &graph.Tensor{Type: o.Scale.Type, Data: []float64{64, math.NaN(), math.NaN()}}
	for _, cuts := range [][]int{nil, {2}} {
		stages := parts(t, c, cuts, o)
		last := stages[len(stages)-1]
		last.Parameters = append(last.Parameters, model.Parameter{Name: "scale"})
		got, each := train(t, stages, weights, data, len(cuts) > 0)
		assert.Equal(t, losses, each)
		for _, p := range c.Parameters() {
			g := gradient(c, want, p.Name)
			floats.Scale(64, g)
			assert.Equal(t, g, gradient(c, got, p.Name), p.Name)
		}
		assert.Equal(t, want[model.LossVariable].Data, got[model.LossVariable].Data)
	}
}

// The stash of a layer holds 16-bit floats, except for one number per row. It holds no parameters, but the layer's
// rounded input, which f32 reads from act/in. With act/in it has little more than half of the bytes of f32.
func TestStashInPrecision(t *testing.T) {
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF, c.SeqLen = 64, 64, 2, 4, 2, 176, 32
	bytes := func(vs []graph.Named) (n int64) {
		for _, v := range vs {
			n += v.Type.Bytes()
		}
		return n
	}
	o := model.StageOptions{First: 3, Last: 5, Batch: 2, Microbatches: 1}
	f32, err := c.Stage(o)
	require.NoError(t, err)
	input := graph.Named{ID: model.ActIn, Type: graph.T(graph.F32, o.Batch, c.SeqLen, c.DModel)}
	for _, d := range []graph.DType{graph.F16, graph.BF16} {
		s, err := model.InPrecision(c, d).Stage(o)
		require.NoError(t, err)
		assert.Less(t, bytes(s.Stash), bytes(append(f32.Stash, input))*51/100)
		assert.Less(t, bytes(s.WeightStash), bytes(f32.WeightStash)*65/100, "gradients of norms' results are f32")
		var wide []string
		for _, v := range s.Stash {
			if v.Type.DType != d {
				wide = append(wide, v.Type.String())
			}
		}
		assert.ElementsMatch(t, []string{"f32[2,32,1]", "f32[2,32,1]", "f32[2,4,32]"}, wide)
		o.Recompute = true
		s, err = model.InPrecision(c, d).Stage(o)
		require.NoError(t, err)
		assert.Empty(t, s.Stash)
		o.Recompute = false
	}
}

// A backward pass that recomputes rounds weights once for the forward pass and once for the gradients, so that it keeps
// no rounded weights from one to the other.
func TestRecomputationKeepsNoRoundedWeights(t *testing.T) {
	s, err := model.InPrecision(small(), graph.BF16).Stage(model.StageOptions{First: 1, Last: 5, Batch: 2, Microbatches: 1,
		Recompute: true})
	require.NoError(t, err)
	roundings := 0
	readers := map[*graph.Value][2]int{} // of rounded weights, in the forward pass and in that of gradients
	for _, n := range s.Backward.Nodes {
		backward := 0
		if strings.HasSuffix(n.Scope, autodiff.Suffix) || strings.HasSuffix(n.Scope, model.WeightsSuffix) {
			backward = 1
		}
		for _, v := range n.Inputs {
			if _, isCast := v.Node.Op.(*op.CastOp); isCast && v.DType == graph.BF16 && len(v.Node.Inputs[0].Node.Inputs) == 0 &&
				len(v.Shape) == 2 {
				r := readers[v]
				r[backward]++
				readers[v] = r
			}
		}
	}
	for v, r := range readers {
		roundings++
		assert.True(t, r[0] == 0 || r[1] == 0, "%v: %v readers", v, r)
	}
	assert.GreaterOrEqual(t, roundings, 2*7+2*7-2, "of two layers' matrices")
}

// Cuts between layers change no kernel in a precision, either.
func TestCutsChangeNoKernelInPrecision(t *testing.T) {
	c, err := model.Preset("tiny")
	require.NoError(t, err)
	c.TieEmbeddings = true
	o := model.StageOptions{Batch: 2, Microbatches: 2, Scale: graph.Named{ID: "scale", Type: graph.T(graph.F32, 3)}}
	count := func(cuts []int, separate bool) map[string]int {
		var gs []*graph.Graph
		for _, s := range parts(t, model.InPrecision(c, graph.F16), cuts, o) {
			gs = append(gs, s.Forward)
			switch {
			case !separate:
				gs = append(gs, s.Backward)
			case s.InputGrad != nil:
				gs = append(gs, s.InputGrad, s.WeightGrad)
			default:
				gs = append(gs, s.WeightGrad)
			}
		}
		return kernels(t, gs...)
	}
	want := count(nil, false)
	require.Greater(t, len(want), 20)
	for _, cuts := range [][]int{{1}, {3, 7}, {1, 5, 9}} {
		for _, separate := range []bool{false, true} {
			assert.Equal(t, want, count(cuts, separate), "%v %v", cuts, separate)
		}
	}
}

// A written model has the same products in a precision: their operands, each rounded once, and attention's.
func TestWrittenInPrecision(t *testing.T) {
	w, err := model.NewWritten(16, 4, writeLinear)
	require.NoError(t, err)
	s, err := model.InPrecision(w, graph.BF16).Stage(model.StageOptions{Last: 2, Batch: 1, Microbatches: 1})
	require.NoError(t, err)
	products := 0
	for _, n := range s.Forward.Nodes {
		if _, ok := n.Op.(*op.MatMulOp); ok {
			products++
			for _, in := range n.Inputs {
				assert.Equal(t, graph.BF16, in.DType)
			}
		}
	}
	assert.Equal(t, 3, products)
	stash := map[string]int{}
	for _, v := range s.Stash {
		stash[v.Type.DType.String()]++
	}
	assert.Equal(t, map[string]int{"bf16": 2, "f32": 3}, stash,
		"what two products share and the head's; the logits, their logsumexp and the loss")
	assert.Equal(t, model.Model(w), model.InPrecision(w, graph.F32))
}

// writeLinear is an embedding with two matrices on the same input, and a head.
func writeLinear(batch int) (*model.Draft, error) {
	d := &model.Draft{Units: []string{"first", "last"}, Parameters: []model.Parameter{
		{Name: "embed", Type: graph.T(graph.F32, 16, 8), Unit: "first", Std: 0.02},
		{Name: "a", Type: graph.T(graph.F32, 8, 8), Unit: "first", Std: 0.02},
		{Name: "b", Type: graph.T(graph.F32, 8, 8), Unit: "first", Std: 0.02}, {Name: "head", Type: graph.T(graph.F32, 16, 8),
			Unit: "last", Std: 0.02}}}
	g, err := graph.Build(func(b *graph.Builder) {
		ids := graph.T(graph.U32, batch, 4)
		var ps []*graph.Value
		for _, p := range d.Parameters {
			ps = append(ps, b.Variable(p.Name, p.Type))
		}
		var x *graph.Value
		tokens := b.Input(model.TokensInput, ids)
		b.Scope("first", func() {
			x = op.Embedding(ps[0], tokens)
			flat := op.Reshape(x, batch*4, 8)
			x = op.Reshape(op.Add(graph.Apply1(&op.MatMulOp{TransB: true}, flat, ps[1]),
				graph.Apply1(&op.MatMulOp{TransB: true}, flat, ps[2])), batch, 4, 8)
		})
		b.Scope("last", func() { b.Output("logits", op.MatMul(x, ps[3], false, true)) })
	})
	d.Graph = g
	return d, err
}
