package train

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/measure"
	"github.com/gpupipe/gpupipe/pipeline/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// planned is a config of a model that is large enough for its parts to outweigh what a line needs anyway.
func planned(t *testing.T, overrides ...string) config.Config {
	t.Helper()
	return demo(t, t.TempDir(), append([]string{
		"model={vocab_size: 512, d_model: 64, n_layers: 4, n_heads: 4, d_ff: 160, seq_len: 32}",
		"train={batch_size: 16, microbatches: 8}", "pipeline.stages=2"}, overrides...)...)
}

func nulls(n int, budget int64) (devices []device.Device) {
	for i := range n {
		devices = append(devices, null.New(null.Options{Name: fmt.Sprint("null:", i), MemoryBudget: budget}))
	}
	return devices
}

// The memory that a partition reckons with is what the lines of the engine then plan, for every schedule.
func TestPlannedMemoryIsTheEngines(t *testing.T) {
	for _, overrides := range [][]string{
		{"pipeline.schedule=1f1b", "pipeline.stages=3"},
		{"pipeline.schedule=gpipe", "model.tie_embeddings=true", "optimizer.name=adamw"},
		{"pipeline.schedule=2bw", "pipeline.correction=error_feedback", "model.tie_embeddings=true"},
		{"pipeline.schedule=zb-h1", "optimizer.name=adamw"},
		{"pipeline.schedule=interleaved", "pipeline.chunks=2", "optimizer.name=adamw"},
		{"pipeline.schedule=1f1b", "pipeline.replicas=2", "model.tie_embeddings=true", "optimizer.name=adamw"},
		{"pipeline.schedule=1f1b", "pipeline.recompute=always", "optimizer.name=adamw"},
		{"pipeline.schedule=sync", "pipeline.stages=1", "optimizer.name=adamw"},
		{"pipeline.schedule=1f1b", "pipeline.stages=3", withHooks(mixer(t, true)+", hook: map_batch", scaled(t)+", hook: build_loss")},
		{"pipeline.schedule=2bw", withHooks(weigher(t)+", hook: token_weights", hooksDir+focalHook)},
	} {
		t.Run(overrides[0], func(t *testing.T) {
			c := planned(t, overrides...)
			h, err := openHooks(c.Hooks, nil, "", hook.Names()...)
			require.NoError(t, err)
			defer func() { require.NoError(t, h.close()) }()
			hooked, err := newTask(context.Background(), c, h, c.Model.Config, nil)
			require.NoError(t, err)
			plan, err := partitionModel(context.Background(), c, c.Model.Config, hooked, nulls(c.Pipeline.Stages, 0), measure.Options{})
			require.NoError(t, err)
			o := engineOptions(c, c.Model.Config)
			o.Loss, o.Inputs = hooked.build(), hooked.inputs
			o.Schedule = computation(c, plan)
			o.Cut, o.Recompute, o.Devices = plan.Cut, plan.Recompute, nulls(c.Pipeline.Stages*c.Pipeline.Replicas, 0)
			o.Optimizer, err = newOptimizer(c, c.Model.Config, nil)
			require.NoError(t, err)
			o.Execute = engine.Execute(nil, 0)
			e, err := engine.New(o)
			require.NoError(t, err)
			for s, stage := range plan.Stages {
				line := e.Lines()[s]
				assert.InEpsilon(t, line.Memory.Total, stage.Memory.Total(), 0.1, "%s: %+v planned as %+v", line.Name, line.Memory, stage.Memory)
			}
		})
	}
}

// runs is a device that counts, and may pretend to compute.
type runs struct {
	*null.Device
	n int
}

func (r *runs) Info() device.Info {
	return device.Info{Name: "webgpu:0", Adapter: "pretended", Kind: device.Discrete}
}

func (r *runs) Run(l device.Loaded) error { r.n++; return r.Device.Run(l) }

// A cut that is given is measured as well: what is predicted of it is compared with the run.
func TestPartitionMeasuresOnce(t *testing.T) {
	cache := measure.NewCache()
	for i, cut := range []string{"pipeline.cut=[]", "pipeline.cut=[3]"} {
		dev := &runs{Device: null.New(null.Options{})}
		c := planned(t, cut)
		plan, err := partitionModel(context.Background(), c, c.Model.Config, task{}, []device.Device{dev, dev}, measure.Options{Cache: cache})
		require.NoError(t, err)
		assert.Len(t, plan.Cut, 1)
		assert.Equal(t, i == 0, dev.n > 0, cut)
		assert.Equal(t, []int{0, 1}, plan.Devices)
	}
}

