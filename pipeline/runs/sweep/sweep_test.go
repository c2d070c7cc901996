package sweep

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const smallBase = `base:
  model: {vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, seq_len: 8}
  data: {train: [a.txt], val_fraction: 0.1}
  train: {steps: 18, batch_size: 2, eval_every: 18, save_every: 0}
  optimizer: {name: adamw}
  lr: {warmup: 1}
`

func load(t *testing.T, dir, text string, overrides ...string) (*Sweep, error) {
	t.Helper()
	text = smallBase + text + "dir: " + dir + "\n"
	d, err := strictyaml.Parse("s.yaml", []byte(text))
	require.NoError(t, err)
	f := &runs.File{Path: filepath.Join(t.TempDir(), "s.yaml")}
	return parse(d, f, f.Overrides(overrides))
}

func loaded(t *testing.T, text string, overrides ...string) *Sweep {
	t.Helper()
	s, err := load(t, t.TempDir(), text, overrides...)
	require.NoError(t, err)
	return s
}

func trialNames(s *Sweep) (names []string) {
	for _, t := range s.Trials {
		names = append(names, t.name)
	}
	return names
}

// bowl is smallest at lr 0.01, and falls with the steps.
func bowl(c config.Config, step int) float64 {
	return 2 + math.Abs(math.Log10(c.Optimizer.Algorithm.LearningRate()/0.01)) + 1/float64(step) + 0.001*float64(c.Init.Seed)
}

func execute(t *testing.T, s *Sweep, f *runtest.Fake, o runs.Options) *Report {
	t.Helper()
	o.Train = f.Train
	rep, err := runs.Compare(t.Context(), s, o, nil)
	require.NoError(t, err)
	return rep.Results.(*Report)
}

func TestGrid(t *testing.T) {
	s := loaded(t, "keys: {optimizer.lr: {min: 1e-3, max: 1e-1, log: true, points: 3}, train.batch_size: [2, 4], "+
		"optimizer.weight_decay: [0]}\nseeds: [1, 3]\n")
	assert.Equal(t, []string{"lr 0.001, batch_size 2, weight_decay 0", "lr 0.001, batch_size 4, weight_decay 0",
		"lr 0.01, batch_size 2, weight_decay 0",
		"lr 0.01, batch_size 4, weight_decay 0", "lr 0.1, batch_size 2, weight_decay 0", "lr 0.1, batch_size 4, weight_decay 0"},
		trialNames(s))
	f := &runtest.Fake{Loss: bowl}
	rep := execute(t, s, f, runs.Options{})
	assert.Equal(t, 6*2*18, f.Steps)
	assert.Equal(t, 3, rep.Best.Trial)
	assert.Equal(t, map[string]any{"optimizer.lr": 0.01, "train.batch_size": 2, "optimizer.weight_decay": 0}, rep.Best.Values)
	assert.InDelta(t, 2+1.0/18+0.002, rep.Best.Score.Mean, 1e-12, "the mean over the seeds")
	assert.InDelta(t, 0.001, rep.Best.Score.Err, 1e-12)
	assert.Equal(t, filepath.Join(s.Dir, "runs", "lr=0.01,batch_size=2,weight_decay=0,seed=3"), rep.Best.Dirs[1])
	assert.Empty(t, rep.Notes)
	for _, file := range rep.Files {
		assert.FileExists(t, file)
	}
	var names []string
	for _, file := range rep.Files {
		names = append(names, filepath.Base(file))
	}
	assert.Equal(t, []string{"table.md", "table.csv", "best.yaml", "score-optimizer-lr.png", "score-train-batch_size.png",
		"results.json"}, names)
	best, err := config.Load(filepath.Join(s.Dir, "best.yaml"), nil)
	require.NoError(t, err)
	assert.Equal(t, 0.01, best.Optimizer.Algorithm.LearningRate())
	assert.Equal(t, 2, best.Train.BatchSize)
	assert.Equal(t, filepath.Join(s.Dir, "best"), best.Run.Dir)
	assert.NoDirExists(t, best.Run.Dir)
	text, err := os.ReadFile(filepath.Join(s.Dir, "table.csv"))
	require.NoError(t, err)
	rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	require.NoError(t, err)
	assert.Equal(t, []string{"trial", "optimizer.lr", "train.batch_size", "optimizer.weight_decay", "val_loss",
		"val_loss_stderr", "seeds", "steps", "status", "reason"}, rows[0])
	assert.Len(t, rows, 7)
	assert.Contains(t, rep.Markdown(s), "| 3     | 0.01         | 2                | 0                      | 2.0576 ± 0.0010 | 18    | done   |")

	more, err := load(t, s.Dir, "keys: {optimizer.lr: [0.001, 0.01, 0.1, 0.02], train.batch_size: [2, 4], optimizer.weight_decay: [0]}\nseeds: [1, 3]\n")
	require.NoError(t, err)
	execute(t, more, f, runs.Options{})
	assert.Equal(t, 8*2*18, f.Steps, "a grid can grow")
}

