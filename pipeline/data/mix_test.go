package data

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mixed is a corpus of sources of as many tokens as given; token i of source k is 1000·k+i.
func mixed(t testing.TB, weights []float64, tokens ...int) (Options, *Corpus) {
	o := Options{Tokenizer: byteTok{}, Vocab: 100_000, SeqLen: 4}
	for k, n := range tokens {
		ids := make([]uint32, n)
		for i := range ids {
			ids[i] = uint32(10_000*k + i)
		}
		path := t.TempDir() + "/a.bin"
		require.NoError(t, writeBin(path, ids, o.Vocab))
		o.Mix = append(o.Mix, Source{Train: []string{path}, Weight: weights[k]})
	}
	c, _, err := load(t, o)
	require.NoError(t, err)
	return o, c
}

func TestMixOfOneSourceIsTheSource(t *testing.T) {
	o, one := mixed(t, []float64{3}, 999)
	plain, _, err := load(t, Options{Train: o.Mix[0].Train, Vocab: o.Vocab})
	require.NoError(t, err)
	cfg := BatchConfig{SeqLen: 4, BatchSize: 3, Shuffle: true, Seed: 5}
	a, b := batcher(t, one, cfg), batcher(t, plain, cfg)
	for step := range int64(200) {
		x, xt, err := a.Batch(step)
		require.NoError(t, err)
		y, yt, err := b.Batch(step)
		require.NoError(t, err)
		require.Equal(t, y, x)
		require.Equal(t, yt, xt)
	}
	assert.Equal(t, b.Position(9), a.Position(9))
}

func TestMixDrawsByWeight(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		_, c := mixed(t, []float64{6, 3, 1}, 401, 4001, 81) // 100, 1000 and 20 windows
		b := batcher(t, c, BatchConfig{SeqLen: 4, BatchSize: 8, Shuffle: shuffle, Seed: 7})
		seen := make([]map[int32]int, 3)
		for k := range seen {
			seen[k] = map[int32]int{}
		}
		const steps = cycle / 8
		drawn := make([]int64, 3)
		for step := range int64(steps) {
			if step == 1000 {
				p := b.Position(step)
				for k := range drawn {
					assert.Equal(t, drawn[k], p.Mix[k].Drawn)
				}
			}
			inputs, targets, err := b.Batch(step)
			require.NoError(t, err)
			for row := range 8 {
				first := inputs[4*row]
				k := int(first / 10_000)
				drawn[k]++
				seen[k][first]++
				for i := range 4 {
					require.Equal(t, first+int32(i), inputs[4*row+i])
					require.Equal(t, first+int32(i)+1, targets[4*row+i])
				}
			}
		}
		for k, share := range []float64{0.6, 0.3, 0.1} {
			assert.InDelta(t, share*cycle, drawn[k], 1)
			windows := []int{100, 1000, 20}[k]
			assert.Len(t, seen[k], windows)
			for _, n := range seen[k] { // no window is drawn twice more often than another
				assert.InDelta(t, float64(drawn[k])/float64(windows), n, 1)
			}
		}
		for from := int64(0); from < cycle; from += shuffled { // each stretch has its share
			n := 0
			for at := range int64(shuffled) {
				if k, _ := b.blend.at(from + at); k == 0 {
					n++
				}
			}
			assert.InDelta(t, 0.6*shuffled, n, 1)
		}
	}
}

func TestMixByEpochs(t *testing.T) {
	o, _ := mixed(t, []float64{1, 1}, 401, 1201) // 100 and 300 windows
	o.Mix[0].Weight, o.Mix[1].Weight = 0, 0
	o.Mix[0].Epochs, o.Mix[1].Epochs = 3, 1
	c, _, err := load(t, o)
	require.NoError(t, err)
	b := batcher(t, c, BatchConfig{SeqLen: 4, BatchSize: 1})
	for _, p := range b.Position(600).Mix {
		assert.Equal(t, 0.5, p.Share)
	}
	assert.Equal(t, 3.0, b.Position(600).Mix[0].Epochs())
	assert.Equal(t, 1.0, b.Position(600).Mix[1].Epochs())
}

