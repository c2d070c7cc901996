package data

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// textOf is documents of random lengths, as tokens that all differ; 0 is the separator. It returns the document of
// each.
func textOf(seed uint64, n, longest int) (ids []uint32, document []int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for doc, left := 0, rng.IntN(longest); len(ids) < n; left-- {
		id := uint32(len(ids) + 1)
		if left <= 0 {
			id, left = 0, rng.IntN(longest)
		}
		ids, document = append(ids, id), append(document, doc)
		if id == 0 {
			doc++
		}
	}
	return ids, document
}

// TestBestFitLearnsEachTokenOnce checks rows of random documents: each part of a row is of one document, which is whole
// if it fits into a row, and every token is learnt from once in an epoch.
func TestBestFitLearnsEachTokenOnce(t *testing.T) {
	for _, c := range []struct {
		n, longest, length int
		shuffle            bool
	}{{5000, 30, 32, false}, {5000, 30, 32, true}, {3000, 400, 64, true}, {2000, 5, 7, false}, {1000, 100, 1, true}, {40, 100, 128, true}} {
		ids, document := textOf(uint64(c.length), c.n, c.longest)
		b := batcher(t, fromInts(t, ids, 10_000), BatchConfig{SeqLen: c.length, BatchSize: 3, Shuffle: c.shuffle, Seed: 4,
			Pack: PackBestFit, DocumentMask: true})
		want := 0
		lengths := map[int]int{}
		for i, id := range ids {
			lengths[document[i]]++
			if id != 0 && i+1 < len(ids) {
				want++
			}
		}
		seen := map[int32]bool{}
		parts := map[int]int{} // of documents that fit into a row
		filled := int64(0)
		for at := range b.Windows() {
			step, row := at/3, int(at%3)
			inputs, targets, err := b.Batch(step)
			require.NoError(t, err)
			d := b.Documents(step, inputs)
			for i, real := range b.Real(step) {
				require.Equal(t, d.Weights[i], float32(real), "what is packed best-fit is padding or predicts something")
			}
			for i := row * c.length; i < (row+1)*c.length; i++ {
				if d.Weights[i] == 0 {
					require.Zero(t, inputs[i])
					continue
				}
				require.NotZero(t, inputs[i], "nothing is predicted from a separator")
				require.False(t, seen[inputs[i]], "token %d twice", inputs[i])
				seen[inputs[i]] = true
				require.EqualValues(t, ids[inputs[i]], targets[i], "the target is what comes next in the text")
				doc := document[inputs[i]-1]
				if i%c.length > 0 && d.Segments[i] == d.Segments[i-1] {
					require.Equal(t, inputs[i-1]+1, inputs[i], "a part of a row is of one document")
				} else if lengths[doc]-1 <= c.length {
					parts[doc]++
				}
				filled++
			}
		}
		assert.Len(t, seen, want)
		for doc, n := range parts {
			require.Equal(t, 1, n, "document %d fits into a row and is cut", doc)
		}
		if c.longest < c.length && c.n > 1000 {
			assert.Greater(t, float64(filled)/float64(b.Windows()*int64(c.length)), 0.98, "rows are full")
		}
	}
}

func TestBestFitIsBestFit(t *testing.T) {
	var pieces []packed
	for i, n := range []uint32{3, 7, 4, 5, 10, 2, 6, 3} {
		pieces = append(pieces, packed{int64(100 * i), n})
	}
	// By length: 10 | 7 | 6 | 5 opens a row, 4 fits best beside 6, 3 and 3 beside 7 and 5, 2 beside 5 and 3.
	assert.Equal(t, [][]int32{{4}, {0, 1}, {2, 6}, {3, 5, 7}}, bestFit(pieces, 10))
	ids := []uint32{1, 2, 0, 3, 4, 5, 6, 0, 7, 0, 0, 8}
	b := batcher(t, fromInts(t, ids, 10), BatchConfig{SeqLen: 3, BatchSize: 3, Pack: PackBestFit, DocumentMask: true})
	inputs, targets, err := b.Batch(0)
	require.NoError(t, err)
	assert.Equal(t, []int32{1, 2, 6, 3, 4, 5, 7, 0, 0}, inputs)
	assert.Equal(t, []int32{2, 0, 0, 4, 5, 6, 0, 0, 0}, targets)
	d := b.Documents(0, inputs)
	assert.Equal(t, []float32{1, 1, 1, 1, 1, 1, 1, 0, 0}, d.Weights)
	assert.Equal(t, []uint32{0, 0, 1, 0, 0, 0, 0, 1, 1}, d.Segments)
}

