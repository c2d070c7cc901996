package hook_test

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writtenGPT2 is examples/hooks/gpt2.c, small.
func writtenGPT2(t *testing.T, vocab, seqLen int) *model.Written {
	t.Helper()
	m := load(t, newHost(t), hook.Spec{File: examples + "gpt2.wasm", Hook: hook.BuildModel,
		Config: []byte(`{"d_model":12,"n_layers":2,"n_heads":3}`)})
	w, err := model.NewWritten(vocab, seqLen, func(batch int) (*model.Draft, error) {
		return m.BuildModel(ctx, graphhook.Dims{Batch: batch, SeqLen: seqLen, Vocab: vocab})
	})
	require.NoError(t, err)
	return w
}

// A model written in C: its gradients against central differences in float64, and those of a device against them.
func TestGradientsOfAModelOfAModule(t *testing.T) {
	const batch, seqLen, vocab = 3, 10, 17
	w := writtenGPT2(t, vocab, seqLen)
	assert.Equal(t, []int{0, 1, 1, 3}, []int{w.Like(0), w.Like(1), w.Like(2), w.Like(3)})
	g, err := w.Grad(batch, 1, false)
	require.NoError(t, err)
	in, vars := map[string]*graph.Tensor{}, map[string]*graph.Tensor{}
	for i, name := range []string{"tokens", "targets"} {
		in[name] = graph.NewTensor(graph.T(graph.U32, batch, seqLen))
		for j := range in[name].Data {
			in[name].Data[j] = float64((j*j*7 + 3*(i+j)) % vocab)
		}
	}
	for _, v := range g.Sources("variable") {
		vars[v.Node.Op.(graph.Source).Label()] = graph.NewTensor(v.Type)
	}
	for _, p := range w.Parameters() {
		for i, x := range p.Initial(5) {
			if p.Std > 0 {
				x *= 10 // so that no branch is negligible
			}
			vars[p.Name].Data[i] = float64(x)
		}
	}
	onDevice := gradientsOnDevice(t, w, g, in, vars)
	loss := func() float64 {
		out, err := eval.Run(g, in, vars)
		require.NoError(t, err)
		return out["loss"].Data[0]
	}
	loss()
	exact := map[string][]float64{}
	for _, p := range w.Parameters() {
		exact[p.Name] = append([]float64{}, vars[model.Gradient(p.Name)].Data...)
	}
	for _, p := range w.Parameters() {
		var apart, norm float64
		for i, x := range exact[p.Name] {
			apart, norm = apart+math.Pow(x-float64(onDevice[p.Name][i]), 2), norm+x*x
		}
		assert.Less(t, math.Sqrt(apart/norm), 1e-3, p.Name)
		x := vars[p.Name].Data
		for i := 0; i < len(x); i += 13 {
			const h = 1e-5
			old := x[i]
			x[i] = old + h
			up := loss()
			x[i] = old - h
			down := loss()
			x[i] = old
			require.InDelta(t, (up-down)/(2*h), exact[p.Name][i], 1e-8, "%s[%d]", p.Name, i)
		}
	}
}

// gradientsOnDevice are the gradients that the machine's default device computes.
func gradientsOnDevice(t *testing.T, m model.Model, g *graph.Graph, in, vars map[string]*graph.Tensor) map[string][]float32 {
	t.Helper()
	dev := testdevice.Device(t)
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"grad": g}, exec.Options{})
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for name, x := range in {
		require.NoError(t, s.SetInput("grad", name, exec.Encode(x.DType, x.Data)))
	}
	for name, x := range vars {
		require.NoError(t, s.WriteVariable(name, exec.Encode(x.DType, x.Data)))
	}
	require.NoError(t, s.Run("grad"))
	grads := map[string][]float32{}
	for _, p := range m.Parameters() {
		pending, err := s.ReadVariable(model.Gradient(p.Name))
		require.NoError(t, err)
		b, err := pending.Wait()
		require.NoError(t, err)
		grads[p.Name] = exec.ToF32(b)
	}
	return grads
}

// What a module writes is the same each time, and does not depend on the number of sequences.
func TestAModelOfAModuleForMicrobatches(t *testing.T) {
	w := writtenGPT2(t, 17, 10)
	for _, batch := range []int{1, 2, 5} {
		require.NoError(t, w.Prepare(batch))
		g, err := w.Eval(batch, false)
		require.NoError(t, err)
		again, err := writtenGPT2(t, 17, 10).Eval(batch, false)
		require.NoError(t, err)
		assert.Equal(t, hash(t, g), hash(t, again))
	}
}
