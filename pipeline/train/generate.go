package train

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/tokenizer"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Sampling is how the next token is drawn.
type Sampling struct {
	Temperature float64 // 0 takes the likeliest
	TopK        int     // of the likeliest only; 0: of all
	TopP        float64 // of the fewest whose probabilities reach TopP only; 1: of all
	Seed        uint64
}

// Validate refuses what cannot be drawn from.
func (s Sampling) Validate() error {
	switch {
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 1):
		return usererror.Errorf("temperature: found %v, expected a number of at least 0", graph.Real(s.Temperature))
	case s.TopK < 0:
		return usererror.Errorf("top-k: found %d, expected at least 0 (0: no limit)", s.TopK)
	case !(s.TopP > 0) || s.TopP > 1:
		return usererror.Errorf("top-p: found %v, expected a number above 0 and at most 1", graph.Real(s.TopP))
	}
	return nil
}

// Sampler draws tokens.
type Sampler struct {
	Sampling
	rng *rand.Rand
}

// NewSampler starts a sequence of draws that depends on nothing but the settings.
func NewSampler(s Sampling) *Sampler { return &Sampler{s, rand.New(rand.NewPCG(s.Seed, 0))} }

type choice struct {
	id     uint32
	weight float64
}

// Next draws from the distribution that logits describe; ties go to the lower id.
func (s *Sampler) Next(logits []float32) (uint32, error) {
	choices := make([]choice, len(logits))
	for i, l := range logits {
		if math.IsNaN(float64(l)) || math.IsInf(float64(l), 1) {
			return 0, usererror.Errorf("the model's logits are not finite: token %d has %v", i, l)
		}
		choices[i] = choice{uint32(i), float64(l)}
	}
	slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(b.weight, a.weight) })
	if s.Temperature == 0 {
		return choices[0].id, nil
	}
	if s.TopK > 0 && s.TopK < len(choices) {
		choices = choices[:s.TopK]
	}
	best, sum := choices[0].weight, 0.0
	for i := range choices {
		choices[i].weight = math.Exp((choices[i].weight - best) / s.Temperature)
		sum += choices[i].weight
	}
	if s.TopP < 1 {
		reached := 0.0
		for i, c := range choices {
			if reached += c.weight; reached >= s.TopP*sum {
				choices, sum = choices[:i+1], reached
				break
			}
		}
	}
	at := s.rng.Float64() * sum
	for _, c := range choices {
		if at -= c.weight; at < 0 {
			return c.id, nil
		}
	}
	return choices[len(choices)-1].id, nil
}

const decodeProgram = "decode"

// Generator continues texts with a model on a device.
type Generator struct {
	src     *Source
	session engine.Session
	reader  reader
	context int // tokens
	fed     int // of the present text
}

// reader gives tokens to a model, one after another from the beginning of a text, so that its logits are those of the token after them.
type reader interface {
	read(s engine.Session, ids []uint32, from int) error
}

// NewGenerator loads a model for sampling. It takes over src, also on error.
func NewGenerator(src *Source, dev string, open layout.OpenDevice, execute engine.Executor) (*Generator, error) {
	g, r, err := src.reader()
	if err != nil {
		return nil, errors.Join(usererror.New(err), src.Close())
	}
	s, err := src.load(dev, open, execute, map[string]*graph.Graph{decodeProgram: g})
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return &Generator{src: src, session: s, reader: r, context: src.Model.Size().SeqLen}, nil
}

// reader returns a model's decoder, and the reader that uses it.
func (src *Source) reader() (*graph.Graph, reader, error) {
	d, err := src.Model.Decoder()
	if err != nil {
		return nil, nil, err
	}
	if d.Cached {
		return d.Graph, cached{}, nil
	}
	return d.Graph, &window{ids: make([]uint32, src.Model.Size().SeqLen)}, nil
}

// cached reads a token at a time: the model keeps what it needs of those before.
type cached struct{}

func (cached) read(s engine.Session, ids []uint32, from int) error {
	for i, id := range ids {
		if err := decode(s, []uint32{id}, from+i); err != nil {
			return err
		}
	}
	return nil
}

// window holds all of the text, and has the model look at it anew each time.
type window struct{ ids []uint32 }

