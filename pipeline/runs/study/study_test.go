package study

import (
	"context"
	"encoding/json"
	"errors"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runOf finds the run of a config.
func runOf(c config.Config) Run {
	mode := SyncMode
	if c.Pipeline.Delay > 0 {
		mode = delayMode
	}
	if c.Pipeline.Correction != "none" {
		mode += "+" + c.Pipeline.Correction
	}
	return Run{c.Optimizer.Name(), mode, c.Pipeline.Stages, c.Optimizer.Algorithm.LearningRate(), c.Init.Seed}
}

// faked replaces training. Losses are those of a world from the second step on.
func faked(w world) *runtest.Fake {
	return &runtest.Fake{Loss: func(c config.Config, step int) float64 {
		loss := w(runOf(c))
		if step == 1 {
			loss = min(9, loss)
		}
		return loss
	}}
}

// afterTwo calls f after the second step of each run.
func afterTwo(f func(Run)) func(config.Config, int) {
	return func(c config.Config, step int) {
		if step == 2 {
			f(runOf(c))
		}
	}
}

func TestAStudy(t *testing.T) {
	g := threeModes(t, "")
	f := faked(truth)
	var all []runs.Progress[Run]
	var saves atomic.Int64
	rep, err := execute(context.Background(), g, runs.Options{Train: f.Train, Saves: &saves},
		func(p runs.Progress[Run]) { all = append(all, p) })
	require.NoError(t, err)
	assert.Len(t, f.Begun, 21)
	assert.Equal(t, slices.Repeat([]*atomic.Int64{&saves}, 21), f.Saves, "each run saves when it is asked to")
	assert.Equal(t, 1, f.Most[""], "one at a time")
	last := all[len(all)-1]
	assert.Equal(t, 21, last.Done)
	assert.Equal(t, 21, last.Total)
	assert.False(t, last.AtMost)
	assert.NotNil(t, last.Ended)
	assert.Empty(t, last.Running)
	middle := all[3]
	assert.Equal(t, []string{"adamw, sync, lr 0.001, seed 1: step 3/4"}, middle.Running)
	assert.True(t, middle.AtMost)
	assert.Positive(t, middle.Left)
	for _, file := range rep.Files {
		assert.FileExists(t, file)
		if strings.HasSuffix(file, ".png") {
			f, err := os.Open(file)
			require.NoError(t, err)
			_, err = png.Decode(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	var names []string
	entries, err := os.ReadDir(g.Dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"begun.yaml", "gaps.png", "loss-adamw.png", "loss-muon.png", "lr-adamw.png", "lr-muon.png", "results.json",
		"runs", "table.csv", "table.md"}, names)
	assert.Len(t, rep.Files, 8)

	again := faked(truth)
	same, err := execute(context.Background(), g, runs.Options{Train: again.Train}, nil)
	require.NoError(t, err)
	assert.Empty(t, again.Begun, "what has ended is not repeated")
	assert.Equal(t, rep, same)
}

func TestSeveralAtATime(t *testing.T) {
	g := threeModes(t, "")
	two, once := make(chan struct{}), sync.Once{}
	f := faked(truth)
	f.Begin = func(running int) {
		if running == 2 {
			once.Do(func() { close(two) })
		}
		<-two // the first waits for a second
	}
	train := func(ctx context.Context, c config.Config, o train.Options) (train.Result, error) {
		assert.Equal(t, 2, o.Devices.Concurrent)
		return f.Train(ctx, c, o)
	}
	rep, err := execute(context.Background(), g, runs.Options{Train: train, Jobs: 2}, nil)
	require.NoError(t, err)
	assert.Equal(t, 2, f.Most[""])
	alone := threeModes(t, "")
	one, err := execute(context.Background(), alone, runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err)
	assert.Equal(t, one.Cells, rep.Cells, "the order of runs changes nothing")
}

func TestInterruptedStudyResumes(t *testing.T) {
	g := threeModes(t, "")
	ctx, cancel := context.WithCancel(context.Background())
	stopAt := Run{"muon", "delay", 1, 0.02, 2}
	f := faked(truth)
	f.Step = afterTwo(func(r Run) {
		if r == stopAt {
			cancel()
		}
	})
	_, err := execute(ctx, g, runs.Options{Train: f.Train}, nil)
	require.ErrorIs(t, err, runs.ErrInterrupted)
	before := len(f.Begun)
	assert.Less(t, before, 21)
	assert.NoFileExists(t, filepath.Join(g.Dir, "table.md"))
	p, err := runs.Plan(g)
	require.NoError(t, err)
	assert.Len(t, p.Ended, before-1)
	assert.Len(t, p.Waiting, 21-(before-1))
	assert.Zero(t, p.Later)
	rep, err := execute(context.Background(), g, runs.Options{Train: f.Train}, nil)
	require.NoError(t, err)
	assert.Len(t, f.Begun, 22)
	begun := map[Run]int{}
	for _, c := range f.Begun {
		begun[runOf(c)]++
	}
	assert.Len(t, begun, 21)
	assert.Equal(t, 2, begun[stopAt], "only this run is resumed")
	records, err := metrics.Read(filepath.Join(g.Folder(stopAt), "metrics.jsonl"))
	require.NoError(t, err)
	assert.Len(t, records, 4, "it went on after its second step")
	whole, err := execute(context.Background(), threeModes(t, ""), runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err)
	assert.Equal(t, whole.Cells, rep.Cells)
}

func TestStudyInterruptedBeforeItsFirstRun(t *testing.T) {
	g := threeModes(t, "")
	g.Dir = filepath.Join(g.Dir, "new", "study")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f := faked(truth)
	_, err := execute(ctx, g, runs.Options{Train: f.Train}, nil)
	assert.ErrorIs(t, err, runs.ErrInterrupted)
	assert.Empty(t, f.Begun)
	assert.NoDirExists(t, filepath.Dir(g.Dir), "nothing is left behind")
	_, err = execute(context.Background(), g, runs.Options{Train: func(ctx context.Context, _ config.Config,
		_ train.Options) (train.Result, error) {
		return train.Result{}, context.Canceled
	}}, nil)
	assert.NotErrorIs(t, err, runs.ErrInterrupted, "the study was not interrupted")
}

func TestFailureStopsStudy(t *testing.T) {
	g := threeModes(t, "")
	bad := Run{"adamw", "sync", 1, 0.002, 1}
	started := make(chan struct{})
	f := faked(truth)
	f.Fail = func(c config.Config) error {
		if runOf(c) == bad {
			<-started
			return errors.New("device lost")
		}
		return nil
	}
	f.Step = afterTwo(func(Run) { close(started) })
	_, err := execute(context.Background(), g, runs.Options{Train: f.Train, Jobs: 2}, nil)
	require.Error(t, err)
	assert.ErrorContains(t, err, "adamw, sync, lr 0.002, seed 1 ("+g.Folder(bad)+"): device lost")
	var user *usererror.Error
	assert.False(t, errors.As(err, &user))
	assert.LessOrEqual(t, len(f.Begun), 3, "no more are begun")
	f = faked(truth)
	_, err = execute(context.Background(), g, runs.Options{Train: f.Train}, nil)
	assert.NoError(t, err, "and it goes on")
	_, err = execute(context.Background(), threeModes(t, ""),
		runs.Options{Train: func(context.Context, config.Config, train.Options) (train.Result, error) {
			return train.Result{}, nil
		}}, nil)
	assert.ErrorContains(t, err, "without a validation loss")
}

func TestDivergedRunsAreShown(t *testing.T) {
	g := threeModes(t, "tuning: each\n")
	f := faked(func(r Run) float64 {
		if r.Optimizer == "adamw" && (r.LR == 0.004 || r.Mode == "delay" && r.Seed == 2) || r.Optimizer == "muon" && r.Mode == "delay" {
			return math.Inf(1)
		}
		return truth(r)
	})
	rep, err := execute(context.Background(), g, runs.Options{Train: f.Train}, nil)
	require.NoError(t, err)
	again, err := execute(context.Background(), g, runs.Options{Train: nil}, nil)
	require.NoError(t, err, "diverged runs have ended")
	first, err := json.Marshal(rep)
	require.NoError(t, err)
	second, err := json.Marshal(again)
	require.NoError(t, err)
	assert.JSONEq(t, string(first), string(second))
	late := rep.find(Each, 1, "adamw", "delay")
	assert.Equal(t, 1, late.Diverged)
	assert.Nil(t, late.Losses[1])
	assert.True(t, math.IsInf(late.Gap.Mean, 1))
	never := rep.find(Each, 1, "muon", "delay")
	assert.Nil(t, never.LR)
	assert.Equal(t, 3, never.Diverged)
	page := rep.Markdown(g)
	assert.Contains(t, page, "1 of 3 diverged, lr 0.001 ")
	assert.Contains(t, page, "| diverged, lr – ")
	assert.Contains(t, rep.Findings, "the gaps of adamw and muon cannot be compared, since runs diverged.")
	assert.Contains(t, rep.Findings, "the effect of error feedback on adamw's gap is unknown, since runs diverged.")
	assert.Contains(t, rep.Notes, "muon, delay: every learning rate tried diverges.")
	text, err := os.ReadFile(filepath.Join(g.Dir, "results.json"))
	require.NoError(t, err)
	var results struct{ Runs []Ended }
	require.NoError(t, json.Unmarshal(text, &results))
	i := slices.IndexFunc(results.Runs, func(e Ended) bool { return e.Run == Run{"adamw", "sync", 1, 0.004, 1} })
	assert.Nil(t, results.Runs[i].ValLoss)
	assert.Contains(t, results.Runs[i].Diverged, "the loss is NaN")
}

// A study in which every run diverges has a report.
func TestNothingConverges(t *testing.T) {
	g := threeModes(t, "tuning: both\n")
	rep, err := execute(context.Background(), g, runs.Options{Train: faked(func(Run) float64 { return math.Inf(1) }).Train}, nil)
	require.NoError(t, err)
	assert.Len(t, rep.Files, 3, "there is nothing to draw")
	assert.Contains(t, rep.Markdown(g), "| adamw     | –  | diverged | diverged | –")
}

func TestStudyRefusesAFolderWithAnotherConfig(t *testing.T) {
	text := smallBase + twoOptimizers + "modes: [sync]\ndir: " + t.TempDir() + "\n"
	g, err := grid(t, text)
	require.NoError(t, err)
	_, err = execute(context.Background(), g, runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err)
	patient, err := grid(t, text, "pipeline.isolate=process", "pipeline.watchdog=1h", "pipeline.restarts=9")
	require.NoError(t, err)
	_, err = execute(context.Background(), patient, runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err, "what becomes of a device that fails is no matter of the results")
	longer, err := grid(t, text, "train.steps=5")
	require.NoError(t, err)
	f := faked(truth)
	_, err = execute(context.Background(), longer, runs.Options{Train: f.Train}, nil)
	var user *usererror.Error
	assert.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "config.yaml: train.steps: found 4, but the study has 5 now: choose another dir")
	assert.Empty(t, f.Begun)
	_, err = runs.Plan(longer)
	assert.ErrorContains(t, err, "train.steps: found 4")
	elsewhere, err := grid(t, text, "pipeline.devices=[null]")
	require.NoError(t, err)
	_, err = execute(context.Background(), elsewhere, runs.Options{Train: f.Train}, nil)
	assert.NoError(t, err, "on another device it is the same study")
	moved, err := grid(t, text)
	require.NoError(t, err)
	moved.Dir = filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.Rename(g.Dir, moved.Dir))
	_, err = execute(context.Background(), moved, runs.Options{Train: f.Train}, nil)
	assert.NoError(t, err, "and in another place")
	assert.Empty(t, f.Begun)
	more, err := grid(t, text+"seeds: [1, 2, 3, 4]\n")
	require.NoError(t, err)
	more.Dir = moved.Dir
	_, err = execute(context.Background(), more, runs.Options{Train: f.Train}, nil)
	require.NoError(t, err, "a grid can grow")
	assert.Len(t, f.Begun, 2)
	for text, want := range map[string]string{"{": "outcome.json: ", "{}": "neither val_loss nor diverged"} {
		require.NoError(t, os.WriteFile(filepath.Join(more.Folder(Run{"muon", "sync", 1, 0.02, 4}), "outcome.json"), []byte(text), 0o666))
		_, err = execute(context.Background(), more, runs.Options{Train: f.Train}, nil)
		assert.ErrorAs(t, err, &user)
		assert.ErrorContains(t, err, want)
	}
}

func TestStudyFolderIsLocked(t *testing.T) {
	g := threeModes(t, "")
	release, err := lock.Folder(g.Dir)
	require.NoError(t, err)
	defer release()
	_, err = execute(context.Background(), g, runs.Options{Train: faked(truth).Train}, nil)
	assert.ErrorIs(t, err, lock.ErrHeld)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	g.Dir = filepath.Join(file, "study")
	_, err = execute(context.Background(), g, runs.Options{Train: faked(truth).Train}, nil)
	var user *usererror.Error
	assert.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "dir: ")
}
