package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	sequences    = 8 // a batch
	microbatches = 4
	batches      = 6
	clip         = 0.4 // below every norm here
)

// sample is a model small enough to train in moments.
func sample(tied bool) model.Config {
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF, c.SeqLen = 40, 16, 4, 4, 2, 24, 12
	c.TieEmbeddings = tied
	return c
}

// noise is random tokens, a function of the batch's number.
type noise struct{ model.Config }

func (n noise) batch(batch int64) (tokens, targets []int32, err error) {
	rng := rand.New(rand.NewPCG(7, uint64(batch)))
	for range sequences * n.SeqLen {
		tokens, targets = append(tokens, rng.Int32N(int32(n.VocabSize))), append(targets, rng.Int32N(int32(n.VocabSize)))
	}
	return tokens, targets, nil
}

// trial is a pipeline to train on.
type trial struct {
	Layout
	schedule   string
	current    int // with a delay: the last microbatches of a batch, which are not stale
	correction string
	tied       bool
	inputs     bool // of all kinds, and a loss that reads them
	scale      *optim.LossScale
	wire       Wire
	segments   []int // batches at which training pauses
}

func (s trial) String() string {
	return fmt.Sprintf("%s, %d stages cut at %v, recomputing %v, delay %d but for %d, correction %s, %d replicas, tied %v, inputs %v",
		s.schedule, s.Stages, s.Cut, s.Recompute, s.Delay, s.current, s.correction, s.Replicas, s.tied, s.inputs)
}

// layouts are a synchronous and two delayed pipelines of one stage.
func layouts() []trial {
	l := Layout{Stages: 1, Chunks: 1, Replicas: 1}
	delayed := trial{Layout: l, schedule: "2bw", correction: "error_feedback", tied: true}
	delayed.Delay = 1
	partly := delayed
	partly.current = 1
	return []trial{{Layout: l, schedule: "1f1b", correction: "none"}, delayed, partly}
}

// trained is everything that training computed, by name: weights of both versions, state, losses and norms.
type trained map[string][]byte

// lender keeps devices from one training to the next, so that kernels are compiled once.
type lender struct{ devices []device.Device }

func newLender(t *testing.T) *lender {
	l := &lender{}
	t.Cleanup(func() {
		for _, dev := range l.devices {
			assert.NoError(t, dev.Close())
		}
	})
	return l
}

func (l *lender) take(t *testing.T, n int) []device.Device {
	t.Helper()
	for len(l.devices) < n {
		dev, err := testdevice.Open(testdevice.Name)
		require.NoError(t, err)
		l.devices = append(l.devices, dev)
	}
	return l.devices[:n]
}

// train trains a few batches and returns what came of it. look, if not nil, is given the engine before it is closed.
func (l *lender) train(t *testing.T, s trial, look func(*Engine)) trained {
	t.Helper()
	c := sample(s.tied)
	o := Options{Layout: s.Layout, Model: c, MicrobatchSize: sequences / microbatches, Microbatches: microbatches / s.Replicas,
		Devices: l.take(t, s.Stages*s.Replicas), Wire: s.wire}
	o.Schedule = func(batches int) (*schedule.Generator, error) {
		return schedule.New(s.schedule, schedule.Options{Stages: s.Stages, Chunks: s.Chunks, Microbatches: o.Microbatches,
			Stale: s.Delay * (o.Microbatches - s.current), Batches: batches})
	}
	o.Optimizer = adam(t, o, s.correction, s.scale)
	source := Source(Tokens(noise{c}.batch))
	if s.inputs {
		o.Inputs, o.Loss = everything(), drawn
		source = data{o, microbatches}
	}
	e, err := New(o)
	require.NoError(t, err, s)
	require.NoError(t, e.Load())
	defer func() { assert.NoError(t, e.Close()) }()
	for _, p := range c.Parameters() {
		for v := range Version(s.Delay + 1) {
			require.NoError(t, e.WriteWeights(p.Name, v, exec.F32Bytes(p.Initial(3))))
		}
	}
	out := trained{}
	each := func(m Measured) error {
		for name, x := range map[string]float64{"loss": m.Loss, "norm": m.GradNorm} {
			out[fmt.Sprint(name, " ", m.Batch)] = binary.LittleEndian.AppendUint64(nil, math.Float64bits(x))
			require.Greater(t, x, clip, "the %s of a device that computes, and of a batch that is clipped", name)
		}
		if s.scale != nil {
			out[fmt.Sprint("scale ", m.Batch)] = exec.F32Bytes([]float32{float32(m.Scale)})
		}
		return nil
	}
	from := 0
	for _, to := range append(s.segments, batches) {
		_, err = e.Train(context.Background(), source, from, to, each)
		require.NoError(t, err, s)
		from = to
	}
	e.read(t, out)
	if look != nil {
		look(e)
	}
	return out
}

