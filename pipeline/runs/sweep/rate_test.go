package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// descent is training whose loss falls at rates up to a best one, and rises from three times that on.
func descent(best float64, diverges bool) func(context.Context, config.Config, train.Options) (train.Result, error) {
	return func(ctx context.Context, c config.Config, o train.Options) (res train.Result, err error) {
		if err := os.MkdirAll(c.Run.Dir, 0o777); err != nil {
			return res, err
		}
		log, err := metrics.Create(filepath.Join(c.Run.Dir, "metrics.jsonl"))
		if err != nil {
			return res, err
		}
		defer log.Close()
		loss := 5.5
		for step := range c.Train.Steps {
			lr := o.Hooks.RateFactor(step) * c.Optimizer.Algorithm.LearningRate()
			if err := log.Append(step+1, metrics.Value{Name: "loss", Value: loss}, metrics.Value{Name: "lr", Value: lr}); err != nil {
				return res, err
			}
			o.Report.Step(train.Progress{Step: step + 1, Steps: c.Train.Steps, Update: train.Update{Loss: loss, LR: lr}})
			switch {
			case ctx.Err() != nil:
				return train.Result{Interrupted: true, Step: step + 1}, nil
			case lr < 3*best:
				loss -= 0.4 * min(lr/best, best/lr) * (loss - 2)
			case diverges && lr > 10*best:
				return res, fmt.Errorf("step %d: the loss is NaN: %w", step+2, train.ErrDiverged)
			default:
				loss *= 1.2
			}
		}
		return train.Result{Step: c.Train.Steps}, nil
	}
}

func smallConfig(t *testing.T) config.Config {
	t.Helper()
	text := "model: {preset: tiny}\ndata: {train: [a.txt]}\noptimizer: {name: adamw, lr: 0.003}\nrun: {dir: untouched}\n"
	c, err := config.Parse("c.yaml", []byte(text), nil)
	require.NoError(t, err)
	return c
}

func TestRateRange(t *testing.T) {
	for _, diverges := range []bool{true, false} {
		dir := t.TempDir()
		steps := 0
		o := RateOptions{Min: 1e-6, Max: 10, Steps: 140, Out: filepath.Join(dir, "out"), Train: descent(0.01, diverges),
			Step: func(p RatePoint, of int) {
				steps++
				assert.Equal(t, steps, p.Step)
				assert.Equal(t, 140, of)
			}}
		r, err := FindRate(t.Context(), smallConfig(t), o)
		require.NoError(t, err)
		assert.InDelta(t, 0, math.Log10(r.Lowest/0.03), 0.3, "the loss rises from 0.03 on")
		assert.InDelta(t, 0, math.Log10(r.Steepest/0.01), 0.7)
		assert.InDelta(t, r.Lowest/10, r.Suggested, 1e-4)
		assert.InDelta(t, 1e-6, r.Points[0].LR, 1e-12)
		assert.InDelta(t, math.Pow(1e7, 1.0/139), r.Points[1].LR/r.Points[0].LR, 1e-9, "exponential")
		assert.Less(t, len(r.Points), 140)
		assert.NotEmpty(t, r.Stopped)
		assert.Len(t, r.Files, 3)
		assert.Equal(t, []string{"lr-range.png", "metrics.jsonl", "result.json"}, traintest.Listing(t, o.Out))
		for _, file := range r.Files {
			assert.FileExists(t, file)
		}
		text, err := os.ReadFile(filepath.Join(o.Out, "result.json"))
		require.NoError(t, err)
		var kept RateTest
		require.NoError(t, json.Unmarshal(text, &kept))
		assert.Equal(t, r.Suggested, kept.Suggested)
	}
}

func TestRateRangeMistakes(t *testing.T) {
	for want, o := range map[string]RateOptions{
		"--min and --max: found 0 and 1":   {Max: 1, Steps: 100},
		"--min and --max: found 1 and 0.1": {Min: 1, Max: 0.1, Steps: 100}, "--steps: found 9": {Min: 1, Max: 2, Steps: 9},
		"the test ended after 1 steps": {Min: 0.2, Max: 2, Steps: 20, Train: descent(0.001, true)},
	} {
		o.Out = filepath.Join(t.TempDir(), "out")
		_, err := FindRate(t.Context(), smallConfig(t), o)
		assert.ErrorContains(t, err, want)
		assert.True(t, usererror.Is(err))
		assert.NoDirExists(t, o.Out)
	}
	failed := errors.New("device lost")
	fails := func(context.Context, config.Config, train.Options) (train.Result, error) {
		return train.Result{}, failed
	}
	_, err := FindRate(t.Context(), smallConfig(t), RateOptions{Min: 1, Max: 2, Steps: 20, Out: t.TempDir(), Train: fails})
	assert.ErrorIs(t, err, failed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = FindRate(ctx, smallConfig(t), RateOptions{Min: 1, Max: 2, Steps: 20, Out: t.TempDir(), Train: descent(1, false)})
	assert.ErrorIs(t, err, context.Canceled)
}

// On a small model the suggested rate is one at which training works: its loss is lower than at a hundredth of it.
func TestRateRangeOnAModel(t *testing.T) {
	dir := t.TempDir()
	demo := func(overrides ...string) config.Config {
		return traintest.Demo(t, dir, append([]string{"optimizer={name: adamw, lr: 0.001}"}, overrides...)...)
	}
	c := demo()
	o := RateOptions{Min: 1e-5, Max: 10, Steps: 60, Out: filepath.Join(dir, "out"),
		Options: runtest.Options(&traintest.Reference{}, &runtest.Notes{})}
	o.Train = func(ctx context.Context, c config.Config, o train.Options) (train.Result, error) {
		res, err := train.Run(ctx, c, o)
		assert.Empty(t, res.Checkpoint)
		assert.Empty(t, traintest.Listing(t, filepath.Join(c.Run.Dir, "checkpoints")))
		return res, err
	}
	r, err := FindRate(t.Context(), c, o)
	require.NoError(t, err)
	assert.NoDirExists(t, c.Run.Dir, "the user's run folder is not touched")
	assert.True(t, r.Suggested > 1e-4 && r.Suggested < 0.3, r.Suggested)
	last := func(lr float64) float64 {
		c := demo("train.steps=30", fmt.Sprintf("optimizer.lr=%g", lr), "train.eval_every=0", "train.save_every=0", "lr.schedule=constant",
			"run.dir="+filepath.Join(dir, fmt.Sprint(lr)))
		res, err := train.Run(t.Context(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		return *res.Loss
	}
	assert.Less(t, last(r.Suggested), last(r.Suggested/100)-0.1)
}
