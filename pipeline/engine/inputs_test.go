package engine

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// everything is all that training can be given.
func everything() model.Inputs {
	return model.Inputs{Segments: true, Weights: true, Scalars: 1, Aligned: []graph.Named{
		{ID: "teacher", Type: graph.T(graph.F32, 3)}, {ID: "unread", Type: graph.T(graph.U32)}}}
}

// drawn is the cross entropy, and in the proportion of the scalar how far the first of hidden are from a teacher's.
func drawn(in model.LossInputs) *graph.Value {
	off := op.Square(op.Sub(op.Slice(in.Hidden, 1, 0, 3), in.Aligned["teacher"]))
	return op.Add(model.CrossEntropy(in), op.Mul(op.Mean(off, []int{1}, false), op.Reshape(in.Scalars)))
}

// data is noise for all that is read of a batch: so many microbatches.
type data struct {
	Options
	microbatches int
}

func (d data) Batch(number int64) (Batch, error) {
	b := Batch{}
	for i, v := range d.Model.Variables(d.Inputs, d.MicrobatchSize) {
		rng := rand.New(rand.NewPCG(uint64(i), uint64(number)))
		if v.ID == model.ScalarsInput {
			rng = rand.New(rand.NewPCG(99, uint64(number)))
		}
		var all []byte
		for range d.microbatches {
			start := len(all)
			for range v.Type.Shape.Len() {
				x := rng.Uint32N(3) // also of segments, which are apart then
				switch {
				case v.Type.DType == graph.F32:
					x = math.Float32bits(0.5 + rng.Float32())
				case v.ID == model.TokensInput || v.ID == model.TargetsInput:
					x = rng.Uint32N(uint32(d.Model.Size().VocabSize))
				}
				all = binary.LittleEndian.AppendUint32(all, x)
			}
			if v.ID == model.ScalarsInput { // one for the batch
				copy(all[start:], all[:len(all)-start])
			}
		}
		b[v.ID] = all
	}
	return b, nil
}

// What training is given besides tokens and targets reaches all virtual stages that read it: the bits are those of one
// device.
func TestInputsReachAllVirtualStages(t *testing.T) {
	l := newLender(t)
	for _, s := range layouts() {
		plain := l.train(t, s, nil)
		s.inputs = true
		want := l.train(t, s, allocatesItsPlan(t))
		assert.NotEqual(t, plain, want)
		s.Cut, s.Stages = []int{3}, 2
		equal(t, want, l.train(t, s, allocatesItsPlan(t)), s)
		s.Cut, s.Stages, s.Recompute = []int{1, 5}, 3, []bool{false, true, false} // the head alone
		equal(t, want, l.train(t, s, allocatesItsPlan(t)), s)
		if s.Delay == 0 {
			s.schedule, s.Stages, s.Chunks, s.Cut, s.Recompute = "interleaved", 2, 2, []int{2, 3, 4}, nil
			equal(t, want, l.train(t, s, nil), s)
		}
	}
}

func TestInputsReachReplicas(t *testing.T) {
	l := newLender(t)
	s := layouts()[1]
	s.inputs, s.Replicas = true, 2
	want := l.train(t, s, nil)
	s.Cut, s.Stages = []int{3}, 2
	equal(t, want, l.train(t, s, nil), s)
}

// allocatesItsPlan looks at what the devices hold.
func allocatesItsPlan(t *testing.T) func(*Engine) {
	return func(e *Engine) {
		for i, rank := range e.Ranks() {
			bytes, _ := e.options.Devices[i].Allocated()
			assert.Equal(t, rank.Memory.Total, bytes, rank.Name)
		}
	}
}

// A batch that lacks data, or has too many, stops the run, and says which.
func TestBatchesOfTheWrongSize(t *testing.T) {
	s := setup{schedule: "2bw", stages: 2, microbatches: 3}
	s.device = func(int) device.Device { return null.New(null.Options{}) }
	o := s.options(t)
	o.Inputs = model.Inputs{Segments: true}
	for want, change := range map[string]func(Batch){
		`has 0 bytes of "segments", expected 48: u32[1,4] for each of 3 microbatches`: func(b Batch) { delete(b, model.SegmentsInput) },
		`has 52 bytes of "targets", expected 48`: func(b Batch) {
			b[model.TargetsInput] = append(b[model.TargetsInput], 0, 0, 0, 0)
		},
	} {
		e, err := New(o)
		require.NoError(t, err)
		require.NoError(t, e.Load())
		_, err = e.Train(context.Background(), changed{data{o, 3}, change}, 0, 2, ignore)
		assert.ErrorContains(t, err, want)
		require.NoError(t, e.Close())
	}
}

type changed struct {
	Source
	change func(Batch)
}

func (c changed) Batch(number int64) (Batch, error) {
	b, err := c.Source.Batch(number)
	c.change(b)
	return b, err
}

// Evaluations read tokens and targets alone, unless they read segments.
func TestEvaluationsReadNoInputs(t *testing.T) {
	s := setup{schedule: "interleaved", stages: 2, chunks: 2, microbatches: 2}
	s.device = func(int) device.Device { return null.New(null.Options{}) }
	o := s.options(t)
	o.Inputs, o.Loss = everything(), drawn
	e, err := New(o)
	require.NoError(t, err)
	require.NoError(t, e.Load())
	require.NoError(t, e.Evaluate(context.Background(), zeros(o.Model.Size().SeqLen), 2, ignore))
	require.NoError(t, e.Close())

	o.Inputs.EvalSegments = true
	for _, lacks := range []bool{false, true} {
		e, err := New(o)
		require.NoError(t, err)
		require.NoError(t, e.Load())
		err = e.Evaluate(context.Background(), changed{data{o, 1}, func(b Batch) {
			if lacks {
				delete(b, model.SegmentsInput)
			}
		}}, 2, ignore)
		if lacks {
			assert.ErrorContains(t, err, `batch 0 has 0 bytes of "segments"`)
		} else {
			assert.NoError(t, err)
		}
		require.NoError(t, e.Close())
	}
}
