package engine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// setup is a pipeline of a tiny model.
type setup struct {
	schedule                     string
	stages, chunks, microbatches int
	replicas                     int // 0: one
	tied, halved                 bool
	imports                      int // how many of the first ranks have devices that import memory
	device                       func(rank int) device.Device
}

func (s setup) String() string {
	return fmt.Sprintf("%s p=%d v=%d m=%d r=%d tied=%v halved=%v imports=%d", s.schedule, s.stages, s.chunks, s.microbatches, s.replicas,
		s.tied, s.halved, s.imports)
}

// setups are pipelines that together use every feature.
func setups() []setup {
	return []setup{
		{schedule: "2bw", stages: 3, microbatches: 4, halved: true, imports: 3},
		{schedule: "2bw", stages: 2, microbatches: 3, tied: true, replicas: 2},
		{schedule: "2bw", stages: 2, microbatches: 3, tied: true, replicas: 2, imports: 4},
		{schedule: "1f1b", stages: 3, microbatches: 3, tied: true},
		{schedule: "gpipe", stages: 2, microbatches: 3, imports: 2},
		{schedule: "interleaved", stages: 2, chunks: 2, microbatches: 4, imports: 2},
		{schedule: "zb-h1", stages: 3, microbatches: 3, imports: 2},
		{schedule: "2bw", stages: 1, microbatches: 2},
	}
}

// options plans it.
func (s setup) options(t *testing.T) Options {
	t.Helper()
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF, c.SeqLen, c.TieEmbeddings = 8, 4, 3, 1, 1, 4, 4, s.tied
	s.chunks, s.replicas = max(s.chunks, 1), max(s.replicas, 1)
	o := Options{Model: c, MicrobatchSize: 1, Microbatches: s.microbatches, Schedule: func(batches int) (*schedule.Generator, error) {
		g, err := schedule.New(s.schedule, schedule.Options{Stages: s.stages, Chunks: s.chunks, Microbatches: s.microbatches,
			Batches: batches})
		if err == nil && s.halved {
			g = g.SplitBackward()
		}
		return g, err
	}}
	g, err := o.Schedule(1)
	require.NoError(t, err)
	o.Layout = Layout{Stages: s.stages, Chunks: s.chunks, Replicas: s.replicas, Delay: g.Head().Delay, Cut: EvenCut(c, s.stages*s.chunks)}
	var params []optim.Param
	for _, p := range c.Parameters() {
		all := o.Contributions(p.Name)
		last := len(all) - 1
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit, Gradient: all[last], Contributions: all[:last]})
	}
	o.Optimizer, err = optim.New(optim.Config{Algorithm: &optim.SGD{LR: 1}, Clip: 1,
		Losses: append(o.LossContributions(), model.LossVariable), Delay: o.Layout.Delay,
		Schedule: optim.Schedule{Name: "constant", Steps: 100}}, params)
	require.NoError(t, err)
	for rank := range s.stages * s.replicas {
		o.Devices = append(o.Devices, s.device(rank))
	}
	return o
}

// load plans and loads it, with data for its batches.
func (s setup) load(t *testing.T) (*Engine, Source) {
	t.Helper()
	o := s.options(t)
	e, err := New(o)
	require.NoError(t, err)
	require.NoError(t, e.Load())
	return e, zeros(o.Microbatches * o.Layout.Replicas * o.Model.Size().SeqLen)
}

// zeros is the data of a batch of that many tokens.
type zeros int

func (z zeros) Batch(int64) (Batch, error) {
	return Batch{model.TokensInput: make([]byte, 4*z), model.TargetsInput: make([]byte, 4*z)}, nil
}

func ignore(Measured) error { return nil }

// idle is a device that takes a while for each program.
func idle(latency time.Duration, imports int) func(int) device.Device {
	return func(rank int) device.Device {
		o := null.Options{Name: fmt.Sprint("null:", rank), Latency: func(string) time.Duration { return latency }}
		if rank < imports {
			o.ImportAlignment = 4096
		}
		return null.New(o)
	}
}

// Results arrive in the order of batches, and a stop finishes the batches in progress.
func TestStop(t *testing.T) {
	for _, s := range setups() {
		t.Run(s.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s.device = idle(10*time.Millisecond, s.imports)
				e, data := s.load(t)
				next := 0
				reached, err := e.Train(t.Context(), data, 0, 5, func(m Measured) error {
					assert.Equal(t, next, m.Batch)
					next++
					return nil
				})
				require.NoError(t, err)
				assert.Equal(t, 5, reached)
				assert.Equal(t, 5, next)

				stop, cancel := context.WithCancel(t.Context())
				reached, err = e.Train(stop, data, 5, 100, func(m Measured) error {
					if m.Batch == 7 {
						cancel()
					}
					next++
					return nil
				})
				require.NoError(t, err)
				assert.Less(t, reached, 7+5, "those in progress, and no others")
				assert.Equal(t, next, reached)
				reached, err = e.Train(stop, data, reached, 100, ignore)
				require.NoError(t, err)
				assert.Equal(t, next, reached, "nothing begins")

				refusal := fmt.Errorf("enough")
				_, err = e.Train(t.Context(), data, reached, 100, func(m Measured) error { return refusal })
				require.ErrorIs(t, err, refusal)
				require.NoError(t, e.Evaluate(t.Context(), zeros(e.options.Model.Size().SeqLen), 3, ignore))
				require.NoError(t, e.Close())
				for _, d := range e.options.Devices {
					buffers, _ := d.Allocated()
					assert.Zero(t, buffers)
				}
			})
		})
	}
}