func TestRandomIsReproducible(t *testing.T) {
	const text = "search: random\nkeys: {optimizer.lr: {min: 1e-4, max: 1e-2, log: true}, optimizer.weight_decay: {min: 0, max: 0.2}, " +
		"train.batch_size: {min: 2, max: 9}, optimizer.name: [adamw, lion]}\n"
	s := loaded(t, text)
	require.Len(t, s.Trials, defaultRuns)
	assert.Equal(t, trialNames(s), trialNames(loaded(t, text)))
	assert.Equal(t, trialNames(s), trialNames(loaded(t, text+"runs: 30\n"))[:20], "more runs keep the others")
	assert.NotEqual(t, trialNames(s), trialNames(loaded(t, text+"seed: 2\n")))
	s = loaded(t, text+"runs: 400\n")
	low, names := 0, map[string]int{}
	for i := range s.Trials {
		c, err := s.Config(s.run(i, 1, 0))
		require.NoError(t, err)
		lr := c.Optimizer.Algorithm.LearningRate()
		assert.True(t, lr >= 1e-4 && lr <= 1e-2, lr)
		assert.True(t, c.Optimizer.WeightDecay >= 0 && c.Optimizer.WeightDecay <= 0.2)
		assert.True(t, c.Train.BatchSize >= 2 && c.Train.BatchSize <= 9)
		names[c.Optimizer.Name()]++
		if lr < 1e-3 {
			low++
		}
	}
	assert.InDelta(t, 200, low, 50, "uniform in the logarithm")
	assert.InDelta(t, 200, names["lion"], 50)
	s = loaded(t, "search: random\nkeys: {optimizer.lr: [0.001, 0.002, 0.003]}\nruns: 2\n")
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(trialNames(s)))), 2, "no trial twice")
	s = loaded(t, "search: random\nkeys: {optimizer.lr: [0.001, 0.002, 0.003]}\n")
	assert.Len(t, s.Trials, 3, "no more than there are")
	s = loaded(t, "search: random\nkeys: {train.batch_size: {min: 2, max: 4}}\n")
	assert.Len(t, s.Trials, 3, "of a range")
}

