package train_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func from(batch int) func(int) bool { return func(b int) bool { return b >= batch } }
func only(batches ...int) func(int) bool {
	return func(b int) bool { return slices.Contains(batches, b) }
}

// tensorBits reads all tensors of a checkpoint.
func tensorBits(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range []string{"model.safetensors", "optimizer.safetensors"} {
		r, err := safetensors.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		for _, x := range r.Tensors() {
			b, err := r.Bytes(x.Name)
			require.NoError(t, err)
			all[x.Name] = string(b)
		}
		require.NoError(t, r.Close())
	}
	return all
}

// poisoned trains with losses that are not numbers, and keeps the checkpoint of each step.
func poisoned(t *testing.T, poison func(int) bool, overrides ...string) (string, train.Result, *runtest.Notes, error) {
	t.Helper()
	c := traintest.Demo(t, t.TempDir(), append([]string{"train={steps: 6, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 1, nonfinite: skip}"}, overrides...)...)
	n := &runtest.Notes{}
	res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{Poison: poison}, n))
	return c.Run.Dir, res, n, err
}

func TestSkippedBatchesChangeNothing(t *testing.T) {
	run, res, n, err := poisoned(t, only(3, 4))
	require.NoError(t, err)
	assert.Equal(t, 6, res.Step)
	assert.True(t, metrics.Finite(*res.Loss))
	assert.Equal(t, tensorBits(t, traintest.StepDir(run, 2)), tensorBits(t, traintest.StepDir(run, 3)))
	assert.Equal(t, tensorBits(t, traintest.StepDir(run, 2)), tensorBits(t, traintest.StepDir(run, 4)))
	for name, before := range tensorBits(t, traintest.StepDir(run, 4)) {
		assert.NotEqual(t, before, tensorBits(t, traintest.StepDir(run, 5))[name], name)
	}
	records := traintest.Measurements(t, run)
	require.Len(t, records, 6)
	for i, r := range records {
		skipped, marked := r.Values["skipped"]
		assert.Equal(t, i == 2 || i == 3, marked, "step %d", i+1)
		if marked {
			assert.Equal(t, 1.0, skipped)
		}
		assert.Equal(t, marked, math.IsNaN(r.Values["loss"]))
		assert.Equal(t, marked, n.Steps[i].Skipped)
		_, err := json.Marshal(n.Steps[i])
		require.NoError(t, err)
	}
	assert.Contains(t, n.Text[0], "step 3: the loss is NaN")
	assert.Contains(t, n.Text[0], "the batch was skipped")
	assert.Len(t, n.Text, 2)

	text, err := json.Marshal(train.Progress{Step: 3,
		Update: train.Update{Loss: math.NaN(), GradNorm: math.Inf(1), LR: 0.5, Skipped: true}})
	require.NoError(t, err)
	routed := train.Progress{Step: 2, Routing: []engine.Routing{{Layer: 1, Load: []float64{3, 0}, Entropy: math.Inf(1), Aux: 0.5, Z: 2,
		BiasMin: -1, BiasMax: 4}}}
	kept, err := json.Marshal(routed)
	require.NoError(t, err)
	var back train.Progress
	require.NoError(t, json.Unmarshal(kept, &back))
	assert.Equal(t, routed, back)
	assert.JSONEq(t, `{"step":3,"steps":0,"tokens":0,"loss":"NaN","lr":0.5,"grad_norm":"Infinity","tokens_per_s":0,"staleness":0,"skipped":true,"left_ns":0}`, string(text))
}

