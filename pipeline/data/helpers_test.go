package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// byteTok has one token per byte and none for the end of a document.
type byteTok struct{}

func (byteTok) Name() string        { return "bytes" }
func (byteTok) VocabSize() int      { return 256 }
func (byteTok) EOS() (uint32, bool) { return 0, false }
func (byteTok) Hash() string        { return "bytes" }
func (byteTok) EncodePart(text []byte, _ bool) ([]uint32, error) {
	ids := make([]uint32, len(text))
	for i, b := range text {
		ids[i] = uint32(b)
	}
	return ids, nil
}

// wordTok has a token for each word, 1 before every document and 0 after it. It fails with the error fail.
type wordTok struct {
	vocab uint32
	fail  func() bool
}

func (wordTok) Name() string        { return "words" }
func (w wordTok) VocabSize() int    { return int(w.vocab) }
func (wordTok) EOS() (uint32, bool) { return 0, true }
func (w wordTok) Hash() string      { return fmt.Sprint("words", w.vocab) }
func (w wordTok) EncodePart(text []byte, first bool) ([]uint32, error) {
	if w.fail != nil && w.fail() {
		return nil, errInjected
	}
	var ids []uint32
	if first {
		ids = append(ids, 1)
	}
	for _, word := range bytes.Fields(text) {
		h := crc32.ChecksumIEEE(word)
		ids = append(ids, 2+h%(w.vocab-2))
	}
	return ids, nil
}

var errInjected = errors.New("injected")

// write makes a file in a new folder of the test.
func write(t testing.TB, name, content string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// words is text of at least n bytes, in lines and paragraphs.
func words(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		sep := " "
		switch {
		case i%97 == 96:
			sep = "\n\n"
		case i%11 == 10:
			sep = "\n"
		}
		fmt.Fprintf(&b, "somewhat-long-word%d%s", i*i%1009, sep)
	}
	return b.String()
}

func load(t testing.TB, o Options) (*Corpus, *Corpus, error) {
	train, val, err := Load(context.Background(), o)
	t.Cleanup(func() {
		if err == nil {
			train.Close()
		}
	})
	return train, val, err
}

func tokensOf(t testing.TB, c *Corpus) []int32 {
	ids := make([]int32, c.Len())
	require.NoError(t, c.Read(ids, 0))
	return ids
}

// fromInts is a corpus in memory.
func fromInts(t testing.TB, ids []uint32, vocab int) *Corpus {
	w := memWidth(vocab)
	buf := make([]byte, 0, len(ids)*w)
	for _, id := range ids {
		require.Less(t, int64(id), int64(vocab))
		buf = appendToken(buf, id, w)
	}
	c := &Corpus{vocab: vocab, stats: Stats{Files: 1, Bytes: int64(len(buf))}}
	c.append(tokenFile{path: "test", r: bytes.NewReader(buf), width: w, n: int64(len(ids))})
	c.spans = []span{{to: c.tokens()}}
	require.NoError(t, c.seal())
	return c
}

func iota32(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i)
	}
	return ids
}

// writeBin writes tokens as one llm.c shard: uint16 where vocab is at most 65,536, else uint32. The file appears whole
// or not at all.
func writeBin(path string, tokens []uint32, vocab int) error {
	if len(tokens) == 0 || len(tokens) > MaxShard {
		return fmt.Errorf("%s: %d tokens: expected 1 to %d", path, len(tokens), MaxShard)
	}
	w, err := newShardWriter(filepath.Dir(path), binWidth(vocab))
	if err != nil {
		return err
	}
	defer w.discard()
	for i, id := range tokens {
		if int64(id) >= int64(vocab) {
			return outside(path, id, int64(i), vocab)
		}
		if err := w.token(id); err != nil {
			return err
		}
	}
	return w.finish(path)
}