// Nine trials are compared after 2, 6 and 18 steps. Trial i has a rate i times 0.001, so that those near 0.01 survive.
func TestHalving(t *testing.T) {
	const text = "search: halving\nkeys: {optimizer.lr: [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009]}\nhalving: {min_steps: 2}\n"
	s := loaded(t, text)
	assert.Equal(t, []int{2, 6, 18}, s.Rungs)
	f := &runtest.Fake{Loss: bowl}
	p, err := runs.Plan(s)
	require.NoError(t, err)
	assert.Len(t, p.Waiting, 9)
	assert.Equal(t, 3+1, p.Later)
	rep := execute(t, s, f, runs.Options{})
	assert.Equal(t, 9*2+3*4+1*12, f.Steps, "survivors continue")
	var order []string
	for _, tr := range rep.Trials {
		order = append(order, fmt.Sprint(tr.Trial, " ", tr.Steps, " ", tr.Status))
	}
	assert.Equal(t, []string{"9 18 done", "8 6 stopped", "7 6 stopped", "6 2 stopped", "5 2 stopped", "4 2 stopped",
		"3 2 stopped", "2 2 stopped", "1 2 stopped"}, order)
	assert.FileExists(t, filepath.Join(rep.Best.Dirs[0], "outcome-2.json"))
	assert.FileExists(t, filepath.Join(rep.Best.Dirs[0], "outcome.json"))
	execute(t, s, f, runs.Options{})
	assert.Equal(t, 42, f.Steps, "what has ended is not repeated")

	for changed, want := range map[string]string{
		strings.Replace(text, "0.009", "0.01", 1): "search.yaml: keys.optimizer.lr",
		text + "seed: 2\n":                        "search.yaml: seed: found 1, but the sweep has 2 now: choose another dir",
		strings.Replace(text, "min_steps: 2", "min_steps: 2, factor: 2",
			1): "search.yaml: halving.factor: found 3, but the sweep has 2 now",
		text + "set: {train.batch_size: 4}\n": "config.yaml: train.batch_size: found 2, but the sweep has 4 now",
	} {
		other, err := load(t, s.Dir, changed)
		require.NoError(t, err, changed)
		_, err = runs.Compare(t.Context(), other, runs.Options{Train: f.Train}, nil)
		assert.ErrorContains(t, err, want)
		assert.True(t, usererror.Is(err))
	}
	grid := loaded(t, "keys: {optimizer.lr: [0.001, 0.002]}\n")
	execute(t, grid, f, runs.Options{})
	other, err := load(t, grid.Dir, text)
	require.NoError(t, err)
	_, err = runs.Compare(t.Context(), other, runs.Options{Train: f.Train}, nil)
	assert.ErrorContains(t, err, "search.yaml", "its runs have passed the rungs")
	rungs := map[string][]int{"{min_steps: 1}": {2, 6, 18}, "{factor: 2, min_steps: 5}": {9, 18}, "{factor: 4}": {1, 4, 18},
		"{min_steps: 6}": {6, 18}}
	for text, want := range rungs {
		assert.Equal(t, want, loaded(t, "search: halving\nkeys: {optimizer.lr: [1, 2, 3, 4]}\nhalving: "+text+"\n").Rungs, text)
	}
}

// A run that a hook ends is complete: it is scored and compared as it is, and no later rung continues it.
func TestHookEndsRuns(t *testing.T) {
	s := loaded(t, "search: halving\nkeys: {optimizer.lr: [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009]}\nhalving: {min_steps: 2}\n")
	f := &runtest.Fake{Loss: bowl, Hook: func(c config.Config, step int) string {
		switch lr := c.Optimizer.Algorithm.LearningRate(); {
		case lr == 0.008 && step == 1, lr == 0.009 && step == 4, lr == 0.007 && step == 6:
			return "early.wasm"
		}
		return ""
	}}
	rep := execute(t, s, f, runs.Options{})
	assert.Equal(t, 8*2+1+2+2*4, f.Steps)
	var order []string
	for _, tr := range rep.Trials[:4] {
		order = append(order, fmt.Sprint(tr.Trial, " ", tr.Steps, " ", tr.Status, " ", tr.Reason))
	}
	assert.Equal(t, []string{"9 4 stopped by early.wasm", "7 6 stopped by early.wasm", "6 6 stopped ", "5 2 stopped "}, order)
	assert.InDelta(t, bowl(must(s.Config(s.run(8, 1, 0))), 4), rep.Best.Score.Mean, 1e-12)
	assert.Contains(t, rep.Markdown(s), "| 8     | 0.008        | 3.0979   | 1     | stopped: by early.wasm |")
	text, err := json.Marshal(rep.Trials)
	require.NoError(t, err)
	again, err := json.Marshal(execute(t, s, f, runs.Options{}).Trials)
	require.NoError(t, err)
	assert.JSONEq(t, string(text), string(again))
	assert.Equal(t, 8*2+1+2+2*4, f.Steps, "the next execution knows them")
	outcome := runs.Outcome{Metrics: map[string]float64{"val_loss": 2.25}, Step: 4, Stopped: "early.wasm"}
	assert.Equal(t, "val_loss 2.2500, stopped at step 4 by early.wasm", s.Ending(runs.Ended[Run]{Run: s.run(8, 1, 0), Outcome: outcome}))
}

func must(c config.Config, err error) config.Config {
	if err != nil {
		panic(err)
	}
	return c
}

