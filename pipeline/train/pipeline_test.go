package train

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// weightsOf trains on the reference executor and returns the bytes of what was learned.
func weightsOf(t *testing.T, overrides ...string) map[string]string {
	t.Helper()
	c := demo(t, t.TempDir(), append([]string{
		"model={vocab_size: 256, d_model: 8, n_layers: 6, n_heads: 2, d_ff: 12, seq_len: 8}",
		"train={steps: 5, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"}, overrides...)...)
	res, err := Run(context.Background(), c, options(&reference{}, &notes{}))
	require.NoError(t, err, "%v", overrides)
	return files(t, res.Checkpoint)
}

func TestSynchronousPipelinesEqualOneDevice(t *testing.T) {
	one := weightsOf(t)
	for _, schedule := range []string{"gpipe", "1f1b", "interleaved", "zb-h1"} {
		for _, stages := range []int{1, 2, 3, 4} {
			if schedule == "interleaved" && stages%2 == 1 {
				continue // 4 microbatches do not divide
			}
			got := weightsOf(t, "pipeline.schedule="+schedule, fmt.Sprintf("pipeline.stages=%d", min(stages, 4)))
			assert.True(t, one["model.safetensors"] == got["model.safetensors"], "%s with %d stages", schedule, stages)
		}
	}
}

func Test2BWEqualsADelayOnOneDevice(t *testing.T) {
	for _, optimizer := range []string{"adamw", "muon"} {
		for _, correction := range []string{"none", "error_feedback", "weight_prediction", "dc_asgd"} {
			for _, tied := range []string{"false", "true"} {
				common := []string{"optimizer.name=" + optimizer, "pipeline.correction=" + correction, "model.tie_embeddings=" + tied, "pipeline.delay=1"}
				one := weightsOf(t, common...)
				for stages := 2; stages <= 4; stages++ {
					got := weightsOf(t, append(common, fmt.Sprintf("pipeline.stages=%d", stages))...)
					for file := range one {
						assert.True(t, one[file] == got[file], "%s: %v with %d stages", file, common, stages)
					}
				}
			}
		}
	}
}
