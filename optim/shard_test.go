package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stages are the shards of a model, each on a machine of its own.
type stages struct {
	shards   []*Shard
	machines []machine
}

// cut gives each shard the parameters of some layers. The last shard has the loss.
func cut(t *testing.T, o *Optimizer, on maker, layers ...[]string) *stages {
	s := &stages{}
	for i, ls := range layers {
		var names []string
		for _, p := range o.params {
			if slices.Contains(ls, p.Layer) {
				names = append(names, p.Name)
			}
		}
		slices.Reverse(names) // the order in which they are named does not matter
		s.shards = append(s.shards, o.Shard(names, i == len(layers)-1))
		s.machines = append(s.machines, on(t, s.shards[i]))
	}
	return s
}

func (s *stages) owner(name string) machine {
	i := slices.IndexFunc(s.machines, func(m machine) bool { return m.has(name) })
	return s.machines[i]
}

func (s *stages) has(name string) bool {
	return slices.ContainsFunc(s.machines, func(m machine) bool { return m.has(name) })
}
func (s *stages) set(name string, x []float64) { s.owner(name).set(name, x) }
func (s *stages) get(name string) []float64    { return s.owner(name).get(name) }

// normSquares all-gathers the norm squares of the shards.
func (s *stages) normSquares() {
	all := make([]float64, s.shards[0].o.NormSquaresType().Shape[0])
	for i, p := range s.shards {
		s.machines[i].normSquares()
		own := s.machines[i].get(p.LocalVariable())
		for j, at := range p.Positions() {
			all[at] = own[j]
		}
	}
	for _, m := range s.machines {
		m.set(NormSquaresVariable, all)
	}
}

func (s *stages) update(o *Optimizer, step int) (norm float64, ok bool) {
	for _, m := range s.machines {
		norm, ok = m.update(o, step)
	}
	return norm, ok
}

func (s *stages) output(name string) float64 { return s.machines[0].output(name) }

// thirds are the layers of three shards of testParams.
func thirds() [][]string {
	return [][]string{{"embed", "layers.0"}, {"layers.1", "layers.2", "layers.3"}, {"layers.4", "scale"}}
}

func TestShardsEqualTheWhole(t *testing.T) {
	eachMachine(t, func(t *testing.T, _ float64, on maker) {
		for _, name := range []string{"muon", "adamw"} {
			t.Run(name, func(t *testing.T) {
				cfg, params := testConfigs()[name], testParams()
				cfg.Losses, cfg.Delay, cfg.Correction = []string{"loss"}, 1, &ErrorFeedback{}
				o, whole := start(t, cfg, params, on)
				shards := cut(t, o, on, thirds()...)
				for name, x := range randomTensors(params, -1) {
					shards.set(name, x)
				}
				for step := range 3 {
					for _, m := range []machine{whole, shards} {
						m.set("loss", []float64{2})
						for p, g := range randomTensors(params, step) {
							m.set("grad/"+p, g)
						}
					}
					norm, ok := run(whole, o, step)
					require.True(t, ok)
					shardsNorm, ok := run(shards, o, step)
					require.True(t, ok)
					require.Equal(t, norm, shardsNorm)
					for _, m := range []machine{whole, shards} {
						for _, p := range params {
							m.set(p.Name, m.get(p.Gradient))
						}
					}
					require.Equal(t, bits(whole, o), bits(shards, o), "step %d", step)
				}
			})
		}
	})
}

// A loss that is not finite on one shard halts all of them.
func TestShardsHaltTogether(t *testing.T) {
	cfg, params := testConfigs()["adamw"], testParams()
	cfg.Losses = []string{"loss"}
	shards := cut(t, small(t, cfg, params), newHost, thirds()...)
	for p, g := range randomTensors(params, 0) {
		shards.set("grad/"+p, g)
	}
	shards.set("loss", []float64{math.Inf(-1)})
	shards.normSquares()
	for i, m := range shards.machines {
		_, ok := m.update(shards.shards[i].o, 0)
		assert.False(t, ok)
		assert.Equal(t, []float64{1}, m.get(HaltedVariable))
	}
}

// The kernels of a layer do not depend on what else a shard owns.
func TestShardsHaveTheKernelsOfTheWhole(t *testing.T) {
	o, err := New(testConfigs()["muon"], testParams())
	require.NoError(t, err)
	kernels := func(s *Shard) (shared, own []string) {
		norms, update := programs(t, s)
		plan, err := exec.NewPlan(null.New(null.Options{}), map[string]*graph.Graph{"norms": norms, "update": update}, exec.Options{})
		require.NoError(t, err)
		for _, program := range []string{"norms", "update"} {
			chosen, err := plan.Chosen(program)
			require.NoError(t, err)
			for i, info := range plan.Kernels(program) {
				text := info.Label
				for _, pass := range chosen[i].Passes {
					text += fmt.Sprintln(pass.Groups, pass.Source)
				}
				switch {
				case strings.HasPrefix(info.Label, normsScope): // gathers as many as there are
				case strings.HasPrefix(info.Label, gateScope):
					shared = append(shared, text)
				default:
					own = append(own, text)
				}
			}
		}
		slices.Sort(own)
		return shared, own
	}
	gate, whole := kernels(o.All())
	var together []string
	for _, p := range cut(t, o, newHost, thirds()...).shards {
		shared, own := kernels(p)
		assert.Equal(t, gate, shared)
		together = append(together, own...)
	}
	slices.Sort(together)
	assert.Equal(t, whole, together)
	assert.Len(t, gate, 1)
}

