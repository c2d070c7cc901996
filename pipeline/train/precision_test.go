package train

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// overflowing has gradients that are too large for f16 at first, and again whenever the loss scale has grown.
const overflowing = "train={precision: f16, loss_scale: {initial: 2097152, growth_every: 2}, steps: 8, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"

const inBF16 = "train={precision: bf16, steps: 5, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"

// In f16 with batches that overflow, and in bf16, pipelines give the bits of one device.
func TestPrecisionOnPipelines(t *testing.T) {
	for _, train := range []string{overflowing, inBF16} {
		for _, common := range [][]string{{train}, {train, "pipeline.delay=1", "pipeline.error_feedback=true", "model.tie_embeddings=true"}} {
			one := weightsOf(t, common...)
			for stages := 2; stages <= 3; stages++ {
				got := weightsOf(t, append(common, fmt.Sprintf("pipeline.stages=%d", stages))...)
				for file := range one {
					assert.True(t, one[file] == got[file], "%s: %v with %d stages", file, common, stages)
				}
			}
		}
	}
	for _, common := range [][]string{{"pipeline.stages=2"}, {"pipeline.stages=2", "pipeline.delay=1"}} {
		overrides := append([]string{overflowing, "pipeline.replicas=2"}, common...)
		one := weightsOf(t, append(overrides, "pipeline.stages=1")...)
		assert.True(t, one["optimizer.safetensors"] == weightsOf(t, overrides...)["optimizer.safetensors"], "%v", overrides)
	}
}

// A batch that overflows changes nothing but the loss scale, is told of, and is no divergence; a resumed run goes on with the scale
// that it had.
func TestOverflow(t *testing.T) {
	for delay := range 2 {
		c := demo(t, t.TempDir(), overflowing, fmt.Sprint("pipeline.delay=", delay), "train.save_every=1")
		n := &notes{}
		_, err := Run(context.Background(), c, options(&reference{}, n))
		require.NoError(t, err)
		overflows := 0
		for i, r := range measurements(t, c.Run.Dir) {
			_, skipped := r.Values["skipped"]
			require.Equal(t, skipped, n.steps[i].Skipped)
			if !skipped {
				continue
			}
			overflows++
			assert.False(t, finite(r.Values["grad_norm"]))
			assert.True(t, finite(r.Values["loss"]))
			if assert.Positive(t, r.Values["loss_scale"]); i == 0 {
				continue
			}
			before, after := bits(t, stepDir(c.Run.Dir, i)), bits(t, stepDir(c.Run.Dir, i+1))
			for _, p := range c.Model.Parameters() {
				want := before[p.Name]
				if delay > 0 {
					want = before[pendingName(p.Name)]
				}
				assert.Equal(t, want, after[p.Name])
			}
		}
		assert.Greater(t, overflows, 1)
		assert.Less(t, overflows, 8)
		assert.Len(t, n.text, overflows)
		assert.Contains(t, n.text[0], "step 1: the gradient is too large for f16 with a loss scale of 2097152")
		for _, stop := range []int{1, 2, 5} {
			again := demo(t, t.TempDir(), overflowing, fmt.Sprint("pipeline.delay=", delay), fmt.Sprint("train.steps=", stop), "lr.schedule=constant")
			full := again
			full.Train.Steps, full.Train.SaveEvery = 8, 8
			_, err := Run(context.Background(), again, options(&reference{}, &notes{}))
			require.NoError(t, err)
			o := options(&reference{}, &notes{})
			o.Resume = true
			res, err := Run(context.Background(), full, o)
			require.NoError(t, err)
			never := demo(t, t.TempDir(), overflowing, fmt.Sprint("pipeline.delay=", delay), "lr.schedule=constant")
			want, err := Run(context.Background(), never, options(&reference{}, &notes{}))
			require.NoError(t, err)
			assert.Equal(t, bits(t, want.Checkpoint), bits(t, res.Checkpoint), "stopped after %d", stop)
		}
	}
}

// What f16 and bf16 learn is what f32 learns.
func TestPrecisionLearnsTheSame(t *testing.T) {
	losses := map[string][]float64{}
	for _, precision := range []string{"f32", "f16", "bf16"} {
		c := demo(t, t.TempDir(), "train={steps: 40, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 0}", "train.precision="+precision)
		_, err := Run(context.Background(), c, options(&reference{}, &notes{}))
		require.NoError(t, err)
		for _, r := range measurements(t, c.Run.Dir) {
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
