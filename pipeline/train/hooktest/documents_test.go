package hooktest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/runtest"
	"github.com/gpupipe/gpupipe/internal/traintest"
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
	_, err = train.Run(context.Background(), exampleRun(t, dir, "none", "hooks=[]", "data.document_mask=true"), runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.ErrorContains(t, err, `data.separator: the tokenizer "bytes" has no token that ends documents`)
}
