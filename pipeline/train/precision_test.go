package train

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/weights"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// overflowing has gradients that are too large for f16 at first, and again whenever the loss scale has grown.
const overflowing = "train={precision: f16, loss_scale: {initial: 2097152, growth_every: 2}, steps: 8, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"

const inBF16 = "train={precision: bf16, steps: 5, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"

// In f16 with batches that overflow, and in bf16, pipelines give the bits of one device.
func TestPrecisionOnPipelines(t *testing.T) {
	for _, train := range []string{overflowing, inBF16} {
		for _, c := range [][]string{{train}, {train, "pipeline.delay=1", "pipeline.error_feedback=true", "model.tie_embeddings=true"}} {
			one, three := weightsOf(t, c...), weightsOf(t, append(c, "pipeline.stages=3")...)
			for file := range one {
				assert.True(t, one[file] == three[file], "%s: %v", file, c)
			}
		}
	}
	replicas := []string{overflowing, "pipeline.replicas=2", "pipeline.delay=1"}
	assert.Equal(t, weightsOf(t, replicas...), weightsOf(t, append(replicas, "pipeline.stages=2")...))
}

// A batch that overflows changes only the loss scale. It is reported, and it is no divergence. A run may be stopped at
// any batch.
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
					want = before[weights.PendingName(p.Name)]
				}
				assert.Equal(t, want, after[p.Name])
			}
		}
		assert.Greater(t, overflows, 1)
		assert.Less(t, overflows, 8)
		assert.Len(t, n.text, overflows)
		assert.Contains(t, n.text[0], "step 1: the gradient is too large for f16 with a loss scale of 2097152")
		never := bits(t, stepDir(c.Run.Dir, 8))
		for _, stop := range []int{1, 5} { // with the scale that it had
			c := demo(t, t.TempDir(), overflowing, fmt.Sprint("pipeline.delay=", delay))
			leg(t, c, stop)
			assert.Equal(t, never, bits(t, leg(t, c, 0).Checkpoint), "stopped after %d", stop)
		}
	}
}

// A step that is done again after a restart is not reported again.
func TestOverflowIsReportedOnce(t *testing.T) {
	o, err := optim.New(optim.Config{Algorithm: &optim.SGD{LR: 1}, Schedule: optim.Schedule{Name: "constant"}},
		[]optim.Param{{Name: "w", Type: graph.T(graph.F32, 2, 2), Layer: "l", Gradient: "g"}})
	require.NoError(t, err)
	n := &notes{}
	r := newTrainer(config.Config{}, Options{Report: n})
	r.job.optimizer, r.recorder.reported = o, 4
	r.recorder.pace.start()
	for batch := 3; batch < 5; batch++ {
		p, err := r.progress(engine.Measured{Batch: batch, Loss: 1, GradNorm: math.Inf(1), Overflowed: true, Scale: 1024})
		require.NoError(t, err)
		assert.True(t, p.Skipped)
	}
	if assert.Len(t, n.text, 1) {
		assert.Contains(t, n.text[0], "step 5: ")
	}
}

// f16 and bf16 reach the losses of f32.
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
