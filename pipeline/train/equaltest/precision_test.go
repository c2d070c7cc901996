package equaltest

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/stretchr/testify/assert"
)

const inBF16 = "train={precision: bf16, steps: 5, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"

// In f16 with batches that overflow, and in bf16, pipelines give the bits of one device.
func TestPrecisionOnPipelines(t *testing.T) {
	delayed := []string{"pipeline.delay=1", "pipeline.stale_microbatches=2", "pipeline.error_feedback=true", "model.tie_embeddings=true"}
	replicas := []string{"pipeline.replicas=2", "pipeline.delay=1", "pipeline.stale_microbatches=1"}
	for _, c := range sample(t, 1, []struct {
		train  string
		more   []string
		stages int
	}{
		{traintest.Overflowing, delayed, 3}, {inBF16, delayed, 3}, {traintest.Overflowing, nil, 3}, {inBF16, nil, 3},
		{traintest.Overflowing, replicas, 2},
	}) {
		overrides := append([]string{c.train}, c.more...)
		one, cut := weightsOf(t, overrides...), weightsOf(t, append(overrides, fmt.Sprint("pipeline.stages=", c.stages))...)
		for file := range one {
			assert.True(t, one[file] == cut[file], "%s: %v", file, overrides)
		}
	}
}
