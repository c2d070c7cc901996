package train_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The cut, the number of stages and the schedule may change whenever a run is resumed. The bits are those of a run that
// was never stopped.
func TestResumeOnAnotherLayout(t *testing.T) {
	type run struct {
		name string
		legs [][]string
	}
	for _, r := range tier.Divide(t, []run{
		{"delayed", [][]string{
			{"pipeline.schedule=2bw", "pipeline.stages=3"},
			{"pipeline.schedule=sync", "pipeline.delay=1"},
			{"pipeline.schedule=2bw", "pipeline.stages=2", "pipeline.cut=[2]", "pipeline.devices=[null:0, null:0]"},
		}},
		{"synchronous", [][]string{
			{"pipeline.schedule=gpipe", "pipeline.stages=2"},
			{"pipeline.schedule=1f1b", "pipeline.stages=3", "pipeline.recompute=always"},
			{"pipeline.schedule=interleaved", "pipeline.stages=2", "pipeline.cut=[1, 2, 4]"},
			{"pipeline.schedule=zb-h1", "pipeline.stages=2"},
		}},
		{"delayed, with moments in bf16", [][]string{
			{"pipeline.schedule=2bw", "pipeline.stages=3"},
			{"pipeline.schedule=sync", "pipeline.delay=1"},
		}},
	}, tier.First[run](1)) {
		name, legs := r.name, r.legs
		dir := t.TempDir()
		configure := func(run string, layout []string) config.Config {
			overrides := append([]string{"model={vocab_size: 256, d_model: 8, n_layers: 3, n_heads: 2, d_ff: 12, seq_len: 8, tie_embeddings: true}",
				"train={steps: 12, batch_size: 4, microbatches: 4, eval_every: 3, eval_batches: 1, save_every: 0, grad_clip: 0.5}",
				"run.dir=" + filepath.Join(dir, run)}, layout...)
			if strings.HasPrefix(name, "delayed") {
				overrides = append(overrides, "pipeline.error_feedback=true")
			}
			if strings.Contains(name, "bf16") { // some tensors have an odd number of elements
				overrides = append(overrides, "optimizer.moments=bf16", "model.d_model=9", "model.attention.head_dim=4")
			}
			return traintest.Demo(t, dir, overrides...)
		}
		whole := runtest.Until(t, configure("whole", legs[0]), 0)
		var last train.Result
		for i, layout := range legs {
			stop := 0
			if i < len(legs)-1 {
				stop = last.Step + 1
			}
			next := runtest.Until(t, configure("legs", layout), stop)
			require.Greater(t, next.Step, last.Step)
			last = next
		}
		require.Equal(t, whole.Step, last.Step)
		assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, last.Checkpoint), name)
		assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, last.Dir), name)
	}
}

// Evaluations and checkpoints drain the pipeline and change no bit.
func TestEvaluationsAndCheckpointsChangeNothing(t *testing.T) {
	for _, layout := range [][]string{{"pipeline.schedule=1f1b"}, {"pipeline.schedule=2bw", "pipeline.error_feedback=true"}} {
		dir := t.TempDir()
		run := func(name string, overrides ...string) train.Result {
			c := traintest.Demo(t, dir, append(append([]string{"pipeline.stages=2", "run.dir=" + filepath.Join(dir, name)}, layout...),
				overrides...)...)
			return runtest.Until(t, c, 0)
		}
		rare, often := run("rare", "train.save_every=0", "train.eval_every=0"), run("often", "train.save_every=1", "train.eval_every=1")
		assert.Equal(t, traintest.Files(t, rare.Checkpoint), traintest.Files(t, often.Checkpoint), "%v", layout)
	}
}

// interruptedAt trains until the nth run of a program interrupts it. postpones reports whether the checkpoint keeps the
// report of a step for later, since its evaluation was interrupted.
func interruptedAt(t *testing.T, c config.Config, n int64) (res train.Result, postpones bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := train.Run(ctx, c, runtest.Options(&traintest.Reference{Fault: func(run int64) error {
		if run == n {
			cancel()
		}
		return nil
	}}, &runtest.Notes{}))
	require.NoError(t, err)
	saved, err := os.ReadFile(filepath.Join(res.Checkpoint, "state.json"))
	return res, err == nil && strings.Contains(string(saved), `"untold"`)
}

