package model_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/plan"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kernels counts the shaders of programs by their text.
func kernels(t *testing.T, graphs ...*graph.Graph) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, g := range graphs {
		if g == nil {
			continue
		}
		p, err := exec.NewPlan(null.New(null.Options{}), map[string]*graph.Graph{"program": g}, exec.Options{})
		require.NoError(t, err)
		ks, err := p.Chosen("program")
		require.NoError(t, err)
		for _, k := range ks {
			for _, pass := range k.Passes {
				count[pass.Source]++
			}
		}
	}
	return count
}

// copies is the bytes that a program moves into variables when its kernels are done.
func copies(t *testing.T, g *graph.Graph) (bytes int64) {
	t.Helper()
	r, err := fuse.Run(g, fuse.Options{MaxBindings: 8, OffsetAlignment: 256})
	require.NoError(t, err)
	p, err := plan.Run(r, func(*fuse.Group) []int64 { return nil },
		target.Limits{MaxBindingSize: 128 << 20, MaxBufferSize: 256 << 20, OffsetAlignment: 256})
	require.NoError(t, err)
	for _, c := range p.Copies {
		bytes += c.To.Size
	}
	return bytes
}

// Cuts of the model, inside layers too, and of the backward pass change no kernel, and so no bit, and need no copies.
// Any two options are tried in all ways.
func TestCutsChangeNoKernel(t *testing.T) {
	type cut struct{ tied, inputs, accumulate bool }
	cuts := []cut{{}, {true, true, true}, {tied: true}, {inputs: true}, {accumulate: true}}
	eachBothWays := func(_ int, c cut) bool { return c.inputs == c.tied && c.tied == c.accumulate }
	for _, c := range tier.Divide(t, cuts, eachBothWays) {
		cutsChangeNoKernel(t, c.tied, model.Inputs{Segments: c.inputs, Weights: c.inputs}, c.accumulate)
	}
}

func cutsChangeNoKernel(t *testing.T, tied bool, in model.Inputs, accumulate bool) {
	c, err := model.Preset("tiny")
	require.NoError(t, err)
	c.TieEmbeddings = tied
	o := model.StageOptions{Last: c.Units(), Batch: 2, Microbatches: 2, Inputs: in}
	whole, err := c.Training(o, accumulate)
	require.NoError(t, err)
	want, moved := kernels(t, whole), copies(t, whole)
	require.Greater(t, len(want), 20)
	if !accumulate {
		require.Zero(t, moved)
	}
	for _, cuts := range [][]int{nil, {1}, {2, 4}, {1, 3, 5}} {
		var passes, separate []*graph.Graph
		for _, s := range parts(t, c, cuts, o) {
			back, weight := s.Backward, s.WeightGrad
			if accumulate {
				back, weight = s.BackwardNext, s.WeightGradNext
			}
			passes = append(passes, s.Forward, back)
			separate = append(separate, s.Forward, weight)
			if s.InputGrad != nil {
				separate = append(separate, s.InputGrad)
			}
		}
		for _, programs := range [][]*graph.Graph{passes, separate} {
			assert.Equal(t, want, kernels(t, programs...), "cuts %v", cuts)
			var sum int64
			for _, g := range programs {
				sum += copies(t, g)
			}
			assert.Equal(t, moved, sum, "cuts %v", cuts)
		}
	}
}

// Where kernels span the middle of a layer, a cut there makes other kernels. Every sum and every product is in one of
// the same variant, which adds in the same order.
func TestCutsInsideLayersKeepVariants(t *testing.T) {
	card := measure.GPUs()[4].Limits()
	for _, lim := range []target.Limits{target.DefaultLimits(), *card} {
		for _, place := range []string{model.NormPre, model.NormPost, model.NormBoth} {
			for _, d := range tier.Divide(t, []graph.DType{graph.BF16, graph.F32, graph.F16}, tier.First[graph.DType](1)) {
				c, err := model.Preset("tiny")
				require.NoError(t, err)
				c.NLayers, c.Norm.Place = 1, place
				m, o := model.InPrecision(c, d), model.StageOptions{Batch: 2, Microbatches: 2}
				want, got := variants(t, lim, parts(t, m, nil, o)), variants(t, lim, parts(t, m, []int{2}, o))
				require.Greater(t, len(want), 10)
				assert.Equal(t, want, got, "%s %v", place, d)
			}
		}
	}
}

