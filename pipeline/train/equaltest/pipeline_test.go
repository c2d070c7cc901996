package equaltest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// weightsOf trains on the reference executor and returns the bytes of the final weights.
func weightsOf(t *testing.T, overrides ...string) map[string]string {
	t.Helper()
	c := traintest.Demo(t, t.TempDir(), append([]string{
		"model={vocab_size: 256, d_model: 8, n_layers: 6, n_heads: 2, d_ff: 12, seq_len: 8}",
		"train={steps: 5, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"}, overrides...)...)
	res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err, "%v", overrides)
	return traintest.Files(t, res.Checkpoint)
}

var defaults map[string]string // what weightsOf returns without overrides, once it is trained

// oneDevice is weightsOf without overrides.
func oneDevice(t *testing.T) map[string]string {
	t.Helper()
	if defaults == nil {
		defaults = weightsOf(t)
	}
	return defaults
}

func TestSynchronousPipelinesEqualOneDevice(t *testing.T) {
	type layout struct {
		schedule string
		stages   int
	}
	var layouts []layout
	for _, f := range schedule.Trainable() {
		for stages := 1; stages <= 4 && f.Delay == 0; stages++ {
			// no 3 stages for interleaved
			if _, err := schedule.New(f.Name, schedule.Options{Stages: stages, Microbatches: 4}); err == nil {
				layouts = append(layouts, layout{f.Name, stages})
			}
		}
	}
	one := oneDevice(t)
	for _, l := range tier.Divide(t, layouts, func(_ int, l layout) bool { return l.stages == 2 }) {
		got := weightsOf(t, "pipeline.schedule="+l.schedule, fmt.Sprintf("pipeline.stages=%d", l.stages))
		assert.True(t, one["model.safetensors"] == got["model.safetensors"], "%s with %d stages", l.schedule, l.stages)
	}
}

// Package verify compares 2BW without a correction and with error feedback.
func Test2BWEqualsADelayOnOneDevice(t *testing.T) {
	var runs [][]string
	for _, optimizer := range []string{"muon", "adamw"} {
		for _, correction := range []string{"weight_prediction", "dc_asgd"} {
			for _, stale := range []string{"model.tie_embeddings=false pipeline.stale_microbatches=all",
				"model.tie_embeddings=true pipeline.stale_microbatches=3"} {
				runs = append(runs, append(strings.Fields(stale), "optimizer.name="+optimizer, "pipeline.correction="+correction,
					"pipeline.delay=1"))
			}
		}
	}
	for _, common := range sample(t, 1, runs) {
		one := weightsOf(t, common...)
		for stages := 2; stages <= 4; stages++ {
			got := weightsOf(t, append(common, fmt.Sprintf("pipeline.stages=%d", stages))...)
			for file := range one {
				assert.True(t, one[file] == got[file], "%s: %v with %d stages", file, common, stages)
			}
		}
	}
}

const fiveBatches = "F0.0 B0.0 U0 F0.1 B0.1 U1 F0.2 B0.2 U2 F0.3 B0.3 U3 F0.4 B0.4 U4"

// A schedule file in which the second stage runs its backwards late gives the bits of one device.
func TestScheduleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.txt")
	require.NoError(t, os.WriteFile(path, []byte("# microbatches: 4\n"+
		"F0 F1 F2 F3 B0 B1 B2 B3 U0\nF0 F1 B0 F2 B1 F3 B2 B3 U0\n"), 0o666))
	assert.True(t, oneDevice(t)["model.safetensors"] == weightsOf(t, "pipeline.schedule="+path, "pipeline.stages=2")["model.safetensors"])
	_, err := config.Parse("c", []byte(smallConfig), []string{"pipeline.schedule=" + path, "pipeline.stages=3", "train.microbatches=4"})
	assert.ErrorContains(t, err, "it has 2 where pipeline.stages is 3")
	for text, want := range map[string]string{
		"E0\n":             "it evaluates, expected a schedule that trains",
		"# batches: 0\n":   "found no actions, expected a line for each stage",
		fiveBatches + "\n": "it has 5 batches, expected a pattern of at most 4",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		_, err := config.Parse("c", []byte(smallConfig), []string{"pipeline.schedule=" + path, "train.microbatches=1"})
		assert.ErrorContains(t, err, want)
	}
}

