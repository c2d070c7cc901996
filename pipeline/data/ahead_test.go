package data

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asked is Arrivals of files that are there, and counts those that are asked for.
type asked struct{ n int }

func (a *asked) Await(context.Context, string) error { a.n++; return nil }
func (a *asked) Progress() (done, total int64)       { return 0, 0 }

// However long a stream is, what is read before it is used is bounded, and tokens do not stay in memory.
func TestStreamIsReadAsFarAsNeeded(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for i := range 20 {
		files = append(files, filepath.Join(dir, fmt.Sprintf("%02d.txt", i)))
		require.NoError(t, os.WriteFile(files[i], []byte(words(100)[:100]), 0o666)) // 12 windows, three batches
	}
	all, _, err := load(t, streamed(files, nil))
	require.NoError(t, err)
	want := trained(t, reading(t, all, streamConfig), 0, 80, patient)
	for tokens, ahead := range map[int64]int{1: 1, 100: 1, 101: 2, 250: 3} {
		scratch := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			var a asked
			o := streamed(files, nil)
			o.Arrivals = &a
			text, _, err := Load(t.Context(), o)
			require.NoError(t, err)
			defer func() { assert.NoError(t, text.Close()) }()
			text.rest.ahead = tokens
			b := batcher(t, text, streamConfig)
			synctest.Wait()
			assert.Equal(t, 1, a.n, "nothing is read before ReadAhead")
			b.ReadAhead(scratch)
			synctest.Wait()
			assert.Equal(t, 1+ahead, a.n)
			var got []any
			for step := range int64(80) {
				got = append(got, trained(t, b, step, step+1, patient)...)
				synctest.Wait()
				inUse := (int(step) + 1) / 3 // a window of the first file is held out
				assert.Equal(t, min(inUse+1+ahead, len(files)), a.n, "at step %d, %d tokens ahead", step, tokens)
			}
			assert.Equal(t, want, got)
			for _, part := range text.rest.parts {
				for _, f := range part.tokenFiles {
					assert.Same(t, text.rest.spill.file, f.r, "in the temporary file")
				}
			}
		})
		left, err := os.ReadDir(scratch)
		require.NoError(t, err)
		assert.Empty(t, left)
	}
}

func TestTokensOfAKilledRunAreRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[run]")
	require.NoError(t, os.Mkdir(dir, 0o777))
	left := filepath.Join(dir, spillPrefix+"1")
	require.NoError(t, os.WriteFile(left, nil, 0o666))
	text, _, err := load(t, streamed(streamedFiles(t), nil))
	require.NoError(t, err)
	b := batcher(t, text, streamConfig)
	b.ReadAhead(dir)
	require.NoError(t, b.Await(t.Context(), 1000, patient))
	assert.NoFileExists(t, left)
	require.NoError(t, text.Close())

	text, _, err = load(t, streamed(streamedFiles(t), nil))
	require.NoError(t, err)
	b = batcher(t, text, streamConfig)
	b.ReadAhead(filepath.Join(dir, "none"))
	require.ErrorContains(t, b.Await(t.Context(), 1000, patient), "keeping the tokens of ")
	_, _, err = b.Batch(0)
	require.NoError(t, err)
}

// What is found behind the first part is said once: when all is read, or at the end of a run that has not read all.
func TestStreamSaysWhatItFinds(t *testing.T) {
	files := []string{write(t, "a.jsonl", `{"text": "`+words(200)[:90]+`"}`+"\n"),
		write(t, "b.jsonl", `{"text": null}`+"\n"+`{"text": "`+words(200)[:90]+`"}`+"\n"), write(t, "c.jsonl", `{"text": ""}`+"\n")}
	start := func(arrived int) (*Corpus, *Batcher) {
		g := newGate(files)
		g.let(arrived, nil)
		text, _, err := load(t, streamed(files, g))
		require.NoError(t, err)
		return text, reading(t, text, streamConfig)
	}
	text, b := start(3)
	require.NoError(t, b.Await(t.Context(), 1000, patient))
	want := []string{"documents without text are skipped: 1 null, 1 empty", "files without a document are skipped: " + files[2],
		"the tokenizer has no token that ends a document: 2 documents are joined without one"}
	assert.Equal(t, append(want, fmt.Sprintf("all 3 files are read: %d tokens", text.Len()+text.rest.parts[0].Len())), text.Late(false))
	assert.Empty(t, text.Late(true), "it was said")

	text, b = start(2)
	errStop := fmt.Errorf("stop")
	require.ErrorIs(t, b.Await(t.Context(), 1000, func(w Waiting) error {
		if w.Number < 3 {
			return nil
		}
		return errStop
	}), errStop)
	assert.Empty(t, text.Late(false), "not all is read")
	assert.Equal(t, []string{"documents without text are skipped: 1 null, 0 empty", want[2]}, text.Late(true))
	assert.Empty(t, text.Late(true))
	read, all := text.Files()
	assert.Equal(t, [2]int{1, 3}, [2]int{read, all})
}
