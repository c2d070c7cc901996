package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A payload is as small on the way as its formats say, and the receiver gets what they decode to.
func TestTransfersEncode(t *testing.T) {
	xs := make([]float32, 130)
	for i := range xs {
		xs[i] = float32(math.Sin(float64(i)))
	}
	data := exec.F32Bytes(xs)
	for _, f := range []wire.Format{wire.BF16, wire.Int8} {
		var buffers wire.Pool
		c := encoding{[]wire.Format{f, wire.F32}, wire.Position{Batch: 3}.Key(), &buffers}
		from, to := newMemory("a", "b1234"), newMemory("a", "b....")
		from.variables["a"].bytes, to.variables["a"].bytes = slices.Clone(data), make([]byte, len(data))
		x := newTransfer(someMessage, nil, c)
		reads, err := x.read(from.port(), someTensors)
		require.NoError(t, err)
		x.depart(waitAll(t, reads))
		assert.Equal(t, fmt.Sprintf("contribution 2 from rank 3: in flight, %d bytes", f.Size(130)+4), x.String())
		x.receive()
		_, err = x.write(to.port(), someTensors)
		require.NoError(t, err)
		x.complete()
		want, encoded := make([]byte, len(data)), make([]byte, f.Size(130))
		f.Encode(encoded, data, c.key)
		require.NoError(t, f.Decode(want, encoded))
		assert.Equal(t, want, to.variables["a"].bytes)
		assert.Equal(t, "1234", string(to.variables["b"].bytes), "f32")

		x = &transfer{message: someMessage, state: received, wire: c, payload: [][]byte{encoded[:67], {1, 2, 3, 4}}}
		_, err = x.write(to.port(), someTensors)
		assert.ErrorContains(t, err, "transfer of contribution 2 from rank 3: writing, 71 bytes: found 67 bytes, expected the size of a tensor in "+f.String())
	}
}

// Only buffers that this process has encoded to are used again. The tensors of a message from another process may lie
// in one array, even if their capacities are those of buffers.
func TestPayloadsOfOthersAreNotPooled(t *testing.T) {
	var buffers wire.Pool
	c := encoding{[]wire.Format{wire.BF16}, 0, &buffers}
	to := newMemory("a12345678")
	array := make([]byte, 4, 16)
	x := &transfer{message: someMessage, state: received, wire: c, payload: [][]byte{array}}
	_, err := x.write(to.port(), someTensors[:1])
	require.NoError(t, err)
	x.complete()
	for range 4 {
		assert.NotSame(t, &array[0], &buffers.Get(16)[0])
	}
}

// Each message of a run has a key of its own. Evaluations have others than training.
func TestEncodingKeys(t *testing.T) {
	e := &Engine{options: Options{Layout: Layout{Stages: 2, Chunks: 1, Replicas: 2}, Microbatches: 2,
		Wire: Wire{Activations: wire.Int8, Seed: 5}}}
	seen := map[wire.Key]stage.Message{}
	for _, kind := range []stage.MessageKind{stage.Activation, stage.Gradient} {
		for _, batch := range []int{0, 1} {
			for _, microbatch := range []int{0, 1} {
				for _, from := range []int{0, 1, 2, 3} {
					m := stage.Message{Kind: kind, Batch: batch, Microbatch: microbatch, VirtualStage: 1 - from%2, From: from}
					for _, evaluates := range []bool{false, true} {
						if evaluates && (kind != stage.Activation || from != 0) {
							continue
						}
						c := e.encoding(m, from^1, evaluates)
						assert.Equal(t, []wire.Format{wire.Int8}, c.formats)
						assert.NotContains(t, seen, c.key, "%v", m)
						seen[c.key] = m
					}
				}
			}
		}
	}
	assert.Nil(t, e.encoding(stage.Message{Kind: stage.NormSquares}, -1, false).formats)
}

func TestUnusableExchangeFormat(t *testing.T) {
	_, err := New(Options{Layout: Layout{Stages: 1, Chunks: 1, Replicas: 1}, Model: sample(false), Wire: Wire{Exchange: wire.Int8}})
	assert.EqualError(t, err, `wire_exchange: found int8, expected one of f32, bf16`)
}

// alone is a device that shares memory with no other.
type alone struct{ device.Device }