// TestDocumentMask checks windows against their definition.
func TestDocumentMask(t *testing.T) {
	ids, document := textOf(9, 1000, 20)
	corpus := fromInts(t, ids, 10_000)
	b := batcher(t, corpus, BatchConfig{SeqLen: 16, BatchSize: 2, Shuffle: true, Seed: 3, DocumentMask: true})
	plain := batcher(t, corpus, BatchConfig{SeqLen: 16, BatchSize: 2, Shuffle: true, Seed: 3})
	assert.Nil(t, plain.Documents(0, make([]int32, 32)))
	for step := range b.Windows() / 2 {
		inputs, targets, err := b.Batch(step)
		require.NoError(t, err)
		same, sameTargets, err := plain.Batch(step)
		require.NoError(t, err)
		require.Equal(t, same, inputs)
		require.Equal(t, sameTargets, targets)
		d := b.Documents(step, inputs)
		for row := range 2 {
			first := int(b.Window(step, row)) * 16
			for i := range 16 {
				at := 16*row + i
				require.Equal(t, inputs[at] != 0, d.Weights[at] == 1)
				require.EqualValues(t, document[first+i]-document[first], d.Segments[at])
			}
		}
	}
}

// Each of several tokens ends a document, in windows and in packed rows.
func TestSeveralEnds(t *testing.T) {
	ids := []uint32{5, 6, 1, 7, 8, 2, 9, 9, 9, 1, 4, 4, 4}
	for pack, want := range map[string][]uint32{PackConcat: {0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1},
		PackBestFit: {0, 0, 1, 1, 1, 2, 0, 0, 1, 1, 2, 2}} {
		cfg := BatchConfig{SeqLen: 6, BatchSize: 2, Pack: pack, DocumentMask: true}
		cfg.SetEnds([]uint32{1, 2})
		b := batcher(t, fromInts(t, ids, 100), cfg)
		inputs, _, err := b.Batch(0)
		require.NoError(t, err)
		d := b.Documents(0, inputs)
		assert.Equal(t, want, d.Segments, pack)
	}
	assert.Equal(t, []uint32{0, 0, 0, 1, 1, 1, 0}, Segments([]int32{5, 6, 1, 7, 8, 2, 9}, 6, []uint32{1, 2}))
}

func TestPackedPosition(t *testing.T) {
	ids, _ := textOf(9, 1000, 20)
	corpus := fromInts(t, ids, 10_000)
	cfg := BatchConfig{SeqLen: 16, BatchSize: 2, Pack: PackBestFit, DocumentMask: true}
	p := batcher(t, corpus, cfg).Position(5)
	for want, change := range map[string]func(*BatchConfig){
		"":                       func(*BatchConfig) {},
		"data.pack was best_fit": func(c *BatchConfig) { c.Pack = PackConcat },
		"data.document_mask was": func(c *BatchConfig) { c.DocumentMask = false },
		"tokens that end documents, was [0], is [7]":   func(c *BatchConfig) { c.Separator = 7 },
		"tokens that end documents, was [0], is [0 5]": func(c *BatchConfig) { c.SetEnds([]uint32{0, 5}) },
	} {
		now := cfg
		change(&now)
		_, err := batcher(t, corpus, now).Resume(p, p.BatchSize)
		if want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorContains(t, err, want)
	}
	p = batcher(t, corpus, BatchConfig{SeqLen: 16, BatchSize: 2}).Position(5)
	_, err := batcher(t, corpus, BatchConfig{SeqLen: 16, BatchSize: 2, Pack: PackConcat, Separator: 9}).Resume(p, p.BatchSize)
	assert.NoError(t, err, "a checkpoint of before the keys")
}

// Padding does not count as tokens. Windows of consecutive tokens have none.
func TestTokensWithoutPadding(t *testing.T) {
	ids, _ := textOf(3, 500, 30)
	for _, pack := range []string{PackConcat, PackBestFit} {
		b := batcher(t, fromInts(t, ids, 10_000), BatchConfig{SeqLen: 32, BatchSize: 1, Pack: pack})
		sum := int64(0)
		for step := range b.Windows() {
			n := int64(0)
			for _, real := range b.Real(step) {
				n += int64(real)
			}
			require.Equal(t, n, b.Tokens(step))
			sum += n
		}
		assert.InDelta(t, float64(sum)/float64(32*b.Windows()), b.Share(), 1e-12)
		assert.Equal(t, pack == PackConcat, b.Share() == 1)
	}
}
