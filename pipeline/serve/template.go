package serve

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/tokenizer"
	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// maxRendered bounds the bytes of a prompt that a template makes.
const maxRendered = 16 << 20

// chatTemplate turns a conversation into a prompt.
type chatTemplate struct {
	template *exec.Template
	tokens   map[string]string // texts of special tokens, by role
}

// openTemplate parses the default chat template of a tokenizer; nil: it has none.
func openTemplate(s *tokenizer.Special) (*chatTemplate, error) {
	source := s.Template("")
	if source == "" {
		return nil, nil
	}
	t, err := parseTemplate(source)
	if err != nil {
		return nil, fmt.Errorf("the chat template: %w", err)
	}
	return &chatTemplate{t, s.Texts()}, nil
}

// parseTemplate parses a template as transformers does: blocks take the line break after them and the space before them
// on their line. A template reads no files.
func parseTemplate(source string) (*exec.Template, error) {
	c := config.New()
	c.TrimBlocks, c.LeftStripBlocks = true, true
	const name = "/chat_template"
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, err
	}
	return exec.NewTemplate(name, c, loader, &exec.Environment{Context: builtins.GlobalFunctions, Filters: builtins.Filters,
		Tests: builtins.Tests, ControlStructures: builtins.ControlStructures, Methods: builtins.Methods})
}

// message is a part of a conversation.
type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
	Name    string  `json:"name"`
}

// content is a text, or a list of parts that are texts.
type content string

func (c *content) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, (*string)(c)) == nil {
		return nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(text, &parts); err != nil {
		return errors.New("content: expected a string, or a list of texts")
	}
	for _, p := range parts {
		if p.Type != "text" {
			return fmt.Errorf("content: found a part of type %q, expected \"text\"", p.Type)
		}
		*c += content(p.Text)
	}
	return nil
}

// render returns the prompt of a conversation, with the beginning of the answer.
func (t *chatTemplate) render(messages []message) (string, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		fields := map[string]any{"role": m.Role, "content": string(m.Content)}
		if m.Name != "" {
			fields["name"] = m.Name
		}
		list[i] = fields
	}
	variables := map[string]any{"messages": list, "add_generation_prompt": true, "bos_token": "", "eos_token": "",
		"raise_exception": func(text string) (string, error) { return "", errors.New(text) }}
	for role, text := range t.tokens {
		variables[role] = text
	}
	var out limitedText
	err := t.template.Execute(&out, exec.NewContext(variables))
	return string(out), err
}

// limitedText keeps what a template writes.
type limitedText []byte

func (l *limitedText) Write(p []byte) (int, error) {
	if len(*l)+len(p) > maxRendered {
		return 0, fmt.Errorf("the chat template writes more than %d bytes", maxRendered)
	}
	*l = append(*l, p...)
	return len(p), nil
}
