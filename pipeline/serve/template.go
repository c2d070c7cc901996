package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// Files that may hold a chat template, beside a model in Hugging Face's layout.
const (
	templateFile  = "chat_template.jinja"
	tokenizerFile = "tokenizer_config.json"
)

// maxTemplate bounds the bytes of these files, and maxRendered those of a prompt that a template makes.
const (
	maxTemplate = 4 << 20
	maxRendered = 16 << 20
)

// chatTemplate turns a conversation into a prompt.
type chatTemplate struct {
	template *exec.Template
	bos, eos string
}

// openTemplate reads the chat template of the model in a folder; nil: it has none.
func openTemplate(folder string) (*chatTemplate, error) {
	var c struct {
		Template json.RawMessage `json:"chat_template"`
		BOS      special         `json:"bos_token"`
		EOS      special         `json:"eos_token"`
	}
	path := filepath.Join(folder, tokenizerFile)
	text, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	if text != nil {
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	source, err := named(c.Template)
	if err != nil {
		return nil, fmt.Errorf("%s: chat_template: %w", path, err)
	}
	if own, err := readSmall(filepath.Join(folder, templateFile)); err != nil {
		return nil, err
	} else if own != nil {
		source, path = string(own), filepath.Join(folder, templateFile)
	}
	if source == "" {
		return nil, nil
	}
	t, err := parseTemplate(source)
	if err != nil {
		return nil, fmt.Errorf("%s: the chat template: %w", path, err)
	}
	return &chatTemplate{t, string(c.BOS), string(c.EOS)}, nil
}

// readSmall reads a file; nil: there is none.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTemplate+1))
	if err == nil && len(text) > maxTemplate {
		err = fmt.Errorf("%s: found more than %d bytes", path, maxTemplate)
	}
	return text, err
}

// special is a token's text, which may be the field content of an object.
type special string

func (s *special) UnmarshalJSON(text []byte) error {
	var o struct{ Content string }
	if json.Unmarshal(text, (*string)(s)) == nil {
		return nil
	}
	err := json.Unmarshal(text, &o)
	*s = special(o.Content)
	return err
}

// named returns a template, or of several named ones the default.
func named(text json.RawMessage) (source string, err error) {
	if len(text) == 0 || json.Unmarshal(text, &source) == nil {
		return source, nil
	}
	var all []struct{ Name, Template string }
	if err := json.Unmarshal(text, &all); err != nil {
		return "", errors.New("expected a string, or a list of templates with names")
	}
	for _, t := range all {
		if t.Name == "default" {
			return t.Template, nil
		}
	}
	return "", nil
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
	var out limitedText
	err := t.template.Execute(&out, exec.NewContext(map[string]any{"messages": list, "add_generation_prompt": true, "bos_token": t.bos, "eos_token": t.eos,
		"raise_exception": func(text string) (string, error) { return "", errors.New(text) }}))
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
