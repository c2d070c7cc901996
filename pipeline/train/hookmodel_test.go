package train

import (
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Muon takes the matrices of the units between the first and the last. Parameters with one axis have no weight decay.
func TestOptimizersOfAWrittenModel(t *testing.T) {
	c := traintest.HookModel(t, t.TempDir(), traintest.GPT2(t), "optimizer.name=muon")
	h, err := hooks.Open(c.Hooks, hooks.Options{Kinds: []string{"build_model"}})
	require.NoError(t, err)
	m, err := openModel(c, h)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	o, err := layout.NewOptimizer(c, m, nil)
	require.NoError(t, err)
	var state []string
	for _, v := range o.State() {
		state = append(state, v.ID)
	}
	for param, muon := range map[string]bool{"transformer.h.0.attn.c_attn.weight": true, "transformer.h.1.mlp.c_proj.weight": true,
		"transformer.h.0.attn.c_attn.bias": false, "transformer.wte.weight": false, "transformer.wpe.weight": false,
		"lm_head.weight": false} {
		assert.Equal(t, muon, slices.Contains(state, "optim/momentum/"+param), param)
		assert.Equal(t, !muon, slices.Contains(state, "optim/exp_avg_sq/"+param), param)
	}
}