// A trial that diverges or fails is not promoted, and the sweep goes on.
func TestFailedTrials(t *testing.T) {
	s := loaded(t, "search: halving\nkeys: {optimizer.lr: [0.001, 0.002, 0.003, 0.0099, 0.01, 0.011]}\nhalving: {factor: 2, min_steps: 9}\n")
	tooLarge := usererror.Errorf("pipeline.devices: the run needs 99 GB")
	f := &runtest.Fake{Loss: func(c config.Config, step int) float64 {
		if c.Optimizer.Algorithm.LearningRate() == 0.01 && step > 3 {
			return math.Inf(1)
		}
		return bowl(c, step)
	}, Fail: func(c config.Config) error {
		if c.Optimizer.Algorithm.LearningRate() == 0.0099 {
			return tooLarge
		}
		return nil
	}}
	rep := execute(t, s, f, runs.Options{})
	assert.Equal(t, 6, rep.Best.Trial)
	status := map[int]string{}
	for _, tr := range rep.Trials {
		status[tr.Trial] = tr.Status
	}
	assert.Equal(t, map[int]string{1: Stopped, 2: Done, 3: Done, 4: Failed, 5: Diverged, 6: Done}, status)
	page := rep.Markdown(s)
	assert.Contains(t, page, "failed: pipeline.devices: the run needs 99 GB")
	assert.Contains(t, page, "diverged: step 4: the loss is NaN")
	assert.Contains(t, rep.Notes, "1 of 6 trials diverged.")
	text, err := os.ReadFile(filepath.Join(s.Dir, "results.json"))
	require.NoError(t, err)
	var results Report
	require.NoError(t, json.Unmarshal(text, &results))
	assert.Len(t, results.Trials, 6)

	f.Fail = nil
	f.Begun = nil
	rep = execute(t, s, f, runs.Options{})
	assert.Len(t, f.Begun, 2, "what failed is tried again, and promoted; what diverged is not")
	assert.Equal(t, 4, rep.Best.Trial)

	s = loaded(t, "keys: {optimizer.lr: [1, 2]}\n")
	f = &runtest.Fake{Fail: func(config.Config) error { return errors.New("no such file") }}
	_, err = runs.Compare(t.Context(), s, runs.Options{Train: f.Train}, nil)
	assert.ErrorContains(t, err, "no trial has a score; the first ("+filepath.Join(s.Dir, "runs", "lr=1,seed=1")+"): no such file")
}

// A sweep that is interrupted in a rung gives the report of one that was not.
func TestInterruptedSweepResumes(t *testing.T) {
	const text = "search: halving\nkeys: {optimizer.lr: {min: 1e-4, max: 1, log: true}}\nruns: 9\nhalving: {min_steps: 2}\nseeds: [1, 2]\n"
	whole := loaded(t, text)
	f := &runtest.Fake{Loss: bowl}
	want := execute(t, whole, f, runs.Options{})
	for _, at := range []int{1, 20, 40, 50, 70} {
		s := loaded(t, text)
		ctx, cancel := context.WithCancel(t.Context())
		g := &runtest.Fake{Loss: bowl}
		g.Step = func(config.Config, int) {
			if g.Steps == at {
				cancel()
			}
		}
		_, err := runs.Compare(ctx, s, runs.Options{Train: g.Train}, nil)
		require.ErrorIs(t, err, runs.ErrInterrupted)
		rep := execute(t, s, g, runs.Options{})
		assert.Equal(t, f.Steps, g.Steps, "no step is trained twice")
		assert.Equal(t, trialScores(want), trialScores(rep))
	}
}

func trialScores(rep *Report) (out []string) {
	for _, t := range rep.Trials {
		out = append(out, fmt.Sprint(t.Trial, t.Steps, t.Status, t.Score))
	}
	return out
}

// Each device has its own runs, as many at a time as there are jobs.
func TestDevicesInParallel(t *testing.T) {
	s := loaded(t, "keys: {optimizer.lr: [1, 2, 3, 4, 5, 6]}\n")
	two, once := make(chan struct{}), sync.Once{}
	f := &runtest.Fake{Loss: bowl, Begin: func(running int) {
		if running == 2 {
			once.Do(func() { close(two) })
		}
		<-two // the first waits for a second
	}}
	execute(t, s, f, runs.Options{Devices: []string{"null:0", "null:1"}})
	assert.Equal(t, map[string]int{"null:0": 1, "null:1": 1}, f.Most)
	assert.Equal(t, 6, f.On("null:0")+f.On("null:1"))
}

