package equaltest

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/traintest"
	"github.com/stretchr/testify/assert"
)

const inBF16 = "train={precision: bf16, steps: 5, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"

// In f16 with batches that overflow, and in bf16, pipelines give the bits of one device.
func TestPrecisionOnPipelines(t *testing.T) {
	for _, train := range []string{traintest.Overflowing, inBF16} {
		for _, c := range sample(1, [][]string{{train, "pipeline.delay=1", "pipeline.stale_microbatches=2", "pipeline.error_feedback=true", "model.tie_embeddings=true"}, {train}}) {
			one, three := weightsOf(t, c...), weightsOf(t, append(c, "pipeline.stages=3")...)
			for file := range one {
				assert.True(t, one[file] == three[file], "%s: %v", file, c)
			}
		}
	}
	if testing.Short() {
		return
	}
	replicas := []string{traintest.Overflowing, "pipeline.replicas=2", "pipeline.delay=1", "pipeline.stale_microbatches=1"}
	assert.Equal(t, weightsOf(t, replicas...), weightsOf(t, append(replicas, "pipeline.stages=2")...))
}
