package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exact computes a run in float64 with the ops' references.
type exact struct {
	c         config.Config
	data      *corpus
	optimizer *optim.Optimizer
	graphs    map[string]*graph.Graph
	vars      map[string]*graph.Tensor
}

func newExact(t *testing.T, c config.Config) *exact {
	t.Helper()
	tok, err := tokenizer.Open(c.Data.Tokenizer)
	require.NoError(t, err)
	texts, err := (&job{config: c}).readTexts(context.Background(), tok, nil, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, texts.Close()) })
	d, err := texts.deal(c, 1)
	require.NoError(t, err)
	o, err := layout.NewOptimizer(c, c.Model.Config, nil)
	require.NoError(t, err)
	x := &exact{c, d, o, map[string]*graph.Graph{}, map[string]*graph.Tensor{}}
	builds := map[string]func() (*graph.Graph, error){
		"first": func() (*graph.Graph, error) { return c.Model.Grad(c.Rows(), c.Train.Microbatches, false) },
		"next":  func() (*graph.Graph, error) { return c.Model.Grad(c.Rows(), c.Train.Microbatches, true) },
		"norms": o.All().NormSquares,
	}
	for v := range o.Variants() {
		builds[updateGraph(v)] = func() (*graph.Graph, error) { return o.All().Update(v) }
	}
	for name, build := range builds {
		x.graphs[name], err = build()
		require.NoError(t, err)
	}
	for _, g := range x.graphs {
		for _, v := range g.Sources("variable") {
			x.vars[traintest.Label(v)] = graph.NewTensor(v.Type)
		}
	}
	w, err := weights.Open(c.Init.From, c.Model.Config)
	require.NoError(t, err)
	for _, p := range c.Model.Parameters() {
		values, err := w.Initial(p)
		require.NoError(t, err)
		for i, v := range values {
			x.vars[p.Name].Data[i] = float64(v)
		}
	}
	require.NoError(t, w.Close())
	return x
}

func updateGraph(variant int) string { return fmt.Sprint("update", variant) }

// gradients computes the loss of a step's batch and leaves its gradient in the variables.
func (x *exact) gradients(t *testing.T, step int) (loss float64) {
	t.Helper()
	tokens, targets, err := x.data.train.Batch(int64(step))
	require.NoError(t, err)
	m := x.c.Train.Microbatches
	micro := len(tokens) / m
	for i := range m {
		name := "next"
		if i == 0 {
			name = "first"
		}
		g := x.graphs[name]
		in := map[string]*graph.Tensor{}
		for _, v := range g.Sources("input") {
			in[traintest.Label(v)] = graph.NewTensor(v.Type)
		}
		for j := range micro {
			in[model.TokensInput].Data[j] = float64(tokens[i*micro+j])
			in[model.TargetsInput].Data[j] = float64(targets[i*micro+j])
		}
		out, err := eval.Run(g, in, x.vars)
		require.NoError(t, err)
		loss += out[model.LossOutput].Data[0] / float64(m)
	}
	return loss
}

// The first loss and every gradient, in float64 on both sides: the graph computes what PyTorch computes.
func TestReferenceAgreesWithPyTorch(t *testing.T) {
	seen := map[string]bool{}
	for _, config := range traintest.Goldens(t) {
		c, want := traintest.ReadGolden(t, config)
		if seen[c.Init.From] {
			continue // runs of one model differ in their optimizers only
		}
		seen[c.Init.From] = true
		t.Run(filepath.Base(c.Init.From), func(t *testing.T) {
			x := newExact(t, c)
			assert.InEpsilon(t, want.Losses[0], x.gradients(t, 0), 1e-12)
			grads, err := safetensors.Open(filepath.Join(c.Init.From, "grads.safetensors"))
			require.NoError(t, err)
			var total float64
			for _, p := range c.Model.Parameters() {
				theirs, err := grads.Float32(p.Name)
				require.NoError(t, err)
				ours := make([]float64, p.Type.Shape.Len())
				for _, g := range c.Model.Gradients(p.Name) {
					for i, v := range x.vars[g].Data {
						ours[i] += v
					}
				}
				require.Len(t, theirs, len(ours))
				var diff, norm float64
				for i := range ours {
					diff += (ours[i] - float64(theirs[i])) * (ours[i] - float64(theirs[i]))
					norm += ours[i] * ours[i]
				}
				// The file holds f32.
				assert.Less(t, math.Sqrt(diff/norm), 1e-7, p.Name)
				total += norm
			}
			require.NoError(t, grads.Close())
			assert.InEpsilon(t, want.GradNorms[0], math.Sqrt(total), 1e-12)
		})
	}
	assert.Len(t, seen, 4)
}

// The first steps of every optimizer, in float64 on both sides.
func TestReferenceTrainsAsPyTorchDoes(t *testing.T) {
	for _, config := range traintest.Goldens(t) {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(config, "testdata/golden/"), ".yaml"), func(t *testing.T) {
			t.Parallel()
			c, want := traintest.ReadGolden(t, config)
			x := newExact(t, c)
			for step := range 3 {
				assert.InEpsilon(t, want.Losses[step], x.gradients(t, step), 2e-8, "step %d", step) // the rates are sent as f32
				norm := x.update(t, step)
				assert.InEpsilon(t, want.GradNorms[step], norm, 1e-6, "step %d", step)
			}
		})
	}
}

// update applies the optimizer with exact numbers, and returns the norm of the gradient before clipping.
func (x *exact) update(t *testing.T, step int) float64 {
	t.Helper()
	h := x.optimizer.Hyperparameters(step, step > 0).Float32s()
	hyper := graph.NewTensor(graph.T(graph.F32, len(h)))
	for i, v := range h {
		hyper.Data[i] = float64(v)
	}
	_, err := eval.Run(x.graphs["norms"], nil, x.vars)
	require.NoError(t, err)
	out, err := eval.Run(x.graphs[updateGraph(x.optimizer.Variant(step, step > 0))],
		map[string]*graph.Tensor{optim.HyperparametersInput: hyper}, x.vars)
	require.NoError(t, err)
	return out[optim.NormOutput].Data[0]
}
