package sweep

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// begunIn makes a project with the file of a sweep, trains two of its four runs there, and goes to a folder beside it.
func begunIn(t *testing.T, dir string, overrides ...string) (project string, f *runtest.Fake) {
	t.Helper()
	root := t.TempDir()
	project = filepath.Join(root, "project")
	require.NoError(t, os.MkdirAll(filepath.Join(project, "configs"), 0o777))
	require.NoError(t, os.Mkdir(filepath.Join(root, "elsewhere"), 0o777))
	for _, name := range []string{"a.txt", "v.txt", "tasks.jsonl"} {
		require.NoError(t, os.WriteFile(filepath.Join(project, name), nil, 0o666))
	}
	text := smallBase + "set: {data.val: v.txt}\nkeys: {optimizer.lr: [0.001, 0.002, 0.003, 0.004]}\ndir: " + dir + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(project, "configs", "s.yaml"), []byte(text), 0o666))
	t.Chdir(project)
	s, err := Load("configs/s.yaml", overrides)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	f = &runtest.Fake{Loss: bowl}
	f.Step = func(_ config.Config, step int) {
		if step == 18 && f.Steps == 36 {
			stop()
		}
	}
	_, err = runs.Compare(ctx, s, runs.Options{Train: f.Train}, nil)
	require.ErrorIs(t, err, runs.ErrInterrupted)
	t.Chdir(filepath.Join(root, "elsewhere"))
	return project, f
}

// The file of a sweep, and its folder, mean the same sweep in every working directory.
func TestASweepGoesOnFromEveryFolder(t *testing.T) {
	for name, path := range map[string]string{"file": "../project/configs/s.yaml", "folder": "../project/sweeps/mine"} {
		t.Run(name, func(t *testing.T) {
			project, f := begunIn(t, "sweeps/mine", "train.eval_tasks=[tasks.jsonl]", "train.eval_questions=1")
			config1 := filepath.Join(project, "sweeps/mine/runs/lr=0.001,seed=1/config.yaml")
			before, err := os.ReadFile(config1)
			require.NoError(t, err)
			var now []string
			if name == "file" { // the same command
				now = []string{"train.eval_tasks=[../project/tasks.jsonl]", "train.eval_questions=1"}
			}
			s, err := Load(path, now)
			require.NoError(t, err)
			assert.Equal(t, filepath.Join("..", "project", "sweeps", "mine"), s.Dir)
			planned, err := runs.Plan(s)
			require.NoError(t, err)
			assert.Len(t, planned.Ended, 2)
			var notes []string
			rep := execute(t, s, f, runs.Options{Note: func(format string, args ...any) { notes = append(notes, format) }})
			assert.Equal(t, 4*18, f.Steps, "nothing is trained twice")
			assert.Len(t, notes, 1)
			assert.Len(t, rep.Trials, 4)
			for _, c := range f.Begun {
				for _, path := range append(append(c.Data.Train, c.Data.Val...), c.Train.EvalTasks...) {
					assert.Contains(t, []string{"a.txt", "v.txt", "tasks.jsonl", filepath.Join(project, filepath.Base(path)),
						"../project/tasks.jsonl"}, path)
				}
			}
			later := f.Begun[len(f.Begun)-1]
			assert.Equal(t, []string{filepath.Join(project, "a.txt")}, later.Data.Train)
			assert.Equal(t, []string{filepath.Join(project, "v.txt")}, later.Data.Val)
			after, err := os.ReadFile(config1)
			require.NoError(t, err)
			assert.Equal(t, string(before), string(after))
			text := string(later.SavedYAML())
			assert.Contains(t, text, "train: [a.txt]")
			assert.Contains(t, text, "val: [v.txt]")
			assert.Contains(t, text, "eval_tasks: [tasks.jsonl]")
			assert.Contains(t, text, "dir: sweeps/mine/runs/lr=0.004,seed=1\n    started_in: "+project)
			entries, err := os.ReadDir(".")
			require.NoError(t, err)
			assert.Empty(t, entries, "nothing is written here")

			t.Chdir(t.TempDir())
			best, err := config.Load(filepath.Join(project, "sweeps", "mine", "best.yaml"), nil)
			require.NoError(t, err)
			assert.Equal(t, []string{filepath.Join(project, "a.txt")}, best.Data.Train)
			assert.Equal(t, filepath.Join(project, "sweeps", "mine", "best"), best.Run.Dir)
		})
	}
}

// Home folders and absolute folders of sweeps are found from everywhere, too.
func TestASweepInAHomeFolder(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	project, f := begunIn(t, "~/sweeps/mine")
	s, err := Load("../project/configs/s.yaml", nil)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(home, "sweeps", "mine"), s.Dir)
	execute(t, s, f, runs.Options{})
	assert.Equal(t, 4*18, f.Steps)
	assert.Equal(t, []string{filepath.Join(project, "a.txt")}, f.Begun[len(f.Begun)-1].Data.Train)
	assert.NoDirExists(t, filepath.Join(project, "~"))
}

// A project that was moved keeps its sweeps.
func TestASweepThatMoved(t *testing.T) {
	project, f := begunIn(t, "sweeps/mine")
	moved := filepath.Join(filepath.Dir(project), "moved")
	require.NoError(t, os.Rename(project, moved))
	s, err := Load("../moved/configs/s.yaml", nil)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join("..", "moved", "sweeps", "mine"), s.Dir)
	execute(t, s, f, runs.Options{})
	assert.Equal(t, 4*18, f.Steps)
	assert.Equal(t, []string{filepath.Join(moved, "a.txt")}, f.Begun[len(f.Begun)-1].Data.Train)
}

// A sweep that has not begun above its file begins in the working directory, also if there is another of that folder.
func TestANewSweepBeginsInTheWorkingDirectory(t *testing.T) {
	project, _ := begunIn(t, "sweeps/mine")
	text, err := os.ReadFile(filepath.Join(project, "configs", "s.yaml"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(project, "configs", "other.yaml"), text, 0o666))
	s, err := Load("../project/configs/other.yaml", nil)
	require.NoError(t, err)
	assert.Equal(t, "sweeps/mine", s.Dir)
	_, err = Load("../project/sweeps", nil)
	assert.ErrorContains(t, err, "../project/sweeps: the folder has no begun.yaml: expected a YAML file, or the folder of such runs that have begun")
	require.NoError(t, os.Rename(filepath.Join(project, "configs", "s.yaml"), filepath.Join(project, "s.yaml")))
	_, err = Load("../project/sweeps/mine", nil)
	assert.ErrorContains(t, err, filepath.FromSlash("../project/sweeps/mine/begun.yaml: file: stat "))
}
