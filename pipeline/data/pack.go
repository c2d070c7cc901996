package data

import (
	"fmt"
	"math/bits"
	"slices"
)

// Ways to lay documents into the rows of batches.
const (
	// PackConcat joins all documents and cuts them into windows, wherever documents end.
	PackConcat = "concat"
	// PackBestFit lays each document into one row, if it fits, and fills rows with the documents that fit best
	// (arXiv 2404.10830). A longer document is cut into full rows and a rest. What stays empty has weight 0.
	PackBestFit = "best_fit"
)

// packing is the rows of a source. Row r has the pieces rows[r] to rows[r+1]: predictions of consecutive tokens.
type packing struct {
	rows   []int64
	pieces []packed
}

// packed is a piece of a document: n tokens from a place on. Each token predicts the next.
type packed struct {
	at int64
	n  uint32
}

// packDocuments lays the documents of a span into rows of length predictions. A separator is the last token of its
// document: it is predicted, and predicts nothing. Each other token is learnt from once in an epoch.
func packDocuments(c *Corpus, s span, length int, ends []uint32) (*packing, error) {
	pieces, err := cutDocuments(c, s, length, ends)
	if err != nil {
		return nil, err
	}
	rows := bestFit(pieces, length)
	// As in the corpus: a row where its first piece is.
	slices.SortFunc(rows, func(a, b []int32) int { return int(a[0]) - int(b[0]) })
	p := &packing{rows: make([]int64, 1, len(rows)+1), pieces: make([]packed, 0, len(pieces))}
	for _, row := range rows {
		for _, i := range row {
			p.pieces = append(p.pieces, pieces[i])
		}
		p.rows = append(p.rows, int64(len(p.pieces)))
	}
	return p, nil
}

// cutDocuments lists the pieces of a span's documents, in their order.
func cutDocuments(c *Corpus, s span, length int, ends []uint32) (pieces []packed, err error) {
	ids := make([]int32, scanChunk)
	begin := s.from
	end := func(after int64) { // of a document, whose last token comes before
		for ; begin+1 < after; begin += int64(length) {
			pieces = append(pieces, packed{begin, uint32(min(int64(length), after-1-begin))})
		}
		begin = after
	}
	for at := s.from; at < s.to; at += scanChunk {
		part := ids[:min(scanChunk, s.to-at)]
		if err := c.read(part, at); err != nil {
			return nil, err
		}
		for i, id := range part {
			if slices.Contains(ends, uint32(id)) {
				end(at + int64(i) + 1)
			}
		}
		if len(pieces) > maxPieces {
			return nil, fmt.Errorf("more than %d documents to pack", maxPieces)
		}
	}
	end(s.to)
	return pieces, nil
}

const maxPieces = 1 << 30

// bestFit lays pieces into rows of length: the longest first, each into the row with the least space that it fits into,
// the one begun first of several. It returns the rows, each with the numbers of its pieces in their order.
func bestFit(pieces []packed, length int) (rows [][]int32) {
	order := make([]int32, len(pieces))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return int(pieces[b].n) - int(pieces[a].n) })
	open := newSpaces(length)
	for _, i := range order {
		n := int(pieces[i].n)
		row, space := open.take(n)
		if row < 0 {
			row, space = int32(len(rows)), length
			rows = append(rows, nil)
		}
		rows[row] = append(rows[row], i)
		open.put(row, space-n)
	}
	for _, row := range rows {
		slices.Sort(row)
	}
	return rows
}

// spaces are rows by the space that is left in them, first in, first out.
type spaces struct {
	rows [][]int32
	some []uint64 // bit n: rows[n] is not empty
}

func newSpaces(length int) *spaces {
	return &spaces{make([][]int32, length+1), make([]uint64, length/64+1)}
}

func (s *spaces) put(row int32, space int) {
	if space > 0 {
		s.rows[space] = append(s.rows[space], row)
		s.some[space/64] |= 1 << (space % 64)
	}
}

// take removes a row with the least space of at least n; -1: there is none.
func (s *spaces) take(n int) (row int32, space int) {
	word := n / 64
	left := s.some[word] &^ (1<<(n%64) - 1)
	for left == 0 {
		if word++; word == len(s.some) {
			return -1, 0
		}
		left = s.some[word]
	}
	space = word*64 + bits.TrailingZeros64(left)
	row = s.rows[space][0]
	if s.rows[space] = s.rows[space][1:]; len(s.rows[space]) == 0 {
		s.rows[space] = nil
		s.some[space/64] &^= 1 << (space % 64)
	}
	return row, space
}

// row returns the pieces of a row.
func (p *packing) row(r int64) []packed { return p.pieces[p.rows[r]:p.rows[r+1]] }

// Documents are what a batch says of documents besides inputs and targets, each [BatchSize × SeqLen].
type Documents struct {
	Weights  []float32 // 0 where nothing is to be predicted, else 1
	Segments []uint32  // numbers of documents within a row; nil: tokens attend across documents
}

