package inference

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A GGUF file in f32 is the model, to the last bit: it is opened, exported again, and trained from.
func TestGGUFIsTheModel(t *testing.T) {
	run := everyStep(t, "pipeline.delay=1", "pipeline.error_feedback=true", "pipeline.stages=2")
	for _, w := range []Version{VersionX, VersionY} {
		path := filepath.Join(t.TempDir(), "a", "model.gguf")
		var notes []string
		var done, total int64
		e := export(t, ExportOptions{From: run, Weights: w, Format: FormatGGUF, Out: path,
			Note:     func(format string, _ ...any) { notes = append(notes, format) },
			Progress: func(d, n int64) { done, total = d, n }})
		assert.Equal(t, []any{[]string{"model.gguf"}, 4 * e.Parameters, e.Bytes, e.Bytes}, []any{e.Files, e.Bytes, done, total})
		assert.Contains(t, strings.Join(notes, "\n"), "has no token that ends a document")
		folder := filepath.Join(t.TempDir(), "hf")
		export(t, ExportOptions{From: path, Out: folder})
		assert.Equal(t, version(t, run, w), version(t, folder, VersionX))

		c, err := config.ReadModel(path)
		require.NoError(t, err)
		from, err := weights.Open(path, c)
		require.NoError(t, err)
		defer from.Close()
		wide := c
		wide.FFN.DFF *= 2
		_, err = weights.Open(path, wide)
		assert.ErrorContains(t, err, `model.gguf: tensor "blk.0.ffn_gate.weight" has shape`)
	}
}

func TestGGUFNumberFormats(t *testing.T) {
	run := everyStep(t)
	dir := t.TempDir()
	sizes := map[string]int64{}
	for _, dtype := range []string{"f32", "f16", "bf16", "q8_0"} {
		out := filepath.Join(dir, dtype+".gguf")
		sizes[dtype] = export(t, ExportOptions{From: run, Format: FormatGGUF, DType: dtype, Out: out}).Bytes
		src, err := OpenModel(out, "")
		require.NoError(t, err)
		assert.Equal(t, 256, src.Tokenizer.VocabSize())
		require.NoError(t, src.Close())
	}
	assert.Equal(t, sizes["f16"], sizes["bf16"])
	assert.Less(t, sizes["f16"], sizes["f32"])
	assert.LessOrEqual(t, sizes["q8_0"], sizes["f16"])
}

func TestGGUFMistakes(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte("text"), 0o666))
	for want, o := range map[string]ExportOptions{
		`dtype: found "int4", expected f32, f16, bf16 or q8_0`: {DType: "int4", Out: filepath.Join(dir, "x.gguf")},
		"out: found nothing":                                     {},
		"a folder, expected a file to make, such as":             {Out: dir},
		"text.txt: a file that is not GGUF: choose another name": {Out: text},
	} {
		o.Format, o.From = FormatGGUF, dir
		_, err := Export(context.Background(), o)
		assert.ErrorContains(t, err, want)
	}
}
