package config

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// started makes a folder with a run that was started in it, and returns the folder and that of the run. The working
// directory becomes another folder beside it.
func started(t *testing.T, more ...string) (project, run string) {
	t.Helper()
	root := t.TempDir()
	project, elsewhere := filepath.Join(root, "my [project]"), filepath.Join(root, "elsewhere")
	run = filepath.Join(project, "runs", "a")
	require.NoError(t, os.MkdirAll(run, 0o777))
	require.NoError(t, os.Mkdir(elsewhere, 0o777))
	for _, name := range []string{"a.txt", "b.txt", "task.jsonl", "h.wasm"} {
		require.NoError(t, os.WriteFile(filepath.Join(project, name), []byte("text"), 0o666))
	}
	t.Chdir(project)
	c, err := Load("", append([]string{"model.preset=tiny", "data.train=[./a.txt, '*.txt', gone.txt]", "train.eval_tasks=[task.jsonl]",
		"hooks=[{file: h.wasm, hook: on_metrics}]", "run.dir=./runs/a"}, more...))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(run, "config.yaml"), c.SavedYAML(), 0o666))
	t.Chdir(elsewhere)
	return project, run
}

func TestPathsOfARunMeanTheSameFromEveryFolder(t *testing.T) {
	project, run := started(t)
	file := filepath.Join(run, "config.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	relative := filepath.Join("..", filepath.Base(project), "runs", "a")
	c, err := LoadRun(relative, file, nil)
	require.NoError(t, err)
	assert.Equal(t, relative, c.Run.Dir)
	assert.Equal(t, filepath.Join(project, "a.txt"), c.Data.Train[0])
	assert.Equal(t, filepath.Join(userpath.Literal(project), "*.txt"), c.Data.Train[1])
	assert.Equal(t, []string{filepath.Join(project, "task.jsonl")}, c.Train.EvalTasks)
	assert.Equal(t, filepath.Join(project, "h.wasm"), c.Hooks[0].File)
	assert.Equal(t, string(text), string(c.SavedYAML()), "nothing is rewritten")
	saved, err := ParseSaved(file, text)
	require.NoError(t, err)
	assert.Equal(t, c.Data, saved.Data)
	assert.NotContains(t, string(c.Here().YAML()), "started_in")
	assert.Contains(t, string(c.Here().YAML()), filepath.Join(project, "h.wasm"))

	assert.NoError(t, c.CheckPaths("data.train[0]", "train", "hooks"))
	err = c.CheckPaths()
	assert.ErrorContains(t, err, "data.train[2]: found neither "+filepath.Join(project, "gone.txt"))
	assert.ErrorContains(t, err, filepath.Join("elsewhere", "gone.txt"))
	require.NoError(t, os.WriteFile("gone.txt", nil, 0o666))
	c, err = LoadRun(run, file, nil)
	require.NoError(t, err)
	assert.Equal(t, "gone.txt", c.Data.Train[2], "a file that is in the working directory alone")
	assert.NoError(t, c.CheckPaths())
}

func TestOverridesOfARunAreRelativeToTheWorkingDirectory(t *testing.T) {
	project, run := started(t)
	file := filepath.Join(run, "config.yaml")
	c, err := LoadRun(run, file, []string{"run.dir=new", "data.train[0]=a.txt", "data.val=../x/*.txt"})
	require.NoError(t, err)
	assert.Equal(t, "new", c.Run.Dir)
	assert.Equal(t, "a.txt", c.Data.Train[0])
	assert.Equal(t, []string{"../x/*.txt"}, c.Data.Val)
	text := string(c.SavedYAML())
	assert.Contains(t, text, "dir: ../elsewhere/new\n")
	assert.Contains(t, text, "train: [../elsewhere/a.txt, '*.txt', gone.txt]\n")
	assert.Contains(t, text, "val: [../x/*.txt]\n")
	again, err := ParseSaved("again", []byte(text))
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(project, "..", "elsewhere", "new"), again.Run.Dir)
}

func TestARunThatMovedIsOfTheWorkingDirectory(t *testing.T) {
	project, _ := started(t)
	moved := filepath.Join(filepath.Dir(project), "moved")
	require.NoError(t, os.Rename(project, moved))
	t.Chdir(moved)
	file := filepath.Join("runs", "a", "config.yaml")
	c, err := LoadRun("runs/a", file, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"./a.txt", "*.txt"}, c.Data.Train[:2])
	assert.Contains(t, string(c.SavedYAML()), "dir: ./runs/a\n    started_in: "+moved)
	err = c.CheckPaths()
	assert.ErrorContains(t, err, filepath.Join(project, "gone.txt"))
	assert.ErrorContains(t, err, filepath.Join(moved, "gone.txt"))

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	old, _, _ := strings.Cut(string(text), "    started_in:")
	saved, err := ParseSaved("old", []byte(old))
	require.NoError(t, err)
	assert.Equal(t, []string{"./a.txt", "*.txt", "gone.txt"}, saved.Data.Train)
	assert.EqualError(t, saved.CheckPaths(), "data.train[2]: gone.txt is not in the working directory, and the run is of an earlier version, "+
		"which did not record where it was started: repeat the command there, or add --set run.started_in=FOLDER")
}

