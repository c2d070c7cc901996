package model_test

import (
	"maps"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// focal is (1−p)²·(−log p) of each target, p by a stored softmax.
func focal(in model.LossInputs) *graph.Value {
	p := op.Pick(op.Softmax(in.Logits), in.Targets)
	return op.Mul(op.Square(op.Shift(op.Neg(p), 1)), op.Neg(op.Log(p)))
}

func mean(in model.LossInputs) *graph.Value { return op.Mean(focal(in), nil, false) }

// A custom loss trains with its own gradient for every cut of the model. Evaluation does not use it.
func TestStagesWithAnotherLoss(t *testing.T) {
	c := small()
	for name, loss := range map[string]model.Loss{
		"of each token": focal, "of all": mean,
		"of all, one axis": func(in model.LossInputs) *graph.Value { return op.Reshape(mean(in), 1) },
	} {
		o := model.StageOptions{Batch: 1, Microbatches: 2, Loss: loss}
		one := parts(t, c, nil, o)
		weights := initial(c, one[0].Eval)
		data := []map[string]*graph.Tensor{microbatch(c, o.Inputs, 1, 0), microbatch(c, o.Inputs, 1, 1)}
		want, losses := train(t, one, weights, data, false)
		for _, cuts := range someCuts(c.Units()) {
			for _, separate := range []bool{false, true} {
				o.Recompute = !o.Recompute
				got, each := train(t, parts(t, c, cuts, o), weights, data, separate)
				assert.Equal(t, losses, each, "%s %v", name, cuts)
				for v, x := range want {
					assert.Equal(t, x.Data, got[v].Data, "%s %v %s", name, cuts, v)
				}
			}
		}
		for _, p := range c.Parameters() {
			grad := gradient(c, want, p.Name)
			i := len(grad) / 2
			at := func(h float64) float64 {
				probe := maps.Clone(weights)
				probe[p.Name] = &graph.Tensor{Type: p.Type, Data: append([]float64(nil), weights[p.Name].Data...)}
				probe[p.Name].Data[i] += h
				vars, _ := train(t, one, probe, data, false)
				return vars[model.LossVariable].Data[0]
			}
			const h = 1e-5
			difference := (at(h) - at(-h)) / (2 * h)
			assert.InDelta(t, difference, grad[i], 1e-7*(1+math.Abs(difference)), "%s %s", name, p.Name)
		}
		plain := parts(t, c, nil, model.StageOptions{Batch: 1, Microbatches: 2})
		a, err := graph.Hash(plain[0].Eval)
		require.NoError(t, err)
		b, err := graph.Hash(one[0].Eval)
		require.NoError(t, err)
		assert.Equal(t, a, b)
	}
}

func TestStageRefusesLosses(t *testing.T) {
	c := small()
	for want, loss := range map[string]model.Loss{
		"head: loss: it is f32[6,11], expected f32[6], a value for each token, or a single f32": func(in model.LossInputs) *graph.Value { return in.Logits },
		"head: loss: it is u32[6]": func(in model.LossInputs) *graph.Value { return in.Targets },
		"loss: no gradient flows from it to the logits or to hidden": func(in model.LossInputs) *graph.Value {
			return op.Cast(in.Targets, graph.F32)
		},
	} {
		_, err := c.Stage(model.StageOptions{First: 0, Last: c.Units(), Batch: 1, Microbatches: 1, Loss: loss})
		assert.ErrorContains(t, err, want)
	}
}
