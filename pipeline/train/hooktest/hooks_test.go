package hooktest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A module's loss is trained on pipelines of any depth. The validation loss remains the cross-entropy of the targets.
func TestLossHook(t *testing.T) {
	run := func(overrides ...string) (train.Result, *runtest.Notes) {
		n := &runtest.Notes{}
		res, err := train.Run(context.Background(), traintest.Demo(t, t.TempDir(), append([]string{"train.steps=4"}, overrides...)...),
			runtest.Options(&traintest.Reference{}, n))
		require.NoError(t, err)
		return res, n
	}
	plain, plainly := run()
	one, n := run(traintest.Hooked(traintest.FocalHook))
	assert.NotEqual(t, traintest.Files(t, plain.Checkpoint)["model.safetensors"], traintest.Files(t, one.Checkpoint)["model.safetensors"])
	assert.InDelta(t, 5.5+0.001*5.5*5.5, n.Steps[0].Loss, 0.1, "the whole loss of 256 tokens that are equally likely")
	assert.InDelta(t, *plainly.Steps[1].ValLoss, *n.Steps[1].ValLoss, 0.1)
	for _, overrides := range [][]string{{"pipeline.stages=2"}, {"pipeline.stages=3", "pipeline.schedule=gpipe"},
		{"pipeline.recompute=always"}} {
		other, _ := run(append(overrides, traintest.Hooked(traintest.FocalHook))...)
		assert.True(t, traintest.Files(t, one.Checkpoint)["model.safetensors"] == traintest.Files(t,
			other.Checkpoint)["model.safetensors"], "%v", overrides)
	}
}

func TestLearningRateHook(t *testing.T) {
	n := &runtest.Notes{}
	c := traintest.Demo(t, t.TempDir(), "train.steps=6", "optimizer.lr=0.01", traintest.Hooked(traintest.RateHook))
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err)
	for i, want := range []float64{1. / 3, 2. / 3, 1, 0.75, 0.6, 0.5} {
		if i > 2 {
			want = []float64{0.8660254037844386, 0.7745966692414834, 0.7071067811865476}[i-3]
		}
		assert.InDelta(t, 0.01*want, n.Steps[i].LR, 1e-15, "step %d", i)
	}
}

func TestMetricsHookStopsRun(t *testing.T) {
	c := traintest.Demo(t, t.TempDir(), "train.steps=200", "train.eval_every=1", "train.save_every=0", traintest.Hooked(traintest.StopHook))
	n := &runtest.Notes{}
	res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err)
	assert.False(t, res.Interrupted)
	assert.Equal(t, traintest.HooksDir+"early_stopping.wasm", res.Stopped)
	assert.Equal(t, 4, res.Step, "three evaluations without an improvement by 100 nats")
	assert.Contains(t, strings.Join(n.Text, "\n"), "early_stopping.wasm: asked at step 4 that the run end")
	assert.FileExists(t, filepath.Join(c.Run.Dir, "checkpoints/step-4/manifest.json"))

	counting := traintest.Guest(t, "counting.wasm", "", true, traintest.Hook("on_metrics", traintest.Count(), w.GGet(1), w.Const(20),
		w.I32GeU))
	c = traintest.Demo(t, t.TempDir(), "train.steps=45", "train.eval_every=45", "train.save_every=10",
		traintest.WithHooks(counting+", hook: on_metrics"))
	n = &runtest.Notes{}
	res, err = train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err)
	assert.Equal(t, 20, res.Step)
	assert.Contains(t, strings.Join(n.Text, "\n"), "counting.wasm: asked at step 20 that the run end", "a step passes to hooks once")
	records := traintest.Measurements(t, c.Run.Dir)
	require.Len(t, records, 20)
	assert.Equal(t, *res.ValLoss, records[19].Values["val_loss"], "the last step has the final evaluation")

	c = traintest.Demo(t, t.TempDir(), "train.steps=45", "train.eval_every=0", "train.save_every=0",
		traintest.Hooked("early_stopping.wasm, hook: on_metrics"))
	n = &runtest.Notes{}
	res, err = train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err)
	assert.Equal(t, 45, res.Step, "without evaluations there is nothing to stop for")
	assert.Len(t, n.Steps, 45)
}

