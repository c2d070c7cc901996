package model_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func allInputs() model.Inputs {
	return model.Inputs{Segments: true, Weights: true, Real: true, Scalars: 2, Aligned: []graph.Named{
		{ID: "teacher", Type: graph.T(graph.F32, small().VocabSize)}, {ID: "counts", Type: graph.T(graph.U32)},
		{ID: "unread", Type: graph.T(graph.I32, 2)}}}
}

// distill reads all that a loss can: the cross entropy, and so many times as the token counts, and in the proportion of
// the last scalar, the distance of the head's results from a teacher's.
func distill(in model.LossInputs) *graph.Value {
	student := op.MatMul(in.Hidden, in.Parameters["lm_head.weight"], false, true)
	student = op.Mul(student, op.Mean(in.Parameters["model.norm.weight"], nil, false))
	distance := op.Mean(op.Square(op.Sub(student, in.Aligned["teacher"])), []int{1}, false)
	distance = op.Mul(distance, op.Cast(in.Aligned["counts"], graph.F32))
	return op.Add(model.CrossEntropy(in), op.Mul(distance, op.Reshape(op.Slice(in.Scalars, 0, 1, 2))))
}

// microbatch makes up data of so many sequences.
func microbatch(c model.Config, in model.Inputs, batch, shift int) map[string]*graph.Tensor {
	data := map[string]*graph.Tensor{model.TokensInput: ids(c, batch, shift), model.TargetsInput: ids(c, batch, 5+3*shift)}
	for _, v := range c.Variables(in, batch) {
		if data[v.ID] != nil {
			continue
		}
		x := graph.NewTensor(v.Type)
		for i := range x.Data {
			switch {
			case v.ID == model.SegmentsInput:
				x.Data[i] = []float64{4, 4, 4, 0, 9, 9}[(i+shift)%6] // the second time some segments are apart
			case v.Type.DType.Float():
				x.Data[i] = 1 + math.Sin(float64(i*i+7*shift))
			default:
				x.Data[i] = float64((i*i + shift) % 3)
			}
		}
		data[v.ID] = x
	}
	return data
}