// One microbatch may have a whole backward, and another separate input and weight gradients.
func TestScheduleFileWithWholeAndSplitBackwards(t *testing.T) {
	for i, actions := range []string{
		"F0 F1 F2 F3 B0 I1 W1 B2 I3 W3 U0\n",
		"F0 F1 F2 F3 B0 B1 B2 B3 U0\nF0 F1 B0 F2 I1 F3 I2 W1 W2 B3 U0\n",
	} {
		path := filepath.Join(t.TempDir(), "mixed.txt")
		require.NoError(t, os.WriteFile(path, []byte(actions), 0o666))
		got := weightsOf(t, "pipeline.schedule="+path, fmt.Sprint("pipeline.stages=", i+1))
		assert.True(t, oneDevice(t)["model.safetensors"] == got["model.safetensors"], actions)
	}
}

func TestRecomputationChangesNothing(t *testing.T) {
	assert.True(t, oneDevice(t)["model.safetensors"] == weightsOf(t, "pipeline.recompute=always", "pipeline.stages=2")["model.safetensors"])
}

// Two replicas sum in another order than one pipeline, but each run of two is the same.
func TestReplicas(t *testing.T) {
	for _, common := range sample(t, 1, [][]string{{"pipeline.stages=2", "pipeline.delay=1", "pipeline.stale_microbatches=all"},
		{"pipeline.stages=1"}, {"pipeline.stages=2", "model.tie_embeddings=true"}}) {
		overrides := append([]string{"pipeline.replicas=2"}, common...)
		a, b := weightsOf(t, overrides...), weightsOf(t, overrides...)
		assert.True(t, a["model.safetensors"] == b["model.safetensors"], "%v", overrides)
		one := weightsOf(t, common...)
		assert.InDelta(t, 0, farthest(t, one, a), 2e-3, "%v", overrides)
	}
}

// farthest is the largest difference of two models' weights.
func farthest(t *testing.T, a, b map[string]string) (most float64) {
	t.Helper()
	x, y := []byte(a["model.safetensors"]), []byte(b["model.safetensors"])
	require.Equal(t, len(x), len(y))
	head := 8 + int(binary.LittleEndian.Uint64(x))
	for i := head; i < len(x); i += 4 {
		f := func(b []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))) }
		most = max(most, math.Abs(f(x)-f(y)))
	}
	return most
}

// An evaluation covers all windows, however far one stage is ahead of another.
func TestEvaluationOnStages(t *testing.T) {
	var losses []float64
	for _, stages := range []int{1, 2} {
		c := traintest.Demo(t, t.TempDir(), fmt.Sprint("pipeline.stages=", stages), "data.val_fraction=0.5",
			"train={steps: 1, batch_size: 2, microbatches: 2, eval_every: 1, eval_batches: 0}")
		res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		ev, err := inference.Evaluate(context.Background(), inference.EvalOptions{From: c.Run.Dir, BatchSize: 1,
			Target: inference.Target{Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}})
		require.NoError(t, err)
		assert.Greater(t, ev.Tokens, int64(16*stages*c.Model.SeqLen), "more than are under way at a time")
		assert.InDelta(t, ev.Loss, *res.ValLoss, 1e-9)
		losses = append(losses, *res.ValLoss)
	}
	assert.Equal(t, []float64{losses[0], losses[0]}, losses)
}

const smallConfig = `model: {preset: tiny}
data:
  train: [a.txt]
run: {dir: runs/x}
`
