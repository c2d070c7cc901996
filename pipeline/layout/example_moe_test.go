package layout

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The memory that is planned for layers of the mixture of examples/moe-10b, on cards that are not present, is within 2
// % of what their programs take on null devices with the limits of those cards. The state of the optimizer takes half
// the memory with moments in bf16.
func TestMemoryOfTenBillionParameters(t *testing.T) {
	exact, rounded := plannedState(t, "f32"), plannedState(t, "bf16")
	for i := range exact {
		assert.InEpsilon(t, exact[i], 2*rounded[i], 1e-3, "stage %d", i)
	}
}

// plannedState compares the planned memory of each stage and returns that of the optimizer's state.
func plannedState(t *testing.T, moments string) (states []int64) {
	gpu := measure.GPUs()[4]
	const stages = 2
	c, err := config.Load("../../examples/moe-10b/config.yaml", []string{fmt.Sprint("pipeline.stages=", stages),
		"pipeline.recompute=always", "model.n_layers=3", "optimizer.moments=" + moments})
	require.NoError(t, err)
	m, err := InPrecision(c, c.Model.Config)
	require.NoError(t, err)
	task := Task{Config: c, Model: m}
	var devices []device.Device
	for i := range stages {
		devices = append(devices, null.New(null.Options{Name: fmt.Sprint("null:", i), Limits: gpu.Limits()}))
	}
	plan, err := task.Partition(t.Context(), devices, measure.Options{Modelled: true, GPU: &gpu})
	require.NoError(t, err)
	optimizer, err := NewOptimizer(c, m, nil)
	require.NoError(t, err)
	o := task.Engine(optimizer, plan.Cut, plan.Recompute, plan.SplitBackward)
	o.Devices = devices
	e, err := engine.New(o)
	require.NoError(t, err)
	for i, rank := range e.Ranks() {
		assert.InEpsilon(t, rank.Memory.Total, plan.Stages[i].Memory.Total(), 0.02, "stage %d: %+v", i, plan.Stages[i].Memory)
		states = append(states, plan.Stages[i].Memory.Optimizer)
	}
	return states
}

// The mixtures of the examples have the same shape: their texts name these numbers of parameters.
func TestExamplesOfExperts(t *testing.T) {
	for name, want := range map[string][2]int64{"moe-10b": {9656575424, 1553180096}, "moe-tiny": {21664768, 5149696}} {
		c, err := config.Load("../../examples/"+name+"/config.yaml", nil)
		require.NoError(t, err)
		m := c.Model.Config
		assert.Equal(t, want, [2]int64{m.Count(), m.ActiveCount()}, name)
		assert.Equal(t, [4]int{64, 8, 1, 3 * m.DModel}, [4]int{m.MoE.Experts, m.MoE.TopK, m.MoE.DenseFirst, m.FFN.DFF}, name)
	}
}