// Documents returns the documents of the batch of a step, given its inputs; nil if batches know none.
func (b *Batcher) Documents(step int64, inputs []int32) *Documents {
	if !b.cfg.documents() {
		return nil
	}
	d := &Documents{Weights: make([]float32, len(inputs)), Segments: make([]uint32, len(inputs))}
	t := b.cfg.SeqLen
	for i := range b.cfg.BatchSize {
		weights, segments := d.Weights[i*t:][:t], d.Segments[i*t:][:t]
		if s, r := b.find(b.Window(step, i)); s.packing != nil {
			describePacked(s.packing.row(r), weights, segments)
		} else {
			b.describeWindow(inputs[i*t:][:t], weights, segments)
		}
	}
	if !b.cfg.DocumentMask {
		d.Segments = nil
	}
	return d
}

// Real returns 1 for each position of the batch of a step that has a token of a document, and 0 for padding: what
// PackBestFit leaves empty.
func (b *Batcher) Real(step int64) []uint32 {
	t := b.cfg.SeqLen
	real := make([]uint32, b.cfg.BatchSize*t)
	for i := range b.cfg.BatchSize {
		for j := range b.filled(b.Window(step, i)) {
			real[i*t+j] = 1
		}
	}
	return real
}

// Tokens is how many tokens of documents the batch of a step has, without padding.
func (b *Batcher) Tokens(step int64) (n int64) {
	for i := range b.cfg.BatchSize {
		n += int64(b.filled(b.Window(step, i)))
	}
	return n
}

// filled is how many positions of a window have a token of a document. Padding follows.
func (b *Batcher) filled(window int64) (n int) {
	s, r := b.find(window)
	if s.packing == nil {
		return b.cfg.SeqLen
	}
	for _, p := range s.packing.row(r) {
		n += int(p.n)
	}
	return n
}

// Share is the share of an epoch's positions that have a token of a document.
func (b *Batcher) Share() float64 { return b.share }

func (b *Batcher) measureShare() float64 {
	n := int64(0)
	for _, s := range b.sources {
		if s.packing == nil {
			n += s.n * int64(b.cfg.SeqLen)
			continue
		}
		for _, p := range s.packing.pieces {
			n += int64(p.n)
		}
	}
	return float64(n) / float64(b.n*int64(b.cfg.SeqLen))
}

// NotPredicted is the target, in an evaluation, of a position that predicts nothing: model.NoTarget among tokens.
const NotPredicted = -1

// Evaluated returns the batch of a step as evaluations read it, with NotPredicted where a document ends. segments is
// nil if tokens attend across documents.
func (b *Batcher) Evaluated(step int64) (inputs, targets []int32, segments []uint32, err error) {
	if inputs, targets, err = b.Batch(step); err != nil {
		return nil, nil, nil, err
	}
	d := b.Documents(step, inputs)
	if d == nil {
		return inputs, targets, nil, nil
	}
	for i, w := range d.Weights {
		if w == 0 {
			targets[i] = NotPredicted
		}
	}
	return inputs, targets, d.Segments, nil
}

// Predicted lists the targets of an evaluation that are predicted.
func Predicted(targets []int32) []uint32 {
	ids := make([]uint32, 0, len(targets))
	for _, id := range targets {
		if id != NotPredicted {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}

// describePacked describes a row of pieces. The rest of the row is a segment of its own.
func describePacked(pieces []packed, weights []float32, segments []uint32) {
	at := 0
	for k, p := range pieces {
		for range p.n {
			weights[at], segments[at] = 1, uint32(k)
			at++
		}
	}
	for ; at < len(segments); at++ {
		segments[at] = uint32(len(pieces))
	}
}

// describeWindow describes a window: a separator is the last token of its document, and predicts nothing.
func (b *Batcher) describeWindow(inputs []int32, weights []float32, segments []uint32) {
	ends := b.cfg.ends()
	numberDocuments(segments, inputs, ends)
	for i, id := range inputs {
		if !slices.Contains(ends, uint32(id)) {
			weights[i] = 1
		}
	}
}

// Segments numbers the documents in each window of seqLen consecutive tokens, from 0. A separator is the last token of
// its document.
func Segments(tokens []int32, seqLen int, ends []uint32) []uint32 {
	segments := make([]uint32, len(tokens))
	for at := 0; at < len(tokens); at += seqLen {
		numberDocuments(segments[at:], tokens[at:min(at+seqLen, len(tokens))], ends)
	}
	return segments
}

// numberDocuments writes the segments of a window.
func numberDocuments(segments []uint32, window []int32, ends []uint32) {
	document := uint32(0)
	for i, id := range window {
		segments[i] = document
		if slices.Contains(ends, uint32(id)) {
			document++
		}
	}
}

// fill reads the row of a window.
func (b *Batcher) fill(window int64, inputs, targets []int32) error {
	s, r := b.find(window)
	if s.packing == nil {
		both := make([]int32, len(inputs)+1)
		if err := s.corpus.read(both, s.from+r*int64(len(inputs))); err != nil {
			return err
		}
		copy(inputs, both)
		copy(targets, both[1:])
		return nil
	}
	for _, p := range s.packing.row(r) {
		both := make([]int32, p.n+1)
		if err := s.corpus.read(both, p.at); err != nil {
			return err
		}
		copy(inputs, both[:p.n])
		copy(targets, both[1:])
		inputs, targets = inputs[p.n:], targets[p.n:]
	}
	for i := range inputs {
		inputs[i], targets[i] = int32(b.cfg.Separator), int32(b.cfg.Separator)
	}
	return nil
}