// read adds weights and state.
func (e *Engine) read(t *testing.T, out trained) {
	t.Helper()
	for _, p := range e.options.Model.Parameters() {
		for v := range Version(e.options.Layout.Delay + 1) {
			out[fmt.Sprint(p.Name, " ", v)] = wait(t)(e.ReadWeights(p.Name, v))
		}
	}
	for _, v := range e.options.Optimizer.State() {
		out[v.ID] = wait(t)(e.ReadState(v.ID))
	}
}

func wait(t *testing.T) func(p device.Pending, err error) []byte {
	t.Helper()
	return func(p device.Pending, err error) []byte {
		t.Helper()
		require.NoError(t, err)
		data, err := p.Wait()
		require.NoError(t, err)
		return data
	}
}

// adam is AdamW on all parameters.
func adam(t *testing.T, o Options, correction string, scale *optim.LossScale) *optim.Optimizer {
	t.Helper()
	var params []optim.Param
	for _, p := range o.Model.Parameters() {
		all := o.Contributions(p.Name)
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit, Gradient: all[len(all)-1],
			Contributions: all[:len(all)-1], Decay: len(p.Type.Shape) == 2})
	}
	c := optim.Corrections()[slices.Index(optim.CorrectionNames(), cmp.Or(correction, optim.CorrectionNone))].New()
	a, err := optim.New(optim.Config{Algorithm: &optim.AdamW{LR: 0.01, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8}, WeightDecay: 0.1,
		Clip:   clip,
		Losses: append(o.LossContributions(), model.LossVariable), Delay: o.Layout.Delay, Correction: c, LossScale: scale,
		Schedule: optim.Schedule{Name: "constant"}}, params)
	require.NoError(t, err)
	return a
}

// equal compares all that was trained, bit by bit.
func equal(t *testing.T, want, got trained, s trial) {
	t.Helper()
	require.Len(t, got, len(want), s.String())
	for name := range want {
		assert.Equal(t, want[name], got[name], "%s: %v", name, s)
	}
}

// Wherever the model is cut, and whichever stages compute activations again, the bits are those of one device.
func TestLayoutsComputeTheSame(t *testing.T) {
	l := newLender(t)
	for _, s := range layouts() {
		var kernels int
		want := l.train(t, s, func(e *Engine) { kernels = e.Ranks()[0].Kernels })
		for _, layout := range tier.Divide(t, []Layout{
			{Recompute: []bool{true}},
			{Cut: []int{2, 3}, Recompute: []bool{true, false, true}},
			{Cut: []int{1}},
			{Cut: []int{5}, Recompute: []bool{true, false}},
			{Cut: []int{3}, Recompute: []bool{false, true}},
			{Cut: []int{1, 5}, Recompute: []bool{false, true, false}},
			{Cut: []int{1, 2, 4}, Recompute: []bool{true, true, true, true}},
		}, tier.First[Layout](2)) {
			s.Cut, s.Recompute, s.Stages = layout.Cut, layout.Recompute, len(layout.Cut)+1
			got := l.train(t, s, func(e *Engine) {
				if s.Stages == 1 {
					assert.Greater(t, e.Ranks()[0].Kernels, kernels, "the backward pass computes activations again")
				}
			})
			equal(t, want, got, s)
		}
	}
}

// Two replicas give the same bits with one stage as with two, and after the last batch every copy of a parameter is
// what its owner has: a tied head's, and those of a further replica.
func TestReplicasAgree(t *testing.T) {
	l := newLender(t)
	for _, s := range layouts() {
		s.Replicas, s.tied = 2, true
		var want trained
		for _, cut := range [][]int{nil, {3}} {
			s.Cut, s.Stages = cut, len(cut)+1
			copies := 0
			got := l.train(t, s, func(e *Engine) {
				owned := trained{}
				e.read(t, owned)
				for _, rank := range e.ranks {
					copies += rank.agrees(t, owned)
				}
			})
			perVersion := len(sample(true).Parameters()) // of the second replica
			if s.Stages > 1 {
				perVersion += 2 // in the heads
			}
			assert.Equal(t, perVersion*(s.Delay+1), copies)
			if want == nil {
				want = got
			}
			equal(t, want, got, s)
		}
	}
}

// agrees compares the copies on a rank with the parameters of their owners, as they travel, and counts them.
func (r *rank) agrees(t *testing.T, owned trained) (copies int) {
	t.Helper()
	for _, h := range r.holdings {
		for v := range Version(r.engine.options.Layout.Delay + 1) {
			if h.owner != r.index {
				copies++
				assert.Equal(t, r.engine.options.Wire.copied(owned[fmt.Sprint(h.param, " ", v)]),
					wait(t)(r.session.ReadAt(h.param, r.version(v))), "%s of %s", h.param, r.name())
			}
		}
	}
	return copies
}
