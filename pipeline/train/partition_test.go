package train_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// planned is a config of a model whose units take much more memory than the fixed needs of a rank.
func planned(t *testing.T, overrides ...string) config.Config {
	t.Helper()
	return traintest.Demo(t, t.TempDir(), append([]string{
		"model={vocab_size: 512, d_model: 64, n_layers: 4, n_heads: 4, d_ff: 160, seq_len: 32}",
		"train.batch_size=16", "train.microbatches=8", "pipeline.stages=2"}, overrides...)...)
}

func nulls(n int, budget int64) (devices []device.Device) {
	for i := range n {
		devices = append(devices, null.New(null.Options{Name: fmt.Sprint("null:", i), MemoryBudget: budget}))
	}
	return devices
}

// The memory that a partition predicts equals what the engine's ranks plan, for every schedule.
func TestPlannedMemoryIsTheEngines(t *testing.T) {
	for _, overrides := range tier.Divide(t, [][]string{
		{"pipeline.schedule=1f1b", "pipeline.stages=3"},
		{"pipeline.schedule=gpipe", "model.tie_embeddings=true", "optimizer.name=adamw"},
		{"pipeline.schedule=2bw", "pipeline.correction=error_feedback", "model.tie_embeddings=true"},
		{"pipeline.schedule=zb-h1", "optimizer.name=adamw"},
		{"pipeline.schedule=interleaved", "pipeline.chunks=2", "optimizer.name=adamw"},
		{"pipeline.schedule=1f1b", "pipeline.replicas=2", "model.tie_embeddings=true", "optimizer.name=adamw"},
		{"pipeline.schedule=1f1b", "pipeline.recompute=always", "optimizer.name=adamw"},
		{"pipeline.schedule=sync", "pipeline.stages=1", "optimizer.name=adamw"},
		{"pipeline.schedule=1f1b", "pipeline.stages=3", traintest.WithHooks(traintest.Mixer(t, true)+", hook: map_batch",
			traintest.ScaledLoss(t)+", hook: build_loss")},
		{"pipeline.schedule=2bw", traintest.WithHooks(traintest.Weigher(t)+", hook: token_weights",
			traintest.HooksDir+traintest.FocalHook)},
	}, tier.Every[[]string](3)) {
		t.Run(overrides[0], func(t *testing.T) {
			c := planned(t, overrides...)
			h, err := hooks.Open(c.Hooks, hooks.Options{})
			require.NoError(t, err)
			defer func() { require.NoError(t, h.Close()) }()
			hooked, err := hooks.NewTask(context.Background(), c, h, c.Model.Config, nil, h.BatchInputs(c.Data))
			require.NoError(t, err)
			job := layout.Task{Config: c, Model: c.Model.Config, Loss: hooked.Build(), Inputs: hooked.Inputs}
			plan, err := job.Partition(context.Background(), nulls(c.Pipeline.Stages, 0), measure.Options{})
			require.NoError(t, err)
			devices := nulls(c.Pipeline.Stages*c.Pipeline.Replicas, 0)
			optimizer, err := layout.NewOptimizer(c, c.Model.Config, nil)
			require.NoError(t, err)
			e, _, err := job.Choose(context.Background(), optimizer, devices, layout.Options{Note: train.Silent{}.Note})
			require.NoError(t, err)
			for s, stage := range plan.Stages {
				rank := e.Ranks()[s]
				assert.InEpsilon(t, rank.Memory.Total, stage.Memory.Total(), 0.1, "%s: %+v planned as %+v", rank.Name, rank.Memory,
					stage.Memory)
			}
		})
	}
}

// A plan includes a module's loss and the tensors that it reads. Tensors of any number of rows suffice.
func TestPlansOfRunsWithHooks(t *testing.T) {
	dir := t.TempDir()
	head := func(overrides ...string) (float64, error) {
		c := planned(t, append([]string{"pipeline.devices=[null:0]", "data.aligned=[" + traintest.Positions(t, dir, 3) + "]"},
			overrides...)...)
		p, err := train.CompareSchedules(context.Background(), c, traintest.OpenNull, measure.Options{Modelled: true})
		if err != nil {
			return 0, err
		}
		units := p.Devices[0].Units
		return units[len(units)-1].Forward, nil
	}
	plain, err := head()
	require.NoError(t, err)
	hooked, err := head(traintest.WithHooks(traintest.InputLoss(t, "teacher", traintest.CallInput)))
	require.NoError(t, err)
	assert.Greater(t, hooked, plain)
	_, err = head(traintest.WithHooks("none.wasm, hook: build_loss"))
	assert.ErrorContains(t, err, "hook none.wasm: refused: stat none.wasm")
	_, err = head("data.aligned=[none.safetensors]")
	assert.ErrorContains(t, err, "data.aligned: stat none.safetensors: no such file")
}
