package hooktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/gputest"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	dedupHook      = "deduplicate.wasm, hook: map_document, config: {threshold: 0.7}"
	infillHook     = "fill_in_the_middle.wasm, hook: map_document, seed: 5, config: {rate: 0.5, prefix: \"<\", suffix: \"|\", middle: \">\", end: \"\\n\"}"
	packingHook    = "packing.wasm, hook: map_batch, config: {separator: 10, waiting: 100}"
	curriculumHook = "length_curriculum.wasm, hook: map_batch, config: {start: 4, multiple: 4}"
	annealedHook   = "annealed_smoothing.wasm, hook: build_loss, config: {from: 0.2, z: 0.0001}"
	distilledHook  = "distillation.wasm, hook: build_loss, config: {alpha: 0.3, temperature: 2}"
)

// stories is a file of short documents, of which every third is nearly the one before it.
func stories(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "stories.jsonl")
	rng := rand.New(rand.NewPCG(3, 1))
	var b strings.Builder
	before := ""
	for i := range 240 {
		var words []string
		for range 8 + rng.IntN(14) {
			words = append(words, []string{"the", "cat", "sat", "under", "another", "mat", "and", "saw", "ten", "red",
				"hats"}[rng.IntN(11)])
		}
		text := strings.Join(words, " ")
		if i%3 == 2 {
			text = before + " too"
		}
		before = text
		fmt.Fprintf(&b, "{\"text\": \"%s.\\n\"}\n", text)
	}
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o666))
	return path
}

// exampleRun is a run of a tiny model on such documents.
func exampleRun(t *testing.T, dir, name, hooks string, overrides ...string) config.Config {
	t.Helper()
	return traintest.Demo(t, dir, append([]string{"data.train=[" + stories(t, dir) + "]", "data.shuffle=false", "data.val_fraction=0",
		"model={vocab_size: 256, d_model: 16, n_layers: 2, n_heads: 2, d_ff: 24, seq_len: 32}", "train.batch_size=8", "train.eval_every=0",
		"train.steps=20", "optimizer={name: adamw, lr: 0.02}", "lr.schedule=constant", "run.dir=" + filepath.Join(dir, name), hooks}, overrides...)...)
}

// A run on a device with the examples for deduplication, fill-in-the-middle, packing, a length curriculum and an
// annealed loss learns. Then a smaller model learns from its predictions.
func TestExamplesTrainTogether(t *testing.T) {
	dir := t.TempDir()
	n := &runtest.Notes{}
	teacher, err := train.Run(context.Background(),
		exampleRun(t, dir, "teacher", traintest.Hooked(dedupHook, infillHook, packingHook, curriculumHook, annealedHook)),
		train.Options{Devices: train.DeviceOptions{Open: gputest.Open}, Report: n})
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.Text, "\n"), "deduplicate.wasm: 240 documents became 16", "a third are nearly others")
	require.Len(t, n.Steps, 20)
	assert.Less(t, n.Steps[19].Loss, 0.75*n.Steps[0].Loss)

	out, err := inference.TopK(context.Background(), inference.TopKOptions{From: teacher.Checkpoint, K: 4,
		Out: filepath.Join(dir, "teacher.safetensors"), BatchSize: 8, Target: inference.Target{Open: gputest.Open}})
	require.NoError(t, err)
	n = &runtest.Notes{}
	c := exampleRun(t, dir, "student", traintest.Hooked(dedupHook, infillHook, traintest.MaskHook, distilledHook),
		"data.aligned=["+out.Out+"]", "model.d_model=8", "model.d_ff=12")
	_, err = train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: gputest.Open}, Report: n})
	require.NoError(t, err)
	assert.Less(t, n.Steps[19].Loss, 0.75*n.Steps[0].Loss)
}

// A run that is interrupted while documents wait to be packed, and resumed, gives the same bits.
func TestExamplesResume(t *testing.T) {
	dir := t.TempDir()
	configure := func(name string) config.Config {
		return exampleRun(t, dir, name, traintest.Hooked("quality_filter.wasm, hook: map_document, config: {least_words: 10}", dedupHook,
			infillHook, packingHook, curriculumHook, annealedHook), "train.steps=7", "pipeline.stages=2", "pipeline.delay=1")
	}
	n := &runtest.Notes{}
	whole, err := train.Run(context.Background(), configure("whole"), runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err)
	text := strings.Join(n.Text, "\n")
	assert.Regexp(t, `quality_filter.wasm: 240 documents became 2[0-3]\d\n.*deduplicate.wasm: 2[0-3]\d documents became 1\d\d\n`, text)
	ctx, cancel := context.WithCancel(context.Background())
	part, err := train.Run(ctx, configure("part"), runtest.Options(&traintest.Reference{}, &runtest.Notes{OnStep: func(p train.Progress) {
		if p.Step == 3 {
			cancel()
		}
	}}))
	require.NoError(t, err)
	require.True(t, part.Interrupted)
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.Resume = true
	resumed, err := train.Run(context.Background(), configure("part"), o)
	require.NoError(t, err)
	for name, bits := range traintest.Files(t, whole.Checkpoint) {
		assert.True(t, bits == traintest.Files(t, resumed.Checkpoint)[name], name)
	}
	assert.Equal(t, traintest.Measurements(t, configure("whole").Run.Dir), traintest.Measurements(t, configure("part").Run.Dir))
}
