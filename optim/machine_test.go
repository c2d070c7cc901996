package optim

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// machine holds the variables of a shard and runs its programs.
type machine interface {
	has(name string) bool
	set(name string, x []float64)
	get(name string) []float64
	normSquares()
	update(o *Optimizer, step int) (norm float64, ok bool)
	output(name string) float64 // of the last update
}

// maker makes a machine for a shard.
type maker func(*testing.T, *Shard) machine

// run updates once, on a machine that owns everything.
func run(m machine, o *Optimizer, step int) (norm float64, ok bool) {
	m.normSquares()
	return m.update(o, step)
}

// initialized reports whether an update was applied before a step.
func initialized(m machine, o *Optimizer, step int) bool {
	if o.TracksInitialization() {
		return m.get(InitializedVariable)[0] != 0
	}
	return step > 0
}

// programs returns a shard's norm squares and the usual variant of its update.
func programs(t *testing.T, s *Shard) (norms, update *graph.Graph) {
	all := allPrograms(t, s)
	return all[normsProgram], all[updateProgram(0)]
}

const normsProgram = "norms"

func updateProgram(variant int) string { return fmt.Sprint("update", variant) }

// allPrograms returns a shard's norm squares and all variants of its update.
func allPrograms(t *testing.T, s *Shard) map[string]*graph.Graph {
	gs := map[string]*graph.Graph{}
	var err error
	gs[normsProgram], err = s.NormSquares()
	require.NoError(t, err)
	for v := range s.o.Variants() {
		gs[updateProgram(v)], err = s.Update(v)
		require.NoError(t, err)
	}
	return gs
}

// host is the reference evaluator in float64.
type host struct {
	t        *testing.T
	programs map[string]*graph.Graph
	vars     map[string]*graph.Tensor
	out      map[string]*graph.Tensor
}

func newHost(t *testing.T, s *Shard) machine {
	h := &host{t: t, programs: allPrograms(t, s), vars: map[string]*graph.Tensor{}}
	for _, g := range h.programs {
		for _, v := range g.Variables() {
			h.vars[v.ID] = graph.NewTensor(v.Type)
		}
	}
	return h
}

func (h *host) has(name string) bool         { return h.vars[name] != nil }
func (h *host) set(name string, x []float64) { copy(h.vars[name].Data, x) }
func (h *host) get(name string) []float64    { return h.vars[name].Data }

func (h *host) normSquares() {
	_, err := eval.Run(h.programs[normsProgram], nil, h.vars)
	require.NoError(h.t, err)
}

func (h *host) update(o *Optimizer, step int) (float64, bool) {
	initialized := initialized(h, o, step)
	var values []float64
	for _, h := range o.Hyperparameters(step, initialized) {
		values = append(values, h.Value)
	}
	in := map[string]*graph.Tensor{HyperparametersInput: {Type: graph.T(graph.F32, len(values)), Data: values}}
	var err error
	h.out, err = eval.Run(h.programs[updateProgram(o.Variant(step, initialized))], in, h.vars)
	require.NoError(h.t, err)
	return h.output(NormOutput), h.output(StatusOutput) == 0
}

func (h *host) output(name string) float64 { return h.out[name].Data[0] }

// gpu is a device.
type gpu struct {
	t     *testing.T
	s     *exec.Session
	types map[string]graph.Type
	last  string // program
}

func newGPU(t *testing.T, dev device.Device, shard *Shard) machine {
	p, err := exec.NewPlan(dev, allPrograms(t, shard), exec.Options{})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	m := &gpu{t: t, s: s, types: map[string]graph.Type{}}
	for _, v := range s.Variables() {
		m.types[v.ID] = v.Type
	}
	return m
}

func (m *gpu) has(name string) bool {
	_, ok := m.types[name]
	return ok
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

func (m *gpu) normSquares() { require.NoError(m.t, m.s.Run(normsProgram)) }

func (m *gpu) update(o *Optimizer, step int) (float64, bool) {
	initialized := initialized(m, o, step)
	m.last = updateProgram(o.Variant(step, initialized))
	require.NoError(m.t, m.s.SetInput(m.last, HyperparametersInput, exec.F32Bytes(o.Hyperparameters(step, initialized).Float32s())))
	require.NoError(m.t, m.s.Run(m.last))
	return m.output(NormOutput), m.output(StatusOutput) == 0
}

func (m *gpu) output(name string) float64 {
	d := graph.F32
	if name == StatusOutput {
		d = graph.U32
	}
	return exec.Decode(d, m.wait(m.s.Output(m.last, name)))[0]
}

// eachMachine runs a test on the evaluator and on a device, with the tolerance that each deserves. The core of the
// tests leaves out the device: golden runs train every optimizer on it.
func eachMachine(t *testing.T, f func(t *testing.T, tolerance float64, on maker)) {
	t.Run("float64", func(t *testing.T) { f(t, 1e-10, newHost) })
	t.Run("device", func(t *testing.T) {
		tier.Rest(t)
		dev := testdevice.Quick(t)
		f(t, 2e-5, func(t *testing.T, s *Shard) machine { return newGPU(t, dev, s) })
	})
}

func start(t *testing.T, cfg Config, params []Param, on maker) (*Optimizer, machine) {
	o := small(t, cfg, params)
	m := on(t, o.All())
	for name, x := range randomTensors(params, -1) {
		m.set(name, x)
	}
	return o, m
}

// small is an optimizer that gathers no more than three matrices of [20, 8].
func small(t *testing.T, cfg Config, params []Param) *Optimizer {
	o, err := New(cfg, params)
	require.NoError(t, err)
	limit(o, 2000)
	return o
}

// limit bounds the bytes of a batch.
func limit(o *Optimizer, bytes int64) {
	for _, g := range o.groups {
		switch r := g.rule.(type) {
		case *muon:
			r.maxBatch = bytes
		case *norMuon:
			r.maxBatch = bytes
		case *soap:
			r.maxBatch = bytes
		}
	}
}

// bits are the parameters and the state, but for the sticky variable.
func bits(m machine, o *Optimizer) map[string][]uint64 {
	all := map[string][]uint64{}
	for _, p := range o.params {
		all[p.Name] = patterns(m.get(p.Name))
	}
	for _, s := range o.State() {
		if s.ID != HaltedVariable {
			all[s.ID] = patterns(m.get(s.ID))
		}
	}
	return all
}

func patterns(xs []float64) (bs []uint64) {
	for _, x := range xs {
		bs = append(bs, math.Float64bits(x))
	}
	return bs
}