func TestMetrics(t *testing.T) {
	const text = "keys: {train.batch_size: [2, 4, 8], optimizer.lr: [0.001]}\n"
	rep := execute(t, loaded(t, text+"metric: tokens_per_s\n"), &runtest.Fake{Loss: bowl}, runs.Options{})
	assert.Equal(t, 3, rep.Best.Trial, "the largest")
	assert.Equal(t, 800.0, rep.Best.Score.Mean)
	assert.Equal(t, []string{"the best train.batch_size, 8, is the largest tried; a better one may lie beyond."}, rep.Notes)
	rep = execute(t, loaded(t, text+"metric: loss\n", "train.eval_every=0", "data.val_fraction=0"), &runtest.Fake{Loss: bowl},
		runs.Options{})
	assert.InDelta(t, 3.5+(1.0/18+1.0/17)/2+0.001, rep.Best.Score.Mean, 1e-9, "the mean over the last tenth")
	s := loaded(t, text+"metric: mine/score\ngoal: max\n")
	_, err := runs.Compare(t.Context(), s, runs.Options{Train: (&runtest.Fake{Loss: bowl}).Train}, nil)
	assert.ErrorContains(t, err, "metric: the run ended without mine/score")
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"keys: {}\n":                                           "s.yaml:7: keys: not given, expected keys of the config",
		"keys: {optimizer.lrr: [1]}\n":                         "s.yaml:7: keys.optimizer.lrr: unknown key of the config",
		"keys: {optimizer.lr: 1}\n":                            "s.yaml:7: keys.optimizer.lr: found the integer 1, expected a list of values, or a range",
		"keys: {optimizer.lr: []}\n":                           "found an empty list",
		"keys: {optimizer.lr: [1, 1.0]}\n":                     "keys.optimizer.lr: found 1 twice",
		"keys: {optimizer.lr: {min: 1, max: 1}}\n":             "found min 1 and max 1, expected a smaller min",
		"keys: {optimizer.lr: {min: 0, max: 1, log: true}}\n":  "found min 0, expected a positive number with log: true",
		"keys: {optimizer.lr: {min: 0, max: 1, steps: 3}}\n":   "keys.optimizer.lr.steps: unknown key, expected one of min, max, log, points",
		"keys: {optimizer.lr: {min: 0, max: 1}}\n":             "keys.optimizer.lr: found a range, expected a list of values with search: grid, or points",
		"keys: {optimizer.name: {min: 0, max: 1}}\n":           "found a range, expected a list of values: the key is text",
		"keys: {train.batch_size: {min: 1.5, max: 3}}\n":       "expected integers",
		"keys: {init.seed: [1]}\n":                             "keys: init.seed is varied by seeds",
		"keys: {optimizer.lr: [1, -1]}\n":                      "s.yaml:7: optimizer.lr: found -1",
		"keys: {optimizer.lr: [1, a]}\n":                       "s.yaml:7: optimizer.lr: found text \"a\", expected a number",
		"keys: {optimizer.lr: [1]}\nsearch: bayes\n":           "s.yaml:8: search: found \"bayes\", expected grid, random or halving",
		"keys: {optimizer.lr: [1]}\nruns: 3\n":                 "runs: found 3, expected none with search: grid",
		"keys: {optimizer.lr: [1]}\nsearch: random\nruns: 3\n": "runs: found 3, expected at most 1",
		"keys: {optimizer.lr: [1]}\nmetric: accuracy\n": "s.yaml:8: metric: " +
			"found \"accuracy\", expected val_loss, val_bits_per_byte, loss, tokens_per_s, or with goal",
		"keys: {optimizer.lr: [1]}\ngoal: best\n":        "goal: found \"best\", expected min or max",
		"keys: {optimizer.lr: [1]}\nseeds: [1, 1]\n":     "seeds: found [1 1], expected at least one, each once",
		"keys: {optimizer.lr: [1]}\nset: {run.dir: a}\n": "s.yaml:8: run.dir is varied by the sweep: set dir in the sweep's file instead",
		"keys: {optimizer.lr: [1]}\nset: {optimizer.lr: 2}\n": "s.yaml:8: optimizer.lr is varied by the sweep: " +
			"set keys.optimizer.lr in the sweep's file instead",
		"keys: {optimizer: [{lr: 1}]}\nset: {optimizer.lr: 2}\n":                "optimizer.lr is varied by the sweep: set keys.optimizer in",
		"keys: {optimizer.lr: [1], optimizer: [{name: sgd}]}\n":                 "found optimizer after optimizer.lr, expected a section before its keys",
		"search: halving\nkeys: {train.steps: [9, 18]}\n":                       "keys.train.steps: found values of train.steps, expected none with",
		"search: halving\nkeys: {train: [{steps: 9}, {steps: 18}]}\n":           "keys.train: found values of train.steps",
		"keys: {data: [{seed: 2}]}\n":                                           "keys: data.seed is varied by seeds",
		"keys: {train.batch_size: {min: 2, max: 4}}\nsearch: random\nruns: 4\n": "runs: found 4, expected at most 3: the ranges have no more values",
		"keys: {optimizer.lr: [1]}\nmetric: tasks/a/acc\ngoal: max\n": "metric: found tasks/a/acc, expected a metric that runs have: " +
			"train.eval_tasks names no task",
		"search: halving\nkeys: {optimizer.lr: [1, 2]}\nhalving: {min_steps: 7}\n": "halving.min_steps: " +
			"found 7, expected 1 to 6: train.steps (18) divided by halving.factor (3)",
		"search: halving\nkeys: {optimizer.lr: [1]}\nhalving: {min_steps: -1}\n": "halving.min_steps: found -1, expected 1 to 6",
		"search: halving\nkeys: {optimizer.lr: [1, 2]}\nhalving: {factor: 1}\n":  "halving.factor: found 1, expected at least 2",
	} {
		_, err := load(t, t.TempDir(), text)
		assert.ErrorContains(t, err, want, text)
	}
	_, err := load(t, t.TempDir(), "keys: {optimizer.lr: [1]}\n", "optimizer.lr=2")
	assert.ErrorContains(t, err, "--set optimizer.lr=2: optimizer.lr is varied by the sweep: set keys.optimizer.lr in the sweep's file instead")
}