// Ctrl-C in an evaluation stops it between batches. The resumed run repeats the evaluation and gives the same bits and
// records.
func TestInterruptedEvaluation(t *testing.T) {
	overrides := []string{"train={steps: 6, batch_size: 4, microbatches: 2, eval_every: 2, save_every: 4}",
		"pipeline={schedule: 2bw, stages: 2}", traintest.WithHooks(traintest.HooksDir + traintest.StopHook)}
	clean := &traintest.Reference{}
	whole := traintest.Demo(t, t.TempDir(), overrides...)
	_, err := train.Run(t.Context(), whole, runtest.Options(clean, &runtest.Notes{}))
	require.NoError(t, err)
	postponed, points := 0, int64(6)
	for n, total := int64(1), clean.Runs.Load(); n <= total; n += max(1, total/points) {
		c := traintest.Demo(t, t.TempDir(), overrides...)
		if res, postpones := interruptedAt(t, c, n); postpones {
			assert.True(t, res.Interrupted)
			postponed++
		}
		for range 2 { // once more, with nothing left to be done
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
			o.Resume = true
			_, err = train.Run(t.Context(), c, o)
			require.NoError(t, err)
		}
		last := filepath.Join(checkpoint.Folder, "step-6")
		assert.Equal(t, traintest.Files(t, filepath.Join(whole.Run.Dir, last)), traintest.Files(t, filepath.Join(c.Run.Dir, last)),
			"at run %d of %d", n, total)
		assert.Equal(t, traintest.Measurements(t, whole.Run.Dir), traintest.Measurements(t, c.Run.Dir), "at run %d of %d", n, total)
	}
	assert.Positive(t, postponed, "evaluations that were interrupted")
}

// The measurements of routers survive an evaluation that is interrupted.
func TestInterruptedEvaluationOfExperts(t *testing.T) {
	overrides := []string{"model={vocab_size: 256, d_model: 8, n_layers: 2, n_heads: 2, seq_len: 8, moe: {experts: 3, top_k: 2, d_ff: 4, balance: {bias: 0.01}}}",
		"train={steps: 3, batch_size: 4, microbatches: 2, eval_every: 2, save_every: 0}", "data.pack=best_fit", "data.separator=32"}
	clean := &traintest.Reference{}
	whole := traintest.Demo(t, t.TempDir(), overrides...)
	_, err := train.Run(t.Context(), whole, runtest.Options(clean, &runtest.Notes{}))
	require.NoError(t, err)
	experts := func(c config.Config) string {
		text, err := os.ReadFile(filepath.Join(c.Run.Dir, "experts.jsonl"))
		require.NoError(t, err)
		return string(text)
	}
	postponed, points := 0, int64(5)
	for n, total := int64(1), clean.Runs.Load(); n <= total; n += max(1, total/points) {
		c := traintest.Demo(t, t.TempDir(), overrides...)
		if _, postpones := interruptedAt(t, c, n); postpones {
			postponed++
		}
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		_, err = train.Run(t.Context(), c, o)
		require.NoError(t, err)
		assert.Equal(t, traintest.Measurements(t, whole.Run.Dir), traintest.Measurements(t, c.Run.Dir), "at run %d of %d", n, total)
		assert.Equal(t, experts(whole), experts(c), "at run %d of %d", n, total)
	}
	assert.Positive(t, postponed, "evaluations that were interrupted")
}

// A step that is reported when the run is resumed is reported with the current number of steps.
func TestInterruptedEvaluationOfALongerRun(t *testing.T) {
	steps := "train={steps: %d, batch_size: 4, microbatches: 2, eval_every: 2, save_every: 4}"
	for n := int64(1); ; n++ {
		c := traintest.Demo(t, t.TempDir(), fmt.Sprintf(steps, 6))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		x := &traintest.Reference{Fault: func(run int64) error {
			if run == n {
				cancel()
			}
			return nil
		}}
		res, err := train.Run(ctx, c, runtest.Options(x, &runtest.Notes{}))
		require.NoError(t, err)
		require.GreaterOrEqual(t, x.Runs.Load(), n, "no evaluation was interrupted")
		if saved, err := os.ReadFile(filepath.Join(res.Checkpoint, "state.json")); err != nil ||
			!strings.Contains(string(saved), `"untold"`) {
			continue
		}
		c.Train.Steps = 9
		resumed := &runtest.Notes{}
		o := runtest.Options(&traintest.Reference{}, resumed)
		o.Resume = true
		_, err = train.Run(t.Context(), c, o)
		require.NoError(t, err)
		require.Len(t, resumed.Steps, 10-res.Step)
		first := resumed.Steps[0]
		assert.Equal(t, res.Step, first.Step)
		var left time.Duration // unknown where the speed is
		if first.TokensPerSec > 0 {
			left = time.Duration(float64(4*8) * float64(9-res.Step) / first.TokensPerSec * float64(time.Second))
		}
		assert.Equal(t, left, first.Left)
		for _, p := range resumed.Steps {
			assert.Equal(t, 9, p.Steps, "of step %d", p.Step)
		}
		return
	}
}

