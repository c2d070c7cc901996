package data

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Batcher cuts each source of a corpus, of n tokens, into W = (n−1)/SeqLen windows and deals them into batches. Window
// k has the inputs [k·T, k·T+T); its targets are the same shifted by one. The windows of a source follow the windows of
// the source before.
//
// The batch of step t is the windows numbered t·B … t·B+B−1 of an endless order, or, if the size of the batches has
// changed, the B windows after the batch before. The order is the windows one after the other, again
// and again; or, shuffled, a fresh permutation of all of them in every epoch. In a mix, each source has such an order
// of its own, and blend says from which the next window comes.
type Batcher struct {
	corpus  *Corpus
	cfg     BatchConfig
	sources []source
	blend   *blend // nil: windows are drawn from all sources alike
	n       int64  // windows
	share   float64
	origin  origin
	rest    *rest // of a stream, whose parts are sources once they were read; nil: it is none
}

// origin is a batch, and the first window of it in the endless order. Batches from there on have one size.
type origin struct{ batch, window int64 }

// source is the windows of a span.
type source struct {
	corpus  *Corpus
	from    int64    // first token
	before  int64    // windows of the sources before
	n       int64    // windows
	packing *packing // nil: windows of consecutive tokens
}

// BatchConfig shapes batches.
type BatchConfig struct {
	SeqLen    int    `json:"seq_len"`
	BatchSize int    `json:"batch_size"` // windows
	Shuffle   bool   `json:"shuffle"`
	Seed      uint64 `json:"seed"`

	Pack         string `json:"pack,omitempty"`          // PackConcat, which "" means, too, or PackBestFit
	DocumentMask bool   `json:"document_mask,omitempty"` // tokens attend within their document only
	// Tokens that end a document, for the two keys above: the one that is written after each, and others.
	Separator uint32   `json:"separator,omitempty"`
	OtherEnds []uint32 `json:"other_ends,omitempty"`

	Stream bool `json:"stream,omitempty"` // set by NewBatcher: the corpus is a stream
}

// SetEnds sets the tokens that end a document, at least one. The first one is written after each.
func (c *BatchConfig) SetEnds(ids []uint32) { c.Separator, c.OtherEnds = ids[0], ids[1:] }

// ends lists the tokens that end a document.
func (c BatchConfig) ends() []uint32 { return append([]uint32{c.Separator}, c.OtherEnds...) }

// documents reports whether batches know documents.
func (c BatchConfig) documents() bool { return c.DocumentMask || c.Pack == PackBestFit }

// NewBatcher checks that the corpus holds at least one window.
func NewBatcher(c *Corpus, cfg BatchConfig) (*Batcher, error) {
	if cfg.SeqLen < 1 || cfg.BatchSize < 1 {
		return nil, fmt.Errorf("batches of %d × %d tokens: expected at least 1 × 1", cfg.BatchSize, cfg.SeqLen)
	}
	b := &Batcher{corpus: c, cfg: cfg}
	if b.cfg.Stream = c.streamed; c.streamed {
		b.rest = c.rest
	}
	for i, s := range c.spans {
		n, err := b.add(c, s)
		if err != nil {
			return nil, err
		}
		if n < 1 && len(c.spans) > 1 {
			return nil, fielderror.Wrap("seq_len",
				fmt.Errorf("found %d, but mix[%d] has %d tokens: expected at least %d for one sequence and its targets", cfg.SeqLen, i,
					s.len(), cfg.SeqLen+1))
		}
	}
	if b.n < 1 {
		return nil, fielderror.Wrap("seq_len", fmt.Errorf("found %d, but the text has %d tokens: expected at least %d for one sequence and its targets", cfg.SeqLen, c.Len(), cfg.SeqLen+1))
	}
	b.share = b.measureShare()
	var err error
	if c.mixed {
		b.blend, err = newBlend(c.spans, b.sources, cfg)
	}
	return b, err
}

