package data

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func batcher(t testing.TB, c *Corpus, cfg BatchConfig) *Batcher {
	b, err := NewBatcher(c, cfg)
	require.NoError(t, err)
	return b
}

func TestBatchesInFileOrder(t *testing.T) {
	b := batcher(t, fromInts(t, iota32(17), 20), BatchConfig{SeqLen: 3, BatchSize: 2}) // 5 windows
	assert.Equal(t, int64(5), b.Windows())
	for step, want := range [][]int32{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}, {12, 13, 14, 0, 1, 2}, {3, 4, 5, 6, 7, 8}} {
		in, target, err := b.Batch(int64(step))
		require.NoError(t, err)
		assert.Equal(t, want, in)
		for i := range want {
			assert.Equal(t, in[i]+1, target[i])
		}
	}
}

// Every epoch visits every window once, for any sizes. A batch may span two epochs.
func TestShuffleVisitsEveryWindowOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		n, size := 1+rng.IntN(500), 1+rng.IntN(20)
		b := batcher(t, fromInts(t, iota32(n+1), n+1), BatchConfig{SeqLen: 1, BatchSize: size, Shuffle: true, Seed: rng.Uint64()})
		seen := make([]int, n)
		for at := range 3 * n {
			seen[b.Window(int64(at/size), at%size)]++
			if (at+1)%n == 0 {
				for w, k := range seen {
					require.Equal(t, (at+1)/n, k, "window %d of %d", w, n)
				}
			}
		}
	}
}

func TestShuffleDependsOnSeedAndEpoch(t *testing.T) {
	c := fromInts(t, iota32(1001), 1001)
	order := func(seed uint64, epoch int64) (out []int64) {
		b := batcher(t, c, BatchConfig{SeqLen: 1, BatchSize: 10, Shuffle: true, Seed: seed})
		for s := range int64(100) {
			for r := range 10 {
				out = append(out, b.Window(epoch*100+s, r))
			}
		}
		return out
	}
	base := order(1, 0)
	assert.Equal(t, base, order(1, 0))
	fixed := func(other []int64) (n int) {
		for i := range base {
			if base[i] == other[i] {
				n++
			}
		}
		return n
	}
	identity := make([]int64, 1000)
	for i := range identity {
		identity[i] = int64(i)
	}
	for _, other := range [][]int64{order(1, 1), order(2, 0), identity} {
		assert.Less(t, fixed(other), 12, "about one place in common is chance")
	}
	runs := 0 // neighbours that stay neighbours: about two by chance
	for i := 1; i < len(base); i++ {
		if d := base[i] - base[i-1]; d == 1 || d == -1 {
			runs++
		}
	}
	assert.Less(t, runs, 15)
}

// The order of a seed never changes.
func TestShuffleIsFixed(t *testing.T) {
	var got []uint64
	for i := range uint64(8) {
		got = append(got, permute(i, 1000, 1, 0), permute(i, 1<<40, 7, 3))
	}
	assert.Equal(t, []uint64{
		779, 357307713325, 885, 1000365448699, 220, 452141125717, 467, 794046519164,
		786, 915618050623, 965, 640118117714, 495, 560272200228, 886, 1058478195530,
	}, got)
}

func TestBatcherErrors(t *testing.T) {
	c := fromInts(t, iota32(5), 5)
	_, err := NewBatcher(c, BatchConfig{SeqLen: 5, BatchSize: 1})
	assert.ErrorContains(t, err, "seq_len: found 5, but the text has 5 tokens: expected at least 6 for one sequence")
	_, err = NewBatcher(c, BatchConfig{SeqLen: 0, BatchSize: 1})
	assert.ErrorContains(t, err, "expected at least 1 × 1")
	batcher(t, c, BatchConfig{SeqLen: 4, BatchSize: 3})
}

func TestPosition(t *testing.T) {
	cfg := BatchConfig{SeqLen: 3, BatchSize: 4, Shuffle: true, Seed: 9}
	c := fromInts(t, iota32(50), 50)
	b := batcher(t, c, cfg)
	raw, err := json.Marshal(b.Position(9))
	require.NoError(t, err)
	var p Position
	require.NoError(t, json.Unmarshal(raw, &p))
	assert.Equal(t, int64(2), p.Epoch) // 36 windows of 16
	step, err := b.Resume(p, cfg.BatchSize)
	require.NoError(t, err)
	assert.Equal(t, int64(9), step)

	other := iota32(50)
	other[49] = 0
	_, err = batcher(t, fromInts(t, other, 50), cfg).Resume(p, p.BatchSize)
	assert.ErrorContains(t, err, "the hash of the training tokens was sha256:")
	for want, change := range map[string]func(*BatchConfig){
		"the sequence length was 3, is 2":                 func(c *BatchConfig) { c.SeqLen = 2 },
		"whether windows are shuffled was true, is false": func(c *BatchConfig) { c.Shuffle = false },
		"the seed of the shuffling was 9, is 1":           func(c *BatchConfig) { c.Seed = 1 },
	} {
		changed := cfg
		change(&changed)
		_, err := batcher(t, c, changed).Resume(p, p.BatchSize)
		assert.ErrorContains(t, err, want)
	}
	for _, step := range []int64{-1, math.MaxInt64} {
		p.Step = step
		_, err = b.Resume(p, p.BatchSize)
		assert.ErrorContains(t, err, "data position: step is")
	}
}

// Batches of several sizes deal every window once an epoch.
func TestBatchesOfSeveralSizes(t *testing.T) {
	const windows = 24
	cfg := BatchConfig{SeqLen: 1, BatchSize: 4, Shuffle: true, Seed: 3}
	b := batcher(t, fromInts(t, iota32(windows+1), windows+1), cfg)
	at, dealt := int64(0), []int64{}
	for _, size := range []int{4, 6, 1, 3} {
		p := b.Position(at)
		step, err := b.Resume(p, size)
		require.NoError(t, err)
		require.Equal(t, at, step)
		assert.Equal(t, int64(len(dealt)), p.Window)
		for range 2 {
			for row := range size {
				dealt = append(dealt, b.Window(at, row))
			}
			at++
		}
	}
	whole := batcher(t, fromInts(t, iota32(windows+1), windows+1), cfg)
	for i, window := range dealt {
		assert.Equal(t, whole.Window(int64(i/4), i%4), window, "window %d", i)
	}

	old := b.Position(0)
	old.Step, old.Window, old.BatchSize = 3, 0, 4 // from before positions had a window
	_, err := b.Resume(old, 2)
	require.NoError(t, err)
	assert.Equal(t, whole.Window(3, 0), b.Window(3, 0))
}