// In every format the bits are the same again, on devices that could share memory and on others, and in segments. They
// are not those of f32, but close. Every copy is its owner's weights as they travel.
func TestWireFormats(t *testing.T) {
	shared, apart := newLender(t), newLender(t)
	shared.take(t, 4)
	for i, dev := range apart.take(t, 4) {
		apart.devices[i] = alone{dev}
	}
	delayed := func(i int, _ trial) bool { return i == 1 }
	for _, s := range tier.Divide(t, layouts(), delayed) {
		s.Stages, s.Cut, s.Recompute = 2, []int{3}, []bool{false, true}
		exact := shared.train(t, s, func(e *Engine) {
			_, share := sharedAlignment(e.ranks[0], e.ranks[1])
			assert.Equal(t, share, len(e.channels.all) > 0)
		})
		seen := []trained{exact}
		formats := []Wire{{Activations: wire.BF16}, {Activations: wire.Int8, Seed: 1}, {Activations: wire.Int8, Seed: 2}}
		if s.tied {
			formats = append(formats, Wire{Exchange: wire.BF16}, Wire{Activations: wire.BF16, Exchange: wire.BF16})
		}
		for _, s.wire = range formats {
			want := shared.train(t, s, func(e *Engine) {
				owned := trained{}
				e.read(t, owned)
				assert.Equal(t, s.tied, e.ranks[1].agrees(t, owned) > 0)
				for key := range e.channels.all {
					assert.Equal(t, s.wire.Activations == wire.F32, key.kind == stage.Activation || key.kind == stage.Gradient, "%v", key)
				}
			})
			paused := s
			paused.segments = []int{2, 3}
			equal(t, want, apart.train(t, paused, nil), s)
			for _, other := range seen {
				assert.NotEqual(t, other["model.norm.weight 0"], want["model.norm.weight 0"], "%+v", s.wire)
			}
			seen = append(seen, want)
			for batch := range batches {
				name := fmt.Sprint("loss ", batch)
				loss := func(of trained) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(of[name])) }
				assert.InEpsilon(t, loss(exact), loss(want), 0.01, "%+v: %s", s.wire, name)
			}
		}
	}
}

// Copies of parameters travel rounded between replicas too; their losses and loss scale exactly.
func TestWireFormatsOfReplicas(t *testing.T) {
	l := newLender(t)
	for _, s := range layouts() {
		s.Replicas, s.wire = 2, Wire{Exchange: wire.BF16}
		s.scale = &optim.LossScale{Initial: 1 << 10, GrowthEvery: 2}
		var want trained
		for _, cut := range [][]int{nil, {1}} { // bits depend on where a tied head is
			s.Cut, s.Stages = cut, len(cut)+1
			got := l.train(t, s, func(e *Engine) {
				owned := trained{}
				e.read(t, owned)
				for _, r := range e.ranks {
					r.agrees(t, owned)
				}
				for _, x := range e.exchanges {
					for _, name := range slices.Concat(x.gradients, x.params) {
						exactly := name == model.LossVariable || name == optim.ScaleVariable
						assert.Equal(t, exactly, e.options.exchangeFormats([]string{name}) == nil, name)
					}
				}
			})
			if want != nil {
				assert.Equal(t, !s.tied, bytes.Equal(want["loss 5"], got["loss 5"]))
			}
			want = got
		}
	}
}

// biased is a model with a balancing bias.
type biased struct{ model.Model }

func (b biased) Parameters() []model.Parameter {
	return append(b.Model.Parameters(), model.Parameter{Name: "bias", Role: model.BalancingBias})
}

func TestBalancingBiasesTravelExactly(t *testing.T) {
	o := Options{Wire: Wire{Exchange: wire.BF16}, Model: biased{sample(false)}}
	assert.Nil(t, o.exchangeFormats([]string{model.LossVariable, "bias", model.Gradient("bias")}))
	assert.Equal(t, []wire.Format{wire.F32, wire.BF16}, o.exchangeFormats([]string{model.Gradient("bias"), model.Gradient("weight")}))
}

// The bits of rounded tensors depend on the cut, and not on the processes that the ranks are in.
func TestWireFormatsOfParts(t *testing.T) {
	l := newLender(t)
	for _, s := range layouts() {
		s.wire = Wire{Activations: wire.Int8, Seed: 3}
		if s.tied {
			s.wire.Exchange = wire.BF16
		}
		s.Cut, s.Stages = []int{1, 5}, 3
		want := l.train(t, s, nil)
		for _, of := range [][]int{{0, 1, 2}, {0, 0, 1}} {
			p, o := l.split(t, s, of)
			equal(t, want, p.train(t, s, o), s)
			assert.NotZero(t, p.passed[stage.Activation]+p.passed[stage.Gradient])
		}
	}
}
