package data

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStatistics checks the statistics of runs that end everywhere, and of ones that are resumed after every shard.
func TestStatistics(t *testing.T) {
	var lines strings.Builder
	texts, size := map[string]int64{}, int64(0)
	add := func(text string) {
		line, err := json.Marshal(map[string]string{"text": text})
		require.NoError(t, err)
		lines.Write(append(line, '\n'))
		texts[text]++
		size += int64(len(text))
	}
	for i := range 30 {
		add(fmt.Sprint("document ", i%23, " of a few words"))
		if i%10 == 0 {
			add(words(pieceSize * 3 / 2)) // of two pieces, three times the same
		}
	}
	duplicates := int64(1) // of the held-out document
	for _, n := range texts {
		duplicates += n - 1
	}
	six := strings.Repeat(`{"text": "six words and an end mark"}`+"\n", 5)
	for _, c := range []struct {
		lines                        string
		shard                        int64
		documents, bytes, duplicates int64
	}{
		{lines.String(), 60_000, 34, size + 25, duplicates},
		{lines.String(), 100_000_000, 34, size + 25, duplicates},
		{six, 7, 6, 150, 4}, // shards that end where documents do
	} {
		dir := t.TempDir()
		m := prepare(t, PrepareOptions{Inputs: []string{write(t, "a.jsonl", c.lines)},
			Val:    []string{write(t, "b.txt", "document 3 of a few words")},
			OutDir: dir, Tokenizer: wordTok{vocab: 5000}, ShardTokens: c.shard})
		want := Statistics{Documents: c.documents, Bytes: c.bytes, Duplicates: &c.duplicates}
		for _, s := range m.Shards {
			want.Tokens += s.Tokens
		}
		want.BytesPerToken = float64(want.Bytes) / float64(want.Tokens)
		require.Equal(t, want, *m.Statistics, "shards of %d", c.shard)
		assert.NoFileExists(t, filepath.Join(dir, hashLogName))
	}
}

// TestStatisticsOfAResumedRun stops a run after each shard.
func TestStatisticsOfAResumedRun(t *testing.T) {
	var lines strings.Builder
	for i := range 400 {
		fmt.Fprintf(&lines, "{\"text\": %q}\n", fmt.Sprint("document ", i%90, " of a few words"))
	}
	o := PrepareOptions{Inputs: []string{write(t, "a.jsonl", lines.String())},
		Val:       []string{write(t, "b.txt", "document 3 of a few words")},
		Tokenizer: wordTok{vocab: 5000}, ShardTokens: 777, OutDir: t.TempDir()}
	want := prepare(t, o)
	assert.EqualValues(t, 401-90, *want.Statistics.Duplicates)
	o.OutDir = t.TempDir()
	var got *Manifest
	for stops := 1; got == nil; stops++ {
		ctx, stop := context.WithCancel(context.Background())
		o.Progress = func(_, _ int64, shards int) {
			if shards == stops {
				stop()
			}
		}
		m, err := Prepare(ctx, o)
		if stop(); err == nil {
			got = m
		}
		require.Less(t, stops, 20)
	}
	assert.Equal(t, want.Statistics, got.Statistics)
	require.NoError(t, os.Remove(filepath.Join(o.OutDir, "train_000002.bin")))
	o.Progress = nil
	repaired := prepare(t, o)
	assert.Nil(t, repaired.Statistics.Duplicates, "the log is gone")
	assert.Equal(t, want.Statistics.Documents, repaired.Statistics.Documents)
}

func TestDuplicatesInSeveralPasses(t *testing.T) {
	log, err := openHashLog(t.TempDir(), 0)
	require.NoError(t, err)
	for i := range uint64(1000) {
		require.NoError(t, log.append(mix(i%700)))
	}
	for _, most := range []int64{1, 7, 999, 100_000} {
		n, err := log.duplicates(most)
		require.NoError(t, err)
		assert.EqualValues(t, 300, n)
	}
	require.NoError(t, log.remove())
}