// variants counts the sums and the products of chunks by their operands and the variant of their kernels.
func variants(t *testing.T, lim target.Limits, stages []*model.Stage) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, s := range stages {
		for _, g := range []*graph.Graph{s.Forward, s.Backward} {
			r, err := fuse.Run(g, fuse.Options{MaxBindings: lim.MaxBindings, OffsetAlignment: lim.OffsetAlignment})
			require.NoError(t, err)
			l := shaders.NewLowering(r, lim)
			for _, group := range r.Groups {
				ks := l.Lower(group, (*graph.Value).String)
				for _, n := range group.Nodes {
					switch n.Op.Kernel(n).(type) {
					case graph.Reduction, graph.Contraction:
						key := n.Op.Name()
						for _, v := range n.Inputs {
							key += " " + v.Type.String()
						}
						count[key+": "+ks[shaders.Default(ks, group, lim)].Name]++
					}
				}
			}
		}
	}
	return count
}

// Recomputation uses the kernels of the forward pass, except that the kernel of the cross-entropy does not store
// losses.
func TestRecomputationUsesTheSameKernels(t *testing.T) {
	c, err := model.Preset("tiny")
	require.NoError(t, err)
	o := model.StageOptions{Batch: 2, Microbatches: 2}
	kept := parts(t, c, []int{2, 4}, o)
	o.Recompute = true
	for i, s := range parts(t, c, []int{2, 4}, o) {
		k := kept[i]
		known := kernels(t, k.Forward, k.Backward, k.InputGrad, k.WeightGrad)
		others := 0
		for text := range kernels(t, s.Backward, s.InputGrad, s.WeightGrad) {
			if known[text] == 0 {
				others++
			}
		}
		assert.Equal(t, i/2, others, "part %d", i)
	}
}

// A feature of a block is part of kernels that are there without it: norms of queries and keys are computed with their
// rotation, and activations and softcaps with the product before them. Backwards, weights of norms have a sum of their
// own, and squared ReLU is computed again for the weights after it.
func TestFeaturesAddNoKernel(t *testing.T) {
	count := func(change func(*model.Config)) (n [2]int) {
		c, err := model.Preset("tiny")
		require.NoError(t, err)
		c.NLayers = 1
		change(&c)
		s, err := c.Stage(model.StageOptions{Last: c.Units(), Batch: 2, Microbatches: 2})
		require.NoError(t, err)
		for i, g := range []*graph.Graph{s.Forward, s.Backward} {
			r, err := fuse.Run(g, fuse.Options{MaxBindings: 8, OffsetAlignment: 256})
			require.NoError(t, err)
			n[i] = len(r.Groups)
		}
		return n
	}
	plain := count(func(*model.Config) {})
	for _, c := range []struct {
		name   string
		change func(*model.Config)
		more   [2]int // forward, backward
	}{
		{"geglu", func(c *model.Config) { c.FFN.Kind = model.GeGLU }, [2]int{0, 0}},
		{"relu2: no gate", func(c *model.Config) { c.FFN.Kind = model.ReLU2 }, [2]int{-1, -1}},
		{"softcap", func(c *model.Config) { c.Logits.Softcap = 15 }, [2]int{0, 0}},
		{"norms of heads", func(c *model.Config) { c.Norm.QK = model.QKHead }, [2]int{0, 2}},
		{"norms of the full width", func(c *model.Config) { c.Norm.QK = model.QKFull }, [2]int{0, 2}},
		{"norms after", func(c *model.Config) { c.Norm.Place = model.NormPost }, [2]int{0, -2}},
		{"no rotation", func(c *model.Config) { c.Attention.Rope = []int{0} }, [2]int{-2, -2}},
	} {
		n := count(c.change)
		assert.Equal(t, [2]int{plain[0] + c.more[0], plain[1] + c.more[1]}, n, c.name)
	}
}
