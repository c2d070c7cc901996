package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// parts are engines that hold some ranks each, as processes on several machines do.
type parts struct {
	engines []*Engine // by rank; several ranks may have the same
	running []*Part
	passed  map[stage.MessageKind]int // messages between engines
	mu      sync.Mutex
}

// sender sends for one engine.
type sender struct{ *parts }

// Send implements Remote. The payload is copied, as a network does.
func (s sender) Send(to int, m stage.Message, payload [][]byte, began time.Time) {
	s.mu.Lock()
	s.passed[m.Kind]++
	p := s.running[to]
	s.mu.Unlock()
	var copied [][]byte
	for _, b := range payload {
		copied = append(copied, append([]byte{}, b...))
	}
	go func() {
		if err := p.Deliver(to, m, copied, began); err != nil {
			panic(err)
		}
	}()
}

// distinct lists the engines once.
func (p *parts) distinct() (es []*Engine) {
	for i, e := range p.engines {
		if i == 0 || e != p.engines[i-1] {
			es = append(es, e)
		}
	}
	return es
}

// split plans and loads a pipeline whose ranks are divided among engines: rank i is in engine of[i].
func (l *lender) split(t *testing.T, s trial, of []int) (*parts, Options) {
	t.Helper()
	c := sample(s.tied)
	p := &parts{running: make([]*Part, len(of)), engines: make([]*Engine, len(of)), passed: map[stage.MessageKind]int{}}
	var o Options
	for part := range of[len(of)-1] + 1 {
		o = Options{Layout: s.Layout, Model: c, MicrobatchSize: sequences / microbatches, Microbatches: microbatches / s.Replicas,
			Devices: append([]device.Device{}, l.take(t, len(of))...), Remote: sender{p}, Wire: s.wire}
		o.Schedule = func(batches int) (*schedule.Generator, error) {
			return schedule.New(s.schedule, schedule.Options{Stages: s.Stages, Chunks: s.Chunks, Microbatches: microbatches / s.Replicas,
				Stale: s.Delay * (microbatches/s.Replicas - s.current), Batches: batches})
		}
		for rank, at := range of {
			if at != part {
				o.Devices[rank] = nil
			}
		}
		o.Optimizer = adam(t, o, s.correction, s.scale)
		e, err := New(o)
		require.NoError(t, err)
		require.NoError(t, e.Load())
		t.Cleanup(func() { assert.NoError(t, e.Close()) })
		for rank, at := range of {
			if at == part {
				p.engines[rank] = e
			}
		}
	}
	return p, o
}

// begin begins work on all engines.
func (p *parts) begin(t *testing.T, w Work) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.distinct() {
		w.Hyperparameters = func(batch int, initialized bool) []float32 {
			return e.options.Optimizer.Hyperparameters(batch, initialized).Float32s()
		}
		part, err := e.Begin(w)
		require.NoError(t, err)
		for rank, at := range p.engines {
			if at == e {
				p.running[rank] = part
			}
		}
	}
}

