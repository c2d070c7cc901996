package inference

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

const (
	decodeProgram  = "decode"
	prefillProgram = "prefill"
)

// Generator generates text with a model on a device.
type Generator struct {
	src     *Source
	session engine.Session
	reader  reader
	context int // tokens
	fed     int // tokens of the current text
}

// reader feeds tokens to a model, in order from the beginning of a text. It returns the program whose logits are then
// of the token after them.
type reader interface {
	read(s engine.Session, ids []uint32, from int) (program string, err error)
}

// NewGenerator loads a model on a device. It closes src, on Close or if it returns an error.
func NewGenerator(src *Source, t Target) (*Generator, error) {
	programs, r, err := src.reader()
	if err != nil {
		return nil, errors.Join(usererror.New(err), src.Close())
	}
	s, err := src.load(t, programs)
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return &Generator{src: src, session: s, reader: r, context: src.Model.Size().SeqLen}, nil
}

// reader returns a model's programs for generating, and its reader.
func (src *Source) reader() (map[string]*graph.Graph, reader, error) {
	d, err := src.Model.Decoder()
	if err != nil {
		return nil, nil, err
	}
	programs, context := map[string]*graph.Graph{decodeProgram: d.Graph}, src.Model.Size().SeqLen
	if !d.Cached {
		return programs, &window{ids: make([]uint32, context)}, nil
	}
	if d.Prefill != nil {
		programs[prefillProgram] = d.Prefill
	}
	return programs, cached{d.Block, context}, nil
}

// cached feeds tokens to a model with a key-value cache: blocks of tokens to the program prefill if there is one, and
// single tokens to the program decode.
type cached struct{ block, context int }

func (c cached) read(s engine.Session, ids []uint32, from int) (program string, err error) {
	for len(ids) > 0 {
		n := min(c.block, len(ids))
		if n > 1 && from+c.block <= c.context {
			tokens := make([]uint32, c.block)
			copy(tokens, ids[:n])
			program, err = prefillProgram, run(s, prefillProgram, map[string][]uint32{
				model.TokensInput: tokens, model.PositionInput: {uint32(from)}, model.LastInput: {uint32(n - 1)}})
		} else {
			n = 1
			program, err = decodeProgram, decode(s, ids[:1], from)
		}
		if err != nil {
			return "", err
		}
		ids, from = ids[n:], from+n
	}
	return program, nil
}

// window feeds the whole text each time, to a model without a cache.
type window struct{ ids []uint32 }

func (w *window) read(s engine.Session, ids []uint32, from int) (program string, err error) {
	clear(w.ids[from+copy(w.ids[from:], ids):])
	return decodeProgram, decode(s, w.ids, from+len(ids)-1)
}

// decode runs the program of that name on tokens, for the logits after a position.
func decode(s engine.Session, ids []uint32, position int) error {
	return run(s, decodeProgram, map[string][]uint32{model.TokensInput: ids, model.PositionInput: {uint32(position)}})
}

func run(s engine.Session, program string, inputs map[string][]uint32) error {
	for name, values := range inputs {
		if err := s.SetInput(program, name, exec.IntBytes(values)); err != nil {
			return err
		}
	}
	return s.RunAt(program, nil)
}

// Close releases the device and the model's files.
func (g *Generator) Close() error { return errors.Join(g.session.Close(), g.src.Close()) }