func TestMixResumes(t *testing.T) {
	cfg := BatchConfig{SeqLen: 4, BatchSize: 3, Shuffle: true, Seed: 5}
	_, c := mixed(t, []float64{2, 1}, 401, 801)
	b := batcher(t, c, cfg)
	raw, err := json.Marshal(b.Position(40))
	require.NoError(t, err)
	var p Position
	require.NoError(t, json.Unmarshal(raw, &p))
	step, err := b.Resume(p, p.BatchSize)
	require.NoError(t, err)
	assert.Equal(t, int64(40), step)
	_, other := mixed(t, []float64{2, 1.5}, 401, 801)
	_, err = batcher(t, other, cfg).Resume(p, p.BatchSize)
	assert.ErrorContains(t, err, "the checkpoint's data differ: the mix was")
	plain := fromInts(t, iota32(500), 100_000)
	_, err = batcher(t, plain, cfg).Resume(p, p.BatchSize)
	assert.ErrorContains(t, err, "the checkpoint's data differ")
}

// TestMixHoldsOut checks that the tail of each source is held out, and that the first held-out windows are of all.
func TestMixHoldsOut(t *testing.T) {
	o, _ := mixed(t, []float64{2, 1}, 401, 801)
	o.ValFraction = 0.25
	train, val, err := load(t, o)
	require.NoError(t, err)
	cfg := BatchConfig{SeqLen: 4, BatchSize: 1, Shuffle: true, Seed: 1}
	targets := map[int32]string{}
	for name, b := range map[string]*Batcher{"train": batcher(t, train, cfg),
		"val": batcher(t, val, BatchConfig{SeqLen: 4, BatchSize: 1})} {
		early := map[int32]bool{}
		for step := range int64(400) {
			_, batch, err := b.Batch(step)
			require.NoError(t, err)
			for _, id := range batch {
				if other, ok := targets[id]; ok {
					require.Equal(t, name, other, id)
				}
				targets[id] = name
			}
			if step < 12 {
				early[batch[0]/10_000] = true
			}
		}
		assert.Len(t, early, 2, name)
	}
	assert.Equal(t, int64(75+150), batcher(t, val, cfg).Windows()*3)
	entropy, err := val.UnigramEntropy()
	require.NoError(t, err)
	assert.Positive(t, entropy)
}

func TestMixesThatAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"mix[1].weight: found -1, expected a number above 0":                              func(o *Options) { o.Mix[1].Weight = -1 },
		"mix[0].weight: found 0, expected a weight or epochs":                             func(o *Options) { o.Mix[0].Weight = 0 },
		"mix[1].weight: found 0, expected weights for all sources":                        func(o *Options) { o.Mix[1].Weight, o.Mix[1].Epochs = 0, 2 },
		"mix[1].train: no file given":                                                     func(o *Options) { o.Mix[1].Train = nil },
		"listed twice":                                                                    func(o *Options) { o.Mix[1].Train = o.Mix[0].Train },
		"mix: found 2, expected no sources beside train":                                  func(o *Options) { o.Train = []string{"a"} },
		"seq_len: mix[1]: found 4, but 7 tokens are 1 windows of it, expected at least 2": func(o *Options) { o.ValFraction = 0.1 },
		fmt.Sprintf("mix: found %d, expected at most 1024 sources", maxSources+1): func(o *Options) {
			o.Mix = make([]Source,
				maxSources+1)
		},
	} {
		o, _ := mixed(t, []float64{1, 1}, 401, 7)
		change(&o)
		_, _, err := load(t, o)
		assert.ErrorContains(t, err, want)
	}
	_, c := mixed(t, []float64{1, 1e-9}, 401, 401)
	_, err := NewBatcher(c, BatchConfig{SeqLen: 4, BatchSize: 1})
	assert.ErrorContains(t, err, "mix[1].weight: found 1e-09, expected a share of at least 1/65536")
	_, c = mixed(t, []float64{1, 1}, 401, 3)
	_, err = NewBatcher(c, BatchConfig{SeqLen: 4, BatchSize: 1})
	assert.ErrorContains(t, err, "mix[1] has 3 tokens")
}
