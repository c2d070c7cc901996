package hook_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exampleOf is an example that maps batches.
func exampleOf(t testing.TB, file, config string) *hook.Batches {
	t.Helper()
	m := load(t, newHost(t), hook.Spec{File: examples + file, Hook: hook.MapBatch, Config: []byte(config)})
	p := m.Batches(1)
	t.Cleanup(p.Close)
	return p
}

// plain is a batch as hooks first get it.
func plain(rows, length, vocab int) *hook.Batch {
	n := rows * length
	b := &hook.Batch{Rows: rows, SeqLen: length, Vocab: vocab, Steps: 100, Tokens: make([]uint32, n), Targets: make([]uint32, n),
		Weights: make([]float32, n), Segments: make([]uint32, n)}
	for i := range b.Weights {
		b.Weights[i] = 1
	}
	return b
}

// stream is a text of documents. Its tokens are their own positions plus one, but for the separators, which are 0: so
// each shows where it is from.
type stream struct {
	tokens []uint32
	starts []int // of the document that each token is of
}

func newStream(rng *rand.Rand, n, longest int) (s stream) {
	for len(s.tokens) < n {
		start := len(s.tokens)
		for range rng.IntN(rng.IntN(longest) + 1) {
			s.tokens, s.starts = append(s.tokens, uint32(len(s.tokens)+1)), append(s.starts, start)
		}
		s.tokens, s.starts = append(s.tokens, 0), append(s.starts, start)
	}
	return s
}

// cut fills a row with a window.
func (s stream) cut(b *hook.Batch, row, window int) {
	at := window * b.SeqLen
	copy(b.Tokens[row*b.SeqLen:], s.tokens[at:at+b.SeqLen])
	copy(b.Targets[row*b.SeqLen:], s.tokens[at+1:at+1+b.SeqLen])
}

// predictions counts what can be learnt from n tokens of the text.
func (s stream) predictions(n int) (count int) {
	for i := range n {
		if s.tokens[i] != 0 {
			count++
		}
	}
	return count
}

// learnt follows what a run learns from a stream's tokens.
type learnt struct {
	stream
	seen   map[uint32]bool
	before map[int]uint32 // the token that was learnt from last, of each document; nil: they come in any order
	pieces map[int]int    // of each document
}

// see checks a batch: each part of a row is a piece of one document, in order; nothing comes twice.
func (l *learnt) see(t *testing.T, b *hook.Batch) {
	t.Helper()
	for i, token := range b.Tokens {
		if b.Weights[i] == 0 {
			require.Zero(t, b.Segments[i])
			continue
		}
		require.NotZero(t, token, "nothing is predicted from a separator")
		require.NotZero(t, b.Segments[i])
		require.EqualValues(t, 1, b.Weights[i])
		require.Equal(t, l.tokens[token], b.Targets[i], "the target is what comes next in the text")
		require.False(t, l.seen[token], "token %d twice", token)
		l.seen[token] = true
		doc := l.starts[token-1]
		if l.before != nil {
			require.Less(t, l.before[doc], token, "out of order")
			l.before[doc] = token
		}
		if i%b.SeqLen == 0 || b.Segments[i] != b.Segments[i-1] {
			l.pieces[doc]++
			continue
		}
		require.Equal(t, b.Tokens[i-1]+1, token, "a part of a row is of one document")
	}
}

// waits counts the predictions in packing's state.
func waits(t *testing.T, p *hook.Batches) (n int) {
	t.Helper()
	state, err := p.Save(ctx)
	require.NoError(t, err)
	require.LessOrEqual(t, len(state), 1<<20)
	words := func(i int) int {
		return int(state[4*i]) | int(state[4*i+1])<<8 | int(state[4*i+2])<<16 | int(state[4*i+3])<<24
	}
	for i := range words(2) + 1 {
		n += max(0, words(3+i)-1)
	}
	return n
}

func TestPacking(t *testing.T) {
	for _, c := range []struct{ rows, length, longest, waiting int }{
		{8, 32, 24, 16384}, {8, 32, 24, 100}, {4, 16, 60, 200}, {1, 32, 9, 0}, {3, 50, 400, 50}, {1, 64, 3, 300}, {2, 7, 20, 10},
		{16, 128, 2000, 1000},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			const steps = 60
			s := newStream(rand.New(rand.NewPCG(7, uint64(c.rows))), steps*c.rows*c.length+1, c.longest)
			l := learnt{s, map[uint32]bool{}, map[int]uint32{}, map[int]int{}}
			p := exampleOf(t, "packing.wasm", fmt.Sprintf(`{"separator": 0, "waiting": %d}`, c.waiting))
			for step := range steps {
				b := plain(c.rows, c.length, len(s.tokens)+2)
				for row := range c.rows {
					s.cut(b, row, step*c.rows+row)
				}
				require.NoError(t, p.Apply(ctx, step, b))
				l.see(t, b)
				n := waits(t, p)
				require.LessOrEqual(t, n, c.waiting+c.length)
				// A prediction whose target is in the next batch is not counted yet.
				require.InDelta(t, s.predictions((step+1)*c.rows*c.length), len(l.seen)+n, 1, "nothing is lost")
			}
			for doc, pieces := range l.pieces {
				end := doc
				for s.tokens[end] != 0 {
					end++
				}
				if n := end - doc; c.waiting == 16384 && l.seen[uint32(end)] {
					require.Equal(t, (n+c.length-1)/c.length, pieces, "a document of %d", n)
				}
			}
		})
	}
}