// With a delay, a skipped batch changes neither the next weights nor the correction's state. Only dc_asgd records that
// no change was applied. The result is the same on any number of stages.
func TestSkippedBatchesWithDelay(t *testing.T) {
	for _, correction := range []string{"none", "error_feedback", "dc_asgd"} {
		delayed := []string{"pipeline.delay=1", "pipeline.stale_microbatches=all", "pipeline.correction=" + correction}
		run, res, _, err := poisoned(t, only(3), delayed...)
		require.NoError(t, err)
		require.Equal(t, 6, res.Step)
		before, after := tensorBits(t, traintest.StepDir(run, 2)), tensorBits(t, traintest.StepDir(run, 3))
		for name := range before {
			pending, parameter := before[weights.Pending.Tensor(name)]
			switch {
			case parameter:
				assert.Equal(t, pending, after[name], "%s: %s", correction, name)
			case strings.HasPrefix(name, "optim/applied/"):
				assert.Equal(t, strings.Repeat("\x00", len(before[name])), after[name], name)
				assert.NotEqual(t, before[name], after[name])
			default:
				assert.Equal(t, before[name], after[name], "%s: %s", correction, name)
			}
		}
		assert.NotEqual(t, after, tensorBits(t, traintest.StepDir(run, 4)))
		cut, _, _, err := poisoned(t, only(3), append(delayed, "pipeline.stages=2")...)
		require.NoError(t, err)
		for step := 1; step <= 6; step++ {
			assert.Equal(t, tensorBits(t, traintest.StepDir(run, step)), tensorBits(t, traintest.StepDir(cut, step)),
				"%s: step %d on two stages", correction, step)
		}
	}
}

func TestTenBatchesInARowAreSkipped(t *testing.T) {
	ten := []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	steps := []string{"train.steps=14", "train.save_every=2"}
	_, res, n, err := poisoned(t, only(append(ten, 14)...), steps...)
	require.NoError(t, err, "batch 13 ends the row")
	assert.Equal(t, 14, res.Step)
	assert.Len(t, n.Text, 11)
	for _, stages := range []int{1, 2} {
		run, _, n, err := poisoned(t, only(append(ten, 13)...), append(steps, fmt.Sprintf("pipeline.stages=%d", stages))...)
		require.ErrorIs(t, err, train.ErrDiverged)
		assert.False(t, errors.As(err, new(*usererror.Error)), "it is nobody's input")
		assert.ErrorContains(t, err, "step 13: the loss is NaN")
		assert.ErrorContains(t, err, "the checkpoint of step 12 is kept")
		assert.Len(t, n.Text, 10)
		assert.Equal(t, tensorBits(t, traintest.StepDir(run, 2)), tensorBits(t, traintest.StepDir(run, 12)))
	}
}

// Unless train.nonfinite is skip, the first batch that is not finite ends the run. With a delay this holds although the
// next batch has begun.
func TestNaNStopsADelayedRun(t *testing.T) {
	for _, stages := range []int{1, 2} {
		_, _, n, err := poisoned(t, only(4), "train.nonfinite=stop", "train.save_every=2", "pipeline.delay=1",
			fmt.Sprintf("pipeline.stages=%d", stages))
		require.ErrorIs(t, err, train.ErrDiverged)
		assert.ErrorContains(t, err, "step 4: the loss is NaN")
		assert.ErrorContains(t, err, "the checkpoint of step 2 is kept")
		assert.Empty(t, n.Text)
		assert.Len(t, n.Steps, 3)
	}
	c := traintest.Demo(t, t.TempDir())
	assert.Equal(t, "stop", c.Train.Nonfinite)
}

// If the loss of one replica is not finite although its gradients are, all replicas skip the batch and keep equal
// weights.
func TestBatchOfOneReplicaIsSkippedByAll(t *testing.T) {
	for _, layout := range []string{"stages: 1", "stages: 2, schedule: 1f1b", "stages: 2, schedule: 2bw", "stages: 1, delay: 1"} {
		for _, precision := range []string{"f32", "f16"} {
			c := traintest.Demo(t, t.TempDir(), "train={steps: 6, batch_size: 4, microbatches: 4, eval_every: 0, save_every: 1, nonfinite: skip}",
				"train.precision="+precision, "pipeline={replicas: 2, "+layout+"}")
			n, x := &runtest.Notes{}, &traintest.Reference{Poison: only(3, 4), ReplicasOnly: true}
			res, err := train.Run(context.Background(), c, runtest.Options(x, n))
			require.NoError(t, err, layout)
			require.Equal(t, 6, res.Step)
			for i, s := range n.Steps {
				assert.Equal(t, i == 2 || i == 3, s.Skipped, "%s: step %d", layout, s.Step)
			}
			third, last := tensorBits(t, traintest.StepDir(c.Run.Dir, 3)), tensorBits(t, traintest.StepDir(c.Run.Dir, 6))
			for name, after := range tensorBits(t, traintest.StepDir(c.Run.Dir, 4)) {
				if strings.HasPrefix(name, weights.Previous.Tensor("")) {
					assert.Equal(t, third[strings.TrimPrefix(name, weights.Previous.Tensor(""))], after, "%s: %s", layout, name)
					continue
				}
				if pending, delayed := third[weights.Pending.Tensor(name)]; delayed {
					assert.Equal(t, pending, after, "%s: %s", layout, name)
				} else if _, weights := last[name]; weights && c.Pipeline.Delay == 0 {
					assert.Equal(t, third[name], after, "%s: %s", layout, name)
				}
				assert.NotEqual(t, after, last[name], "%s: %s", layout, name)
			}
			for name, bits := range last {
				if param := strings.TrimPrefix(strings.TrimPrefix(name, "pending/"), "previous/"); !strings.HasPrefix(name, "optim/") {
					assert.Equal(t, 2, x.Held(param, bits), "%s: replicas with %s", layout, name)
				}
			}
		}
	}
}