func (w *window) read(s engine.Session, ids []uint32, from int) error {
	clear(w.ids[from+copy(w.ids[from:], ids):])
	return decode(s, w.ids, from+len(ids)-1)
}

// decode runs the decoding program on tokens, for the logits after a position.
func decode(s engine.Session, ids []uint32, position int) error {
	for name, values := range map[string][]uint32{model.TokensInput: ids, model.PositionInput: {uint32(position)}} {
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, v)
		}
		if err := s.SetInput(decodeProgram, name, data); err != nil {
			return err
		}
	}
	return s.RunAt(decodeProgram, nil)
}

// Close releases the device and the model's files.
func (g *Generator) Close() error { return errors.Join(g.session.Close(), g.src.Close()) }

// Generate continues a prompt by up to n tokens, or to the end of the document, and hands on the text as it grows, whole
// characters at a time. A text longer than the model's context goes on from its last half. It returns how many tokens
// were made.
func (g *Generator) Generate(ctx context.Context, prompt []byte, n int, s Sampling, emit func(text []byte) error) (int, error) {
	if err := s.Validate(); err != nil {
		return 0, err
	}
	ids, err := g.encode(prompt)
	if err != nil {
		return 0, usererror.New(err)
	}
	sampler := NewSampler(s)
	out := &stream{tok: g.src.Tokenizer, emit: emit}
	out.start(ids)
	g.fed = 0
	pending := tail(ids, g.context-1)
	for made := 0; made < n; made++ {
		if err := ctx.Err(); err != nil {
			return made, errors.Join(err, out.flush())
		}
		if g.fed+len(pending) > g.context {
			g.fed, pending = 0, tail(ids, max(1, g.context/2))
		}
		id, err := g.next(pending, sampler)
		if err != nil {
			return made, err
		}
		if end, ok := g.src.Tokenizer.EOS(); ok && id == end {
			return made, out.flush()
		}
		ids = append(ids, id)
		pending = ids[len(ids)-1:]
		if err := out.add(id); err != nil {
			return made, err
		}
	}
	return n, out.flush()
}

// encode gives at least one token: an empty prompt is the end of the document before, or a line break.
func (g *Generator) encode(prompt []byte) ([]uint32, error) {
	tok := g.src.Tokenizer
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

func tail(ids []uint32, n int) []uint32 { return ids[max(0, len(ids)-max(1, n)):] }

// next feeds tokens and draws the one after them.
func (g *Generator) next(pending []uint32, s *Sampler) (uint32, error) {
	if err := g.reader.read(g.session, pending, g.fed); err != nil {
		return 0, err
	}
	g.fed += len(pending)
	p, err := g.session.Output(decodeProgram, model.LogitsOutput)
	if err != nil {
		return 0, err
	}
	b, err := p.Wait()
	if err != nil {
		return 0, err
	}
	// A model may have more rows than the tokenizer has tokens.
	return s.Next(exec.ToF32(b)[:g.src.Tokenizer.VocabSize()])
}

// stream turns tokens into text as they come. What a token reads as can depend on those before it, so a few of them are
// decoded along with it.
type stream struct {
	tok   tokenizer.Tokenizer
	emit  func([]byte) error
	ids   []uint32 // context, then those not yet handed on
	known int      // how many of ids are context
}

const streamContext = 8

func (s *stream) start(prompt []uint32) {
	s.ids = slices.Clone(tail(prompt, streamContext))
	s.known = len(s.ids)
}

func (s *stream) fresh() ([]byte, error) {
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

func (s *stream) add(id uint32) error {
	s.ids = append(s.ids, id)
	text, err := s.fresh()
	if err != nil {
		return err
	}
	if endsInside(text) {
		return nil
	}
	return s.hand(text)
}

// endsInside tells whether the last character of a text still lacks bytes.
func endsInside(text []byte) bool {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(text[i]) {
			return !utf8.FullRune(text[i:])
		}
	}
	return false
}

func (s *stream) hand(text []byte) error {
	s.start(s.ids)
	if len(text) == 0 {
		return nil
	}
	return s.emit(text)
}

func (s *stream) flush() error {
	text, err := s.fresh()
	if err != nil {
		return err
	}
	return s.hand(text)
}
