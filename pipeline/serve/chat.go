package serve

import (
	"net/http"

	"github.com/gpupipe/gpupipe/pipeline/tokenizer"
)

type chatRequest struct {
	settings
	Messages            []message `json:"messages"`
	MaxCompletionTokens *int      `json:"max_completion_tokens"` // the newer name of max_tokens
	Logprobs            bool      `json:"logprobs"`
	TopLogprobs         *int      `json:"top_logprobs"`
}

type chatMessage struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatMessage  `json:"message,omitempty"`
	Delta        *chatMessage  `json:"delta,omitempty"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type chatLogprobs struct {
	Content []chatToken `json:"content"`
}

type chatToken struct {
	Token   string      `json:"token"`
	Logprob float64     `json:"logprob"`
	Bytes   []int       `json:"bytes"`
	Top     []chatToken `json:"top_logprobs,omitempty"`
}

// chat serves POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	var c chatRequest
	if err := decode(r, &c); err != nil {
		writeError(w, err)
		return
	}
	outputs, err := s.converse(r, &c)
	if err != nil {
		writeError(w, err)
		return
	}
	object := "chat.completion"
	if c.Stream {
		object += ".chunk"
	}
	t := &task{server: s, settings: c.settings, outputs: outputs, head: s.answer("chatcmpl-", object), choice: func(o *output, p piece, reason *string, i int) any {
		choice, text := chatChoice{Index: i, FinishReason: reason}, &chatMessage{"assistant", p.text}
		if choice.Message = text; c.Stream {
			choice.Message, choice.Delta = nil, text
		}
		if c.Logprobs {
			choice.Logprobs = s.chatLogprobs(p.events)
		}
		return choice
	}}
	t.respond(w)
}

// converse checks a request and submits its sequences.
func (s *Server) converse(r *http.Request, c *chatRequest) (outputs []*output, err error) {
	if c.MaxTokens == nil {
		c.MaxTokens = c.MaxCompletionTokens
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	top := -1
	switch {
	case s.template == nil:
		return nil, invalid("", "the model has no chat template (%s or %s in its folder): ask /v1/completions", tokenizer.ConfigFile, tokenizer.TemplateFile)
	case len(c.Messages) == 0:
		return nil, invalid("messages", "found none, expected at least one")
	case c.TopLogprobs != nil && (!c.Logprobs || *c.TopLogprobs < 0 || *c.TopLogprobs > maxTop):
		return nil, invalid("top_logprobs", "found %d, expected 0 to %d, and logprobs: true", *c.TopLogprobs, maxTop)
	case c.TopLogprobs != nil:
		top = *c.TopLogprobs
	case c.Logprobs:
		top = 0
	}
	if err := s.checkModel(c.Model); err != nil {
		return nil, err
	}
	text, err := s.template.render(c.Messages)
	if err != nil {
		return nil, invalid("messages", "%v", err)
	}
	ids, err := s.tokens(prompt{text: text})
	if err != nil {
		return nil, err
	}
	most, err := s.limit(len(ids), c.MaxTokens, s.context)
	if err != nil {
		return nil, err
	}
	var all []*sequence
	seed := c.seed()
	for i := range c.choices() {
		q := s.sequence(r.Context(), ids, c.settings, most, seed+uint64(i), false, top)
		all, outputs = append(all, q), append(outputs, s.output(q, c.Stop))
	}
	return outputs, s.scheduler.submit(all)
}

func (s *Server) chatLogprobs(events []event) *chatLogprobs {
	l := &chatLogprobs{Content: []chatToken{}}
	for _, e := range events {
		t := s.chatToken(e.id, e.logProb)
		for _, x := range e.top {
			t.Top = append(t.Top, s.chatToken(x.id, x.logProb))
		}
		l.Content = append(l.Content, t)
	}
	return l
}

func (s *Server) chatToken(id uint32, logProb float64) chatToken {
	text := s.word(id)
	t := chatToken{Token: spelled(text), Logprob: finite(logProb), Bytes: make([]int, len(text))}
	for i, b := range text {
		t.Bytes[i] = int(b)
	}
	return t
}
