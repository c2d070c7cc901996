package data

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// otherTok has the tokens of byteTok under another hash.
type otherTok struct{ byteTok }

func (otherTok) Name() string { return "other" }
func (otherTok) Hash() string { return "other" }

// endTok is byteTok with an end of documents.
type endTok struct{ byteTok }

func (endTok) EOS() (uint32, bool) { return 7, true }

// TestShardsOfAnotherEnd checks that tokenizers of one vocabulary with different ends of documents are told apart.
func TestShardsOfAnotherEnd(t *testing.T) {
	o := PrepareOptions{Inputs: []string{write(t, "a.txt", "text")}, OutDir: t.TempDir(), Tokenizer: byteTok{}}
	m := prepare(t, o)
	shards := Options{Train: []string{filepath.Join(o.OutDir, "train_*.bin")}, Tokenizer: endTok{}, Vocab: 256}
	_, _, err := load(t, shards)
	assert.ErrorContains(t, err, `train_000001.bin: found documents that end with no token, expected token 7, as the tokenizer "bytes" says`)
	o.Tokenizer = endTok{}
	_, err = Prepare(t.Context(), o)
	assert.ErrorContains(t, err, "the shards there were made from other end of documents")
	m.End = nil // as an earlier version wrote it
	require.NoError(t, m.save(o.OutDir))
	_, _, err = load(t, shards)
	assert.NoError(t, err)
}

// TestShardsOfAnotherTokenizer checks that shards are refused with any tokenizer but theirs, wherever they are named.
func TestShardsOfAnotherTokenizer(t *testing.T) {
	dir := t.TempDir()
	lines := write(t, "a.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two\"}")
	prepare(t, PrepareOptions{Inputs: []string{lines}, OutDir: dir, Tokenizer: byteTok{}, ShardTokens: 4,
		Framing: tokenizer.Framing{BOS: tokenizer.BOSAuto}})
	shards := []string{filepath.Join(dir, "train_*.bin")}
	text := []string{write(t, "a.txt", "text")}
	const want = `/train_000001.bin: found tokens of the tokenizer "bytes" (bytes), expected those of "other" (other); the shards' manifest.json names their tokenizer`
	for key, o := range map[string]Options{
		"train":        {Train: shards},
		"val":          {Train: text, Val: shards},
		"mix[1].train": {Mix: []Source{{Train: text, Weight: 1}, {Train: shards, Weight: 1}}},
	} {
		o.Tokenizer, o.Vocab = otherTok{}, 256
		_, _, err := load(t, o)
		assert.ErrorContains(t, err, key+": "+dir+want)
		o.Tokenizer = byteTok{}
		_, _, err = load(t, o)
		assert.NoError(t, err)
	}
	o := Options{Train: shards, Tokenizer: byteTok{}, Vocab: 256, Framing: &tokenizer.Framing{SpecialText: tokenizer.SpecialAsToken,
		BOS: tokenizer.BOSNever}}
	_, _, err := load(t, o)
	assert.ErrorContains(t, err, "train_000001.bin: found shards that were made with bos auto, expected bos false, as data.bos says")
	o.Framing.BOS = tokenizer.BOSAuto
	_, _, err = load(t, o)
	assert.NoError(t, err)

	// Shards of other programs are of any tokenizer: without a manifest, with another's, or not in it.
	o.Tokenizer = otherTok{}
	alone := filepath.Join(t.TempDir(), "train_000001.bin")
	require.NoError(t, writeBin(alone, []uint32{1, 2}, 256))
	unlisted := filepath.Join(dir, "mine.bin")
	require.NoError(t, writeBin(unlisted, []uint32{1, 2}, 256))
	for _, path := range []string{alone, unlisted} {
		o.Train = []string{path}
		_, _, err = load(t, o)
		assert.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(alone), manifestName), []byte(`{"shards":[{"name":"train_000001.bin"}]}`),
		0o644))
	o.Train = []string{alone}
	_, _, err = load(t, o)
	assert.NoError(t, err)
}

// TestManifestsKeepTheFraming checks that a folder of shards is not continued with another framing, and that one of an
// earlier version is that of the defaults.
func TestManifestsKeepTheFraming(t *testing.T) {
	dir := t.TempDir()
	o := PrepareOptions{Inputs: []string{write(t, "a.txt", "text")}, OutDir: dir, Tokenizer: byteTok{}}
	prepare(t, o)
	o.Framing = tokenizer.Framing{SpecialText: tokenizer.SpecialAsToken, BOS: tokenizer.BOSNever}
	m := prepare(t, o)
	assert.Equal(t, "false", m.framing().BOS)
	o.Framing.SpecialText = tokenizer.SpecialAsText
	_, err := Prepare(t.Context(), o)
	assert.ErrorContains(t, err, "the shards there were made from other treatment of special tokens or BOS")
}
