package model_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parts builds the stages between the cuts, the first units of all parts but the first.
func parts(t *testing.T, c model.Model, cuts []int, o model.StageOptions) []*model.Stage {
	t.Helper()
	var stages []*model.Stage
	bounds := slices.Concat([]int{0}, cuts, []int{c.Units()})
	for i := range len(bounds) - 1 {
		o.First, o.Last = bounds[i], bounds[i+1]
		s, err := c.Stage(o)
		require.NoError(t, err)
		stages = append(stages, s)
	}
	return stages
}

// someCuts lists the whole model, each cut in two, and every unit alone.
func someCuts(units int) (cuts [][]int) {
	var every []int
	for u := 1; u < units; u++ {
		every = append(every, u)
		cuts = append(cuts, []int{u})
	}
	return append(cuts, nil, every)
}

// slotted reports whether there is one of a variable for each microbatch.
func slotted(name string) bool {
	for _, prefix := range []string{"act/", "grad/in", "grad/out", "stash/", "wstash/", "tokens", "targets", "segments", "weights",
		"aligned/", "scalars"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// machine runs the programs of one stage. Variables that were not assigned are NaN, or the largest u32.
type machine struct {
	t      *testing.T
	shared map[string]*graph.Tensor
	slots  []map[string]*graph.Tensor // by microbatch
}

func newMachine(t *testing.T, weights map[string]*graph.Tensor, microbatches int) *machine {
	m := &machine{t, maps.Clone(weights), nil}
	for range microbatches {
		m.slots = append(m.slots, map[string]*graph.Tensor{})
	}
	return m
}

func (m *machine) run(g *graph.Graph, microbatch int) map[string]*graph.Tensor {
	m.t.Helper()
	vars := map[string]*graph.Tensor{}
	for _, v := range g.Sources("variable") {
		name := v.Node.Op.(graph.Source).Label()
		home := m.home(name, microbatch)
		if home[name] == nil {
			home[name] = graph.NewTensor(v.Type)
			unassigned := math.NaN()
			if !v.Type.DType.Float() {
				unassigned = math.MaxUint32
			}
			for i := range home[name].Data {
				home[name].Data[i] = unassigned
			}
		}
		vars[name] = home[name]
	}
	require.Empty(m.t, g.Sources("input"))
	out := run(m.t, g, nil, vars)
	for name, x := range vars {
		m.home(name, microbatch)[name] = x
	}
	return out
}

func (m *machine) home(name string, microbatch int) map[string]*graph.Tensor {
	if slotted(name) {
		return m.slots[microbatch]
	}
	return m.shared
}

// train runs a batch through a chain of stages: all forwards, then all backwards, each as two programs if separate is
// set. It returns the gradients, the batch's loss as accumulated, and that of each microbatch.
func train(t *testing.T, stages []*model.Stage, weights map[string]*graph.Tensor, data []map[string]*graph.Tensor, separate bool) (
	shared map[string]*graph.Tensor, losses []float64) {
	t.Helper()
	var ms []*machine
	for _, s := range stages {
		own := map[string]*graph.Tensor{}
		for _, p := range s.Parameters {
			own[p.Name] = weights[p.Name]
		}
		ms = append(ms, newMachine(t, own, len(data)))
	}
	last := len(stages) - 1
	for i := range data {
		for k, s := range stages {
			maps.Copy(ms[k].slots[i], data[i])
			if k > 0 {
				ms[k].slots[i][model.ActIn] = ms[k-1].slots[i][model.ActOut]
			}
			if out := ms[k].run(s.Forward, i); k == last {
				losses = append(losses, out[model.LossOutput].Data[0])
			}
		}
	}
	for k := last; k >= 0; k-- {
		s := stages[k]
		whole, weight := []*graph.Graph{s.Backward, s.BackwardNext}, []*graph.Graph{s.WeightGrad, s.WeightGradNext}
		for i := range data {
			if k < last {
				ms[k].slots[i][model.GradOut] = ms[k+1].slots[i][model.GradIn]
			}
			switch {
			case !separate:
				ms[k].run(whole[min(i, 1)], i)
			case s.InputGrad != nil:
				ms[k].run(s.InputGrad, i)
			}
		}
		for i := range data {
			if separate {
				ms[k].run(weight[min(i, 1)], i)
			}
		}
	}
	shared = map[string]*graph.Tensor{}
	for _, m := range ms {
		maps.Copy(shared, m.shared)
	}
	return shared, losses
}

// For every cut, and for split and recomputed backward passes, gradients and loss equal those of the uncut graph, to
// the last bit.
func TestStagesAreTheModel(t *testing.T) {
	for _, tied := range []bool{true, false} {
		c := small()
		c.TieEmbeddings = tied
		for _, o := range []model.StageOptions{{}, {Inputs: allInputs(), Loss: distill}} {
			o.Batch, o.Microbatches = 1, 2
			stagesAreTheModel(t, c, o, someCuts(c.Units()))
		}
	}
}

func stagesAreTheModel(t *testing.T, c model.Config, o model.StageOptions, all [][]int) {
	t.Helper()
	data := []map[string]*graph.Tensor{microbatch(c, o.Inputs, 1, 0), microbatch(c, o.Inputs, 1, 1)}
	var want, weights map[string]*graph.Tensor
	var losses []float64
	for i := range data {
		whole := o
		whole.Last = c.Units()
		g, err := c.Training(whole, i > 0)
		require.NoError(t, err)
		if i == 0 {
			want = initial(c, g)
			weights = maps.Clone(want)
		}
		losses = append(losses, run(t, g, data[i], want)["loss"].Data[0])
	}
	for _, cuts := range all {
		for _, o.Recompute = range []bool{false, true} {
			for _, separate := range []bool{false, true} {
				name := fmt.Sprintf("tied=%v inputs=%+v cuts=%v recompute=%v separate=%v", c.TieEmbeddings, o.Inputs, cuts, o.Recompute,
					separate)
				got, each := train(t, parts(t, c, cuts, o), weights, data, separate)
				assert.Equal(t, losses, each, name)
				require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)), name)
				for v, x := range want {
					assert.Equal(t, x.Data, got[v].Data, "%s: %s", name, v)
				}
			}
		}
	}
}