// train trains as lender.train does, granting batches one by one.
func (p *parts) train(t *testing.T, s trial, o Options) trained {
	t.Helper()
	c := sample(s.tied)
	for _, e := range p.distinct() {
		for _, param := range c.Parameters() {
			for v := range Version(s.Delay + 1) {
				require.NoError(t, e.WriteWeights(param.Name, v, exec.F32Bytes(param.Initial(3))))
			}
		}
	}
	out, r := trained{}, p.engines[0].newResults(0, true)
	p.begin(t, Work{To: batches + 5, Source: Tokens(noise{c}.batch), Report: func(x Result) { r.add(newFailure(), x) }})
	for granted := 1; granted <= batches; granted++ {
		for _, part := range p.running {
			part.Grant(granted)
		}
	}
	for _, part := range p.running { // before the batches that Work names
		part.End(batches)
	}
	for _, part := range p.running {
		end, err := part.Wait()
		require.NoError(t, err)
		assert.Equal(t, batches, end)
	}
	for len(r.out) > 0 {
		m := <-r.out
		for name, x := range map[string]float64{"loss": m.Loss, "norm": m.GradNorm} {
			out[fmt.Sprint(name, " ", m.Batch)] = binary.LittleEndian.AppendUint64(nil, math.Float64bits(x))
		}
		if s.scale != nil {
			out[fmt.Sprint("scale ", m.Batch)] = exec.F32Bytes([]float32{float32(m.Scale)})
		}
	}
	for _, param := range c.Parameters() {
		rank, err := p.engines[0].Owner(param.Name)
		require.NoError(t, err)
		for v := range Version(s.Delay + 1) {
			out[fmt.Sprint(param.Name, " ", v)] = wait(t)(p.engines[rank].ReadWeights(param.Name, v))
		}
	}
	for _, v := range o.Optimizer.State() {
		rank, err := p.engines[0].StateOwner(v.ID)
		require.NoError(t, err)
		out[v.ID] = wait(t)(p.engines[rank].ReadState(v.ID))
	}
	return out
}

// Wherever the ranks of a pipeline are, in one process or in several, the bits are the same.
func TestPartsComputeTheSame(t *testing.T) {
	l := newLender(t)
	sync, late, partly := layouts()[0], layouts()[1], layouts()[2]
	rounded, scaled := late, partly
	rounded.wire = Wire{Activations: wire.Int8, Exchange: wire.BF16}
	scaled.scale = &optim.LossScale{Initial: 1 << 10, GrowthEvery: 2}
	for _, x := range []struct {
		trial
		cut      []int
		replicas int
		of       []int // the engine of each rank
	}{
		{sync, []int{3}, 1, []int{0, 1}},
		{late, []int{1, 5}, 1, []int{0, 0, 1}},
		{partly, []int{1, 5}, 1, []int{0, 1, 2}},
		{partly, []int{3}, 2, []int{0, 0, 1, 1}},
		{partly, []int{3}, 2, []int{0, 1, 2, 3}},
		{rounded, []int{1, 5}, 1, []int{0, 1, 2}},
		{scaled, []int{3}, 2, []int{0, 1, 2, 3}},
	} {
		s := x.trial
		s.Cut, s.Stages, s.Replicas = x.cut, len(x.cut)+1, x.replicas
		want := l.train(t, s, nil)
		p, o := l.split(t, s, x.of)
		got := p.train(t, s, o)
		equal(t, want, got, s)
		assert.NotZero(t, p.passed[stage.NormSquares]+p.passed[stage.Contribution])
	}
}

// Evaluations of parts give the losses of one process.
func TestPartsEvaluate(t *testing.T) {
	l := newLender(t)
	s := layouts()[0]
	c := sample(s.tied)
	source := Tokens(func(batch int64) (tokens, targets []int32, err error) {
		tokens, targets, err = noise{c}.batch(batch)
		n := len(tokens) / microbatches
		return tokens[:n], targets[:n], err
	})
	s.Cut, s.Stages = []int{2}, 2
	evaluate := func(e *Engine) (all []Measured) {
		require.NoError(t, e.Evaluate(context.Background(), source, 5, func(m Measured) error {
			all = append(all, m)
			return nil
		}))
		return all
	}
	var want []Measured
	l.train(t, s, func(e *Engine) { want = evaluate(e) })
	p, o := l.split(t, s, []int{0, 1})
	p.train(t, s, o)
	r := p.engines[0].newResults(0, false)
	p.begin(t, Work{Evaluates: true, To: 5, Source: source, Report: func(x Result) { r.add(newFailure(), x) }})
	for _, part := range p.running {
		part.Grant(5)
	}
	for _, part := range p.running {
		_, err := part.Wait()
		require.NoError(t, err)
	}
	require.Len(t, r.out, 5)
	for _, w := range want {
		assert.Equal(t, w, <-r.out)
	}
}

