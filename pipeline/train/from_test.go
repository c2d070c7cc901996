package train_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goOn trains from a checkpoint of a run, to the last step or until it has reported a step.
func goOn(t *testing.T, c config.Config, run string, from, until int) (train.Result, *runtest.Notes) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := &runtest.Notes{OnStep: func(p train.Progress) {
		if p.Step == until {
			cancel()
		}
	}}
	o := runtest.Options(&traintest.Reference{}, n)
	o.From = &train.From{Run: run, Step: from}
	res, err := train.Run(ctx, c, o)
	require.NoError(t, err)
	return res, n
}

// contents are the files below a folder, by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir)] = string(text)
		return err
	}))
	return all
}

// layouts are those on which runs go back and branch off.
var layouts = []namedLayout{
	{"pending update", "pipeline={schedule: 2bw, stages: 2}"},
	{"one device", "pipeline.stages=1"},
	{"pipeline", "pipeline={schedule: 1f1b, stages: 2}"},
	{"delayed", "pipeline={delay: 1, error_feedback: true}"},
}

type namedLayout struct{ name, pipeline string }

// A run that goes back to an earlier checkpoint ends with the bits and the curve of one that was never stopped, and
// deletes nothing.
func TestGoBack(t *testing.T) {
	for _, l := range tier.Divide(t, layouts, tier.First[namedLayout](1)) {
		t.Run(l.name, func(t *testing.T) {
			dir := t.TempDir()
			layout := []string{"train={steps: 8, batch_size: 4, microbatches: 2, eval_every: 4, save_every: 2}", l.pipeline}
			whole := runtest.Until(t, traintest.Demo(t, dir, append(layout, "run.dir="+filepath.Join(dir, "whole"))...), 0)
			c := traintest.Demo(t, dir, layout...)
			other := c
			other.Optimizer.WeightDecay = 3
			runtest.Until(t, c, 4)
			later := runtest.Until(t, other, 0)
			before, saved := contents(t, c.Run.Dir), traintest.Files(t, later.Checkpoint)
			require.NotEqual(t, traintest.Files(t, whole.Checkpoint), saved)

			again, notes := goOn(t, c, c.Run.Dir, 4, 0)
			assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, again.Checkpoint))
			assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, again.Dir))
			assert.Equal(t, 5, notes.Steps[0].Step)
			aside := filepath.Join(c.Run.Dir, "aside", "1")
			assert.Contains(t, strings.Join(notes.Text, "\n"), "going back to step 4: the checkpoints of steps 8, 6")
			assert.Equal(t, saved, traintest.Files(t, traintest.StepDir(aside, 8)))
			kept := contents(t, aside)
			for _, file := range []string{"/config.yaml", "/metrics.jsonl", "/system.jsonl", "/events.jsonl"} {
				assert.Equal(t, before[file], kept[file], file)
			}
			assert.True(t, strings.HasPrefix(contents(t, c.Run.Dir)["/events.jsonl"], before["/events.jsonl"]), "events are kept")

			// What was set aside is a run of its own.
			elsewhere := other
			elsewhere.Run.Dir, elsewhere.Train.Steps = aside, 9
			assert.Equal(t, 9, runtest.Until(t, elsewhere, 0).Step)
		})
	}
}

// A run that goes back and is interrupted goes on as any other.
func TestGoBackInterrupted(t *testing.T) {
	dir := t.TempDir()
	steps := "train={steps: 8, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 2}"
	whole := runtest.Until(t, traintest.Demo(t, dir, steps, "run.dir="+filepath.Join(dir, "whole")), 0)
	c := traintest.Demo(t, dir, steps)
	runtest.Until(t, c, 0)
	goOn(t, c, c.Run.Dir, 2, 3)
	last := runtest.Until(t, c, 0)
	assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, last.Checkpoint))
	assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, last.Dir))
	assert.Equal(t, []string{"step-4", "step-6", "step-8"}, traintest.Listing(t, filepath.Join(c.Run.Dir, "aside", "1", checkpoint.Folder)))

	goOn(t, c, c.Run.Dir, 4, 0)
	assert.Equal(t, []string{"step-6", "step-8"}, traintest.Listing(t, filepath.Join(c.Run.Dir, "aside", "2", checkpoint.Folder)))
}

