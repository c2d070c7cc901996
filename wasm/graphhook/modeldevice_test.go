package graphhook_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// On a device, too, a Llama that a module builds op by op has the same loss and gradients as that of model.Config, to
// the last bit.
func TestAWrittenLlamaHasTheSameBitsOnADevice(t *testing.T) {
	w := writtenLlama(t, small, false)
	want, err := small.Grad(2, 1, false)
	require.NoError(t, err)
	got, err := w.Grad(2, 1, false)
	require.NoError(t, err)
	assert.Equal(t, computed(t, small, want), computed(t, w, got))
}

// computed returns a device's variables after a pass.
func computed(t *testing.T, m model.Model, g *graph.Graph) map[string][]byte {
	t.Helper()
	dev := testdevice.Device(t)
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"grad": g}, exec.Options{})
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for i, name := range []string{"tokens", "targets"} {
		ids := make([]float64, 2*m.Size().SeqLen)
		for j := range ids {
			ids[j] = float64((7*j*j + i) % m.Size().VocabSize)
		}
		require.NoError(t, s.SetInput("grad", name, exec.Encode(graph.U32, ids)))
	}
	for name, x := range state(m, g) {
		require.NoError(t, s.WriteVariable(name, exec.Encode(x.DType, x.Data)))
	}
	require.NoError(t, s.Run("grad"))
	all := map[string][]byte{}
	for _, v := range s.Variables() {
		p, err := s.ReadVariable(v.ID)
		require.NoError(t, err)
		all[v.ID], err = p.Wait()
		require.NoError(t, err)
	}
	return all
}
