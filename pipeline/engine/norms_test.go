package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const width = 8

// capped is a model whose last unit has no parameters, and neither has its second.
func capped(t *testing.T) model.Model {
	t.Helper()
	m, err := model.NewWritten(width, 4, func(batch int) (*model.Draft, error) {
		params := []model.Parameter{{Name: "table", Type: graph.T(graph.F32, width, width), Std: 0.5, Unit: "embed"},
			{Name: "matrix", Type: graph.T(graph.F32, width, width), Std: 0.5, Unit: "body"}}
		g, err := graph.Build(func(b *graph.Builder) {
			tokens := b.Input(model.TokensInput, graph.T(graph.U32, batch, 4))
			table, matrix := b.Variable("table", params[0].Type), b.Variable("matrix", params[1].Type)
			var x *graph.Value
			b.Scope("embed", func() { x = op.Embedding(table, tokens) })
			b.Scope("twist", func() { x = op.Tanh(op.Add(x, op.Square(x))) }) // its backward pass reads what it sends
			b.Scope("body", func() { x = op.MatMul(x, matrix, false, false) })
			b.Scope("cap", func() { x = op.Tanh(x) })
			b.Output(model.LogitsOutput, x)
		})
		return &model.Draft{Graph: g, Units: []string{"embed", "twist", "body", "cap"}, Parameters: params}, err
	})
	require.NoError(t, err)
	return m
}

// holey is data whose aligned tensor is not a number in one microbatch of one batch.
type holey struct {
	data
	batch, microbatch int
}

func (h holey) Batch(number int64) (Batch, error) {
	b, err := h.data.Batch(number)
	if int(number) == h.batch {
		all := b[model.AlignedInput("teacher")]
		binary.LittleEndian.PutUint32(all[h.microbatch*len(all)/h.microbatches:], math.Float32bits(float32(math.NaN())))
	}
	return b, err
}

// shifted is the cross entropy plus what has no gradient.
func shifted(in model.LossInputs) *graph.Value {
	return op.Add(model.CrossEntropy(in), in.Aligned["teacher"])
}

// A loss that is not finite makes all ranks skip the batch, wherever it is computed: on a stage without parameters, and
// on any replica.
func TestNonfiniteLossSkipsTheBatch(t *testing.T) {
	l := newLender(t)
	for _, delay := range []int{0, 1} {
		var want [2]trained
		layouts := []Layout{{Stages: 1, Replicas: 1}, {Stages: 2, Replicas: 1, Cut: []int{3}},
			{Stages: 4, Replicas: 1, Cut: []int{1, 2, 3}}, {Stages: 1, Replicas: 2}, {Stages: 2, Replicas: 2, Cut: []int{3}}}
		if delay == 0 { // with a delay a replica needs a microbatch per stage
			layouts = append(layouts, Layout{Stages: 3, Replicas: 2, Cut: []int{1, 2}})
		}
		for _, layout := range layouts {
			// Of the last replica, and of the first.
			for _, microbatch := range tier.Divide(t, []int{microbatches - 1, 0}, tier.First[int](1)) {
				layout.Chunks, layout.Delay = 1, delay
				name := fmt.Sprintf("%+v, microbatch %d", layout, microbatch)
				o := Options{Layout: layout, Model: capped(t), MicrobatchSize: 2, Microbatches: microbatches / layout.Replicas,
					Loss: shifted, Inputs: model.Inputs{Aligned: []graph.Named{{ID: "teacher", Type: graph.T(graph.F32)}}},
					Devices: l.take(t, layout.ranks())}
				o.Schedule = func(batches int) (*schedule.Generator, error) {
					return schedule.New([]string{"1f1b", "2bw"}[delay], schedule.Options{Stages: o.Layout.Stages, Chunks: 1,
						Microbatches: o.Microbatches, Stale: delay * o.Microbatches, Batches: batches})
				}
				o.Optimizer = skipping(t, o)
				e, err := New(o)
				require.NoError(t, err, name)
				require.NoError(t, e.Load())
				for _, p := range o.Model.Parameters() {
					for v := range Version(delay + 1) {
						require.NoError(t, e.WriteWeights(p.Name, v, exec.F32Bytes(p.Initial(3))))
					}
				}
				_, err = e.Train(context.Background(), holey{data{o, microbatches}, 2, microbatch}, 0, 5, func(m Measured) error {
					assert.Equal(t, m.Batch != 2, m.OK, "%s: batch %d", name, m.Batch)
					assert.Equal(t, m.Batch == 2, math.IsNaN(m.Loss), name)
					assert.False(t, math.IsNaN(m.GradNorm), name)
					return nil
				})
				require.NoError(t, err, name)
				got := trained{}
				e.read(t, got)
				for _, rank := range e.ranks {
					rank.agrees(t, got)
				}
				require.NoError(t, e.Close())
				if r := layout.Replicas - 1; want[r] == nil {
					want[r] = got
				} else {
					assert.Equal(t, want[r], got, name)
				}
			}
		}
	}
}

// skipping is AdamW that skips batches that are not finite.
func skipping(t *testing.T, o Options) *optim.Optimizer {
	t.Helper()
	var params []optim.Param
	for _, p := range o.Model.Parameters() {
		all := o.Contributions(p.Name)
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit, Gradient: all[len(all)-1],
			Contributions: all[:len(all)-1]})
	}
	a, err := optim.New(optim.Config{Algorithm: &optim.AdamW{LR: 0.01, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8}, Clip: 1,
		Losses: append(o.LossContributions(), model.LossVariable), Delay: o.Layout.Delay, SkipNonfinite: true,
		Schedule: optim.Schedule{Name: "constant"}}, params)
	require.NoError(t, err)
	return a
}
