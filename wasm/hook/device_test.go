package hook_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const lossRows, lossVocab = 37, 259

// training is the graph of a mean loss and its gradient.
func training(t *testing.T, loss func(logits, targets *graph.Value) *graph.Value) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		logits, targets := b.Input("logits", graph.T(graph.F32, lossRows, lossVocab)), b.Input("targets", graph.T(graph.U32, lossRows))
		mean := op.Mean(loss(logits, targets), nil, false)
		b.Output("loss", op.Reshape(mean, 1))
		b.Output("grad", autodiff.Gradients(mean, nil, logits)[0])
	})
	require.NoError(t, err)
	return g
}

// lossInputs are logits of up to ±6, and targets.
func lossInputs() map[string]*graph.Tensor {
	in := map[string]*graph.Tensor{"logits": graph.NewTensor(graph.T(graph.F32, lossRows, lossVocab)),
		"targets": graph.NewTensor(graph.T(graph.U32, lossRows))}
	for i := range in["logits"].Data {
		in["logits"].Data[i] = float64(float32(6 * math.Sin(1.7*float64(i))))
	}
	for i := range in["targets"].Data {
		in["targets"].Data[i] = float64(i * 31 % lossVocab)
	}
	return in
}

// onDevice runs a graph on the machine's default device and returns the bits of its outputs.
func onDevice(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor) map[string][]byte {
	t.Helper()
	dev := testdevice.Device(t)
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"loss": g}, exec.Options{})
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for name, x := range in {
		var b []byte
		for _, v := range x.Data {
			bits := uint32(v)
			if x.DType == graph.F32 {
				bits = math.Float32bits(float32(v))
			}
			b = binary.LittleEndian.AppendUint32(b, bits)
		}
		require.NoError(t, s.SetInput("loss", name, b))
	}
	require.NoError(t, s.Run("loss"))
	out := map[string][]byte{}
	for _, name := range []string{"loss", "grad"} {
		p, err := s.Output("loss", name)
		require.NoError(t, err)
		out[name], err = p.Wait()
		require.NoError(t, err)
	}
	return out
}

func float(b []byte, i int) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
}

// The gradient of a module's loss agrees with finite differences, in float64 and on a device. On the device it has the
// same bits as that of the loss written in Go.
func TestLossesOfModulesOnADevice(t *testing.T) {
	h := newHost(t)
	for file, inGo := range map[string]func(logits, targets *graph.Value) *graph.Value{
		"focal_loss.wasm": func(logits, targets *graph.Value) *graph.Value { return focal(logits, targets, 1e-4) },
		"label_smoothing.wasm": func(logits, targets *graph.Value) *graph.Value {
			p := op.LogSoftmax(logits)
			return op.Neg(op.Add(op.Scale(op.Pick(p, targets), 0.9), op.Scale(op.Mean(p, []int{-1}, false), 0.1)))
		},
	} {
		m := load(t, h, hook.Spec{File: examples + file, Hook: hook.BuildLoss})
		loss, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: lossRows, Vocab: lossVocab})
		require.NoError(t, err)
		g := training(t, func(logits, targets *graph.Value) *graph.Value {
			return logits.Builder().Inline(loss.Graph, map[string]*graph.Value{"logits": logits, "targets": targets})["loss"]
		})
		in := lossInputs()
		got := onDevice(t, g, in)
		assert.Equal(t, onDevice(t, training(t, inGo), in), got, file)

		exact, err := eval.Run(g, in, nil)
		require.NoError(t, err)
		assert.InEpsilon(t, exact["loss"].Data[0], float(got["loss"], 0), 1e-5, file)
		var largest float64
		for _, x := range exact["grad"].Data {
			largest = max(largest, math.Abs(x))
		}
		for i := 0; i < lossRows*lossVocab; i += 97 {
			const step = 1e-5
			at := func(d float64) float64 {
				x := in["logits"].Data
				defer func(old float64) { x[i] = old }(x[i])
				x[i] += d
				out, err := eval.Run(loss.Graph, in, nil)
				require.NoError(t, err)
				sum := 0.0
				for _, y := range out["loss"].Data {
					sum += y / lossRows
				}
				return sum
			}
			difference := (at(step) - at(-step)) / (2 * step)
			assert.InDelta(t, difference, exact["grad"].Data[i], 1e-8, "%s %d", file, i)
			assert.InDelta(t, difference, float(got["grad"], i), 1e-3*largest, "%s %d", file, i)
		}
	}
}
