package inference

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Batch continues several texts at once with a model on a device. Each text has a slot. The results for a text depend
// on that text alone, to the last bit. A Batch is for one goroutine at a time.
type Batch struct {
	src     *Source
	session engine.Session
	slots   int
	reader  batchReader
}

// Token is a token of the text in a slot.
type Token struct {
	Slot, Position int
	ID             uint32
}

// batchReader feeds tokens to a model.
type batchReader interface {
	// fill stores tokens of one text. each, if not nil, is called with the logits after each of them, which are valid
	// until it returns.
	fill(s engine.Session, tokens []Token, each func(i int, logits []float32) error) error
	// decode stores one token of each of several texts and returns the logits after each.
	decode(s engine.Session, tokens []Token) ([][]float32, error)
}

// NewBatch loads a model on a device, for a number of texts at once and contexts of seqLen tokens; 0: the model's. It
// closes src, on Close or if it returns an error.
func NewBatch(src *Source, t Target, slots, seqLen int) (*Batch, error) {
	b := &Batch{src: src, slots: slots}
	programs, err := b.programs(seqLen)
	if err != nil {
		return nil, errors.Join(usererror.New(err), src.Close())
	}
	if b.session, err = src.load(t, programs); err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return b, nil
}

// The programs of a BatchDecoder.
const (
	batchDecode = "decode"
	batchScore  = "score"
	batchFill   = "fill"
)

// programs returns the model's programs and sets the reader for them. A model that a hook builds has no cache: it reads
// the whole text for each token.
func (b *Batch) programs(seqLen int) (map[string]*graph.Graph, error) {
	if b.slots < 1 {
		return nil, fmt.Errorf("slots: found %d, expected at least 1", b.slots)
	}
	if err := b.src.setSeqLen(seqLen); err != nil {
		return nil, err
	}
	c, ok := b.src.Cached()
	if !ok {
		d, err := b.src.Model.Decoder()
		texts := make([][]uint32, b.slots)
		for i := range texts {
			texts[i] = make([]uint32, b.Context())
		}
		b.reader = uncached{texts}
		return map[string]*graph.Graph{decodeProgram: d.Graph}, err
	}
	d, err := c.BatchDecoder(b.slots)
	b.reader = slotted{slots: b.slots, block: d.Block, vocabulary: c.VocabSize}
	return map[string]*graph.Graph{batchDecode: d.Decode, batchScore: d.Score, batchFill: d.Fill}, err
}

// Cached reports whether the model has a cache of the tokens before: models that hooks build have none.
func (src *Source) Cached() (model.Config, bool) {
	c, ok := src.Model.(model.Config)
	return c, ok
}

// Slots is the number of texts at once, Context the number of tokens that a text may have.
func (b *Batch) Slots() int   { return b.slots }
func (b *Batch) Context() int { return b.src.Model.Size().SeqLen }

// Source is the model.
func (b *Batch) Source() *Source { return b.src }

// Fill stores tokens of the text in a slot, from a position on. All tokens before it must be stored.
func (b *Batch) Fill(slot, from int, ids []uint32) error {
	return b.reader.fill(b.session, text(slot, from, ids), nil)
}

// Score is Fill, and calls each with the logits after each token: i counts ids. The logits are valid until it returns.
func (b *Batch) Score(slot, from int, ids []uint32, each func(i int, logits []float32) error) error {
	return b.reader.fill(b.session, text(slot, from, ids), each)
}

// Decode stores a token of each of several texts, at most Slots, and returns the logits after each.
func (b *Batch) Decode(tokens []Token) ([][]float32, error) {
	return b.reader.decode(b.session, tokens)
}

// Close releases the device and the model's files.
func (b *Batch) Close() error { return errors.Join(b.session.Close(), b.src.Close()) }

func text(slot, from int, ids []uint32) []Token {
	tokens := make([]Token, len(ids))
	for i, id := range ids {
		tokens[i] = Token{slot, from + i, id}
	}
	return tokens
}

// slotted is the reader of a model.BatchDecoder.
type slotted struct{ slots, block, vocabulary int }

func (r slotted) fill(s engine.Session, tokens []Token, each func(int, []float32) error) error {
	program := batchFill
	if each != nil {
		program = batchScore
	}
	done := 0
	for part := range slices.Chunk(tokens, r.block) {
		logits, err := r.run(s, program, r.block, part, each != nil)
		if err != nil {
			return err
		}
		for i, l := range logits {
			if err := each(done+i, l); err != nil {
				return err
			}
		}
		done += len(part)
	}
	return nil
}

func (r slotted) decode(s engine.Session, tokens []Token) ([][]float32, error) {
	return r.run(s, batchDecode, r.slots, tokens, true)
}

// run runs a program that takes n tokens on at most as many. Inputs that remain are in no slot.
func (r slotted) run(s engine.Session, program string, n int, tokens []Token, output bool) ([][]float32, error) {
	ids, slot, position := make([]uint32, n), make([]uint32, n), make([]uint32, n)
	for i := range n {
		slot[i], position[i] = math.MaxUint32, 0
		if i < len(tokens) {
			ids[i], slot[i], position[i] = tokens[i].ID, uint32(tokens[i].Slot), uint32(tokens[i].Position)
		}
	}
	if err := run(s, program, map[string][]uint32{model.TokensInput: ids, model.SlotInput: slot,
		model.PositionInput: position}); err != nil || !output {
		return nil, err
	}
	all, err := read(s, program)
	if err != nil {
		return nil, err
	}
	logits := make([][]float32, len(tokens))
	for i := range logits {
		logits[i] = all[i*r.vocabulary:][:r.vocabulary]
	}
	return logits, nil
}

// read returns the logits of the last run of a program.
func read(s engine.Session, program string) ([]float32, error) {
	p, err := s.Output(program, model.LogitsOutput)
	if err != nil {
		return nil, err
	}
	b, err := p.Wait()
	if err != nil {
		return nil, err
	}
	return exec.ToF32(b), nil
}

// uncached is the reader of a model without a cache. It keeps the texts of the slots.
type uncached struct{ texts [][]uint32 }

func (r uncached) fill(s engine.Session, tokens []Token, each func(int, []float32) error) error {
	for i, t := range tokens {
		if each == nil {
			r.texts[t.Slot][t.Position] = t.ID
			continue
		}
		logits, err := r.after(s, t)
		if err == nil {
			err = each(i, logits)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r uncached) decode(s engine.Session, tokens []Token) (all [][]float32, err error) {
	for _, t := range tokens {
		logits, err := r.after(s, t)
		if err != nil {
			return nil, err
		}
		all = append(all, logits)
	}
	return all, nil
}

// after stores a token and returns the logits after it.
func (r uncached) after(s engine.Session, t Token) ([]float32, error) {
	ids := r.texts[t.Slot]
	ids[t.Position] = t.ID
	clear(ids[t.Position+1:])
	if err := decode(s, ids, t.Position); err != nil {
		return nil, err
	}
	return read(s, decodeProgram)
}
