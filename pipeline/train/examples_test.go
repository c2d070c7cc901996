package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	dedupHook      = "deduplicate.wasm, hook: map_document, config: {threshold: 0.7}"
	infillHook     = "fill_in_the_middle.wasm, hook: map_document, seed: 5, config: {rate: 0.5, prefix: \"<\", suffix: \"|\", middle: \">\", end: \"\\n\"}"
	packingHook    = "packing.wasm, hook: map_batch, config: {separator: 10, waiting: 100}"
	maskHook       = "document_mask.wasm, hook: map_batch, config: {separator: 10}"
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
			words = append(words, []string{"the", "cat", "sat", "under", "another", "mat", "and", "saw", "ten", "red", "hats"}[rng.IntN(11)])
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
	return demo(t, dir, append([]string{"data.train=[" + stories(t, dir) + "]", "data.shuffle=false", "data.val_fraction=0",
		"model={vocab_size: 256, d_model: 16, n_layers: 2, n_heads: 2, d_ff: 24, seq_len: 32}", "train.batch_size=8", "train.eval_every=0",
		"train.steps=20", "optimizer.lr=0.02", "lr.schedule=constant", "run.dir=" + filepath.Join(dir, name), hooks}, overrides...)...)
}

// A run on a device with the examples for deduplication, fill-in-the-middle, packing, a length curriculum and an
// annealed loss learns. Then a smaller model learns from its predictions.
func TestExamplesTrainTogether(t *testing.T) {
	dir := t.TempDir()
	n := &notes{}
	teacher, err := Run(context.Background(), exampleRun(t, dir, "teacher", hooked(dedupHook, infillHook, packingHook, curriculumHook, annealedHook)),
		Options{OpenDevice: openGPU, Report: n})
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.text, "\n"), "deduplicate.wasm: 240 documents became 16", "a third are nearly others")
	require.Len(t, n.steps, 20)
	assert.Less(t, n.steps[19].Loss, 0.75*n.steps[0].Loss)

	out, err := inference.TopK(context.Background(), inference.TopKOptions{From: teacher.Checkpoint, K: 4, Out: filepath.Join(dir, "teacher.safetensors"), BatchSize: 8, Target: inference.Target{Open: openGPU}})
	require.NoError(t, err)
	n = &notes{}
	c := exampleRun(t, dir, "student", hooked(dedupHook, infillHook, maskHook, distilledHook), "data.aligned=["+out.Out+"]", "model.d_model=8", "model.d_ff=12")
	_, err = Run(context.Background(), c, Options{OpenDevice: openGPU, Report: n})
	require.NoError(t, err)
	assert.Less(t, n.steps[19].Loss, 0.75*n.steps[0].Loss)
}

// A run that is interrupted while documents wait to be packed, and resumed, gives the same bits.
func TestExamplesResume(t *testing.T) {
	dir := t.TempDir()
	configure := func(name string) config.Config {
		return exampleRun(t, dir, name, hooked("quality_filter.wasm, hook: map_document, config: {least_words: 10}", dedupHook, infillHook, packingHook, curriculumHook, annealedHook), "train.steps=7", "pipeline.stages=2", "pipeline.delay=1")
	}
	n := &notes{}
	whole, err := Run(context.Background(), configure("whole"), options(&reference{}, n))
	require.NoError(t, err)
	text := strings.Join(n.text, "\n")
	assert.Regexp(t, `quality_filter.wasm: 240 documents became 2[0-3]\d\n.*deduplicate.wasm: 2[0-3]\d documents became 1\d\d\n`, text)
	ctx, cancel := context.WithCancel(context.Background())
	part, err := Run(ctx, configure("part"), options(&reference{}, &notes{step: func(p Progress) {
		if p.Step == 3 {
			cancel()
		}
	}}))
	require.NoError(t, err)
	require.True(t, part.Interrupted)
	o := options(&reference{}, &notes{})
	o.Resume = true
	resumed, err := Run(context.Background(), configure("part"), o)
	require.NoError(t, err)
	for name, bits := range files(t, whole.Checkpoint) {
		assert.True(t, bits == files(t, resumed.Checkpoint)[name], name)
	}
	assert.Equal(t, measurements(t, configure("whole").Run.Dir), measurements(t, configure("part").Run.Dir))
}