func read(gs ...*graph.Graph) []string {
	names := map[string]bool{}
	for _, g := range gs {
		for _, v := range g.Sources("variable") {
			names[v.Node.Op.(graph.Source).Label()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Each chunk reads the inputs that it needs: segments in chunks with attention, the others in the last chunk.
// Evaluations read none but, with EvalSegments, segments.
func TestPartsReadInputs(t *testing.T) {
	c := small()
	var listed []string
	for _, v := range c.Variables(allInputs(), 2) {
		listed = append(listed, fmt.Sprint(v.ID, " ", v.Type))
	}
	assert.Equal(t, []string{"tokens u32[2,6]", "targets u32[2,6]", "segments u32[2,6]", "weights f32[2,6]", "real u32[2,6]",
		"aligned/teacher f32[2,6,11]", "aligned/counts u32[2,6]", "aligned/unread i32[2,6,2]", "scalars f32[2]"}, listed)
	ends := [][]string{{}, {"segments"}, {}, {"segments"}, {"aligned/counts", "aligned/teacher", "scalars", "weights"}}
	for i, s := range parts(t, c, []int{1, 2, 3, 5}, model.StageOptions{Batch: 2, Microbatches: 2, Inputs: allInputs(), Loss: distill}) {
		for _, name := range []string{"segments", "weights", "aligned/teacher", "aligned/counts", "aligned/unread", "scalars"} {
			assert.Equal(t, slices.Contains(ends[i], name), slices.Contains(read(s.Forward, s.BackwardNext), name), "part %d, %s", i, name)
			assert.NotContains(t, read(s.Eval), name)
		}
	}
	o := model.StageOptions{Batch: 2, Microbatches: 2, Inputs: model.Inputs{EvalSegments: true}}
	for i, s := range parts(t, c, []int{1, 2, 3, 5}, o) {
		assert.Equal(t, slices.Contains(ends[i], model.SegmentsInput), slices.Contains(read(s.Eval), model.SegmentsInput), "part %d", i)
		assert.NotContains(t, read(s.Forward), model.SegmentsInput)
	}
}

// The loss of a batch with segments and weights is the weighted mean of the losses of its documents, decoded
// separately.
func TestWeightedLossOfDocuments(t *testing.T) {
	c := small()
	in := model.Inputs{Segments: true, Weights: true}
	o := model.StageOptions{Last: c.Units(), Batch: 1, Microbatches: 1, Inputs: in}
	g, err := c.Training(o, false)
	require.NoError(t, err)
	decode, err := c.Decode()
	require.NoError(t, err)
	vars := initial(c, g, decode)
	data := microbatch(c, in, 1, 0)
	got := run(t, g, data, vars)["loss"].Data[0]
	var want, even float64
	segments := data[model.SegmentsInput].Data
	start := 0
	for i, target := range data[model.TargetsInput].Data {
		if segments[i] != segments[start] {
			start = i
		}
		token, position := graph.NewTensor(graph.T(graph.U32, 1, 1)), graph.NewTensor(graph.T(graph.U32, 1))
		token.Data[0], position.Data[0] = data[model.TokensInput].Data[i], float64(i-start)
		logits := run(t, decode, map[string]*graph.Tensor{"tokens": token, "position": position}, vars)["logits"].Data
		var sum float64
		for _, l := range logits {
			sum += math.Exp(l)
		}
		loss := (math.Log(sum) - logits[int(target)]) / float64(c.SeqLen)
		want, even = want+data[model.WeightsInput].Data[i]*loss, even+loss
	}
	assert.InDelta(t, want, got, 1e-12)

	eval, err := c.Eval(1, true)
	require.NoError(t, err)
	assert.InDelta(t, even, run(t, eval, data, vars)["losses"].Data[0], 1e-12, "an evaluation knows documents, and no weights")

	o.Loss = func(in model.LossInputs) *graph.Value {
		return op.Mean(op.Mul(model.CrossEntropy(in), in.Weights), nil, false)
	}
	own, err := c.Training(o, false)
	require.NoError(t, err)
	assert.InDelta(t, want, run(t, own, data, vars)["loss"].Data[0], 1e-12, "a loss that reads the weights is not weighted again")
}

// Weights that are all one, and segments that are all zero, change nothing.
func TestNeutralInputs(t *testing.T) {
	c := small()
	plain := model.StageOptions{Last: c.Units(), Batch: 2, Microbatches: 1}
	neutral := plain
	neutral.Inputs = model.Inputs{Segments: true, Weights: true}
	var results []map[string]*graph.Tensor
	for _, o := range []model.StageOptions{plain, neutral} {
		g, err := c.Training(o, false)
		require.NoError(t, err)
		vars := initial(c, g)
		data := microbatch(c, o.Inputs, 2, 0)
		if o.Inputs.Weights {
			clear(data[model.SegmentsInput].Data)
			for i := range data[model.WeightsInput].Data {
				data[model.WeightsInput].Data[i] = 1
			}
		}
		run(t, g, data, vars)
		results = append(results, vars)
	}
	assert.Equal(t, results[0], results[1])
}

// Gradients with all inputs agree with central differences of the loss.
func TestGradientsWithInputs(t *testing.T) {
	for _, tied := range []bool{true, false} {
		c := small()
		c.TieEmbeddings = tied
		gradientsAreThoseOfTheLoss(t, c, model.StageOptions{Batch: 2, Microbatches: 1, Inputs: allInputs(), Loss: distill})
	}
}

// A loss that reads only hidden computes neither logits nor a gradient of the head's matrix.
func TestLossOfHidden(t *testing.T) {
	loss := func(in model.LossInputs) *graph.Value {
		return op.Mean(op.Square(op.Sub(in.Hidden, in.Aligned["teacher"])), []int{1}, false)
	}
	c := small()
	in := model.Inputs{Aligned: []graph.Named{{ID: "teacher", Type: graph.T(graph.F32, c.DModel)}}}
	o := model.StageOptions{Batch: 2, Microbatches: 1, Inputs: in, Loss: loss}
	for _, s := range parts(t, c, []int{2}, o) {
		for _, g := range []*graph.Graph{s.Forward, s.Backward, s.BackwardNext, s.InputGrad, s.WeightGrad} {
			if g == nil {
				continue
			}
			for _, n := range g.Nodes {
				assert.NotEqual(t, 2*c.SeqLen*c.VocabSize, n.Outputs[0].Shape.Len(), "%v", n.Outputs[0])
			}
			assert.NotEmpty(t, kernels(t, g))
		}
	}
	gradientsAreThoseOfTheLoss(t, c, o)
	c.TieEmbeddings = false
	gradientsAreThoseOfTheLoss(t, c, o)
}

func TestStageRefusesInputs(t *testing.T) {
	c := small()
	o := model.StageOptions{Last: c.Units(), Batch: 1, Microbatches: 1, Loss: mean}
	twice := graph.Named{ID: "twice", Type: graph.T(graph.F32)}
	for want, in := range map[string]model.Inputs{
		"head: loss: it is a single value, f32[], that does not depend on the weights": {Weights: true},
		`aligned tensor "twice" is declared twice`:                                     {Aligned: []graph.Named{twice, twice}},
		"aligned tensor 0 has no name":                                                 {Aligned: []graph.Named{{Type: twice.Type}}},
		`aligned tensor "half" is f16[2], expected f32, i32 or u32`:                    {Aligned: []graph.Named{{ID: "half", Type: graph.T(graph.F16, 2)}}},
		"scalars: found -1, expected at least 0":                                       {Scalars: -1},
	} {
		o.Inputs = in
		_, err := c.Stage(o)
		assert.ErrorContains(t, err, want)
	}
}