// add appends the windows of a span, and returns how many they are.
func (b *Batcher) add(c *Corpus, s span) (n int64, err error) {
	n = max(0, (s.len()-1)/int64(b.cfg.SeqLen))
	var rows *packing
	if b.cfg.Pack == PackBestFit {
		if rows, err = packDocuments(c, s, b.cfg.SeqLen, b.cfg.ends()); err != nil {
			return 0, err
		}
		n = int64(len(rows.rows) - 1)
	}
	b.sources = append(b.sources, source{c, s.from, b.n, n, rows})
	b.n += n
	return n, nil
}

// Windows is how many windows an epoch has; of a stream, how many were read.
func (b *Batcher) Windows() int64 { return b.n }

// Batch returns the inputs and targets of a step, each [BatchSize × SeqLen] row by row. It depends on the configuration
// and step alone. An error means that a shard could not be read. Of a stream, Await has returned for the step.
func (b *Batcher) Batch(step int64) (inputs, targets []int32, err error) {
	t, rows := b.cfg.SeqLen, b.cfg.BatchSize
	inputs, targets = make([]int32, rows*t), make([]int32, rows*t)
	b.use(step)
	for i := range rows {
		if err := b.fill(b.Window(step, i), inputs[i*t:][:t], targets[i*t:][:t]); err != nil {
			return nil, nil, err
		}
	}
	return inputs, targets, nil
}

// Window is the number of the window in one row of the batch of a step.
func (b *Batcher) Window(step int64, row int) int64 {
	if step < 0 || row < 0 || row >= b.cfg.BatchSize {
		panic(fmt.Sprintf("data: row %d of step %d", row, step))
	}
	at := b.first(step) + int64(row)
	switch {
	case b.rest != nil && at < b.n:
		return b.inParts(at)
	case b.rest != nil && !b.whole():
		panic(fmt.Sprintf("data: row %d of step %d was not awaited", row, step))
	case b.blend != nil:
		k, ordinal := b.blend.at(at)
		s := b.sources[k]
		if b.cfg.Shuffle {
			return s.before + int64(permute(uint64(ordinal%s.n), uint64(s.n), b.cfg.Seed^mix(uint64(k)), uint64(ordinal/s.n)))
		}
		return s.before + ordinal%s.n
	case b.cfg.Shuffle:
		return int64(permute(uint64(at%b.n), uint64(b.n), b.cfg.Seed, uint64(at/b.n)))
	case len(b.sources) > 1: // text held out from a mix: the first windows are from all sources
		return int64(permute(uint64(at%b.n), uint64(b.n), 0, 0))
	}
	return at % b.n
}

// first is the first window of the batch of a step in the endless order.
func (b *Batcher) first(step int64) int64 {
	return b.origin.window + (step-b.origin.batch)*int64(b.cfg.BatchSize)
}

// find returns the source of a window, and the window's number in it.
func (b *Batcher) find(window int64) (source, int64) {
	i := sort.Search(len(b.sources), func(i int) bool { return b.sources[i].before > window }) - 1
	return b.sources[i], window - b.sources[i].before
}

// start is where a window of consecutive tokens begins, in tokens from the start of the corpus's first file.
func (b *Batcher) start(window int64) int64 {
	s, n := b.find(window)
	return s.from + n*int64(b.cfg.SeqLen)
}

// permute is a permutation of [0, n) for each seed and epoch, without a table: a Feistel network over the next power of
// four, walked until it lands below n (three more times at most, on average).
func permute(x, n, seed, epoch uint64) uint64 {
	half := (bits.Len64(n-1) + 1) / 2
	mask := uint64(1)<<half - 1
	var keys [8]uint64
	key := mix(mix(seed) + epoch)
	for i := range keys {
		key = mix(key)
		keys[i] = key
	}
	for {
		left, right := x>>half, x&mask
		for _, k := range keys {
			left, right = right, left^mix(right+k)&mask
		}
		if x = left<<half | right; x < n {
			return x
		}
	}
}

// mix is the step of the SplitMix64 generator.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// sameTokens compares sets of tokens.
func sameTokens(a, b []uint32) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