// A run with all kinds of hooks that is interrupted and resumed gives the same bits.
func TestHooksResume(t *testing.T) {
	all := traintest.Hooked(traintest.FocalHook, traintest.RateHook, strings.Replace(traintest.StopHook, "100", "-1", 1),
		traintest.FilterHook)
	for _, more := range tier.Divide(t, [][]string{{"pipeline.stages=2", "pipeline.delay=1"}, nil}, tier.First[[]string](1)) {
		dir := t.TempDir()
		configure := func(name string) config.Config {
			return traintest.Demo(t, dir, append([]string{all, "data.train=[" + traintest.Documents(t, dir) + "]", "train.eval_every=1",
				"train.steps=7", "run.dir=" + filepath.Join(dir, name)}, more...)...)
		}
		n := &runtest.Notes{}
		whole, err := train.Run(context.Background(), configure("whole"), runtest.Options(&traintest.Reference{}, n))
		require.NoError(t, err)
		assert.Contains(t, strings.Join(n.Text, "\n"), "quality_filter.wasm: 60 documents became 40")

		ctx, cancel := context.WithCancel(context.Background())
		interrupted, err := train.Run(ctx, configure("interrupted"), runtest.Options(&traintest.Reference{},
			&runtest.Notes{OnStep: func(p train.Progress) {
				if p.Step == 3 {
					cancel()
				}
			}}))
		require.NoError(t, err)
		require.True(t, interrupted.Interrupted)
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		resumed, err := train.Run(context.Background(), configure("interrupted"), o)
		require.NoError(t, err)
		assert.Equal(t, 7, resumed.Step)
		for name, bits := range traintest.Files(t, whole.Checkpoint) {
			assert.True(t, bits == traintest.Files(t, resumed.Checkpoint)[name], name)
		}
		assert.Equal(t, traintest.Measurements(t, configure("whole").Run.Dir), traintest.Measurements(t, configure("interrupted").Run.Dir))
	}
}