// A resumed run keeps its stale microbatches, and refuses stages that need more.
func TestResumeKeepsTheStaleMicrobatches(t *testing.T) {
	dir := t.TempDir()
	configure := func(layout ...string) config.Config {
		return traintest.Demo(t, dir, append([]string{"model={vocab_size: 256, d_model: 8, n_layers: 3, n_heads: 2, d_ff: 12, seq_len: 8}",
			"train={steps: 6, batch_size: 4, microbatches: 4, eval_every: 0, save_every: 0}", "pipeline.schedule=2bw"}, layout...)...)
	}
	runtest.Until(t, configure("pipeline.stages=2"), 3)
	resume := func(c config.Config) (*runtest.Notes, error) {
		n := &runtest.Notes{}
		o := runtest.Options(&traintest.Reference{}, n)
		o.Resume = true
		_, err := train.Run(context.Background(), c, o)
		return n, err
	}
	_, err := resume(configure("pipeline.stages=3"))
	assert.ErrorContains(t, err, "cannot be continued: pipeline.stages: found 3, expected at most 2: the saved run has 1 of 4 microbatches stale, and 3 stages need 2")
	_, err = resume(configure("pipeline.stages=3", "pipeline.stale_microbatches=2"))
	assert.ErrorContains(t, err, "pipeline.stale_microbatches: the checkpoint has 1, the config 2")
	n, err := resume(configure("pipeline.stages=1"))
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.Text, "\n"), "pipeline.stale_microbatches: 1, as in ")
	assert.InDelta(t, 0.25, n.Steps[0].Staleness, 1e-12)
}

// A resumed run may not change what is computed.
func TestResumeRefusesAnotherDelay(t *testing.T) {
	dir := t.TempDir()
	delayed := []string{"pipeline.delay=1", "pipeline.error_feedback=true"}
	runtest.Until(t, traintest.Demo(t, dir, delayed...), 0)
	for want, overrides := range map[string][]string{
		"pipeline.delay: the checkpoint has 1, the config 0": nil,
		"pipeline.correction: the checkpoint has error_feedback, the config none; pipeline.error_feedback: the checkpoint has true, the config false": {"pipeline.delay=1"},
		"pipeline.correction: the checkpoint has error_feedback, the config dc_asgd":                                                                  {"pipeline.delay=1", "pipeline.correction=dc_asgd"},
		"pipeline.replicas: the checkpoint has 1, the config 2":                                                                                       append([]string{"pipeline.replicas=2"}, delayed...),
		"train.microbatches: the checkpoint has 2, the config 4":                                                                                      append([]string{"train.microbatches=4"}, delayed...),
	} {
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		_, err := train.Run(context.Background(), traintest.Demo(t, dir, overrides...), o)
		var user *usererror.Error
		require.ErrorAs(t, err, &user, want)
		assert.ErrorContains(t, err, traintest.StepDir(filepath.Join(dir, "run"), 6)+" is of another run: ")
		assert.ErrorContains(t, err, want)
	}
}

// What enters a step as a number may change when a run is resumed, with a note. What shapes the optimizer's state may
// not.
func TestResumeWithChangedNumbers(t *testing.T) {
	resume := func(begun, changed []string) (*runtest.Notes, error) {
		dir := t.TempDir()
		runtest.Until(t, traintest.Demo(t, dir, begun...), 2)
		n := &runtest.Notes{}
		o := runtest.Options(&traintest.Reference{}, n)
		o.Resume = true
		_, err := train.Run(context.Background(), traintest.Demo(t, dir, append(begun, changed...)...), o)
		return n, err
	}
	sgd := "optimizer.name=sgd"
	n, err := resume(nil, []string{"optimizer.lr=0.004", "optimizer.adamw.lr=0.002", "optimizer.adamw.betas=[0.8, 0.9]",
		"optimizer.weight_decay=0.3", "optimizer.momentum=0.5", "train.grad_clip=0.25", "train.nonfinite=skip"})
	require.NoError(t, err)
	for _, want := range []string{"optimizer.lr: the checkpoint has 0.02, the config 0.004: the new value is used",
		"optimizer.adamw.lr: the checkpoint has 0.03, the config 0.002",
		"optimizer.adamw.betas: the checkpoint has [0.9 0.95], the config [0.8 0.9]", "optimizer.weight_decay: the checkpoint has ",
		"optimizer.momentum: the checkpoint has 0.95, the config 0.5",
		"train.grad_clip: the checkpoint has 1, the config 0.25", "train.nonfinite: the checkpoint has stop, the config skip"} {
		assert.Contains(t, strings.Join(n.Text, "\n"), want)
	}
	_, err = resume([]string{"train.nonfinite=skip", "train.grad_clip=0"}, []string{"train.nonfinite=stop", "train.grad_clip=1"})
	require.NoError(t, err)
	_, err = resume([]string{sgd, "optimizer.momentum=0.9"}, []string{"optimizer.momentum=0.5"})
	require.NoError(t, err)
	for want, keys := range map[string][2][]string{
		"optimizer.name: the checkpoint has muon, the config sgd":    {nil, {sgd}},
		"optimizer.moments: the checkpoint has f32, the config bf16": {nil, {"optimizer.moments=bf16"}},
		"optimizer.momentum: the checkpoint has 0.9, the config 0":   {{sgd, "optimizer.momentum=0.9"}, {"optimizer.momentum=0"}},
		"optimizer.soap.max_precond_dim: the checkpoint has 4096, the conf": {{"optimizer.name=soap"},
			{"optimizer.soap.max_precond_dim=8"}},
	} {
		_, err := resume(keys[0], keys[1])
		var user *usererror.Error
		require.ErrorAs(t, err, &user, want)
		assert.ErrorContains(t, err, "is of another run: ")
		assert.ErrorContains(t, err, want)
	}
}

