package train_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wired configures runs in a folder that differ in their layouts and wire formats.
func wired(t *testing.T, dir string) func(run string, overrides ...string) config.Config {
	return func(run string, overrides ...string) config.Config {
		return traintest.Demo(t, dir, append([]string{"model={vocab_size: 256, d_model: 8, n_layers: 3, n_heads: 2, d_ff: 12, seq_len: 8, tie_embeddings: true}",
			"train={steps: 12, batch_size: 4, microbatches: 4, eval_every: 3, eval_batches: 1, save_every: 0, grad_clip: 0.5}",
			"run.dir=" + filepath.Join(dir, run)}, overrides...)...)
	}
}

// A run in any wire format that is stopped and resumed has the bits of one that was never stopped. It keeps the cut of
// the first leg where the config leaves it open. Runs in other formats have other bits, and so have their evaluations.
func TestResumeInWireFormats(t *testing.T) {
	configure := wired(t, t.TempDir())
	deep := []string{"pipeline.schedule=2bw", "pipeline.stages=3", "pipeline.error_feedback=true", "pipeline.cut=[1, 4]"}
	interleaved := []string{"pipeline.schedule=interleaved", "pipeline.stages=2", "pipeline.cut=[1, 3, 4]"}
	seen := map[string]bool{}
	type run struct{ layout, formats []string }
	for i, c := range tier.Some(t, []run{
		{deep, nil},
		{deep, []string{"pipeline.wire=int8"}},
		{deep, []string{"pipeline.wire=bf16"}},
		{deep, []string{"pipeline.wire_exchange=bf16"}},
		{interleaved, nil},
		{interleaved, []string{"pipeline.wire=int8", "pipeline.wire_exchange=bf16"}},
	}, tier.First[run](2)) {
		set := slices.Concat(c.layout, c.formats)
		open := slices.Concat(c.layout[:len(c.layout)-1], c.formats) // the planner chooses the cut
		whole := runtest.Until(t, configure(fmt.Sprint("whole", i), set...), 0)
		runtest.Until(t, configure(fmt.Sprint("legs", i), set...), 4)
		runtest.Until(t, configure(fmt.Sprint("legs", i), open...), 6)
		last := runtest.Until(t, configure(fmt.Sprint("legs", i), open...), 0)
		_, cut := traintest.JSONOf(t, filepath.Join(last.Checkpoint, "state.json"))["cut"]
		assert.Equal(t, c.formats != nil, cut, "%v", set)
		want := traintest.Files(t, whole.Checkpoint)
		assert.Equal(t, want, traintest.Files(t, last.Checkpoint), "%v", set)
		records := traintest.Measurements(t, whole.Dir)
		assert.Equal(t, records, traintest.Measurements(t, last.Dir), "%v", set)
		for _, result := range []string{want["model.safetensors"], fmt.Sprint(c.layout, records[2].Values["val_loss"])} {
			assert.False(t, seen[result], "%v", set)
			seen[result] = true
		}
	}
}

// The wire format may change when a run is resumed, and the run reports that.
func TestResumeInAnotherWireFormat(t *testing.T) {
	configure := wired(t, t.TempDir())
	runtest.Until(t, configure("run", "pipeline.stages=2", "pipeline.wire=int8"), 3)
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Resume = true
	res, err := train.Run(t.Context(), configure("run", "pipeline.stages=1", "pipeline.wire_exchange=bf16"), o)
	require.NoError(t, err)
	assert.Equal(t, 12, res.Step)
	assert.Contains(t, n.Text, "pipeline.wire: the checkpoint has int8, the config f32: the new value is used")
	assert.Contains(t, n.Text, "pipeline.wire_exchange: the checkpoint has f32, the config bf16: the new value is used")
}

// A run that resumes with as many virtual stages, and leaves the cut to the planner, reports which one it keeps.
func TestResumeKeepsTheCutOfRoundedTensors(t *testing.T) {
	configure := wired(t, t.TempDir())
	type leg struct {
		overrides []string
		units     [2]int // of the first stage
		kept      bool
	}
	for i, c := range tier.Divide(t, []leg{
		{[]string{"pipeline.stages=2", "pipeline.wire=bf16"}, [2]int{0, 1}, true},
		{[]string{"pipeline.stages=2", "pipeline.wire=bf16", "pipeline.cut=[layers.1.mlp]"}, [2]int{0, 4}, false},
		{[]string{"pipeline.stages=1", "pipeline.wire=bf16"}, [2]int{0, 8}, false},
	}, tier.First[leg](2)) {
		run := fmt.Sprint("run", i)
		first := runtest.Until(t, configure(run, "pipeline.stages=2", "pipeline.wire=bf16", "pipeline.cut=[1]"), 3)
		n := &runtest.Notes{}
		o := runtest.Options(&traintest.Reference{}, n)
		o.Resume = true
		_, err := train.Run(t.Context(), configure(run, c.overrides...), o)
		require.NoError(t, err)
		assert.Equal(t, c.units, n.Started.Ranks[0].Units[0])
		kept := slices.Contains(n.Text, "pipeline.cut: [layers.0], as in "+first.Checkpoint+": with pipeline.wire the bits depend on it")
		assert.Equal(t, c.kept, kept, "%v", n.Text)
	}
}