// Where rows are windows from anywhere each is a text of its own.
func TestPackingOfShuffledWindows(t *testing.T) {
	const rows, length, steps = 8, 32, 50
	rng := rand.New(rand.NewPCG(9, 9))
	s := newStream(rng, rows*length*steps+1, 40)
	order := rng.Perm(rows * steps)
	l := learnt{s, map[uint32]bool{}, nil, map[int]int{}}
	p := exampleOf(t, "packing.wasm", `{"separator": 0, "waiting": 500, "shuffled": true}`)
	for step := range steps {
		b := plain(rows, length, len(s.tokens)+2)
		for row := range rows {
			s.cut(b, row, order[step*rows+row])
		}
		require.NoError(t, p.Apply(ctx, step, b))
		l.see(t, b)
	}
	assert.Greater(t, len(l.seen), rows*length*steps*9/10-600)
}

// Interrupted and continued, packing gives the same rows. A new epoch ends the document before it.
func TestPackingGoesOn(t *testing.T) {
	const rows, length, windows = 4, 16, 27
	s := newStream(rand.New(rand.NewPCG(11, 11)), windows*length+1, 30)
	run := func(restart int) (out []*hook.Batch) {
		p := exampleOf(t, "packing.wasm", `{"separator": 0, "waiting": 64}`)
		for step := range 20 {
			b := plain(rows, length, len(s.tokens)+2)
			for row := range rows {
				s.cut(b, row, (step*rows+row)%windows)
			}
			require.NoError(t, p.Apply(ctx, step, b))
			out = append(out, b)
			for i := range b.Tokens {
				if b.Weights[i] > 0 {
					require.Equal(t, s.tokens[b.Tokens[i]], b.Targets[i])
				}
			}
			if step == restart {
				state, err := p.Save(ctx)
				require.NoError(t, err)
				p = exampleOf(t, "packing.wasm", `{"separator": 0, "waiting": 64}`)
				p.Restore(state)
			}
		}
		return out
	}
	whole := run(-1)
	for _, restart := range []int{0, 5, 11} {
		assert.Equal(t, whole, run(restart))
	}
}

func TestPackingRefuses(t *testing.T) {
	fail := func(config string, change func(b *hook.Batch)) error {
		b := plain(4, 8, 300)
		for i := range b.Tokens {
			b.Tokens[i], b.Targets[i] = uint32(i+1), uint32(i+2)
		}
		change(b)
		return exampleOf(t, "packing.wasm", config).Apply(ctx, 3, b)
	}
	same := func(*hook.Batch) {}
	assert.NoError(t, fail(`{"separator": 0}`, same))
	assert.ErrorContains(t, fail(`{}`, same), "separator: expected the number of a token")
	assert.ErrorContains(t, fail(`{"separator": 1.5}`, same), "separator: expected the number of a token")
	assert.ErrorContains(t, fail(`{"separator": 0, "waiting": -1}`, same), "waiting: expected an integer from 0 to 65536")
	assert.ErrorContains(t, fail(`{"separator": 0, "shuffeld": true}`, same), "shuffeld")
	assert.ErrorContains(t, fail(`{"separator": 999}`, func(b *hook.Batch) { b.Tokens[5] = 999 }), "map_batch: batch 3: failed: tokens")
	assert.ErrorContains(t, fail(`{"separator": 0}`, func(b *hook.Batch) { b.Weights[9] = 0 }),
		"packing must come before the hooks that set weights or segments")
	assert.ErrorContains(t, fail(`{"separator": 0}`, func(b *hook.Batch) { b.Segments[9] = 1 }), "packing must come before")
	assert.ErrorContains(t, fail(`{"separator": 0}`, func(b *hook.Batch) {
		for row := range 4 {
			b.Targets[8*row+7] = 299
		}
	}), "rows do not go on where the row before ends: set data.shuffle: false, or shuffled: true")
	assert.ErrorContains(t, fail(`{"separator": 0}`, func(b *hook.Batch) {
		b.Aligned = []hook.Aligned{{Name: "x", DType: 5, Dims: []int{}, Data: make([]byte, 4*32)}}
	}), "data.aligned: packing moves tokens")
}
