package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

const steps = 12

// layer finds the layer in a parameter's name.
var layer = regexp.MustCompile(`^[a-z]+(\.\d+)?`)

// testParams has square, wide and tall matrices, several of one shape, and vectors down to one element.
func testParams() []Param {
	var ps []Param
	add := func(name string, matrix bool, shape ...int) {
		ps = append(ps, Param{Name: name, Type: graph.T(graph.F32, shape...), Layer: layer.FindString(name), Gradient: "grad/" + name,
			Matrix: matrix, Decay: len(shape) > 1})
	}
	add("embed", false, 11, 8)
	for i := range 5 {
		add(fmt.Sprintf("layers.%d.norm", i), false, 8)
		add(fmt.Sprintf("layers.%d.q", i), true, 8, 8)
		add(fmt.Sprintf("layers.%d.up", i), true, 20, 8)
	}
	for i := range 4 {
		add(fmt.Sprintf("layers.0.up%d", i), true, 20, 8)
	}
	add("layers.0.down", true, 8, 20)
	add("layers.1.down", true, 8, 20)
	add("scale", false, 1)
	return ps
}

func testConfigs() map[string]Config {
	schedule := Schedule{Name: "cosine", Steps: steps, Warmup: 3, MinRatio: 0.1}
	adam := AdamWConfig{LR: 3e-3, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8}
	muon := Config{Name: "muon", LR: 0.02, Momentum: 0.95, Nesterov: true, WeightDecay: 0.1, NewtonSchulz: "jordan", Scale: "spectral",
		Clip: 1, AdamW: adam, Loss: "loss", Schedule: schedule}
	plain, polar := muon, muon
	plain.Nesterov = false
	polar.NewtonSchulz, polar.Scale = "polar_express", "match_rms_adamw"
	sgd := Config{Name: "sgd", LR: 0.1, Momentum: 0.9, WeightDecay: 0.1, Clip: 1, Schedule: schedule}
	nesterov, bare := sgd, sgd
	nesterov.Nesterov, nesterov.Clip = true, 0
	bare.Momentum = 0
	return map[string]Config{
		"muon": muon, "muon without nesterov": plain, "muon polar express, rms scale": polar,
		"adamw": {Name: "adamw", LR: 3e-3, WeightDecay: 0.1, Clip: 0.5, AdamW: adam, Schedule: schedule},
		"sgd":   sgd, "sgd nesterov, no clip": nesterov, "sgd without momentum": bare,
	}
}

// numbers are deterministic; step −1 has the initial weights. Every third step's gradient is small enough not to be clipped.
func numbers(params []Param, step int) map[string][]float64 {
	r := rand.New(rand.NewPCG(7, uint64(step+1)))
	size := 0.3
	if step%3 == 2 {
		size = 0.01
	}
	xs := map[string][]float64{}
	for _, p := range params {
		x := make([]float64, p.Type.Shape.Len())
		for i := range x {
			x[i] = float64(float32(size * r.NormFloat64()))
		}
		xs[p.Name] = x
	}
	return xs
}

// machine carries out an update.
type machine interface {
	set(name string, x []float64)
	get(name string) []float64
	run(o *Optimizer, step int) (norm float64, ok bool)
}

func programs(t *testing.T, p *Part) (votes, update *graph.Graph) {
	votes, err := p.Votes()
	require.NoError(t, err)
	update, err = p.Update(0)
	require.NoError(t, err)
	return votes, update
}

// host is the reference evaluator in float64.
type host struct {
	t             *testing.T
	votes, update *graph.Graph
	vars          map[string]*graph.Tensor
}

func newHost(t *testing.T, o *Optimizer) machine {
	votes, update := programs(t, o.All())
	h := &host{t, votes, update, map[string]*graph.Tensor{}}
	for _, v := range append(votes.Sources("variable"), update.Sources("variable")...) {
		h.vars[v.Node.Op.(graph.Source).Label()] = graph.NewTensor(v.Type)
	}
	return h
}

func (h *host) set(name string, x []float64) { copy(h.vars[name].Data, x) }
func (h *host) get(name string) []float64    { return h.vars[name].Data }

func (h *host) run(o *Optimizer, step int) (float64, bool) {
	hyper := o.hyper(step)
	in := map[string]*graph.Tensor{HyperInput: {Type: graph.T(graph.F32, len(hyper)), Data: hyper}}
	_, err := eval.Run(h.votes, nil, h.vars)
	require.NoError(h.t, err)
	out, err := eval.Run(h.update, in, h.vars)
	require.NoError(h.t, err)
	return out[NormOutput].Data[0], out[OKOutput].Data[0] == 1
}

