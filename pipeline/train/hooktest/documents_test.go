package hooktest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDocumentMaskIsTheHook checks that data.document_mask computes the bits of the example hook.
func TestDocumentMaskIsTheHook(t *testing.T) {
	for name, more := range map[string][]string{"two stages": {"pipeline.stages=2", "pipeline.delay=1", "data.shuffle=true"}} {
		dir := t.TempDir()
		run := func(name, hooks string, keys ...string) (checkpoint, folder string) {
			c := exampleRun(t, dir, name, hooks, append(append([]string{"train.steps=2", "train.microbatches=4"}, more...), keys...)...)
			r, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
			require.NoError(t, err)
			return r.Checkpoint, c.Run.Dir
		}
		hooked, a := run("hook", traintest.Hooked("document_mask.wasm, hook: map_batch, config: {separator: 10}"))
		keyed, b := run("key", "hooks=[]", "data.document_mask=true", "data.separator=10")
		plain, _ := run("plain", "hooks=[]")
		model := func(checkpoint string) string { return traintest.Files(t, checkpoint)["model.safetensors"] }
		assert.True(t, model(hooked) == model(keyed), name)
		assert.False(t, model(plain) == model(keyed), name)
		assert.Equal(t, traintest.Measurements(t, a), traintest.Measurements(t, b), name)
	}
}

// TestPackedRunsResume checks that a run of packed documents, resumed, gives the bits of one that was not interrupted.
func TestPackedRunsResume(t *testing.T) {
	dir := t.TempDir()
	keys := []string{"train.steps=3", "data.pack=best_fit", "data.document_mask=true", "data.separator=10", "data.shuffle=true"}
	whole := exampleRun(t, dir, "whole", "hooks=[]", keys...)
	r, err := train.Run(context.Background(), whole, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	part := exampleRun(t, dir, "part", "hooks=[]", keys...)
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.StopAfter = 1
	_, err = train.Run(context.Background(), part, o)
	require.NoError(t, err)
	o = runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.Resume = true
	resumed, err := train.Run(context.Background(), part, o)
	require.NoError(t, err)
	assert.Equal(t, filepath.Base(r.Checkpoint), filepath.Base(resumed.Checkpoint))
	for name, bits := range traintest.Files(t, r.Checkpoint) {
		assert.True(t, bits == traintest.Files(t, resumed.Checkpoint)[name], name)
	}
	_, err = train.Run(context.Background(), exampleRun(t, dir, "none", "hooks=[]", "data.document_mask=true"),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.ErrorContains(t, err, `data.separator: the tokenizer "bytes" has no token that ends documents`)
}

// TestValidationKnowsDocuments checks that validation of a run with data.document_mask attends within documents, and
// predicts nothing from their ends: in pipelines as on one device, and as gpupipe eval does later.
func TestValidationKnowsDocuments(t *testing.T) {
	dir := t.TempDir()
	losses := map[string]float64{}
	for name, keys := range map[string][]string{"plain": {"data.document_mask=false"}, "one stage": nil,
		"two stages": {"pipeline.stages=2"}} {
		keys = append([]string{"train.steps=1", "data.val_fraction=0.2", "train.eval_every=1", "train.eval_batches=0",
			"data.document_mask=true", "data.separator=10"}, keys...)
		if name == "plain" {
			keys = append(keys, "data.separator=auto")
		}
		c := exampleRun(t, dir, name, "hooks=[]", keys...)
		r, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		ev, err := inference.Evaluate(context.Background(), inference.EvalOptions{From: c.Run.Dir, BatchSize: 3,
			Target: inference.Target{Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}})
		require.NoError(t, err)
		assert.InEpsilon(t, *r.ValLoss, ev.Loss, 1e-6, name)
		assert.Equal(t, name != "plain", ev.Tokens%32 != 0, "%s: %d tokens are predicted", name, ev.Tokens)
		losses[name] = *r.ValLoss
	}
	assert.InEpsilon(t, losses["one stage"], losses["two stages"], 1e-6)
	assert.NotEqual(t, losses["plain"], losses["one stage"])
}

// TestHooksGetPackedDocuments checks that packing follows map_document, and that map_batch gets what was packed.
func TestHooksGetPackedDocuments(t *testing.T) {
	dir := t.TempDir()
	model := func(name, hooks string, keys ...string) string {
		c := exampleRun(t, dir, name, hooks, append([]string{"train.steps=2", "data.pack=best_fit", "data.document_mask=true",
			"data.separator=10"}, keys...)...)
		r, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		return traintest.Files(t, r.Checkpoint)["model.safetensors"]
	}
	plain := model("plain", "hooks=[]")
	idle := traintest.Guest(t, "idle.wasm", "", false, traintest.Hook("map_batch", w.Const(0)))
	assert.True(t, plain == model("idle", traintest.WithHooks(idle+", hook: map_batch")),
		"segments and weights are those of a run without hooks")

	raw, err := os.ReadFile(stories(t, dir))
	require.NoError(t, err)
	var kept []string
	for i, line := range strings.SplitAfter(strings.TrimSpace(string(raw)), "\n") {
		if i%2 == 0 {
			kept = append(kept, line)
		}
	}
	half := filepath.Join(dir, "half.jsonl")
	require.NoError(t, os.WriteFile(half, []byte(strings.Join(kept, "")), 0o666))
	mapped := model("mapped", traintest.WithHooks(every(t, true)+", hook: map_document"))
	assert.False(t, plain == mapped)
	assert.True(t, mapped == model("half", "hooks=[]", "data.train=["+half+"]"), "the documents that the hook keeps are packed")
}
