package serve

import (
	"crypto/rand"
	"net/http"
	"time"
)

// usage counts the tokens of a request.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func (u *usage) add(prompt, made int) {
	u.Prompt += prompt
	u.Completion += made
	u.Total = u.Prompt + u.Completion
}

type completionChoice struct {
	Text         string    `json:"text"`
	Index        int       `json:"index"`
	Logprobs     *logprobs `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

// answer is a response of both APIs, or a part of one that is streamed.
type answer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []any  `json:"choices"`
	Usage   any    `json:"usage,omitempty"` // *usage, or json.RawMessage("null") in streams that end with it
}

func (s *Server) answer(prefix, object string) answer {
	return answer{ID: prefix + rand.Text(), Object: object, Created: time.Now().Unix(), Model: s.o.Name, Choices: []any{}}
}

// completions serves POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	var c completionRequest
	if err := decode(r, &c); err != nil {
		writeError(w, err)
		return
	}
	outputs, err := s.complete(r, &c)
	if err != nil {
		writeError(w, err)
		return
	}
	t := &task{server: s, settings: c.settings, outputs: outputs, head: s.answer("cmpl-", "text_completion"),
		choice: func(o *output, p piece, reason *string, i int) any {
			choice := completionChoice{Text: p.text, Index: i, FinishReason: reason}
			if c.Logprobs != nil {
				choice.Logprobs = o.logprobs(p.events)
			}
			return choice
		}}
	t.respond(w)
}

// complete checks a request and submits its sequences.
func (s *Server) complete(r *http.Request, c *completionRequest) (outputs []*output, err error) {
	if len(c.Prompt) == 0 {
		c.Prompt = prompts{{}}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := s.checkModel(c.Model); err != nil {
		return nil, err
	}
	top := -1
	if c.Logprobs != nil {
		top = int(*c.Logprobs)
	}
	seed := c.seed()
	var all []*sequence
	for _, p := range c.Prompt {
		ids, err := s.tokens(p)
		if err != nil {
			return nil, err
		}
		most, err := s.limit("prompt", len(ids), c.MaxTokens, defaultTokens)
		if err != nil {
			return nil, err
		}
		for i := range c.choices() {
			q := s.sequence(r.Context(), ids, c.settings, most, seed+uint64(i), c.Echo && top >= 0, top)
			o := s.output(q, c.Stop)
			if c.Echo {
				if o.echo, err = s.echoed(p, ids); err != nil {
					return nil, err
				}
			}
			all, outputs = append(all, q), append(outputs, o)
		}
	}
	return outputs, s.scheduler.submit(all)
}

// echoed is the text of a prompt.
func (s *Server) echoed(p prompt, ids []uint32) ([]byte, error) {
	if p.ids == nil {
		return []byte(p.text), nil
	}
	return s.tok.Decode(ids)
}
