package optim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
)

// seed has bits in both words of a key.
const seed = 7<<32 | 11

// rounding is how one state of a section is rounded: Threefry of the key and the counter (element, stream).
type rounding struct {
	key    [2]uint32
	stream uint32
}

func (r rounding) round(x []float64) {
	for i := range x {
		x[i] = op.StochasticallyRounded(x[i], op.Threefry(r.key, [2]uint32{uint32(i), r.stream})[0])
	}
}

// roundingOf is the rounding of a state at a step: of a section that begins at an entry of the parameter.
func roundingOf(o *Optimizer, step int, p Param, kind string, from int) rounding {
	words := op.Threefry([2]uint32{11, 7}, [2]uint32{uint32(step), keyDomain})
	rule := func(p Param) int {
		return slices.IndexFunc(o.groups, func(g group) bool { return len(g.of([]Param{p})) > 0 })
	}
	g := o.groups[rule(p)]
	together := []Param{p}
	if !p.stacked() {
		together = slices.DeleteFunc(slices.Clone(o.params), func(q Param) bool {
			return q.Layer != p.Layer || q.stacked() ||
				rule(q) != rule(p)
		})
	}
	r := rounding{key: [2]uint32{words[0]>>9 + uint32(from), words[1]>>9 + uint32(o.position(together[0].Name))}}
	for _, q := range together {
		for _, k := range append(slices.Collect(names(g.rule.State(q))), o.correction.State()...) {
			if q.Name == p.Name && k == kind {
				return r
			}
			r.stream++
		}
	}
	panic(p.Name + " has no " + kind)
}

func names(vs []graph.Named) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range vs {
			if !yield(v.ID) {
				return
			}
		}
	}
}

// round rounds a state of a parameter.
func (r *reference) round(t int, p Param, kind string, x *mat.Dense) {
	if r.rounding != nil {
		roundingOf(r.rounding, t, p, kind, 0).round(x.RawMatrix().Data)
	}
}

// roundState rounds the state of a parameter's rule.
func (r *reference) roundState(t int, p Param) {
	if r.rounding == nil || r.initializesAt(t) && Name(r.algorithm(p)) == "soap" {
		return
	}
	for _, kind := range map[string][]string{
		"muon": {"momentum"}, "normuon": {"momentum"}, "sgd": {"momentum"}, "adamw": {"exp_avg", "exp_avg_sq"}, "lion": {"exp_avg"},
		"adan": {"exp_avg", "exp_avg_diff", "exp_avg_sq", "last_grad"}, "mars": {"exp_avg", "exp_avg_sq", "last_grad"},
		"soap": {"exp_avg", "exp_avg_sq"},
	}[Name(r.algorithm(p))] {
		x := map[string]*mat.Dense{"momentum": r.m[p.Name], "exp_avg": r.m[p.Name], "exp_avg_sq": r.v[p.Name],
			"exp_avg_diff": r.kept["diff "+p.Name], "last_grad": r.kept["gradient "+p.Name]}[kind]
		if x == nil {
			x = r.kept["negative gradient "+p.Name]
		}
		if s, ok := r.algorithm(p).(*SGD); !ok || s.Momentum > 0 {
			r.round(t, p, kind, x)
		}
	}
}

// ahead is what the weights are ahead by after a step: the staleness times a, rounded.
func (r *reference) ahead(t int, p Param, kind string, a *mat.Dense) *mat.Dense {
	x := mat.DenseCopyOf(a)
	x.Scale(r.staleness(), x)
	r.round(t, p, kind, x)
	return x
}

// Every optimizer does the published steps from state that is rounded to bf16, and so does every correction of the
// delay. A batch in the middle is skipped.
func TestEveryStepFromRoundedMoments(t *testing.T) {
	for name, cfg := range testConfigs() {
		if !slices.Contains(OptimizerNames(), name) {
			continue
		}
		for _, correction := range append(CorrectionNames(), "") {
			if name != "adamw" && correction != CorrectionErrorFeedback {
				continue
			}
			cfg.SkipNonfinite, cfg.Moments, cfg.Seed = true, graph.BF16, seed
			if correction != "" {
				cfg.Delay, cfg.Correction, cfg.Staleness = 1, correctionOf(t, correction), 0.375
			}
			t.Run(name+" "+correction, func(t *testing.T) { follow(t, cfg, testParams(), 1e-10, newHost) })
		}
	}
}