// Generate continues a prompt by up to n tokens, or to the end of the document. It emits the text as it grows, in whole
// characters. A text longer than the model's context continues from its last half. Generate returns the number of
// tokens.
func (g *Generator) Generate(ctx context.Context, prompt []byte, n int, s Sampling, emit func(text []byte) error) (int, error) {
	if err := s.Validate(); err != nil {
		return 0, usererror.New(err)
	}
	ids, err := g.src.Encode(prompt)
	if err != nil {
		return 0, usererror.New(err)
	}
	sampler := NewSampler(s)
	out := NewTextStream(g.src.Tokenizer, ids, emit)
	g.fed = 0
	pending := tail(ids, g.context-1)
	for made := 0; made < n; made++ {
		if err := ctx.Err(); err != nil {
			return made, errors.Join(err, out.Flush())
		}
		if g.fed+len(pending) > g.context {
			g.fed, pending = 0, tail(ids, max(1, g.context/2))
		}
		id, err := g.next(pending, sampler)
		if err != nil {
			return made, err
		}
		if g.src.Tokenizer.Special().IsEnd(id) {
			return made, out.Flush()
		}
		ids = append(ids, id)
		pending = ids[len(ids)-1:]
		if err := out.Add(id); err != nil {
			return made, err
		}
	}
	return n, out.Flush()
}

// Encode returns at least one token: an empty prompt becomes the end of a document before, or a line break.
func (src *Source) Encode(prompt []byte) ([]uint32, error) {
	tok := src.Tokenizer
	if end, ok := tok.EOS(); ok && len(prompt) == 0 {
		return []uint32{end}, nil
	}
	if len(prompt) == 0 {
		prompt = []byte("\n")
	}
	ids, err := tok.Encode(prompt)
	if err == nil && len(ids) == 0 {
		err = fmt.Errorf("prompt: the tokenizer %q makes no token of it", tok.Name())
	}
	return ids, err
}

// tail returns the last n ids, at least one.
func tail(ids []uint32, n int) []uint32 { return ids[max(0, len(ids)-max(1, n)):] }

// next feeds tokens and draws the one after them.
func (g *Generator) next(pending []uint32, s *Sampler) (uint32, error) {
	program, err := g.reader.read(g.session, pending, g.fed)
	if err != nil {
		return 0, err
	}
	g.fed += len(pending)
	logits, err := read(g.session, program)
	if err != nil {
		return 0, err
	}
	// A model may have more rows than the tokenizer has tokens.
	return s.Next(logits[:g.src.Tokenizer.VocabSize()])
}

// TextStream decodes tokens as they arrive. The text of a token can depend on those before it, so TextStream decodes
// some of them again.
type TextStream struct {
	tok   tokenizer.Tokenizer
	emit  func([]byte) error
	ids   []uint32 // context, then those not yet emitted
	known int      // how many of ids are context
}

const streamContext = 8 // tokens that are decoded again

// NewTextStream decodes the tokens after a prompt. emit takes the text as it grows, in whole characters.
func NewTextStream(tok tokenizer.Tokenizer, prompt []uint32, emit func(text []byte) error) *TextStream {
	s := &TextStream{tok: tok, emit: emit}
	s.start(prompt)
	return s
}

func (s *TextStream) start(prompt []uint32) {
	s.ids = slices.Clone(tail(prompt, streamContext))
	s.known = len(s.ids)
}

// fresh returns the text of the tokens that are not emitted yet.
func (s *TextStream) fresh() ([]byte, error) {
	before, err := s.tok.Decode(s.ids[:s.known])
	if err != nil {
		return nil, err
	}
	all, err := s.tok.Decode(s.ids)
	if err != nil {
		return nil, err
	}
	return all[min(len(before), len(all)):], nil
}

// Add takes a token.
func (s *TextStream) Add(id uint32) error {
	s.ids = append(s.ids, id)
	text, err := s.fresh()
	if err != nil {
		return err
	}
	if endsInside(text) {
		return nil
	}
	return s.emitText(text)
}

// endsInside reports whether the last character of a text is incomplete.
func endsInside(text []byte) bool {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(text[i]) {
			return !utf8.FullRune(text[i:])
		}
	}
	return false
}

func (s *TextStream) emitText(text []byte) error {
	s.start(s.ids)
	if len(text) == 0 {
		return nil
	}
	return s.emit(text)
}

// Flush emits what remains, whole characters or not.
func (s *TextStream) Flush() error {
	text, err := s.fresh()
	if err != nil {
		return err
	}
	return s.emitText(text)
}