// A loss that is not finite although the model's logits are finite is reported as its module's error.
func TestLossHookIsReportedAsCause(t *testing.T) {
	dir := t.TempDir()
	blank := filepath.Join(dir, "blank.safetensors") // nothing is known of the positions 100 and 130, in the fourth and the fifth batch
	var rows []byte
	for i := range len(traintest.TrainText(t, traintest.Demo(t, dir))) {
		x := float32(i)
		if i == 100 || i == 130 {
			x = float32(math.NaN())
		}
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(x))
	}
	require.NoError(t, safetensors.Write(blank, []safetensors.Entry{{Name: "teacher", DType: safetensors.F32, Shape: []int{len(rows) / 4},
		Data: rows}}))
	runs := 0
	run := func(x *traintest.Reference, overrides ...string) (*runtest.Notes, error) {
		runs++
		n := &runtest.Notes{}
		c := traintest.Demo(t, dir, append([]string{"train.eval_every=0", "data.shuffle=false", fmt.Sprintf("run.dir=%s/%d", dir, runs),
			"data.aligned=[" + blank + "]",
			traintest.WithHooks(traintest.InputLoss(t, "teacher", traintest.CallInput))}, overrides...)...)
		_, err := train.Run(context.Background(), c, runtest.Options(x, n))
		return n, err
	}
	const blame = `hook .*input_loss.wasm: build_loss: the loss of step 4 is not finite, but the cross entropy of its batch is, \d\.\d+: the loss is at fault, and not the model`
	for _, changed := range [][]string{{"pipeline.stages=1"}, {"pipeline={stages: 2, schedule: 2bw}"}, {"pipeline={stages: 1, delay: 1}"},
		{"pipeline.replicas=2"}, {"data.document_mask=true", "data.separator=10"}} {
		n, err := run(&traintest.Reference{}, changed...)
		require.ErrorIs(t, err, train.ErrDiverged)
		assert.Regexp(t, `^step 4: the loss is NaN .*the checkpoint of step 2 is kept .*; `+blame+`$`, err.Error())
		assert.Len(t, n.Steps, 3)

		n, err = run(&traintest.Reference{}, append(changed, "train.nonfinite=skip", "train.save_every=5")...)
		require.NoError(t, err)
		assert.Len(t, n.Steps, 6)
		require.Len(t, n.Text, 3, "of two batches in a row one is looked at")
		assert.Regexp(t, "^"+blame+"$", n.Text[2])
	}
	// an evaluation does not know the module's documents
	n, err := run(&traintest.Reference{}, traintest.WithHooks(traintest.InputLoss(t, "teacher", traintest.CallInput),
		traintest.HooksDir+traintest.MaskHook))
	require.ErrorIs(t, err, train.ErrDiverged)
	assert.NotContains(t, err.Error(), "at fault")
	assert.Empty(t, n.Text)
	n, err = run(&traintest.Reference{NaNEvaluations: true}) // its logits are not finite either
	require.ErrorIs(t, err, train.ErrDiverged)
	assert.NotContains(t, err.Error(), "input_loss.wasm")
	assert.Empty(t, n.Text)
	_, err = run(&traintest.Reference{Poison: from(2)}, "hooks=[]", "data.aligned=[]")
	require.ErrorIs(t, err, train.ErrDiverged)
	assert.NotContains(t, err.Error(), "at fault")
}