// The state of stacks, which are updated by sections, is that of an optimizer with moments in f32, rounded: of each
// section under a key of its own. With error feedback the weights without what they are ahead by are those of f32
// exactly.
func TestSectionsOfRoundedMoments(t *testing.T) {
	cfg := testConfigs()["muon"]
	cfg.Losses, cfg.Delay, cfg.Correction, cfg.Seed = nil, 1, &ErrorFeedback{}, seed
	params := stackedParams()
	o32, m32 := start(t, cfg, params, newHost)
	cfg.Moments = graph.BF16
	o, m := start(t, cfg, params, newHost)
	sections, stacks := 0, 0
	for step := range 3 {
		for _, s := range o.State() {
			if s.ID != HaltedVariable {
				m32.set(s.ID, m.get(s.ID))
			}
		}
		for _, p := range params {
			g := randomTensors(params, step)[p.Name]
			m.set(p.Gradient, g)
			m32.set(p.Gradient, g)
			m32.set(p.Name, m.get(p.Name))
		}
		run(m32, o32, step)
		run(m, o, step)
		for _, p := range params {
			if !p.stacked() {
				continue
			}
			ss := o.sections(o.groups[0].rule, p)
			sections, stacks = sections+len(ss), stacks+1
			for _, kind := range []string{"momentum", "last_update"} {
				want, each := slices.Clone(m32.get(stateName(kind, p.Name))), p.Type.Shape[1:].Len()
				for _, s := range ss {
					to := s.to
					if s.whole() {
						to = p.Type.Shape[0]
					}
					roundingOf(o, step, p, kind, s.from).round(want[s.from*each : to*each])
				}
				require.Equal(t, want, m.get(stateName(kind, p.Name)), "step %d: %s of %s", step, kind, p.Name)
			}
		}
		for _, p := range params {
			for i, x := range m32.get(p.Gradient) {
				y := x + m32.get(o.Ahead(p.Name))[i]
				require.InDelta(t, y, m.get(p.Gradient)[i]+m.get(o.Ahead(p.Name))[i], 1e-14, p.Name)
			}
			m.set(p.Name, m.get(p.Gradient))
		}
	}
	assert.Greater(t, sections, stacks, "some stacks have several sections")
}

// On a device the new state is that of f32, rounded, bit for bit.
func TestRoundedMomentsOnADevice(t *testing.T) {
	dev := testdevice.Device(t)
	on := func(t *testing.T, s *Shard) machine { return newGPU(t, dev, s) }
	cfg := testConfigs()["adamw"]
	cfg.Seed = seed
	o32, m32 := start(t, cfg, testParams(), on)
	cfg.Moments = graph.BF16
	o, m := start(t, cfg, testParams(), on)
	for step := range 3 {
		for _, p := range testParams() {
			for _, kind := range []string{"exp_avg", "exp_avg_sq"} {
				m32.set(stateName(kind, p.Name), m.get(stateName(kind, p.Name))[:p.Type.Shape.Len()])
			}
			g := randomTensors(testParams(), step)[p.Name]
			m.set(p.Gradient, g)
			m32.set(p.Gradient, g)
		}
		run(m32, o32, step)
		run(m, o, step)
		for _, p := range testParams() {
			require.Equal(t, m32.get(p.Name), m.get(p.Name), p.Name)
			for _, kind := range []string{"exp_avg", "exp_avg_sq"} {
				want := m32.get(stateName(kind, p.Name))
				roundingOf(o, step, p, kind, 0).round(want)
				require.Equal(t, want, m.get(stateName(kind, p.Name))[:len(want)], "step %d: %s of %s", step, kind, p.Name)
			}
		}
	}
}