func TestDevicesAreVariedOnce(t *testing.T) {
	s := loaded(t, "keys: {pipeline.devices: [[null:0], [null:1]]}\n")
	_, err := runs.Compare(t.Context(), s, runs.Options{Train: (&runtest.Fake{Loss: bowl}).Train, Devices: []string{"null"}}, nil)
	assert.ErrorContains(t, err, "--device: found null, expected none with values of pipeline.devices")
	f := &runtest.Fake{Loss: bowl}
	execute(t, s, f, runs.Options{})
	assert.Equal(t, []int{1, 1}, []int{f.On("null:0"), f.On("null:1")})
}

// Values that cannot be part of a folder's name have a hash in it. Sections are values of their keys.
func TestFoldersOfTrials(t *testing.T) {
	s := loaded(t, "keys: {optimizer: [{name: adamw, lr: 0.1}, {name: adamw, lr: 0.2}], data.train: [[a/b.txt], [a:b.txt]]}\n")
	plain := loaded(t, "keys: {train.batch_size: [1048576], data.shuffle: [true], optimizer.lr: [1.0]}\n")
	assert.Equal(t, "batch_size=1048576,shuffle=true,lr=1,seed=1", filepath.Base(plain.Folder(plain.run(0, 1, 0))))
	seen := map[string]bool{}
	for i := range s.Trials {
		folder := s.Folder(s.run(i, 1, 0))
		assert.False(t, seen[folder], folder)
		seen[folder] = true
		assert.Regexp(t, `^[A-Za-z0-9._=,+-]+$`, filepath.Base(folder))
	}
	c, err := s.Config(s.run(3, 1, 0))
	require.NoError(t, err)
	assert.Equal(t, 0.2, c.Optimizer.Algorithm.LearningRate())
	assert.Equal(t, []string{"a:b.txt"}, c.Data.Train)
}