func TestShard(t *testing.T) {
	cfg, params := testConfigs()["muon"], testParams()
	o, err := New(cfg, params)
	require.NoError(t, err)
	all := o.All()
	assert.Equal(t, NormSquaresVariable, all.LocalVariable())
	assert.Equal(t, o.NormSquaresType(), all.LocalType())
	assert.Equal(t, o.State(), all.State())
	assert.Equal(t, params, all.Params())

	last := o.Shard([]string{"scale"}, true)
	assert.Equal(t, LocalNormSquaresVariable, last.LocalVariable())
	assert.Equal(t, graph.T(graph.F32, 2), last.LocalType())
	n := len(params)
	assert.Equal(t, []int{n - 1, n}, last.Positions())
	assert.Equal(t, []graph.Named{{ID: HaltedVariable, Type: graph.T(graph.U32, 1)},
		{ID: "optim/exp_avg/scale", Type: graph.T(graph.F32, 1)}, {ID: "optim/exp_avg_sq/scale", Type: graph.T(graph.F32, 1)}},
		last.State())

	first := o.Shard([]string{"embed"}, false)
	assert.Equal(t, []int{0}, first.Positions())
	assert.Equal(t, graph.T(graph.F32, 2), first.LocalType())
	assert.Equal(t, []int{n}, o.Shard(nil, true).Positions(), "a shard may own nothing but the loss")

	assert.Panics(t, func() { o.Shard([]string{"layers.0.q"}, false) }, "some of a layer")
	assert.Panics(t, func() { o.Shard([]string{"embed", "emb"}, false) }, "an unknown name")
	assert.Panics(t, func() { _, _ = all.Update(1) }, "a variant too many")
}

// The gradient of a tied parameter is the sum, in order, of all that contribute.
func TestContributions(t *testing.T) {
	for _, delay := range []int{0, 1} {
		p := Param{Name: "w", Type: graph.T(graph.F32, 3), Gradient: "g", Contributions: []string{"a", "b"}}
		o, err := New(Config{Algorithm: &SGD{LR: 0.5}, Delay: delay, Schedule: Schedule{Name: "constant"}}, []Param{p})
		require.NoError(t, err)
		m := newHost(t, o.All())
		m.set("w", []float64{10, 10, 10})
		m.set("a", []float64{1e20, 1, -8})
		m.set("b", []float64{-1e20, 1e20, 1})
		m.set("g", []float64{4, -1e20, 3})
		norm, ok := run(m, o, 0)
		assert.True(t, ok)
		assert.InEpsilon(t, 5.656854249492381, norm, 1e-15) // of 4, 0, −4
		assert.Equal(t, []float64{32, 0}, m.get(NormSquaresVariable))
		changed, kept := "w", "g"
		want := []float64{4, -1e20, 3}
		if delay == 1 {
			changed, kept, want = "g", "w", []float64{10, 10, 10}
		}
		assert.Equal(t, []float64{8, 10, 12}, m.get(changed))
		assert.Equal(t, want, m.get(kept))
		assert.Equal(t, []float64{1e20, 1, -8}, m.get("a"))
	}
}

// alternating is a rule with two programs, and with state of another shape than the parameter's.
type alternating struct{ *sgd }

func (alternating) State(p Param) []graph.Named {
	return []graph.Named{{ID: "square", Type: graph.T(graph.F32, p.Type.Shape.Len(), p.Type.Shape.Len())}}
}
func (alternating) Variants() int        { return 2 }
func (alternating) Variant(step int) int { return step % 2 }

func (alternating) UpdateVariant(variant int, ts []Tensor, _ Scalars) (us []Update) {
	for _, t := range ts {
		us = append(us, Update{U: []*graph.Value{t.Gradient, lerp(t.Gradient, t.Gradient, 0.5)}[variant], State: t.State})
	}
	return us
}

func TestVariants(t *testing.T) {
	params := []Param{{Name: "w", Type: graph.T(graph.F32, 3), Gradient: "g"}}
	o := &Optimizer{cfg: Config{Schedule: Schedule{Name: "constant"}}, params: params, correction: &NoCorrection{},
		groups: []group{{name: "alternating", rule: alternating{&sgd{}}, params: params}}}
	assert.Equal(t, 2, o.Variants())
	assert.Equal(t, []int{0, 1, 0}, []int{o.Variant(0, false), o.Variant(1, true), o.Variant(2, true)})
	assert.Contains(t, o.State(), graph.Named{ID: "optim/square/w", Type: graph.T(graph.F32, 3, 3)})
	var graphs []string
	for v := range 2 {
		g, err := o.All().Update(v)
		require.NoError(t, err)
		h, err := graph.Hash(g)
		require.NoError(t, err)
		graphs = append(graphs, h)
		vars := map[string]*graph.Tensor{}
		for _, s := range g.Sources("variable") {
			vars[s.Node.Op.(graph.Source).Label()] = graph.NewTensor(s.Type)
		}
		_, err = eval.Run(g, map[string]*graph.Tensor{HyperparametersInput: graph.NewTensor(graph.T(graph.F32, 2))}, vars)
		require.NoError(t, err)
	}
	assert.NotEqual(t, graphs[0], graphs[1])
}
