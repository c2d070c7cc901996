package model_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

func small() model.Config {
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF, c.SeqLen = 11, 8, 2, 2, 1, 12, 6
	c.Rope.Theta, c.TieEmbeddings = 100, true
	return c
}

// initial holds every variable of the graphs: parameters with larger than usual weights, so that every part matters.
func initial(c model.Config, gs ...*graph.Graph) map[string]*graph.Tensor {
	vars := map[string]*graph.Tensor{}
	for _, g := range gs {
		for _, v := range g.Sources("variable") {
			vars[v.Node.Op.(graph.Source).Label()] = graph.NewTensor(v.Type)
		}
	}
	for _, p := range c.Parameters() {
		vars[p.Name] = graph.NewTensor(p.Type)
		for i, x := range p.Initial(3) {
			if p.Std > 0 {
				x *= 10
			}
			vars[p.Name].Data[i] = float64(x)
		}
	}
	return vars
}

// gradient is the sum of the variables that hold a parameter's gradient.
func gradient(c model.Config, vars map[string]*graph.Tensor, parameter string) []float64 {
	sum := make([]float64, len(vars[parameter].Data))
	for _, name := range c.Gradients(parameter) {
		floats.Add(sum, vars[name].Data)
	}
	return sum
}

func ids(c model.Config, batch, shift int) *graph.Tensor {
	t := graph.NewTensor(graph.T(graph.U32, batch, c.SeqLen))
	for i := range t.Data {
		t.Data[i] = float64((i*i*7 + i + shift) % c.VocabSize)
	}
	return t
}

func run(t *testing.T, g *graph.Graph, in, vars map[string]*graph.Tensor) map[string]*graph.Tensor {
	t.Helper()
	out, err := eval.Run(g, in, vars)
	require.NoError(t, err)
	return out
}

func slice(x *graph.Tensor, row int) *graph.Tensor {
	n := x.Shape[1]
	return &graph.Tensor{Type: graph.T(graph.U32, 1, n), Data: x.Data[row*n : (row+1)*n]}
}

// A batch in one piece, and the same batch in microbatches, give one gradient and one loss.
func TestAccumulationIsTheWholeBatch(t *testing.T) {
	c := small()
	whole, err := c.Grad(3, 1, false)
	require.NoError(t, err)
	first, err := c.Grad(1, 3, false)
	require.NoError(t, err)
	next, err := c.Grad(1, 3, true)
	require.NoError(t, err)
	tokens, targets := ids(c, 3, 0), ids(c, 3, 5)
	a, b := initial(c, whole), initial(c, first)
	for name := range b {
		if strings.HasPrefix(name, "grad/") {
			b[name].Data[0] = 1e9 // what an earlier batch left must not matter
		}
	}
	loss := run(t, whole, map[string]*graph.Tensor{"tokens": tokens, "targets": targets}, a)["loss"].Data[0]
	var sum float64
	for i, g := range []*graph.Graph{first, next, next} {
		sum += run(t, g, map[string]*graph.Tensor{"tokens": slice(tokens, i), "targets": slice(targets, i)}, b)["loss"].Data[0]
	}
	assert.InDelta(t, loss, sum/3, 1e-12)
	assert.InDelta(t, loss, b[model.LossVariable].Data[0], 1e-12)
	assert.InDelta(t, loss, a[model.LossVariable].Data[0], 1e-12)
	for _, p := range c.Parameters() {
		assert.InDeltaSlice(t, gradient(c, a, p.Name), gradient(c, b, p.Name), 1e-12, p.Name)
	}
	even, err := c.Eval(3, false)
	require.NoError(t, err)
	losses := run(t, even, map[string]*graph.Tensor{"tokens": tokens, "targets": targets}, a)["losses"]
	require.Len(t, losses.Data, 3)
	assert.InDelta(t, loss, (losses.Data[0]+losses.Data[1]+losses.Data[2])/3, 1e-12)
}

// objective is what the gradients are of: the loss and the weighted side losses of routers.
func objective(c model.Config, out map[string]*graph.Tensor) float64 {
	x := out[model.LossOutput].Data[0]
	for row := range slices.Chunk(routed(out), c.MoE.Experts+model.RoutingStats) {
		stats := row[c.MoE.Experts:]
		x += c.MoE.Balance.Aux*stats[1] + c.MoE.Balance.Z*stats[2]
	}
	return x
}

// routed is the elements of RoutingOutput, none of a dense model.
func routed(out map[string]*graph.Tensor) []float64 {
	if r := out[model.RoutingOutput]; r != nil {
		return r.Data
	}
	return nil
}