func TestPartitionThatDoesNotFitIsAMistake(t *testing.T) {
	c := planned(t)
	free, err := partitionModel(context.Background(), c, c.Model.Config, task{}, nulls(2, 0), measure.Options{})
	require.NoError(t, err)
	tight, err := partitionModel(context.Background(), c, c.Model.Config, task{}, nulls(2, free.Largest()-1), measure.Options{})
	require.NoError(t, err)
	assert.Less(t, tight.Largest(), free.Largest())
	_, err = partitionModel(context.Background(), c, c.Model.Config, task{}, nulls(2, free.Largest()/10), measure.Options{})
	assert.IsType(t, new(usererror.Error), err)
	var infeasible *partition.InfeasibleError
	require.ErrorAs(t, err, &infeasible)
	assert.ErrorContains(t, err, fmt.Sprint(free.Largest()/10, " available"))
}

func TestPlanPipeline(t *testing.T) {
	opened := map[string]int{}
	open := func(name string) (device.Device, error) {
		opened[name]++
		return null.New(null.Options{Name: name}), nil
	}
	p, err := PlanPipeline(context.Background(), planned(t, "pipeline.devices=[null:0, null:1]", "pipeline.error_feedback=true", "pipeline.schedule=2bw", "pipeline.memory=1GiB"),
		PlanOptions{OpenDevice: open})
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"null:0": 1, "null:1": 1}, opened)
	assert.True(t, p.Modelled)
	var names []string
	for _, c := range p.Schedules {
		names = append(names, c.Schedule)
		require.NotNil(t, c.Plan, "%s: %s", c.Schedule, c.Problem)
		assert.Positive(t, c.Plan.TokensPerSec)
		assert.EqualValues(t, 1<<30, c.Plan.Stages[0].Available)
	}
	assert.Equal(t, []string{"gpipe", "1f1b", "interleaved", "zb-h1", "2bw"}, names)
	assert.Greater(t, p.Schedules[4].Plan.Stages[0].Memory.Optimizer, p.Schedules[1].Plan.Stages[0].Memory.Optimizer, "the correction has a buffer")
	assert.Equal(t, 16*32, p.Tokens)
	assert.NotEmpty(t, p.Recommended)

	p, err = PlanPipeline(context.Background(), planned(t, "train.microbatches=1", "pipeline.stages=1", "pipeline.memory=1KiB"), PlanOptions{OpenDevice: open})
	require.NoError(t, err)
	assert.Equal(t, -1, p.Recommendation)
	assert.Contains(t, p.Schedules[0].Problem, "stage 0 (embed to head) does not fit")
	_, err = PlanPipeline(context.Background(), planned(t), PlanOptions{OpenDevice: func(string) (device.Device, error) { return nil, fmt.Errorf("none here") }})
	assert.EqualError(t, err, "pipeline.devices: none here")
	assert.IsType(t, new(usererror.Error), err)
}

// A plan reckons with the loss that a module writes and with what it reads: tensors of any number of rows will do.
func TestPlansOfRunsWithHooks(t *testing.T) {
	dir := t.TempDir()
	head := func(overrides ...string) (float64, error) {
		c := planned(t, append([]string{"pipeline.devices=[null:0]", "data.aligned=[" + positions(t, dir, 3) + "]"}, overrides...)...)
		p, err := PlanPipeline(context.Background(), c, PlanOptions{OpenDevice: openNull, Measure: measure.Options{Modelled: true}})
		if err != nil {
			return 0, err
		}
		units := p.Devices[0].Units
		return units[len(units)-1].Forward, nil
	}
	plain, err := head()
	require.NoError(t, err)
	hooked, err := head(withHooks(told(t, "teacher", callInput)))
	require.NoError(t, err)
	assert.Greater(t, hooked, plain)
	_, err = head(withHooks("none.wasm, hook: build_loss"))
	assert.ErrorContains(t, err, "hook none.wasm: refused: stat none.wasm")
	_, err = head("data.aligned=[none.safetensors]")
	assert.ErrorContains(t, err, "data.aligned: stat none.safetensors: no such file")
}
