package data

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gate is Arrivals of files that a test lets arrive one by one.
type gate struct {
	mu      sync.Mutex
	arrived int
	changed chan struct{}
	files   []string
	broken  error // of all files that have not arrived
}

func newGate(files []string) *gate { return &gate{files: files, changed: make(chan struct{})} }

func (g *gate) let(n int, broken error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrived, g.broken = n, broken
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gate) Await(ctx context.Context, path string) error {
	for {
		g.mu.Lock()
		arrived, broken, changed := g.arrived, g.broken, g.changed
		g.mu.Unlock()
		for _, f := range g.files[:arrived] {
			if f == path {
				return nil
			}
		}
		if broken != nil {
			return broken
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (g *gate) Progress() (done, total int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int64(g.arrived), int64(len(g.files))
}

// streamedFiles are texts of different lengths; windows of the third one need the fourth, the fifth is empty, and the
// last one has no window.
func streamedFiles(t *testing.T) (files []string) {
	dir := t.TempDir()
	for i, n := range []int{400, 300, 5, 100, 0, 250, 30, 6} {
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.txt", i)))
		require.NoError(t, os.WriteFile(files[i], []byte(words(n)[:n]), 0o666))
	}
	return files
}

func streamed(files []string, g *gate) Options {
	o := Options{Train: files, Tokenizer: byteTok{}, Vocab: 256, SeqLen: 8, Stream: StreamParts, ValFraction: 0.1}
	if g != nil {
		o.Arrivals = g
	}
	return o
}

var streamConfig = BatchConfig{SeqLen: 8, BatchSize: 4, Shuffle: true, Seed: 3}

// patient waits for files that arrive by themselves.
func patient(Waiting) error { return nil }

// reading is a batcher that reads ahead.
func reading(t testing.TB, c *Corpus, cfg BatchConfig) *Batcher {
	b := batcher(t, c, cfg)
	b.ReadAhead(t.TempDir())
	t.Cleanup(func() { c.Close() }) // before the folder is removed
	return b
}

// trained are the batches of all steps up to one, with the position before each. waiting is called where a step waits.
func trained(t *testing.T, b *Batcher, from, to int64, waiting func(Waiting) error) (all []any) {
	for step := from; step < to; step++ {
		require.NoError(t, b.Await(t.Context(), step, waiting))
		in, targets, err := b.Batch(step)
		require.NoError(t, err)
		all = append(all, b.Position(step), in, targets)
	}
	return all
}

func TestStreamIsTheSameWheneverFilesArrive(t *testing.T) {
	files := streamedFiles(t)
	const steps = 80 // two and a half passes
	whole, val, err := load(t, streamed(files, nil))
	require.NoError(t, err)
	want := trained(t, reading(t, whole, streamConfig), 0, steps, patient)

	g := newGate(files)
	g.let(1, nil)
	late, lateVal, err := load(t, streamed(files, g))
	require.NoError(t, err, "the first file is enough")
	assert.Equal(t, tokensOf(t, val), tokensOf(t, lateVal), "held out of the first file")
	b := reading(t, late, streamConfig)
	ready, err := b.Ready()
	require.NoError(t, err)
	assert.Positive(t, ready)
	arrived := 1
	got := trained(t, b, 0, steps, func(Waiting) error { // a file arrives when a step needs it
		arrived = min(arrived+1, len(files))
		g.let(arrived, nil)
		return nil
	})
	assert.Equal(t, len(files), arrived)
	assert.Equal(t, want, got)

	t.Run("a stopped run goes on", func(t *testing.T) {
		for _, at := range []int64{3, 10, 20, 50} {
			g := newGate(files)
			g.let(1, nil)
			c, _, err := load(t, streamed(files, g))
			require.NoError(t, err)
			b := reading(t, c, streamConfig)
			p := want[3*at].(Position)
			go g.let(len(files), nil)
			require.NoError(t, b.AwaitPosition(t.Context(), p, patient))
			step, err := b.Resume(p, 4)
			require.NoError(t, err)
			assert.Equal(t, want[3*at:], trained(t, b, step, steps, patient))
		}
	})
	t.Run("other text is refused", func(t *testing.T) {
		require.NoError(t, os.WriteFile(files[1], []byte(words(301)[1:]), 0o666))
		c, _, err := load(t, streamed(files, nil))
		require.NoError(t, err)
		b := reading(t, c, streamConfig)
		p := want[3*20].(Position)
		require.NoError(t, b.AwaitPosition(t.Context(), p, patient))
		_, err = b.Resume(p, 4)
		require.ErrorContains(t, err, "the hash of the training tokens was")
		_, err = b.Resume(want[3].(Position), 4)
		require.NoError(t, err, "the first file is what it was")
		p.Stream = false
		_, err = b.Resume(p, 4)
		require.ErrorContains(t, err, "data.stream was false, is true")
	})
}

// Every pass visits every window once; the first one takes the windows of a file after those of the file before.
func TestStreamVisitsEveryWindowOnce(t *testing.T) {
	for _, pack := range []string{PackConcat, PackBestFit} {
		for _, shuffle := range []bool{false, true} {
			c, _, err := load(t, streamed(streamedFiles(t), nil))
			require.NoError(t, err)
			cfg := streamConfig
			cfg.Shuffle, cfg.Pack, cfg.Separator = shuffle, pack, ' '
			b := reading(t, c, cfg)
			require.NoError(t, b.Await(t.Context(), 1000, patient))
			n := b.Windows()
			seen := map[int64]int{}
			for at := range 2 * n {
				w := b.Window(at/4, int(at%4))
				seen[w]++
				if at < n {
					s, _ := b.find(w)
					placed, _ := b.find(at)
					require.Equal(t, placed.before, s.before)
				}
				if (at+1)%n == 0 {
					require.Len(t, seen, int(n))
				}
			}
			for w, k := range seen {
				require.Equal(t, 2, k, w)
			}
		}
	}
}

func TestStreamEndsWithItsErrors(t *testing.T) {
	for name, c := range map[string]struct {
		let  func(g *gate, second string, cancel func())
		want string
	}{
		"no more arrives": {func(g *gate, _ string, _ func()) { g.let(1, errInjected) }, "injected"},
		"interrupted":     {func(_ *gate, _ string, cancel func()) { cancel() }, "context canceled"},
		"damaged": {func(g *gate, second string, _ func()) {
			assert.NoError(t, os.WriteFile(second, []byte("a\x00b"), 0o666))
			g.let(2, nil)
		}, "1.txt: a NUL byte"},
	} {
		files := streamedFiles(t)
		g := newGate(files)
		g.let(1, nil)
		text, _, err := load(t, streamed(files, g))
		require.NoError(t, err, name)
		b := reading(t, text, streamConfig)
		ctx, cancel := context.WithCancel(t.Context())
		waited := false
		err = b.Await(ctx, 50, func(w Waiting) error {
			if !waited {
				assert.Equal(t, Waiting{File: "1.txt", Number: 2, Files: 8, Done: 1, Total: 8}, w)
				c.let(g, files[1], cancel)
			}
			waited = true
			return nil
		})
		cancel()
		assert.True(t, waited, name)
		require.ErrorContains(t, err, c.want, name)
		_, _, err = b.Batch(0)
		require.NoError(t, err, "what was there is there")
		require.NoError(t, text.Close())
	}
}

func TestStreamOfFew(t *testing.T) {
	empty := write(t, "a.txt", "")
	_, _, err := Load(t.Context(), streamed([]string{empty}, nil))
	require.ErrorContains(t, err, "no document")
	text, _, err := load(t, streamed([]string{empty, write(t, "b.txt", words(200))}, nil))
	require.NoError(t, err)
	read, all := text.Files()
	assert.Equal(t, [2]int{2, 2}, [2]int{read, all})
	b := reading(t, text, streamConfig)
	require.NoError(t, b.Await(t.Context(), 1<<40, func(Waiting) error { return errors.New("nothing to wait for") }))
	assert.Empty(t, text.Late(true))
	for want, change := range map[string]func(o *Options){
		"found true, expected none with mix":  func(o *Options) { o.Aligned = []string{"x"} },
		"found auto, expected none with mix":  func(o *Options) { o.Map, o.Stream = upper{}, StreamHub },
		"seq_len: found 0, expected at least": func(o *Options) { o.SeqLen = 0 },
	} {
		o := streamed([]string{empty}, nil)
		change(&o)
		_, _, err := Load(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
	names := []string{"hf:datasets/org/name"}
	assert.True(t, StreamHub.Streams(names, []string{"a.parquet", "b.parquet"}))
	assert.False(t, StreamHub.Streams(names, []string{"a.parquet"}))
	assert.False(t, StreamHub.Streams(names, []string{"a.parquet", "b.jsonl"}))
	assert.False(t, StreamHub.Streams(append(names, "c.parquet"), []string{"a.parquet", "b.parquet"}))
	assert.False(t, StreamNone.Streams(names, []string{"a.parquet", "b.parquet"}))
}

// upper is a Mapper.
type upper struct{}

func (upper) Map(context.Context, int64, []byte) ([][]byte, error) {
	return nil, errors.New("not called")
}