// A branch is complete, ends with the bits of its run, and leaves the run as it is.
func TestBranch(t *testing.T) {
	for _, l := range tier.Divide(t, layouts, tier.First[namedLayout](1)) {
		t.Run(l.name, func(t *testing.T) {
			dir := t.TempDir()
			c := traintest.Demo(t, dir, "train={steps: 8, batch_size: 4, microbatches: 2, eval_every: 4, save_every: 2}", l.pipeline)
			whole := runtest.Until(t, c, 0)
			before := contents(t, c.Run.Dir)
			branch := c
			branch.Run.Dir = filepath.Join(dir, "branch")
			stopped, _ := goOn(t, branch, c.Run.Dir, 4, 5)
			require.True(t, stopped.Interrupted)
			assert.Equal(t, traintest.Measurements(t, c.Run.Dir)[:stopped.Step], traintest.Measurements(t, branch.Run.Dir))
			assert.Equal(t, []string{"step-4", filepath.Base(stopped.Checkpoint)},
				traintest.Listing(t, filepath.Join(branch.Run.Dir, checkpoint.Folder)))
			assert.Len(t, traintest.Listing(t, filepath.Join(branch.Run.Dir, "tensorboard")), 2, "the steps before the branch, and its own")
			last := runtest.Until(t, branch, 0)
			assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, last.Checkpoint))
			assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, last.Dir))
			assert.Equal(t, before, contents(t, c.Run.Dir))
		})
	}
}

// A branch that was killed while it was made begins anew, and does not pass for a run. A folder that holds a run is no
// place for a branch.
func TestBranchInterrupted(t *testing.T) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir)
	whole := runtest.Until(t, c, 0)
	branch := c
	branch.Run.Dir = filepath.Join(dir, "branch")
	require.NoError(t, os.MkdirAll(filepath.Join(branch.Run.Dir, checkpoint.Folder, ".tmp-step-2-AAAAAAAAAA"), 0o777))
	for name, text := range map[string]string{"branch.incomplete": "of run\n", "metrics.jsonl": "{\"step\": 9, \"loss\": 1}\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(branch.Run.Dir, name), []byte(text), 0o666))
	}
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.Resume = true
	_, err := train.Run(t.Context(), branch, o)
	assert.ErrorContains(t, err, "is a branch of another run that was interrupted while it was made")
	require.NoError(t, os.CopyFS(traintest.StepDir(branch.Run.Dir, 4), os.DirFS(traintest.StepDir(c.Run.Dir, 4)))) // of a later step
	require.NoError(t, os.CopyFS(filepath.Join(branch.Run.Dir, "tensorboard"), os.DirFS(filepath.Join(c.Run.Dir, "tensorboard"))))
	stopped, _ := goOn(t, branch, c.Run.Dir, 2, 3)
	assert.Equal(t, []string{"step-2", filepath.Base(stopped.Checkpoint)},
		traintest.Listing(t, filepath.Join(branch.Run.Dir, checkpoint.Folder)))
	assert.Len(t, traintest.Listing(t, filepath.Join(branch.Run.Dir, "tensorboard")), 2, "the steps before the branch, and its own")
	res := runtest.Until(t, branch, 0)
	assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, res.Checkpoint))
	assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, res.Dir))

	o.From = &train.From{Run: c.Run.Dir, Step: 2}
	_, err = train.Run(t.Context(), branch, o)
	var user *usererror.Error
	require.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "holds a run already")
}

// A start from a checkpoint that cannot be continued changes nothing.
func TestGoBackRefused(t *testing.T) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir)
	runtest.Until(t, c, 0)
	before := contents(t, c.Run.Dir)
	for want, from := range map[string]train.From{
		"no usable checkpoint of step 3: those that there are are of steps 2, 4, 6": {Run: c.Run.Dir, Step: 3},
		"optimizer.name: the checkpoint has":                                        {Run: c.Run.Dir, Step: 2},
	} {
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.From = &from
		changed := traintest.Demo(t, dir, "optimizer.name=adamw")
		_, err := train.Run(t.Context(), changed, o)
		assert.ErrorContains(t, err, want)
		assert.Equal(t, before, contents(t, c.Run.Dir))
	}
}
