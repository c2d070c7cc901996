package train_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTwoRunsCannotShareAFolder(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	var second error
	n := &runtest.Notes{OnStep: func(p train.Progress) {
		if p.Step == 3 {
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
			o.Resume = true
			_, second = train.Run(context.Background(), c, o)
		}
	}}
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err, "the first run goes on")
	var user *usererror.Error
	require.ErrorAs(t, second, &user)
	assert.ErrorIs(t, second, lock.ErrHeld)
	assert.ErrorContains(t, second, "run.dir: "+c.Run.Dir+" is in use by another process")
	assert.NoFileExists(t, filepath.Join(c.Run.Dir, ".lock"))
	assert.Len(t, traintest.Measurements(t, c.Run.Dir), 6)
}

// A run that cannot begin removes the files and folders that it created, and no others.
func TestFailedStartLeavesNoFiles(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	require.NoError(t, os.Mkdir(c.Run.Dir, 0o777))
	for _, name := range []string{"tensorboard", "mine.txt"} { // a file where a folder is needed
		require.NoError(t, os.WriteFile(filepath.Join(c.Run.Dir, name), nil, 0o666))
	}
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	var user *usererror.Error
	require.ErrorAs(t, err, &user)
	left, err := os.ReadDir(c.Run.Dir)
	require.NoError(t, err)
	require.Len(t, left, 2)
	assert.Equal(t, "mine.txt", left[0].Name())
}

// Weights whose validation loss is not finite are not saved.
func TestNonfiniteValidationLossStopsRun(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{NaNEvaluations: true}, &runtest.Notes{}))
	assert.False(t, errors.As(err, new(*usererror.Error)), "it is nobody's input")
	assert.ErrorContains(t, err, "step 2: the validation loss after it is NaN")
	assert.ErrorIs(t, err, train.ErrDiverged)
	assert.ErrorContains(t, err, "there is no checkpoint yet")
	saved, err := os.ReadDir(filepath.Join(c.Run.Dir, checkpoint.Folder))
	require.NoError(t, err)
	assert.Empty(t, saved)
}

// A run that is resumed from another folder finds its data, and config.yaml has the paths as they were written.
func TestRelativePathsFromAnotherFolder(t *testing.T) {
	root := t.TempDir()
	project, elsewhere := filepath.Join(root, "project"), filepath.Join(root, "elsewhere")
	require.NoError(t, os.Mkdir(project, 0o777))
	require.NoError(t, os.Mkdir(elsewhere, 0o777))
	t.Chdir(project)
	c := traintest.Demo(t, ".", "run.dir=./runs/rel")
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	file := filepath.Join("runs", "rel", "config.yaml")
	first, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(first), "started_in: "+project)

	t.Chdir(elsewhere)
	run := filepath.Join("..", "project", "runs", "rel")
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.Resume = true
	c, err = config.LoadRun(run, filepath.Join(run, "config.yaml"), nil)
	require.NoError(t, err)
	_, err = train.Run(context.Background(), c, o)
	require.NoError(t, err)
	second, err := os.ReadFile(filepath.Join(project, file))
	require.NoError(t, err)
	assert.Equal(t, string(first), string(second))

	require.NoError(t, os.Remove(filepath.Join(project, "text.txt")))
	c, err = config.LoadRun(run, filepath.Join(run, "config.yaml"), nil)
	require.NoError(t, err)
	_, err = train.Run(context.Background(), c, o)
	var user *usererror.Error
	require.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "data.train[0]: found neither "+filepath.Join(project, "text.txt"))
	assert.ErrorContains(t, err, filepath.Join(elsewhere, "text.txt"))
}
