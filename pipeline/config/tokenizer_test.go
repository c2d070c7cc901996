package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const sizes = "model={d_model: 16, n_layers: 1, n_heads: 2, d_ff: 24, seq_len: 16}"

func parsed(t *testing.T, overrides ...string) Config {
	t.Helper()
	c, err := Parse("c.yaml", nil, append([]string{"data.train=a.txt", "run.dir=r"}, overrides...))
	require.NoError(t, err)
	return c
}

func TestTheVocabularyIsTheTokenizers(t *testing.T) {
	assert.Equal(t, 256, parsed(t, sizes).Model.VocabSize)
	assert.Equal(t, 50257, parsed(t, sizes, "data.tokenizer=gpt2").Model.VocabSize)
	assert.Equal(t, 300, parsed(t, sizes, "model.vocab_size=300").Model.VocabSize, "an explicit size holds")
	assert.Equal(t, 50257, parsed(t, "model.preset=tiny", "data.tokenizer=gpt2").Model.VocabSize)
	assert.Equal(t, 49152, parsed(t, "model.preset=smollm2-135m").Model.VocabSize, "a preset's vocabulary may be larger")
	for _, name := range []string{"bytes", "gpt2"} {
		tok, err := tokenizer.Open(name)
		require.NoError(t, err)
		size, err := tokenizer.VocabSize(name)
		require.NoError(t, err)
		assert.Equal(t, tok.VocabSize(), size)
	}
	_, err := Parse("c.yaml", []byte("data: {train: a.txt, tokenizer: none.json}\nrun: {dir: r}\nmodel: {d_model: 16}\n"), nil)
	require.ErrorContains(t, err, `c.yaml:1: data.tokenizer: tokenizer "none.json": no such file`)
}

func TestATextIsAListOfOne(t *testing.T) {
	c := parsed(t, "model.preset=tiny", "data.val=b.txt", "data.val_fraction=0", "data.aligned=t.safetensors", "pipeline.devices=null:0")
	assert.Equal(t, [][]string{{"a.txt"}, {"b.txt"}, {"t.safetensors"}, {"null:0"}},
		[][]string{c.Data.Train, c.Data.Val, c.Data.Aligned, c.Pipeline.Devices})
	again, err := Parse("kept.yaml", c.YAML(), nil)
	require.NoError(t, err)
	assert.Equal(t, string(c.YAML()), string(again.YAML()))
}

// weights is a folder of initial weights, with a tokenizer unless that is nil.
func weights(t *testing.T, vocab int, tok []byte) string {
	t.Helper()
	dir := t.TempDir()
	m := model.Defaults()
	m.VocabSize, m.DModel, m.NLayers, m.NHeads, m.NKVHeads, m.FFN.DFF, m.SeqLen = vocab, 16, 1, 2, 2, 24, 16
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), m.HuggingFace(), 0o666))
	if tok != nil {
		require.NoError(t, os.WriteFile(filepath.Join(dir, tokenizer.File), tok, 0o666))
	}
	return dir
}

func TestInitialWeightsBringTheirTokenizer(t *testing.T) {
	tok, err := tokenizer.Open("bytes")
	require.NoError(t, err)
	with := weights(t, 300, tok.JSON())
	c := parsed(t, "init.from="+with)
	assert.Equal(t, filepath.Join(with, "tokenizer.json"), c.Data.Tokenizer)
	assert.Equal(t, 300, c.Model.VocabSize)
	assert.Equal(t, "bytes", parsed(t, "init.from="+with, "data.tokenizer=bytes").Data.Tokenizer, "an explicit one holds")

	assert.Equal(t, "bytes", parsed(t, "init.from="+weights(t, 256, nil)).Data.Tokenizer, "a model for bytes")
	without := weights(t, 300, nil)
	_, err = Parse("c.yaml", nil, []string{"data.train=a.txt", "run.dir=r", "init.from=" + without})
	require.ErrorContains(t, err, "init.from: "+without+" has no "+tokenizer.Names()+", and its vocabulary of 300 is not that of bytes: expected data.tokenizer to name")
	assert.Equal(t, 300, parsed(t, "init.from="+without, "data.tokenizer=bytes").Model.VocabSize)
}