// gpu is a device.
type gpu struct {
	t     *testing.T
	s     *exec.Session
	types map[string]graph.Type
}

func newGPU(t *testing.T, dev device.Device, o *Optimizer) machine {
	votes, update := programs(t, o.All())
	p, err := exec.NewPlan(dev, map[string]*graph.Graph{"votes": votes, "update": update}, exec.Options{})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	m := &gpu{t, s, map[string]graph.Type{}}
	for _, v := range s.Variables() {
		m.types[v.ID] = v.Type
	}
	return m
}

func (m *gpu) set(name string, x []float64) {
	require.NoError(m.t, m.s.WriteVariable(name, exec.Encode(m.types[name].DType, x)))
}

func (m *gpu) wait(p device.Pending, err error) []byte {
	require.NoError(m.t, err)
	b, err := p.Wait()
	require.NoError(m.t, err)
	return b
}

func (m *gpu) get(name string) []float64 {
	return exec.Decode(m.types[name].DType, m.wait(m.s.ReadVariable(name)))
}

func (m *gpu) run(o *Optimizer, step int) (float64, bool) {
	require.NoError(m.t, m.s.SetInput("update", HyperInput, exec.F32Bytes(o.Hyper(step))))
	require.NoError(m.t, m.s.Run("votes"))
	require.NoError(m.t, m.s.Run("update"))
	norm := exec.Decode(graph.F32, m.wait(m.s.Output("update", NormOutput)))[0]
	ok := exec.Decode(graph.U32, m.wait(m.s.Output("update", OKOutput)))[0]
	return norm, ok == 1
}

// eachMachine runs a test on the evaluator and on a device, with the tolerance that each deserves.
func eachMachine(t *testing.T, f func(t *testing.T, tolerance float64, on func(*testing.T, *Optimizer) machine)) {
	t.Run("float64", func(t *testing.T) { f(t, 1e-10, newHost) })
	t.Run("device", func(t *testing.T) {
		dev, err := webgpu.Open(0, webgpu.Options{})
		require.NoError(t, err)
		defer dev.Close()
		f(t, 2e-5, func(t *testing.T, o *Optimizer) machine { return newGPU(t, dev, o) })
	})
}

func start(t *testing.T, cfg Config, params []Param, on func(*testing.T, *Optimizer) machine) (*Optimizer, machine) {
	o, err := New(cfg, params)
	require.NoError(t, err)
	for _, g := range o.groups {
		if m, ok := g.rule.(*muon); ok {
			m.maxBatch = 2000 // bytes: three of [20, 8]
		}
	}
	m := on(t, o)
	for name, x := range numbers(params, -1) {
		m.set(name, x)
	}
	return o, m
}

func TestEveryStepIsThePublishedOne(t *testing.T) {
	eachMachine(t, func(t *testing.T, tolerance float64, on func(*testing.T, *Optimizer) machine) {
		for name, cfg := range testConfigs() {
			t.Run(name, func(t *testing.T) {
				params := testParams()
				o, m := start(t, cfg, params, on)
				ref := newReference(cfg, params, numbers(params, -1))
				clipped := 0
				for step := range steps {
					gradients := numbers(params, step)
					for p, g := range gradients {
						m.set("grad/"+p, g)
					}
					norm, ok := m.run(o, step)
					want := ref.step(step, o.cfg.Schedule.Factor(step), gradients)
					require.True(t, ok, "step %d", step)
					require.InEpsilon(t, want, norm, tolerance, "norm of step %d", step)
					if cfg.Clip > 0 && want > cfg.Clip {
						clipped++
					}
					for _, p := range params {
						compare(t, fmt.Sprintf("step %d: %s", step, p.Name), ref.x[p.Name].RawMatrix().Data, m.get(p.Name), tolerance)
					}
				}
				if cfg.Clip > 0 {
					assert.True(t, 0 < clipped && clipped < steps, "%d steps were clipped", clipped)
				}
			})
		}
	})
}

// compare asks that the distance be small beside the length of what is expected, or of initial weights where that has
// come close to zero.
func compare(t *testing.T, what string, want, got []float64, tolerance float64) {
	t.Helper()
	d := floats.Distance(want, got, 2) / max(floats.Norm(want, 2), 0.3*math.Sqrt(float64(len(want))))
	require.LessOrEqual(t, d, tolerance, what)
	require.False(t, math.IsNaN(d), what)
}