// A checkpoint of a version without the keys for pipelines, corrections and batches that are not finite can be resumed.
func TestResumeFromBeforePipelines(t *testing.T) {
	dir := t.TempDir()
	tied := "model.tie_embeddings=true"
	whole := runtest.Until(t, traintest.Demo(t, dir, tied), 0)
	c := traintest.Demo(t, dir, tied, "run.dir="+filepath.Join(dir, "old"))
	stopped := runtest.Until(t, c, 1)
	old := string(c.YAML())
	older := func(line, instead string) {
		require.Equal(t, 1, strings.Count(old, line), line)
		old = strings.Replace(old, line, instead, 1)
	}
	i, j := strings.Index(old, "pipeline:\n"), strings.Index(old, "hooks:")
	old = old[:i] + "pipeline:\n    schedule: sync\n    stages: 1\n    devices: []\n    delay: 0\n    error_feedback: false\n" + old[j:]
	older("    nonfinite: stop\n", "")
	older("    dc_lambda: 0.04\n", "")
	write := func(text string) {
		traintest.Alter(t, stopped.Checkpoint, config.SavedFile, func([]byte) []byte { return []byte(text) })
		traintest.Alter(t, stopped.Checkpoint, "state.json", func(b []byte) []byte {
			var s map[string]any
			require.NoError(t, json.Unmarshal(b, &s))
			s["config"] = text
			b, err := json.Marshal(s)
			require.NoError(t, err)
			return b
		})
	}
	write(strings.Replace(old, "    devices: []\n", "    devices: []\n    colour: blue\n", 1))
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.Resume = true
	_, err := train.Run(context.Background(), c, o)
	var user *usererror.Error
	require.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, filepath.Join(stopped.Checkpoint, "state.json"))
	assert.ErrorContains(t, err, "pipeline.colour: unknown key")

	write(old)
	for _, v := range []inference.Version{inference.VersionX, inference.VersionY} {
		src, err := inference.OpenWeights(stopped.Checkpoint, nil, "", v, nil)
		require.NoError(t, err, "its config is of before there were some keys")
		require.NoError(t, src.Close())
	}
	assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, runtest.Until(t, c, 0).Checkpoint),
		fmt.Sprint("stopped at ", stopped.Step))
}

// A resumed run keeps the trace of the run before.
func TestEarlierTracesAreKept(t *testing.T) {
	c := traintest.Demo(t, t.TempDir(), "train.steps=16", "train.eval_every=0")
	runtest.Until(t, c, 3)
	first, err := os.ReadFile(filepath.Join(c.Run.Dir, trace.FileName))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.Run.Dir, "trace.notes.json"), nil, 0o666))
	runtest.Until(t, c, 9)
	runtest.Until(t, c, 0)
	kept, err := os.ReadFile(filepath.Join(c.Run.Dir, trace.EarlierName(1)))
	require.NoError(t, err)
	assert.Equal(t, first, kept)
	parts, err := trace.Earlier(c.Run.Dir)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2}, parts)
	batches := 0
	for _, name := range []string{trace.EarlierName(1), trace.EarlierName(2), trace.FileName} {
		s, err := trace.Summarize(filepath.Join(c.Run.Dir, name))
		require.NoError(t, err)
		assert.Positive(t, s.Batches, name)
		batches += s.Batches
	}
	assert.Equal(t, 16, batches)
}