// A second moment with β₂ = 0.999 grows to that of f32, although its steps are smaller than half the distance of
// numbers in bf16.
func TestRoundedMomentsKeepSmallChanges(t *testing.T) {
	const n, steps = 256, 1000
	params := []Param{{Name: "w", Type: graph.T(graph.F32, n), Gradient: "g"}}
	o, err := New(Config{Algorithm: &AdamW{Betas: [2]float64{0.9, 0.999}, Eps: 1e-8}, Schedule: Schedule{Name: "constant", Steps: steps},
		Moments: graph.BF16}, params)
	require.NoError(t, err)
	m := newHost(t, o.All())
	m.set("g", slices.Repeat([]float64{1}, n))
	for step := range steps {
		run(m, o, step)
	}
	assert.InEpsilon(t, bias(0.999, steps-1), stat.Mean(m.get("optim/exp_avg_sq/w"), nil), 0.01)
	assert.InEpsilon(t, 1, stat.Mean(m.get("optim/exp_avg/w"), nil), 0.01)
}

// With WebGPU's default limits an update with rounded moments has one kernel for each layer, which makes its key, and
// otherwise as many kernels and copies as with f32. The kernels of layers that are alike are the same.
func TestKernelsOfRoundedMoments(t *testing.T) {
	params := llama()
	type program struct {
		kernels, keys int
		copied        int64
	}
	for _, c := range []struct{ name, correction string }{{"adamw", "none"}, {"adamw", "error_feedback"}, {"lion", "weight_prediction"}} {
		t.Run(c.name+" "+c.correction, func(t *testing.T) {
			cfg := testConfigs()[c.name]
			cfg.Losses, cfg.Delay, cfg.Correction = nil, 1, correctionOf(t, c.correction)
			updates := map[graph.DType]program{}
			for _, d := range []graph.DType{graph.F32, graph.BF16} {
				cfg.Moments = d
				o, err := New(cfg, params)
				require.NoError(t, err)
				_, update := programs(t, o.All())
				dev := null.New(null.Options{})
				p, err := exec.NewPlan(dev, map[string]*graph.Graph{"update": update}, exec.Options{})
				require.NoError(t, err)
				s, err := p.Load()
				require.NoError(t, err)
				require.NoError(t, s.Run("update"))
				chosen, err := p.Chosen("update")
				require.NoError(t, err)
				u := program{len(chosen), 0, dev.Counts().BytesCopied}
				texts := map[string][]string{} // by layer
				for i, k := range p.Kernels("update") {
					scope, _, _ := strings.Cut(k.Label, ":")
					if scope == roundingScope {
						u.keys++
					}
					for _, pass := range chosen[i].Passes {
						texts[scope] = append(texts[scope], fmt.Sprint(pass.Groups, pass.Source))
					}
				}
				for _, layer := range []string{"layers.1", "layers.2", "layers.3"} {
					require.NotEmpty(t, texts[layerScope(layer)])
					assert.True(t, slices.Equal(texts[layerScope("layers.0")], texts[layerScope(layer)]), "the kernels of %s in %v",
						layer, d)
				}
				updates[d] = u
				require.NoError(t, s.Close())
			}
			const keys = 7 // the embedding, the layers, the last norm, and the head
			want := updates[graph.F32]
			want.kernels, want.keys = want.kernels+keys, keys
			assert.Equal(t, want, updates[graph.BF16])
		})
	}
}

// State takes half the memory, except what a rule keeps exact.
func TestTypesOfRoundedMoments(t *testing.T) {
	for _, name := range OptimizerNames() {
		cfg := testConfigs()[name]
		cfg.Delay, cfg.Correction, cfg.Moments = 1, &ErrorFeedback{}, graph.BF16
		o, err := New(cfg, testParams())
		require.NoError(t, err)
		for _, s := range o.State() {
			kind := strings.Split(s.ID, "/")[1]
			exact := slices.Contains([]string{"halted", "second_momentum", "precond_left", "precond_right", "basis_left", "basis_right"},
				kind)
			assert.Equal(t, exact, s.Type.DType != graph.BF16, "%s: %s", name, s.ID)
		}
	}
	cfg := testConfigs()["adamw"]
	cfg.Moments = graph.F16
	_, err := New(cfg, testParams())
	assert.EqualError(t, err, "moments: found f16, expected one of f32, bf16")
}