// What another process sends is checked: it cannot make a rank write beyond its tensors.
func TestPartsRefuseWrongMessages(t *testing.T) {
	l := newLender(t)
	activation := stage.Message{Kind: stage.Activation, VirtualStage: 1}
	tensor := make([]byte, 4*sequences/microbatches*12*16) // sequences of 12 tokens, d_model 16
	of := func(m stage.Message, batch, microbatch int) stage.Message {
		m.Batch, m.Microbatch = batch, microbatch
		return m
	}
	for name, x := range map[string]struct {
		to      int
		message stage.Message
		payload [][]byte
		expect  string // "": it is taken
	}{
		"right":              {1, activation, [][]byte{tensor}, ""},
		"as early as can be": {1, of(activation, 3, 3), [][]byte{tensor}, ""},
		"too early":          {1, of(activation, 4, 0), [][]byte{tensor}, "stage 1 has finished the batches before 0, expected a batch up to 3"},
		"rank elsewhere":     {0, activation, nil, "not in this process"},
		"no such rank":       {7, activation, nil, "not in this process"},
		"negative rank":      {-1, activation, nil, "not in this process"},
		"wrong direction":    {1, stage.Message{Kind: stage.Gradient, VirtualStage: 1}, nil, "unexpected message"},
		"no such stage":      {1, stage.Message{Kind: stage.Activation, VirtualStage: 9}, nil, "unexpected message"},
		"no such microbatch": {1, of(activation, 0, microbatches), [][]byte{tensor}, "unexpected message"},
		"far batch":          {1, of(activation, 20, 0), [][]byte{tensor}, "expected a batch from 0 to 19"},
		"no tensor":          {1, activation, nil, "0 tensors, expected 1"},
		"two tensors":        {1, activation, [][]byte{tensor, tensor}, "2 tensors, expected 1"},
		"too few bytes":      {1, activation, [][]byte{{1, 2, 3}}, "tensor 0 has 3 bytes, expected 1536"},
		"too many bytes":     {1, activation, [][]byte{append([]byte{1}, tensor...)}, "tensor 0 has 1537 bytes, expected 1536"},
		"norms":              {1, stage.Message{Kind: stage.NormSquares}, [][]byte{tensor}, "tensor 0 has 1536 bytes, expected "},
		"contribution":       {0, stage.Message{Kind: stage.Contribution, From: 1}, nil, "not in this process"},
		"weights":            {1, stage.Message{Kind: stage.Weights}, [][]byte{tensor}, "tensor 0 has 1536 bytes, expected 2560"},
		"of no copy":         {1, stage.Message{Kind: stage.Contribution}, [][]byte{tensor}, "unexpected message"},
	} {
		t.Run(name, func(t *testing.T) {
			s := layouts()[1]
			s.Cut, s.Stages = []int{3}, 2
			p, _ := l.split(t, s, []int{0, 1})
			p.begin(t, Work{To: 20, Source: Tokens(noise{sample(s.tied)}.batch), Report: func(Result) {}})
			err := p.running[1].Deliver(x.to, x.message, x.payload, time.Now())
			if x.expect == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, x.expect)
			}
			for _, e := range p.distinct() {
				e.Abort(fmt.Errorf("the test is over"))
			}
		})
	}
}

// An engine whose part is aborted is closed only once its ranks have stopped.
func TestCloseWaitsForAPart(t *testing.T) {
	l := newLender(t)
	s := layouts()[0]
	s.Cut, s.Stages = []int{3}, 2
	p, _ := l.split(t, s, []int{0, 1})
	p.begin(t, Work{To: 2, Source: Tokens(noise{sample(s.tied)}.batch), Report: func(Result) {}})
	part := p.running[0]
	part.Grant(2)
	for _, e := range p.distinct() {
		e.Abort(assert.AnError)
		require.NoError(t, e.Close())
	}
	select {
	case <-part.ended:
	default:
		t.Error("the part has not ended")
	}
}