// An optimizer with an initialization step takes it at the first batch that is not skipped, also after an interruption,
// and on any number of stages.
func TestSkippedBatchesBeforeSOAPInitializes(t *testing.T) {
	tier.Rest(t)
	for _, delay := range []string{"pipeline={delay: 0}", "pipeline={delay: 1, stale_microbatches: 1}",
		"pipeline={delay: 1, stale_microbatches: all}"} {
		soap := []string{"optimizer={name: soap, soap: {precondition_frequency: 3}}", "lr.schedule=constant", "train.steps=8",
			"model.n_layers=2", delay}
		run, res, _, err := poisoned(t, only(1, 2, 4), soap...)
		require.NoError(t, err)
		require.Equal(t, 8, res.Step)
		begun := tensorBits(t, traintest.StepDir(run, 3))
		for name, before := range tensorBits(t, traintest.StepDir(run, 2)) {
			switch {
			case strings.HasPrefix(name, "optim/precond"), strings.HasPrefix(name, "optim/basis"), name == "optim/begun":
				assert.Equal(t, strings.Repeat("\x00", len(before)), before, name)
				assert.NotEqual(t, before, begun[name], name)
			case strings.Contains(name, "_proj.weight") && !strings.HasPrefix(name, "pending/") && !strings.HasPrefix(name, "previous/"):
				assert.Equal(t, before, begun[name], "%s: its state begins, no more", name)
			}
		}
		last := tensorBits(t, traintest.StepDir(run, 8))
		for name, bits := range begun {
			assert.Equal(t, name == "optim/begun", bits == last[name], name)
		}
		cut, _, _, err := poisoned(t, only(1, 2, 4), append(soap, "pipeline.stages=2")...)
		require.NoError(t, err)
		assert.Equal(t, last, tensorBits(t, traintest.StepDir(cut, 8)))
		for _, stop := range []int{1, 3} {
			c := traintest.Demo(t, t.TempDir(), append([]string{"train={steps: 6, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 1, nonfinite: skip}"}, soap...)...)
			begin := 0
			for _, to := range []int{stop, 8} {
				o := runtest.Options(&traintest.Reference{Poison: func(batch int) bool { return only(1, 2, 4)(begin + batch) }},
					&runtest.Notes{})
				c.Train.Steps, o.Resume = to, true
				_, err := train.Run(context.Background(), c, o)
				require.NoError(t, err)
				begin = to
			}
			assert.Equal(t, last, tensorBits(t, traintest.StepDir(c.Run.Dir, 8)), "stopped at step %d", stop)
		}
	}
}

// A checkpoint without the variable that records SOAP's initialization is taken as initialized.
func TestResumeOldCheckpointWithoutInitialized(t *testing.T) {
	soap := []string{"optimizer={name: soap, soap: {precondition_frequency: 3}}", "train.nonfinite=skip", "train.save_every=1"}
	want := traintest.Files(t, runtest.Until(t, traintest.Demo(t, t.TempDir(), soap...), 0).Checkpoint)
	c := traintest.Demo(t, t.TempDir(), soap...)
	stopped := runtest.Until(t, c, 2).Checkpoint
	r, err := safetensors.Open(filepath.Join(stopped, "optimizer.safetensors"))
	require.NoError(t, err)
	var kept []safetensors.Entry
	for _, x := range r.Tensors() {
		data, err := r.Bytes(x.Name)
		require.NoError(t, err)
		if x.Name != optim.InitializedVariable {
			kept = append(kept, safetensors.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: data})
		}
	}
	require.Len(t, kept, len(r.Tensors())-1)
	require.NoError(t, r.Close())
	path := filepath.Join(t.TempDir(), "older.safetensors")
	require.NoError(t, safetensors.Write(path, kept))
	older, err := os.ReadFile(path)
	require.NoError(t, err)
	traintest.Alter(t, stopped, "optimizer.safetensors", func([]byte) []byte { return older })
	assert.Equal(t, want, traintest.Files(t, runtest.Until(t, c, 0).Checkpoint))
}
