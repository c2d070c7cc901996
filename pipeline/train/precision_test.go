package train_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A batch that overflows changes only the loss scale. It is reported, and it is no divergence. A run may be stopped at
// any batch.
func TestOverflow(t *testing.T) {
	for _, delay := range tier.Divide(t, []int{1, 0}, tier.First[int](1)) {
		c := traintest.Demo(t, t.TempDir(), traintest.Overflowing, fmt.Sprint("pipeline.delay=", delay), "train.save_every=1")
		n := &runtest.Notes{}
		_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
		require.NoError(t, err)
		overflows := 0
		for i, r := range traintest.Measurements(t, c.Run.Dir) {
			_, skipped := r.Values["skipped"]
			require.Equal(t, skipped, n.Steps[i].Skipped)
			if !skipped {
				continue
			}
			overflows++
			assert.False(t, metrics.Finite(r.Values["grad_norm"]))
			assert.True(t, metrics.Finite(r.Values["loss"]))
			if assert.Positive(t, r.Values["loss_scale"]); i == 0 {
				continue
			}
			before, after := tensorBits(t, traintest.StepDir(c.Run.Dir, i)), tensorBits(t, traintest.StepDir(c.Run.Dir, i+1))
			for _, p := range c.Model.Parameters() {
				want := before[p.Name]
				if delay > 0 {
					want = before[weights.Pending.Tensor(p.Name)]
				}
				assert.Equal(t, want, after[p.Name])
			}
		}
		assert.Greater(t, overflows, 1)
		assert.Less(t, overflows, 8)
		assert.Len(t, n.Text, overflows)
		assert.Contains(t, n.Text[0], "step 1: the gradient is too large for f16 with a loss scale of 2097152")
		never := tensorBits(t, traintest.StepDir(c.Run.Dir, 8))
		for _, stop := range []int{1, 5} { // with the scale that it had
			c := traintest.Demo(t, t.TempDir(), traintest.Overflowing, fmt.Sprint("pipeline.delay=", delay))
			runtest.Until(t, c, stop)
			assert.Equal(t, never, tensorBits(t, runtest.Until(t, c, 0).Checkpoint), "stopped after %d", stop)
		}
	}
}

// f16 and bf16 reach the losses of f32.
func TestPrecisionLearnsTheSame(t *testing.T) {
	losses := map[string][]float64{}
	for _, precision := range []string{"f32", "f16", "bf16"} {
		c := traintest.Demo(t, t.TempDir(), "train={steps: 40, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 0}",
			"train.precision="+precision)
		_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		for _, r := range traintest.Measurements(t, c.Run.Dir) {
			losses[precision] = append(losses[precision], r.Values["loss"])
		}
	}
	first, last := losses["f32"][0], losses["f32"][39]
	require.Less(t, last, 0.6*first)
	for _, precision := range []string{"f16", "bf16"} {
		assert.NotEqual(t, losses["f32"], losses[precision])
		for i, want := range losses["f32"] {
			assert.Less(t, math.Abs(losses[precision][i]-want), 0.01*want, "%s: step %d", precision, i+1)
		}
	}
}