// Position is where a run is in its data, as a checkpoint keeps it.
type Position struct {
	Step   int64  `json:"step"`   // of the next batch
	Window int64  `json:"window"` // its first one in the endless order; 0 at a later step: not known, all batches had BatchSize
	Epoch  int64  `json:"epoch"`  // of this window
	Corpus string `json:"corpus"`
	BatchConfig
	Aligned string           `json:"aligned,omitempty"` // what identifies the tensors that go along
	Mix     []SourcePosition `json:"mix,omitempty"`     // of a mix, instead of Epoch
}

// window is the first one of the next batch in the endless order.
func (p Position) window() int64 {
	if p.Window == 0 {
		return p.Step * int64(p.BatchSize)
	}
	return p.Window
}

// Position is what to keep before the batch of step.
func (b *Batcher) Position(step int64) Position { return b.position(step, b.first(step)) }

func (b *Batcher) position(step, window int64) Position {
	p := Position{Step: step, Window: window, Epoch: window / b.n, Corpus: b.corpus.Hash(), BatchConfig: b.cfg}
	if b.rest != nil {
		p.Epoch, p.Corpus = b.inStream(window)
	}
	if b.blend != nil {
		p.Epoch, p.Mix = 0, b.Drawn(window)
	}
	if b.corpus.aligned != nil {
		p.Aligned = b.corpus.aligned.hash
	}
	return p
}

// Drawn is what the first windows are drawn from, of a mix.
func (b *Batcher) Drawn(windows int64) []SourcePosition {
	if b.blend == nil {
		return nil
	}
	return b.blend.positions(windows, b.sources)
}

// Resume continues from a position with batches of a size, which may differ from those before. It checks that p comes
// from the same tokens, dealt in the same way, and returns the step to go on with.
func (b *Batcher) Resume(p Position, batchSize int) (int64, error) {
	if p.Step < 0 || p.BatchSize < 1 || p.Step > math.MaxInt64/int64(max(p.BatchSize, batchSize)) {
		return 0, fmt.Errorf("data position: step is %d of batches of %d: expected steps from 0 to %d", p.Step, p.BatchSize,
			math.MaxInt64/int64(max(p.BatchSize, batchSize, 1)))
	}
	if p.Window = p.window(); p.Window < 0 {
		return 0, fmt.Errorf("data position: window is %d, expected at least 0", p.Window)
	}
	now := b.position(p.Step, p.Window)
	differ := func(what string, was, is any) (int64, error) {
		return 0, fmt.Errorf("the checkpoint's data differ: %s was %v, is %v: resume with the data of the run, or start a new run", what,
			was, is)
	}
	switch {
	case p.Stream != now.Stream:
		return differ("data.stream", p.Stream, now.Stream)
	case p.Corpus != now.Corpus:
		return differ("the hash of the training tokens", p.Corpus, now.Corpus)
	case p.Aligned != now.Aligned:
		return differ("the hash of the aligned tensors", cmp.Or(p.Aligned, "none"), cmp.Or(now.Aligned, "none"))
	case p.SeqLen != now.SeqLen:
		return differ("the sequence length", p.SeqLen, now.SeqLen)
	case p.Shuffle != now.Shuffle:
		return differ("whether windows are shuffled", p.Shuffle, now.Shuffle)
	case p.Shuffle && p.Seed != now.Seed:
		return differ("the seed of the shuffling", p.Seed, now.Seed)
	case cmp.Or(p.Pack, PackConcat) != cmp.Or(now.Pack, PackConcat):
		return differ("data.pack", cmp.Or(p.Pack, PackConcat), cmp.Or(now.Pack, PackConcat))
	case p.DocumentMask != now.DocumentMask:
		return differ("data.document_mask", p.DocumentMask, now.DocumentMask)
	case p.documents() && !sameTokens(p.ends(), now.ends()):
		return differ("data.separator, the tokens that end documents,", p.ends(), now.ends())
	case !slices.Equal(p.Mix, now.Mix):
		return differ("the mix", p.Mix, now.Mix)
	case p.Epoch != now.Epoch:
		return differ("the epoch", p.Epoch, now.Epoch)
	}
	b.cfg.BatchSize, b.origin = batchSize, origin{p.Step, p.Window}
	return p.Step, nil
}
