package equaltest

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// With batch hooks, two stages of 2BW give the bits of one device with a delay. Other schedules give those of one
// device.
func TestPipelinesWithBatchHooksEqualOneDevice(t *testing.T) {
	all := traintest.WithHooks(traintest.Mixer(t, true)+", hook: map_batch", traintest.Weigher(t)+", hook: token_weights",
		traintest.ScaledLoss(t)+", hook: build_loss")
	type trial struct{ one, other []string }
	for _, trial := range sample(t, 1, []trial{
		{[]string{"pipeline.delay=1", "pipeline.stale_microbatches=2", "pipeline.error_feedback=true"},
			[]string{"pipeline.schedule=2bw", "pipeline.stages=3", "pipeline.error_feedback=true"}},
		{[]string{"pipeline.delay=1"}, []string{"pipeline.schedule=2bw", "pipeline.stages=2", "pipeline.stale_microbatches=all"}},
		{nil, []string{"pipeline.schedule=interleaved", "pipeline.stages=2"}},
		{nil, []string{"pipeline.recompute=always"}},
	}) {
		one := weightsOf(t, append(trial.one, all)...)
		other := weightsOf(t, append(trial.other, all)...)
		for file := range one {
			assert.True(t, one[file] == other[file], "%s: %v", file, trial.other)
		}
	}
}

func writtenWeights(t *testing.T, overrides ...string) map[string]string {
	t.Helper()
	res, err := train.Run(context.Background(), traintest.HookModel(t, t.TempDir(), traintest.GPT2(t), overrides...),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err, "%v", overrides)
	return traintest.Files(t, res.Checkpoint)
}

func TestPipelinesOfAWrittenModelEqualOneDevice(t *testing.T) {
	one := writtenWeights(t)
	for _, overrides := range sample(t, 1, [][]string{{"pipeline.stages=4"}, {"pipeline.stages=2"},
		{"pipeline.stages=2", "pipeline.schedule=interleaved"},
		{"pipeline.stages=2", "pipeline.schedule=zb-h1"}, {"pipeline.stages=2", "pipeline.recompute=always"}}) {
		assert.True(t, one["model.safetensors"] == writtenWeights(t, overrides...)["model.safetensors"], "%v", overrides)
	}
	for _, optimizer := range sample(t, 1, []string{"muon", "adamw"}) {
		common := []string{"optimizer.name=" + optimizer, "pipeline.delay=1", "pipeline.stale_microbatches=2",
			"pipeline.error_feedback=true"}
		late := writtenWeights(t, common...)
		assert.NotEqual(t, one["model.safetensors"], late["model.safetensors"])
		for stages := 2; stages <= 3; stages++ {
			got := writtenWeights(t, append(common, "pipeline.schedule=2bw", fmt.Sprint("pipeline.stages=", stages))...)
			for file := range late {
				assert.True(t, late[file] == got[file], "%s: %v with %d stages", file, common, stages)
			}
		}
	}
}

// Loss and batch hooks work with a model that a module builds.
func TestAWrittenModelWithOtherHooks(t *testing.T) {
	module := traintest.GPT2(t)
	build := module + ", hook: build_model, config: " + traintest.GPT2Config
	focal := traintest.HooksDir + traintest.FocalHook
	mixed := traintest.Mixer(t, false) + ", hook: map_batch"
	plain := writtenWeights(t, "data.shuffle=false")
	seen := map[string]bool{plain["model.safetensors"]: true}
	for _, hooks := range [][]string{{focal}, {mixed}, {focal, mixed, traintest.Weigher(t) + ", hook: token_weights"}} {
		all := traintest.WithHooks(append([]string{build}, hooks...)...)
		one := writtenWeights(t, all, "data.shuffle=false")["model.safetensors"]
		assert.False(t, seen[one], "%v change what is learned", hooks)
		seen[one] = true
		for _, layout := range sample(t, 1, []string{"pipeline.stages=4", "pipeline.stages=2", "pipeline.recompute=always"}) {
			assert.True(t, one == writtenWeights(t, all, "data.shuffle=false", layout)["model.safetensors"], "%v, %s", hooks, layout)
		}
	}
}