// A run of an earlier version did not record where it was started: what is missing says so, and where that was.
func TestARunThatDoesNotSayWhereItWasStarted(t *testing.T) {
	project, run := started(t)
	file := filepath.Join(run, "config.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	old, _, _ := strings.Cut(string(text), "    started_in:")
	require.NoError(t, os.WriteFile(file, []byte(old), 0o666))
	c, err := LoadRun(run, file, nil)
	require.NoError(t, err)
	assert.Equal(t, "./a.txt", c.Data.Train[0])
	assert.ErrorContains(t, c.CheckPaths(), "data.train[0]: ./a.txt is not in the working directory, and the run is of an earlier version")
	assert.ErrorContains(t, c.CheckPaths(), "repeat the command there, or add --set run.started_in="+project)
	c, err = LoadRun(run, file, []string{"run.started_in=" + project, "data.train[2]=" + file})
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(project, "a.txt"), c.Data.Train[0])
	assert.Equal(t, run, c.Run.Dir)
	assert.NoError(t, c.CheckPaths())
	require.NoError(t, os.WriteFile(file, []byte("run: {dir: runs/a}\nmodel: {preset: tiny}\ndata: {train: a.txt, tokenizer: tok/tokenizer.json}\n"), 0o666))
	_, err = LoadRun(run, file, nil)
	assert.ErrorContains(t, err, "data.tokenizer: tok/tokenizer.json is not in the working directory, and the run is of an earlier version")
	require.NoError(t, os.WriteFile(file, []byte(old), 0o666))
	t.Chdir(project)
	c, err = LoadRun("runs/a", filepath.Join("runs", "a", "config.yaml"), []string{"data.train[2]=a.txt"})
	require.NoError(t, err)
	assert.NoError(t, c.CheckPaths())
}

// Relative paths of a file of runs begin where the set was begun, paths of a config with a start of its own at that
// start, and paths of the command line at the working directory.
func TestPathsOfAFileOfRuns(t *testing.T) {
	project, run := started(t)
	for own, base := range map[string]string{
		"no start": "model: {preset: tiny}\ndata: {train: a.txt}\n",
		"its own":  "model: {preset: tiny}\ndata: {train: runs/a/config.yaml}\nrun: {started_in: " + strconv.Quote(project) + "}\n",
	} {
		start, theirs := project, "a.txt"
		if own != "no start" {
			start, theirs = run, "config.yaml"
		}
		d, err := strictyaml.Parse("base.yaml", []byte(base))
		require.NoError(t, err)
		put := func(key, value string) {
			require.NoError(t, d.Put(key, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}, "sweep.yaml:3"))
		}
		put("data.val", theirs)
		put("run.dir", "new")
		require.NoError(t, d.Override("train.eval_tasks=[x.jsonl]"))
		require.NoError(t, d.OverrideFrom("hooks=[{file: h.wasm, hook: on_metrics}]", "sweeps/begun.yaml"))
		require.NoError(t, os.WriteFile(filepath.Join(start, "h.wasm"), nil, 0o666))
		c, err := ResolveFrom(d, start)
		require.NoError(t, err)
		assert.Equal(t, []string{filepath.Join(start, theirs)}, c.Data.Val)
		assert.Equal(t, "new", c.Run.Dir)
		assert.Equal(t, []string{"x.jsonl"}, c.Train.EvalTasks)
		assert.Equal(t, filepath.Join(start, "h.wasm"), c.Hooks[0].File)
		again, err := ParseSaved("again", c.SavedYAML())
		require.NoError(t, err)
		assert.Equal(t, project, again.Run.StartedIn)
		for _, path := range [][2]string{{c.Data.Train[0], again.Data.Train[0]}, {c.Data.Val[0], again.Data.Val[0]},
			{c.Hooks[0].File, again.Hooks[0].File}} {
			assert.True(t, userpath.SameFolder(path[0], path[1]), path)
		}
		assert.Equal(t, filepath.Join(project, "..", "elsewhere", "x.jsonl"), again.Train.EvalTasks[0])
	}
}