// The state of an on_metrics module is resumed with the run: evaluations that it has counted stay counted.
func TestMetricsHookStateResumes(t *testing.T) {
	dir := t.TempDir()
	configure := func(steps int) config.Config {
		return traintest.Demo(t, dir, fmt.Sprintf("train.steps=%d", steps), "lr.schedule=constant", "train.eval_every=1",
			"train.save_every=1", traintest.Hooked(traintest.StopHook))
	}
	_, err := train.Run(context.Background(), configure(3), runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.Resume = true
	res, err := train.Run(context.Background(), configure(9), o)
	require.NoError(t, err)
	assert.Equal(t, 4, res.Step)
}

func TestResumingWithOtherHooksIsRefused(t *testing.T) {
	dir := t.TempDir()
	text := traintest.Documents(t, dir)
	configure := func(hooks string, more ...string) config.Config {
		return traintest.Demo(t, dir, append([]string{hooks, "train.steps=2", "data.train=[" + text + "]"}, more...)...)
	}
	_, err := train.Run(context.Background(), configure(traintest.Hooked(traintest.FocalHook, traintest.FilterHook)),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	resume := func(c config.Config) error {
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		_, err := train.Run(context.Background(), c, o)
		return err
	}
	assert.NoError(t, resume(configure(traintest.Hooked(traintest.FocalHook, traintest.FilterHook, traintest.StopHook))),
		"one that listens may come and go")
	for want, c := range map[string]config.Config{
		"hooks: the checkpoint has build_loss by module ":                      configure(traintest.Hooked(traintest.FilterHook)),
		`with config {"z":0.001} and seed 0, the config build_loss by module `: configure(traintest.Hooked(strings.Replace(traintest.FocalHook, "0.001", "0.002", 1), traintest.FilterHook)),
		"build_loss by module": configure(traintest.Hooked("label_smoothing.wasm, hook: build_loss", traintest.FilterHook)),
		"the config nothing":   configure(traintest.Hooked(traintest.FocalHook)),
		"and seed 7":           configure(traintest.Hooked(traintest.FocalHook+", seed: 7", traintest.FilterHook)),
		"the checkpoint has nothing, the config learning_rate by module": configure(traintest.Hooked(traintest.FocalHook,
			traintest.FilterHook, traintest.RateHook)),
	} {
		err := resume(c)
		var user *usererror.Error
		assert.ErrorAs(t, err, &user)
		assert.ErrorContains(t, err, "is of another run: ")
		assert.ErrorContains(t, err, want)
	}
	moved := filepath.Join(dir, "moved.wasm")
	module, err := os.ReadFile(traintest.HooksDir + "focal_loss.wasm")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(moved, module, 0o666))
	assert.NoError(t, resume(configure(strings.Replace(traintest.Hooked(traintest.FocalHook, traintest.FilterHook),
		traintest.HooksDir+"focal_loss.wasm", moved, 1))), "the same module elsewhere")
}

// An evaluation finds the validation text of a corpus that a module has filtered.
func TestEvaluationAppliesDocumentHooks(t *testing.T) {
	dir := t.TempDir()
	n := &runtest.Notes{}
	c := traintest.Demo(t, dir, "train.steps=2", "train.eval_batches=0", "data.train=["+traintest.Documents(t, dir)+"]",
		traintest.Hooked(traintest.FilterHook))
	res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err)
	got, err := inference.Evaluate(context.Background(), inference.EvalOptions{From: c.Run.Dir, BatchSize: c.Rows(),
		Target: inference.Target{Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}})
	require.NoError(t, err)
	assert.InDelta(t, *res.ValLoss, got.Loss, 1e-6)
}

func TestHookErrorsAreUserErrors(t *testing.T) {
	for want, hooks := range map[string]string{
		"hook ../../examples/hooks/none.wasm: refused: stat ../../examples/hooks/none.wasm: no such file":                                        "none.wasm, hook: build_loss",
		"hook ../../examples/hooks/focal_loss.c: refused":                                                                                        "focal_loss.c, hook: build_loss",
		"focal_loss.wasm: refused: does not export the function learning_rate":                                                                   "focal_loss.wasm, hook: learning_rate",
		"focal_loss.wasm: build_loss: failed: gamma is not a number":                                                                             "focal_loss.wasm, hook: build_loss, config: {gamma: x}",
		"config: epsilon must be at least 0 and below 1":                                                                                         "label_smoothing.wasm, hook: build_loss, config: {epsilon: 3}",
		"inverse_sqrt.wasm: learning_rate: batch 0: failed: the factor is NaN, expected a number from 0 to 1000000":                              "inverse_sqrt.wasm, hook: learning_rate, config: {warmup: -1}",
		"the corpus has no tokens: hooks dropped all of its 1 documents":                                                                         "quality_filter.wasm, hook: map_document, config: {least_words: 1000}",
		"text.txt: the document at offset 0: hook ../../examples/hooks/quality_filter.wasm: start function: failed: least_words is not a number": "quality_filter.wasm, hook: map_document, config: {least_words: many}",
	} {
		dir := t.TempDir()
		c := traintest.Demo(t, dir, traintest.Hooked(hooks))
		_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		var user *usererror.Error
		assert.ErrorAs(t, err, &user)
		assert.ErrorContains(t, err, want)
		if !strings.Contains(want, "learning_rate: batch") {
			assert.NoDirExists(t, c.Run.Dir, "nothing is left of a run that did not begin")
		}
	}
}

