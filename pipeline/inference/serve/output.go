package serve

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/pipeline/inference"
)

// output turns the events of a sequence into text and probabilities, and ends it at a stop string.
type output struct {
	server *Server
	q      *sequence
	stops  []string
	stream *inference.TextStream

	echo    []byte   // the prompt, not taken yet
	text    []byte   // of the continuation, not taken yet; it may begin a stop string
	held    []event  // events whose text is not taken
	prompt  int      // events of the prompt that are still to come
	made    int      // tokens of the continuation
	at      position // of the next token in the text
	begun   bool     // a piece is taken
	stopped bool     // at a stop string
}

func (s *Server) output(q *sequence, stops []string) *output {
	o := &output{server: s, q: q, stops: stops}
	if q.asked.scored {
		o.prompt = q.prompt
	}
	o.stream = inference.NewTextStream(s.tok, q.ids[:q.prompt], func(text []byte) error {
		o.text = append(o.text, text...)
		return nil
	})
	return o
}

// piece is a part of an answer.
type piece struct {
	text   string
	events []event
	first  bool // of its choice
}

// add takes an event.
func (o *output) add(e event) error {
	o.held = append(o.held, e)
	if o.prompt > 0 { // its text is known as a whole
		o.prompt--
		return nil
	}
	o.made++
	if e.ends {
		return nil
	}
	if err := o.stream.Add(e.id); err != nil {
		return err
	}
	if at := firstStop(string(o.text), o.stops); at >= 0 {
		o.text, o.stopped = o.text[:at], true
	}
	return nil
}

// firstStop returns where the stop string begins that is complete first, as if the text came by characters; of stop
// strings that end together the longest counts. So the order of the strings and the borders of tokens do not matter. It
// is −1 if there is none.
func firstStop(text string, stops []string) int {
	begin, end := -1, 0
	for _, stop := range stops {
		at := strings.Index(text, stop)
		if at >= 0 && (begin < 0 || at+len(stop) < end || at+len(stop) == end && at < begin) {
			begin, end = at, at+len(stop)
		}
	}
	return begin
}

// take returns the text that is certain to be in the answer: all but the beginning of a stop string, or, at the end,
// all.
func (o *output) take(end bool) (p piece, err error) {
	if end && !o.stopped {
		if err := o.stream.Flush(); err != nil {
			return p, err
		}
	}
	n := len(o.text)
	if !end && !o.stopped {
		n -= o.overlap()
	}
	if n == 0 && len(o.echo) == 0 && !end {
		return p, nil
	}
	// Each byte that is no part of a character becomes U+FFFD, however the text is cut.
	p = piece{string([]rune(string(o.echo) + string(o.text[:n]))), o.held, !o.begun}
	o.echo, o.text, o.held, o.begun = nil, o.text[n:], nil, true
	return p, nil
}

// overlap is the length of the longest end of the text that begins a stop string.
func (o *output) overlap() (longest int) {
	for _, stop := range o.stops {
		for k := min(len(stop)-1, len(o.text)); k > longest; k-- {
			if strings.HasSuffix(string(o.text), stop[:k]) {
				longest = k
			}
		}
	}
	return longest
}

func (o *output) reason() string {
	if o.stopped {
		return "stop"
	}
	return o.q.reason()
}

// logprobs are the probabilities of tokens as completions report them.
type logprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float64           `json:"token_logprobs"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

// position is a place in a text: how many characters are complete before it, and the bytes of the one that is not.
type position struct {
	characters int
	partial    []byte
}

// advance moves the position behind the bytes of a token. Each byte that is no part of a character counts as one.
func (p *position) advance(text []byte) {
	p.partial = append(p.partial, text...)
	for utf8.FullRune(p.partial) {
		_, n := utf8.DecodeRune(p.partial)
		p.characters++
		p.partial = p.partial[n:]
	}
}

// word is the text of a token of the sequence. The first one of a text may have no space before it.
func (o *output) word(e event) []byte {
	if e.first {
		text, err := o.server.tok.Decode([]uint32{e.id})
		if err == nil {
			return text
		}
	}
	return o.server.word(e.id)
}

// logprobs reports events. The offset of a token is the offset of the character that it begins or continues.
func (o *output) logprobs(events []event) *logprobs {
	l := &logprobs{Tokens: []string{}, TokenLogprobs: []*float64{}, TopLogprobs: []map[string]float64{}, TextOffset: []int{}}
	for _, e := range events {
		text := o.word(e)
		l.Tokens, l.TextOffset = append(l.Tokens, spelled(text)), append(l.TextOffset, o.at.characters)
		o.at.advance(text)
		if math.IsNaN(e.logProb) {
			l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, nil), append(l.TopLogprobs, nil)
			continue
		}
		top := map[string]float64{spelled(text): finite(e.logProb)}
		for _, x := range e.top {
			name := spelled(o.server.word(x.id))
			if before, ok := top[name]; !ok || x.logProb > before {
				top[name] = finite(x.logProb)
			}
		}
		x := finite(e.logProb)
		l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, &x), append(l.TopLogprobs, top)
	}
	return l
}

// finite is x, or for −∞ the least float32: JSON has no infinity.
func finite(x float64) float64 { return max(x, -math.MaxFloat32) }

// word is the text of a token behind others; empty for an id that the tokenizer does not have.
func (s *Server) word(id uint32) []byte {
	once, err := s.tok.Decode([]uint32{id})
	if err != nil {
		return nil
	}
	twice, err := s.tok.Decode([]uint32{id, id})
	if err != nil || len(twice) < len(once) {
		return once
	}
	return twice[len(once):]
}

// spelled is a token's text, or its bytes where these are no whole characters.
func spelled(text []byte) string {
	if utf8.Valid(text) {
		return string(text)
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, x := range text {
		fmt.Fprintf(&b, `\x%02x`, x)
	}
	return b.String()
}

func inTokens(n int) string {
	if n == 1 {
		return "1 token"
	}
	return strconv.Itoa(n) + " tokens"
}
