package serve

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/gpupipe/gpupipe/internal/jinja"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

type chatRequest struct {
	settings
	Messages            []json.RawMessage `json:"messages"`
	Tools               json.RawMessage   `json:"tools"`       // are given to the template
	ToolChoice          json.RawMessage   `json:"tool_choice"` // "auto", or "none": the template gets no tools
	TemplateVariables   json.RawMessage   `json:"chat_template_kwargs"`
	ReasoningEffort     json.RawMessage   `json:"reasoning_effort"`      // is given to the template
	MaxCompletionTokens *integer          `json:"max_completion_tokens"` // the newer name of max_tokens
	Logprobs            bool              `json:"logprobs"`
	TopLogprobs         *integer          `json:"top_logprobs"`
}

// chatMessage is the answer, or a part of it. A stream has the role and the refusal once, before the text.
type chatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"` // null: models here answer everything
}

// chatDelta is a part of a streamed answer after the first one.
type chatDelta struct {
	Content string `json:"content,omitempty"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      any           `json:"message,omitempty"`
	Delta        any           `json:"delta,omitempty"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type chatLogprobs struct {
	Content []chatToken `json:"content"`
	Refusal []struct{}  `json:"refusal"` // null
}

// chatToken is a token with the likeliest ones in its place, which may be none.
type chatToken struct {
	chatScore
	Top []chatScore `json:"top_logprobs"`
}

type chatScore struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
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
	t := &task{server: s, settings: c.settings, outputs: outputs, head: s.answer("chatcmpl-", object), opening: true,
		choice: func(o *output, p piece, reason *string, i int) any {
			choice := chatChoice{Index: i, FinishReason: reason}
			switch {
			case !c.Stream:
				choice.Message = chatMessage{Role: "assistant", Content: p.text}
			case p.first:
				choice.Delta = chatMessage{Role: "assistant", Content: p.text}
			default:
				choice.Delta = chatDelta{p.text}
			}
			if c.Logprobs && (len(p.events) > 0 || !c.Stream) {
				choice.Logprobs = s.chatLogprobs(o, p.events)
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
		return nil, invalid("", "the model has no chat template (%s or %s in its folder): ask /v1/completions", tokenizer.ConfigFile,
			tokenizer.TemplateFile)
	case len(c.Messages) == 0:
		return nil, invalid("messages", "found none, expected at least one")
	case c.TopLogprobs != nil && (!c.Logprobs && *c.TopLogprobs != 0 || *c.TopLogprobs < 0 || *c.TopLogprobs > maxTop):
		return nil, invalid("top_logprobs", "found %d, expected 0 to %d, and logprobs: true", *c.TopLogprobs, maxTop)
	case c.Logprobs && c.TopLogprobs != nil:
		top = int(*c.TopLogprobs)
	case c.Logprobs:
		top = 0
	}
	if err := s.checkModel(c.Model); err != nil {
		return nil, err
	}
	conversation, err := c.conversation()
	if err != nil {
		return nil, err
	}
	text, err := s.template.prompt(conversation)
	if err != nil {
		return nil, invalid("messages", "the chat template: %v", err)
	}
	ids, err := s.tokens(prompt{text: text})
	if err != nil {
		return nil, err
	}
	most, err := s.limit("messages", len(ids), c.MaxTokens, s.context)
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

// conversation is what a request gives to the template.
func (c *chatRequest) conversation() (*conversation, error) {
	out := &conversation{}
	for i, text := range c.Messages {
		m, err := readMessage(text)
		if err != nil {
			return nil, invalid("messages", "message %d: %v", i, err)
		}
		out.messages = append(out.messages, m)
	}
	tools, err := c.tools()
	if err != nil {
		return nil, err
	}
	out.tools = tools
	if c.TemplateVariables == nil && c.ReasoningEffort == nil {
		return out, nil
	}
	out.extra = &jinja.Dict{}
	if c.ReasoningEffort != nil {
		var effort string
		if json.Unmarshal(c.ReasoningEffort, &effort) != nil {
			return nil, invalid("reasoning_effort", "found %s, expected a string", shown(c.ReasoningEffort))
		}
		out.extra.Set("reasoning_effort", effort)
	}
	return out, c.variables(out.extra)
}

// reserved are variables of templates that other fields set.
var reserved = []string{"messages", "tools"}

func (c *chatRequest) variables(into *jinja.Dict) error {
	if c.TemplateVariables == nil {
		return nil
	}
	v, err := jinja.Decode(c.TemplateVariables)
	d, ok := v.(*jinja.Dict)
	if err != nil || !ok {
		return invalid("chat_template_kwargs", "found %s, expected an object", shown(c.TemplateVariables))
	}
	d.Each(func(key, value any) {
		if slices.Contains(reserved, key.(string)) {
			err = invalid("chat_template_kwargs", "found %q, which is a field of the request", key)
		}
		into.Set(key, value)
	})
	return err
}

// tools returns the tools that the template gets; nil: none.
func (c *chatRequest) tools() (*jinja.List, error) {
	if c.ToolChoice != nil && !sameJSON(c.ToolChoice, `"auto"`) && !sameJSON(c.ToolChoice, `"none"`) {
		return nil, invalid("tool_choice", "found %s, expected \"auto\" or \"none\": calls are not forced", shown(c.ToolChoice))
	}
	if c.Tools == nil {
		return nil, nil
	}
	v, err := jinja.Decode(c.Tools)
	list, ok := v.(*jinja.List)
	if err != nil || !ok {
		return nil, invalid("tools", "found %s, expected a list", shown(c.Tools))
	}
	for i, tool := range list.Items {
		if _, ok := tool.(*jinja.Dict); !ok {
			return nil, invalid("tools", "tool %d: expected an object", i)
		}
	}
	if len(list.Items) == 0 || c.ToolChoice != nil && sameJSON(c.ToolChoice, `"none"`) {
		return nil, nil
	}
	return list, nil
}

func (s *Server) chatLogprobs(o *output, events []event) *chatLogprobs {
	l := &chatLogprobs{Content: []chatToken{}}
	for _, e := range events {
		t := chatToken{s.chatScore(o.word(e), e.logProb), []chatScore{}}
		for _, x := range e.top {
			t.Top = append(t.Top, s.chatScore(s.word(x.id), x.logProb))
		}
		l.Content = append(l.Content, t)
	}
	return l
}

func (s *Server) chatScore(text []byte, logProb float64) chatScore {
	t := chatScore{Token: spelled(text), Logprob: finite(logProb), Bytes: make([]int, len(text))}
	for i, b := range text {
		t.Bytes[i] = int(b)
	}
	return t
}