func TestStagesEvaluate(t *testing.T) {
	c := small()
	whole, err := c.Eval(3, false)
	require.NoError(t, err)
	weights := initial(c, whole)
	tokens, targets := ids(c, 3, 0), ids(c, 3, 5)
	want := run(t, whole, map[string]*graph.Tensor{"tokens": tokens, "targets": targets}, weights)["losses"]
	for _, cuts := range someCuts(c.Units()) {
		vars := maps.Clone(weights)
		vars[model.TokensInput], vars[model.TargetsInput] = tokens, targets
		var out map[string]*graph.Tensor
		for _, s := range parts(t, c, cuts, model.StageOptions{Batch: 3, Microbatches: 1}) {
			vars[model.ActOut] = graph.NewTensor(graph.T(graph.F32, 3, c.SeqLen, c.DModel))
			out = run(t, s.Eval, nil, vars)
			vars[model.ActIn] = vars[model.ActOut]
		}
		assert.Equal(t, want.Data, out["losses"].Data, "%v", cuts)
	}
}

// A stage reads exactly the parameters that it lists, and its stash is exactly the listed variables.
func TestStageVariables(t *testing.T) {
	for _, tied := range []bool{true, false} {
		c := small()
		c.TieEmbeddings = tied
		for _, cuts := range someCuts(c.Units()) {
			for _, s := range parts(t, c, cuts, model.StageOptions{Batch: 2, Microbatches: 2}) {
				names := map[string]bool{}
				for _, g := range []*graph.Graph{s.Forward, s.BackwardNext} {
					for _, v := range g.Sources("variable") {
						names[v.Node.Op.(graph.Source).Label()] = true
					}
				}
				var read []string
				for _, p := range c.Parameters() {
					if names[p.Name] {
						read = append(read, p.Name)
					}
				}
				var listed []string
				for _, p := range s.Parameters {
					listed = append(listed, p.Name)
				}
				assert.Equal(t, listed, read)
				assert.Equal(t, kept(s.Forward, "stash/"), s.Stash)
				if s.InputGrad != nil {
					assert.Equal(t, kept(s.InputGrad, "wstash/"), s.WeightStash)
				}
			}
		}
	}
}

// kept lists the variables of a prefix that a graph assigns.
func kept(g *graph.Graph, prefix string) (ns []graph.Named) {
	for _, a := range g.Assigns {
		if name := a.Variable.Node.Op.(graph.Source).Label(); strings.HasPrefix(name, prefix) {
			ns = append(ns, graph.Named{ID: name, Type: a.Value.Type})
		}
	}
	return ns
}

// A layer keeps what the uncut program keeps in memory from one pass to the other: neither activations nor elementwise
// products. The two programs keep gradients of products' results and of norms', and what they computed again.
func TestStash(t *testing.T) {
	c := small()
	s, err := c.Stage(model.StageOptions{First: 1, Last: 3, Batch: 2, Microbatches: 1})
	require.NoError(t, err)
	size := func(ns []graph.Named) map[string]int {
		sizes := map[string]int{}
		for _, n := range ns {
			assert.Equal(t, graph.F32, n.Type.DType)
			sizes[n.Type.String()]++
		}
		return sizes
	}
	assert.Equal(t, map[string]int{
		"f32[2,6,8]":   1, // what enters the second norm
		"f32[2,6,1]":   2, // the norms' 1/√(mean square)
		"f32[2,6,2,4]": 2, // queries, attention's result
		"f32[2,6,1,4]": 1, // keys
		"f32[12,4]":    1, // values
		"f32[2,2,6]":   1, // attention's logarithms
		"f32[12,12]":   2, // gate, up
	}, size(s.Stash))
	assert.Equal(t, map[string]int{
		"f32[2,6,8]":   5, // of the norms' results and of what enters the second; both norms' results
		"f32[2,6,2,4]": 1, // of the queries
		"f32[2,6,1,4]": 2, // of keys and values
		"f32[2,6,12]":  3, // of gate and up; silu(gate) · up
	}, size(s.WeightStash))
	s, err = c.Stage(model.StageOptions{First: 1, Last: 3, Batch: 2, Microbatches: 1, Recompute: true})
	require.NoError(t, err)
	assert.Empty(t, s.Stash)
	s, err = c.Stage(model.StageOptions{First: 3, Last: 6, Batch: 2, Microbatches: 1, Recompute: true})
	require.NoError(t, err)
	assert.Equal(t, []graph.Named{{ID: "stash/0", Type: graph.T(graph.F32)}}, s.Stash, "the loss")
}

func TestStageRefuses(t *testing.T) {
	c := small()
	for _, o := range []model.StageOptions{
		{First: -1, Last: 1, Batch: 1, Microbatches: 1}, {First: 2, Last: 2, Batch: 1, Microbatches: 1},
		{First: 0, Last: 7, Batch: 1, Microbatches: 1}, {First: 0, Last: 6, Microbatches: 1}, {First: 0, Last: 6, Batch: 1},
	} {
		_, err := c.Stage(o)
		assert.Error(t, err)
	}
	c.DModel = 9
	_, err := c.Stage(model.StageOptions{First: 0, Last: 6, Batch: 1, Microbatches: 1})
	assert.ErrorAs(t, err, new(*model.FieldError))
}