// A config that was copied out of the folder of a run is a file as users write it.
func TestACopiedConfigIsOfTheWorkingDirectory(t *testing.T) {
	project, run := started(t)
	text, err := os.ReadFile(filepath.Join(run, "config.yaml"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("mine.yaml", text, 0o666))
	c, err := Load("mine.yaml", nil)
	require.NoError(t, err)
	assert.Equal(t, "./a.txt", c.Data.Train[0])
	assert.Equal(t, "./runs/a", c.Run.Dir)
	assert.Equal(t, []string{"run.started_in: " + project +
		" is of the run that mine.yaml was copied from: relative paths begin at the working directory"}, c.Notes())
	here, err := os.Getwd()
	require.NoError(t, err)
	assert.Contains(t, string(c.SavedYAML()), "started_in: "+here)
	c, err = Load(filepath.Join(run, "config.yaml"), nil)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(project, "a.txt"), c.Data.Train[0], "the file of the run itself")
	c, err = Load("mine.yaml", []string{"run.started_in=" + project})
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(project, "a.txt"), c.Data.Train[0])
	t.Chdir(project)
	c, err = Load("../elsewhere/mine.yaml", nil)
	require.NoError(t, err)
	assert.Empty(t, c.Notes())
}

func TestHomeAndVariablesInPaths(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	t.Setenv("MINE", filepath.Join(home, "mine"))
	set := []string{"model.preset=tiny", "data.train=$MINE/a.txt", "train.eval_tasks=$MINE/#1.jsonl",
		"hooks=[{file: '${MINE}/h.wasm', hook: on_metrics}]", "run.dir=~/gpt #1"}
	c, err := Load("", set)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(home, "gpt #1"), c.Run.Dir)
	assert.Equal(t, []string{filepath.Join(home, "mine", "#1.jsonl")}, c.Train.EvalTasks)
	assert.Equal(t, filepath.Join(home, "mine", "h.wasm"), c.Hooks[0].File)
	assert.Contains(t, string(c.YAML()), "dir: '~/gpt #1'\n", "the text of the user is kept")

	for _, key := range []string{"run.dir", "init.from", "data.tokenizer", "data.train", "data.val", "data.aligned", "train.eval_tasks"} {
		_, err := Load("", append(set, key+"=$UNSET/x"))
		assert.ErrorContains(t, err, "--set "+key+"=$UNSET/x: "+key, key)
		assert.ErrorContains(t, err, "the environment variable UNSET is not set", key)
	}
	saved, err := ParseSaved("saved", []byte("data: {train: [$UNSET/a.txt]}"))
	require.NoError(t, err)
	assert.Equal(t, []string{"$UNSET/a.txt"}, saved.Data.Train)
}

// A run that goes on has the commits that it has recorded. A revision on the command line is another wish.
func TestRevisionsOnTheCommandLine(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	first, second := strings.Repeat("1", 40), strings.Repeat("2", 40)
	at := filepath.Join(os.Getenv("HF_HUB_CACHE"), "datasets--o--d")
	require.NoError(t, os.MkdirAll(filepath.Join(at, "refs"), 0o777))
	for _, commit := range []string{first, second} {
		require.NoError(t, os.MkdirAll(filepath.Join(at, "snapshots", commit), 0o777))
	}
	for _, revision := range []string{"main", "dev", "v2"} { // all have moved
		require.NoError(t, os.WriteFile(filepath.Join(at, "refs", revision), []byte(second), 0o666))
	}
	run := t.TempDir()
	file := filepath.Join(run, "config.yaml")
	text := "model: {vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, seq_len: 8}\nrun: {dir: " + run + "}\n"
	kept := func(commits hub.Commits, names string, overrides ...string) Config {
		require.NoError(t, os.WriteFile(file, []byte(text+"data: {train: ["+names+"]}\n"), 0o666))
		c, err := LoadKept(file, overrides, commits)
		if commits == nil {
			c, err = LoadRun(run, file, overrides)
		}
		require.NoError(t, err)
		return c
	}
	recorded := hub.Commits{"hf:datasets/o/d": first, "hf:datasets/o/d:validation": first}
	newest := kept(recorded, "hf:datasets/o/d@dev", "data.val=[hf:datasets/o/d:validation]")
	assert.Equal(t, []string{"hf:datasets/o/d@" + first}, newest.Data.Train)
	assert.Equal(t, []string{"hf:datasets/o/d@" + first + ":validation"}, newest.Data.Val)
	for name, commits := range map[string]hub.Commits{"file": recorded, "run": nil} {
		c := kept(commits, "hf:datasets/o/d@"+first, "data.train=hf:datasets/o/d@v2")
		assert.Equal(t, []string{"hf:datasets/o/d@" + second}, c.Data.Train, name)
		c = kept(commits, "hf:datasets/o/d@"+first, "data.train=[hf:datasets/o/d]")
		assert.Equal(t, []string{"hf:datasets/o/d@" + first}, c.Data.Train, name)
	}
}