// gradientsAreThoseOfTheLoss compares gradients with central differences of the loss, for a few elements of each
// parameter.
func gradientsAreThoseOfTheLoss(t *testing.T, c model.Config, o model.StageOptions) {
	t.Helper()
	o.Last = c.Units()
	g, err := c.Training(o, false)
	require.NoError(t, err)
	vars := initial(c, g)
	in := microbatch(c, o.Inputs, o.Batch, 0)
	run(t, g, in, vars)
	for _, p := range c.Parameters() {
		if p.Role == model.BalancingBias { // its gradient is the load
			continue
		}
		grad := gradient(c, vars, p.Name)
		w := vars[p.Name].Data
		for i := 0; i < len(w); i += 1 + len(w)/3 {
			const h = 1e-5
			at := func(x float64) float64 {
				probe := initial(c, g)
				probe[p.Name].Data[i] = x
				return objective(c, run(t, g, in, probe))
			}
			want := (at(w[i]+h) - at(w[i]-h)) / (2 * h)
			assert.InDelta(t, want, grad[i], 1e-7*(1+math.Abs(want)), "%s[%d] tied=%v", p.Name, i, c.TieEmbeddings)
		}
	}
}

// decodeAgrees checks that decoding with the cache, token by token and in blocks, has the loss of the whole sequence.
func decodeAgrees(t *testing.T, c model.Config) {
	t.Helper()
	whole, err := c.Eval(1, false)
	require.NoError(t, err)
	decode, err := c.Decode()
	require.NoError(t, err)
	tokens, targets := ids(c, 1, 0), ids(c, 1, 5)
	want := run(t, whole, map[string]*graph.Tensor{"tokens": tokens, "targets": targets}, initial(c, whole, decode))["losses"].Data[0]
	u32 := func(data ...float64) *graph.Tensor {
		return &graph.Tensor{Type: graph.T(graph.U32, len(data)), Data: data}
	}
	for block := 1; block <= c.SeqLen; block++ {
		prefill, err := c.Prefill(block)
		require.NoError(t, err)
		vars := initial(c, whole, decode)
		for name, v := range vars {
			if strings.HasPrefix(name, "cache/") {
				for i := range v.Data {
					v.Data[i] = 1e6 // what an earlier text left must not matter
				}
			}
		}
		var got float64
		for i := range c.SeqLen {
			g, in := decode, map[string]*graph.Tensor{"tokens": graph.NewTensor(graph.T(graph.U32, 1, 1)), "position": u32(float64(i))}
			in["tokens"].Data[0] = tokens.Data[i]
			// Each token of a block is its last once. What the caches hold after it is overwritten.
			if from := i / block * block; block > 1 && from+block <= c.SeqLen {
				g, in = prefill, map[string]*graph.Tensor{"tokens": graph.NewTensor(graph.T(graph.U32, 1, block)),
					"position": u32(float64(from)), "last": u32(float64(i - from))}
				copy(in["tokens"].Data, tokens.Data[from:i+1])
			}
			logits := run(t, g, in, vars)["logits"]
			require.Len(t, logits.Data, c.VocabSize)
			got += (floats.LogSumExp(logits.Data) - logits.Data[int(targets.Data[i])]) / float64(c.SeqLen)
		}
		assert.InDelta(t, want, got, 1e-12, "blocks of %d", block)
	}
}

func TestInitialValues(t *testing.T) {
	c, err := model.Preset("tiny")
	require.NoError(t, err)
	for _, p := range c.Parameters() {
		x, y := p.Initial(1), p.Initial(1)
		assert.Equal(t, x, y, "a seed gives one result")
		if p.Std == 0 {
			assert.Equal(t, float32(1), x[0])
			continue
		}
		assert.NotEqual(t, x, p.Initial(2))
		var sum, squares float64
		for _, v := range x {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		n := float64(len(x))
		want := 0.02
		if strings.Contains(p.Name, "o_proj") || strings.Contains(p.Name, "down_proj") {
			want /= math.Sqrt(8)
		}
		assert.InEpsilon(t, want, math.Sqrt(squares/n), 0.03, p.Name)
		assert.InDelta(t, 0, sum/n, 5*want/math.Sqrt(n), p.Name)
	}
	q, k := c.Parameters()[2].Initial(1), c.Parameters()[3].Initial(1)
	assert.NotEqual(t, q[:8], k[:8], "parameters differ")
}

// Every node but the sources belongs to a layer, so that cutting the model between layers cuts no kernel.
func TestScopesAreLayers(t *testing.T) {
	c := small()
	g, err := c.Grad(1, 2, true)
	require.NoError(t, err)
	allowed := map[string]bool{"embed": true, "layers.0": true, "layers.1": true, "head": true, "loss": true}
	whole := func(scope string) string {
		return strings.TrimSuffix(strings.TrimSuffix(scope, autodiff.Suffix), model.WeightsSuffix)
	}
	for _, n := range g.Nodes {
		if _, source := n.Op.(graph.Source); !source {
			assert.True(t, allowed[whole(n.Scope)], "%s of scope %q", n.Op.Name(), n.Scope)
		}
	}
}
