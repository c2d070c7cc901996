package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mapFunc is a Mapper.
type mapFunc func(index int64, text []byte) ([][]byte, error)

func (f mapFunc) Map(_ context.Context, index int64, text []byte) ([][]byte, error) {
	return f(index, text)
}

// mappedFiles are two jsonl files and a text file.
func mappedFiles(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	var names []string
	for f := range 2 {
		var b strings.Builder
		for i := range 150 {
			fmt.Fprintf(&b, "{\"text\": \"file %d line %d %s\"}\n\n", f, i, strings.Repeat("x", i%7))
		}
		names = append(names, filepath.Join(dir, fmt.Sprint(f, ".jsonl")))
		require.NoError(t, os.WriteFile(names[f], []byte(b.String()), 0o666))
	}
	names = append(names, filepath.Join(dir, "a.txt"))
	require.NoError(t, os.WriteFile(names[2], []byte("all of it"), 0o666))
	return names
}

func text(t *testing.T, c *Corpus) string {
	t.Helper()
	var b strings.Builder
	for _, s := range c.tokenFiles {
		ids := make([]int32, s.n)
		require.NoError(t, s.read(ids, 0))
		for _, id := range ids {
			b.WriteByte(byte(id))
		}
	}
	return b.String()
}

// A mapper drops, rewrites and splits documents. Documents are numbered across files.
func TestMappedDocuments(t *testing.T) {
	o := Options{Train: mappedFiles(t), Tokenizer: byteTok{}, Vocab: 256, SeqLen: 8}
	o.Map = mapFunc(func(i int64, text []byte) ([][]byte, error) {
		switch {
		case i%3 == 0:
			return nil, nil
		case i%3 == 1:
			return [][]byte{fmt.Appendf(nil, "%d:%s;", i, text)}, nil
		}
		return [][]byte{[]byte("two "), {}, fmt.Appendf(nil, "of %d;", i)}, nil
	})
	want := ""
	for i := range 301 {
		text := fmt.Sprintf("file %d line %d %s", i/150, i%150, strings.Repeat("x", i%150%7))
		if i == 300 {
			text = "all of it"
		}
		switch i % 3 {
		case 1:
			want += fmt.Sprintf("%d:%s;", i, text)
		case 2:
			want += fmt.Sprintf("two of %d;", i)
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, n := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(n)
		c, _, err := Load(context.Background(), o)
		require.NoError(t, err)
		assert.Equal(t, want, text(t, c), "%d at a time", n)
		assert.EqualValues(t, 300, c.Stats().Documents)
		assert.EqualValues(t, 301, c.mapped)
		require.NoError(t, c.Close())
	}
}

// Validation files are not mapped.
func TestOnlyTrainingTextIsMapped(t *testing.T) {
	names := mappedFiles(t)
	o := Options{Train: names[:1], Val: names[2:], Tokenizer: byteTok{}, Vocab: 256, SeqLen: 8}
	o.Map = mapFunc(func(int64, []byte) ([][]byte, error) { return [][]byte{[]byte("y")}, nil })
	train, val, err := Load(context.Background(), o)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("y", 150), text(t, train))
	assert.Equal(t, "all of it", text(t, val))
	require.NoError(t, errors.Join(train.Close(), val.Close()))
}

// A document that grows beyond a piece is encoded like any other.
func TestMappedDocumentsMayGrow(t *testing.T) {
	o := Options{Train: mappedFiles(t)[2:], Tokenizer: byteTok{}, Vocab: 256, SeqLen: 8}
	large := bytes.Repeat([]byte("line of text\n"), 3*pieceSize/13)
	o.Map = mapFunc(func(int64, []byte) ([][]byte, error) { return [][]byte{large}, nil })
	c, _, err := Load(context.Background(), o)
	require.NoError(t, err)
	assert.True(t, string(large) == text(t, c))
	assert.EqualValues(t, 1, c.Stats().Documents)
	require.NoError(t, c.Close())
}

func TestMappingFails(t *testing.T) {
	names := mappedFiles(t)
	o := Options{Train: names, Tokenizer: byteTok{}, Vocab: 256, SeqLen: 8}
	var running sync.WaitGroup
	o.Map = mapFunc(func(i int64, text []byte) ([][]byte, error) {
		running.Add(1)
		defer running.Done()
		if i == 170 {
			return nil, errors.New("it does not like it")
		}
		return [][]byte{text}, nil
	})
	_, _, err := Load(context.Background(), o)
	assert.ErrorContains(t, err, "1.jsonl: the document at offset ")
	assert.ErrorContains(t, err, "it does not like it")
	running.Wait() // all have come back before

	o.Map = mapFunc(func(int64, []byte) ([][]byte, error) { return nil, nil })
	_, _, err = Load(context.Background(), o)
	assert.ErrorContains(t, err, "the corpus has no tokens: hooks dropped all of its 301 documents")

	shard := filepath.Join(t.TempDir(), "a.bin")
	require.NoError(t, os.WriteFile(shard, make([]byte, 2000), 0o666))
	o.Train = []string{shard}
	_, _, err = Load(context.Background(), o)
	assert.ErrorContains(t, err, "a.bin: token shards have no documents for a hook to map")
}