func TestFailingDocumentsAreSkipped(t *testing.T) {
	run := func(hook string) error {
		_, err := train.Run(context.Background(), traintest.Demo(t, t.TempDir(),
			traintest.WithHooks(hook+", hook: map_document, on_error: skip")), runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		return err
	}
	assert.ErrorContains(t, run(traintest.Guest(t, "never.wasm", "", false, traintest.Hook("map_document", w.Unreachable))),
		"hooks dropped all of its 1 documents")
	assert.ErrorContains(t, run(traintest.HooksDir+"quality_filter.wasm, config: {least_words: many}"), "least_words is not a number",
		"no document is to blame")
}

// every is a module that keeps every other document. It runs the given code for a document that begins with '#'.
func every(t *testing.T, remembers bool, does ...any) string {
	return traintest.Guest(t, "every.wasm", "not this one", remembers, traintest.Hook("map_document", traintest.Count(),
		traintest.Array(0), []byte{0x2d, 0, 0} /* i32.load8_u */, w.Const('#'), w.I32Eq, w.If(w.Empty, does...),
		w.GGet(1), w.Const(1), w.I32And, w.If(w.Empty, traintest.Array(0), w.Get(0), w.Load(12), w.Call(traintest.CallEmit)), w.Const(0)))
}

// A stateful module gets documents in order, although other modules run in parallel.
func TestStatefulDocumentHookRunsInOrder(t *testing.T) {
	keeper := traintest.Guest(t, "keeper.wasm", "", false, traintest.Hook("map_document", traintest.Array(0), w.Get(0), w.Load(12),
		w.Call(traintest.CallEmit), w.Const(0)))
	mapped := func(text, extra, module string) (string, error) {
		path := filepath.Join(t.TempDir(), "text.jsonl")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		c := traintest.Demo(t, t.TempDir(), traintest.WithHooks(keeper+", hook: map_document", module+", hook: map_document"+extra))
		h, err := hooks.Open(c.Hooks, hooks.Options{Kinds: []string{"map_document"}})
		require.NoError(t, err)
		defer func() { require.NoError(t, h.Close()) }()
		tok, err := tokenizer.Open("bytes")
		require.NoError(t, err)
		train, _, err := data.Load(context.Background(), data.Options{Train: []string{path}, Tokenizer: tok, Vocab: 256, Field: "text",
			Map: h.Documents.Open()})
		if err != nil {
			return "", err
		}
		defer func() { require.NoError(t, train.Close()) }()
		ids := make([]int32, train.Len())
		require.NoError(t, train.Read(ids, 0))
		got := make([]byte, len(ids))
		for i, id := range ids {
			got[i] = byte(id)
		}
		return string(got), nil
	}
	var all, want strings.Builder
	for i := range 500 {
		fmt.Fprintf(&all, "{\"text\": \"document %d \"}\n", i)
		if i%2 == 0 {
			fmt.Fprintf(&want, "document %d ", i)
		}
	}
	for range 3 {
		got, err := mapped(all.String(), "", every(t, true))
		require.NoError(t, err)
		assert.Equal(t, want.String(), got)
	}
	text := "{\"text\": \"one \"}\n{\"text\": \"# two \"}\n{\"text\": \"three \"}\n{\"text\": \"four \"}\n"
	got, err := mapped(text, ", on_error: skip", every(t, true, traintest.Text("not this one", "not this one"),
		w.Call(traintest.CallFail), w.Const(0), w.Return))
	require.NoError(t, err)
	assert.Equal(t, "one three ", got, "the second was counted, and skipped")
	_, err = mapped(text, ", on_error: skip", every(t, true, w.Unreachable))
	assert.ErrorContains(t, err, "every.wasm: map_document: batch 1: trap: ")
	assert.ErrorContains(t, err, "; the module's state is lost")
	_, err = mapped(text, "", every(t, true, w.Unreachable))
	assert.ErrorContains(t, err, "every.wasm: map_document: batch 1: trap: ")
	got, err = mapped(text, ", on_error: skip", every(t, false, w.Unreachable))
	require.NoError(t, err)
	assert.NotContains(t, got, "two", "of one that keeps nothing")
}
