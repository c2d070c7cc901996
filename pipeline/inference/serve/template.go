package serve

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/jinja"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// toolTemplate is the name of the chat template for requests with tools, where a tokenizer has one.
const toolTemplate = "tool_use"

// chatTemplate turns a conversation into a prompt.
type chatTemplate struct {
	named  map[string]*jinja.Template
	tokens map[string]string // spellings of special tokens, by role
	typed  bool              // the template reads contents as lists of parts alone

	mu sync.Mutex // one conversation is rendered at a time: a template may take much memory
}

// openTemplate parses the chat templates of a tokenizer; nil: it has none.
func openTemplate(s *tokenizer.Special) (*chatTemplate, error) {
	t := &chatTemplate{named: map[string]*jinja.Template{}, tokens: s.Texts()}
	for _, x := range s.Templates {
		if x.Source == "" {
			continue
		}
		parsed, err := jinja.Parse(x.Source)
		if err != nil {
			return nil, fmt.Errorf("the chat template %q: %w", x.Name, err)
		}
		t.named[x.Name] = parsed
	}
	if t.named[tokenizer.DefaultTemplate] == nil {
		return nil, nil
	}
	t.typed = t.needsParts()
	return t, nil
}

// needsParts reports whether the template drops contents that are texts, but not contents that are lists of parts.
func (t *chatTemplate) needsParts() bool {
	const text = "gpupipe-probe"
	shows := func(content any) bool {
		m := &jinja.Dict{}
		m.Set("role", "user")
		m.Set("content", content)
		out, err := t.render(&conversation{messages: []*jinja.Dict{m}})
		return err == nil && strings.Contains(out, text)
	}
	return !shows(text) && shows(asParts(text))
}

func asParts(text string) *jinja.List {
	part := &jinja.Dict{}
	part.Set("type", "text")
	part.Set("text", text)
	return &jinja.List{Items: []any{part}}
}

// conversation is what a request gives to a template.
type conversation struct {
	messages []*jinja.Dict
	tools    *jinja.List // nil: none
	extra    *jinja.Dict // further variables; nil: none

	texts map[*jinja.Dict]string // arguments of calls as the request has them, where they are decoded
}

// prompt renders a conversation. Arguments of tool calls are objects; a template that expects them as texts gets them
// so.
func (t *chatTemplate) prompt(c *conversation) (string, error) {
	if t.typed {
		for _, m := range c.messages {
			if text, ok := get(m, "content").(string); ok {
				m.Set("content", asParts(text))
			}
		}
	}
	if !c.decodeArguments() {
		return t.render(c)
	}
	out, err := t.render(c)
	if err == nil {
		return out, nil
	}
	c.encodeArguments()
	if out, errText := t.render(c); errText == nil {
		return out, nil
	}
	return "", err
}

// render writes the prompt of a conversation, with the beginning of the answer.
func (t *chatTemplate) render(c *conversation) (string, error) {
	v := &jinja.Dict{}
	for _, role := range slices.Sorted(maps.Keys(t.tokens)) {
		v.Set(role, t.tokens[role])
	}
	list := &jinja.List{Items: make([]any, len(c.messages))}
	for i, m := range c.messages {
		list.Items[i] = withReasoning(m)
	}
	v.Set("messages", list)
	v.Set("tools", nil)
	v.Set("documents", nil)
	v.Set("add_generation_prompt", true)
	template := t.named[tokenizer.DefaultTemplate]
	if c.tools != nil {
		v.Set("tools", c.tools)
		if own := t.named[toolTemplate]; own != nil {
			template = own
		}
	}
	if c.extra != nil {
		c.extra.Each(func(key, value any) { v.Set(key, value) })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return template.Render(v, time.Now())
}

// withReasoning gives the reasoning of a message all names that templates know, as transformers does.
func withReasoning(m *jinja.Dict) *jinja.Dict {
	for _, name := range []string{"reasoning_content", "thinking", "reasoning"} {
		reasoning := get(m, name)
		if reasoning == nil {
			continue
		}
		out := &jinja.Dict{}
		out.Set("thinking", reasoning)
		m.Each(func(key, value any) { out.Set(key, value) })
		out.Set("reasoning_content", reasoning)
		return out
	}
	return m
}

func get(d *jinja.Dict, key string) any {
	v, _ := d.Get(key)
	return v
}

// functions calls f with each function that a message calls.
func (c *conversation) functions(f func(call *jinja.Dict)) {
	for _, m := range c.messages {
		calls, _ := get(m, "tool_calls").(*jinja.List)
		if calls == nil {
			continue
		}
		for _, call := range calls.Items {
			if d, ok := call.(*jinja.Dict); ok {
				if function, ok := get(d, "function").(*jinja.Dict); ok {
					f(function)
				}
			}
		}
	}
}

// decodeArguments makes objects of the arguments of calls, which OpenAI's clients send as texts. It reports whether
// there were any.
func (c *conversation) decodeArguments() (found bool) {
	c.texts = map[*jinja.Dict]string{}
	c.functions(func(call *jinja.Dict) {
		text, ok := get(call, "arguments").(string)
		if !ok {
			return
		}
		v, err := jinja.Decode([]byte(text))
		if _, isObject := v.(*jinja.Dict); err == nil && isObject {
			c.texts[call] = text
			call.Set("arguments", v)
		}
	})
	return len(c.texts) > 0
}

func (c *conversation) encodeArguments() {
	for call, text := range c.texts {
		call.Set("arguments", text)
	}
}

// readMessage reads a message. Fields that are null are dropped but for the content: clients send answers back with all
// fields that they know.
func readMessage(text []byte) (*jinja.Dict, error) {
	v, err := jinja.Decode(text)
	if err != nil {
		return nil, err
	}
	in, ok := v.(*jinja.Dict)
	if !ok {
		return nil, errors.New("expected an object")
	}
	m := &jinja.Dict{}
	in.Each(func(key, value any) {
		if list, ok := value.(*jinja.List); key == "content" || value != nil && !(ok && len(list.Items) == 0) {
			m.Set(key, value)
		}
	})
	if role, ok := get(m, "role").(string); !ok || role == "" {
		return nil, errors.New("role: expected a string")
	}
	content, given := m.Get("content")
	joined, err := contentText(content)
	switch {
	case err != nil:
		return nil, fmt.Errorf("content: %w", err)
	case content != nil:
		m.Set("content", joined)
	case !given && get(m, "tool_calls") == nil && get(m, "role") != "assistant":
		return nil, errors.New("content: expected a string, or a list of texts")
	}
	return m, nil
}

// contentText is the text of a content: a text, or a list of parts that are texts.
func contentText(content any) (string, error) {
	switch c := content.(type) {
	case nil:
		return "", nil
	case string:
		return c, nil
	case *jinja.List:
		var b strings.Builder
		for _, p := range c.Items {
			part, ok := p.(*jinja.Dict)
			if !ok {
				return "", errors.New("expected a string, or a list of texts")
			}
			text, ok := get(part, "text").(string)
			if kind := get(part, "type"); kind != "text" || !ok {
				return "", fmt.Errorf("found a part of type %q, expected \"text\" with a text", fmt.Sprint(kind))
			}
			b.WriteString(text)
		}
		return b.String(), nil
	}
	return "", errors.New("expected a string, or a list of texts")
}
