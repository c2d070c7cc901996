package train_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// train.keep_best saves the weights with the lowest validation loss, also between the steps of train.save_every, and
// keeps them besides the newest ones. A resumed run knows them, and what goes back or branches off does too.
func TestKeepBest(t *testing.T) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir, "train={steps: 12, batch_size: 4, microbatches: 2, eval_every: 1, save_every: 3, keep: 1, keep_best: true}",
		"optimizer.lr=0.5", "optimizer.adamw.lr=0.5", "lr={warmup: 0, schedule: constant}")
	runtest.Until(t, c, 5)
	last := runtest.Until(t, c, 0)
	want := train.Best{}
	for _, r := range traintest.Measurements(t, c.Run.Dir) {
		if loss := r.Values["val_loss"]; want.Step == 0 || loss < want.ValLoss {
			want = train.Best{Step: r.Step, ValLoss: loss}
		}
	}
	require.NotContains(t, []int{3, 6, 9, 12}, want.Step, "a step that save_every does not save")
	best, err := train.BestCheckpoint(c.Run.Dir)
	require.NoError(t, err)
	assert.Equal(t, want, best)
	assert.Equal(t, &want, last.Best)
	steps, err := checkpoint.Steps(c.Run.Dir)
	require.NoError(t, err)
	assert.Equal(t, []int{12, want.Step}, steps)
	_, err = checkpoint.Open(traintest.StepDir(c.Run.Dir, want.Step))
	require.NoError(t, err)

	branch := c
	branch.Run.Dir = filepath.Join(dir, "branch")
	branch.Train.Steps = 13
	goOn(t, branch, c.Run.Dir, 12, 0)
	best, err = train.BestCheckpoint(branch.Run.Dir)
	require.NoError(t, err)
	assert.Equal(t, want, best)
	_, err = os.Stat(traintest.StepDir(branch.Run.Dir, want.Step))
	assert.NoError(t, err)
}

// Without train.keep_best the best of the checkpoints that there are is found.
func TestBestCheckpoint(t *testing.T) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir)
	_, err := train.BestCheckpoint(c.Run.Dir)
	assert.ErrorContains(t, err, "no checkpoint was evaluated")
	runtest.Until(t, c, 0)
	losses := map[int]float64{}
	for _, r := range traintest.Measurements(t, c.Run.Dir) {
		if loss, ok := r.Values["val_loss"]; ok {
			losses[r.Step] = loss
		}
	}
	lowest := slices.MinFunc([]int{2, 4, 6}, func(a, b int) int {
		if losses[a] < losses[b] {
			return -1
		}
		return 1
	})
	best, err := train.BestCheckpoint(c.Run.Dir)
	require.NoError(t, err)
	assert.Equal(t, train.Best{Step: lowest, ValLoss: losses[lowest]}, best)
}
