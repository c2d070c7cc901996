package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
)

// Files that may lie beside a tokenizer.
const (
	ConfigFile     = "tokenizer_config.json"
	GenerationFile = "generation_config.json"
	TemplateFile   = "chat_template.jinja"
	modelFileName  = "config.json"
)

// description is what files beside a tokenizer say of it.
type description struct {
	roles     map[string]string // spellings by role; "": the files say that there is none
	ends      []uint32
	templates []Template
	addBOS    *bool
	addEOS    *bool
}

// describe reads the files in the folder of a tokenizer.
func describe(folder string) (d description, err error) {
	for _, read := range []func(string) error{d.readConfig, d.readTemplate, d.readEnds} {
		if err := read(folder); err != nil {
			return d, err
		}
	}
	return d, nil
}

// readObject reads a file that holds a JSON object; nil: there is none.
func readObject(path string) (fields map[string]json.RawMessage, err error) {
	data, err := readLimited(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", path, jsonError(err))
	}
	return fields, nil
}

// readConfig reads tokenizer_config.json.
func (d *description) readConfig(folder string) error {
	path := filepath.Join(folder, ConfigFile)
	fields, err := readObject(path)
	if err != nil {
		return err
	}
	d.roles = map[string]string{}
	for _, role := range roles {
		raw, ok := fields[role]
		if !ok {
			continue
		}
		if d.roles[role], err = tokenText(raw); err != nil {
			return fmt.Errorf("%s: %s is %.40s: %w", path, role, raw, err)
		}
	}
	for key, to := range map[string]**bool{"add_bos_token": &d.addBOS, "add_eos_token": &d.addEOS} {
		if raw := fields[key]; !isNull(raw) && json.Unmarshal(raw, to) != nil {
			return fmt.Errorf("%s: %s is %.40s: expected true or false", path, key, raw)
		}
	}
	if d.templates, err = parseTemplates(fields["chat_template"]); err != nil {
		return fmt.Errorf("%s: chat_template: %w", path, err)
	}
	return nil
}

// tokenText reads a token's spelling, which may be the field content of an object; "" for null.
func tokenText(raw json.RawMessage) (string, error) {
	var token struct {
		Content string `json:"content"`
	}
	if json.Unmarshal(raw, &token.Content) != nil && json.Unmarshal(raw, &token) != nil {
		return "", errors.New("expected a string or an object with \"content\"")
	}
	return token.Content, nil
}

// parseTemplates reads a template, or a list of templates with names.
func parseTemplates(raw json.RawMessage) (all []Template, err error) {
	var source string
	switch {
	case isNull(raw):
		return nil, nil
	case json.Unmarshal(raw, &source) == nil:
		return []Template{{DefaultTemplate, source}}, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errors.New("expected a string, or a list of templates with names")
	}
	for _, t := range list {
		all = setTemplate(all, t.Name, t.Template)
	}
	return all, nil
}

// setTemplate adds a template, or replaces the one of its name. The default template comes first.
func setTemplate(all []Template, name, source string) []Template {
	for i := range all {
		if all[i].Name == name {
			all[i].Source = source
			return all
		}
	}
	if name == DefaultTemplate {
		return append([]Template{{name, source}}, all...)
	}
	return append(all, Template{name, source})
}

// maxTemplate bounds the bytes of a file with a chat template.
const maxTemplate = 4 << 20

// readTemplate reads chat_template.jinja, which goes before the default template of tokenizer_config.json.
func (d *description) readTemplate(folder string) error {
	source, err := readLimited(filepath.Join(folder, TemplateFile), maxTemplate)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	d.templates = setTemplate(d.templates, DefaultTemplate, string(source))
	return nil
}

// readEnds reads the tokens that end a text from generation_config.json or, without one, from the model's config.json.
func (d *description) readEnds(folder string) error {
	path := filepath.Join(folder, GenerationFile)
	fields, err := readObject(path)
	if err != nil {
		return err
	}
	if fields == nil {
		path = filepath.Join(folder, modelFileName)
		if fields, err = readObject(path); err != nil || fields["model_type"] == nil {
			return nil // not of a model; those who read the model refuse a malformed one
		}
	}
	raw := fields["eos_token_id"]
	if isNull(raw) {
		return nil
	}
	var ids []int64
	if raw[0] == '[' {
		err = json.Unmarshal(raw, &ids)
	} else {
		ids = make([]int64, 1)
		err = json.Unmarshal(raw, &ids[0])
	}
	if err != nil {
		return fmt.Errorf("%s: eos_token_id is %.40s: expected the number of a token, or a list of them", path, raw)
	}
	for _, id := range ids {
		if id >= 0 && id <= math.MaxInt32 { // a negative number stands for none
			d.ends = append(d.ends, uint32(id))
		}
	}
	return nil
}

// special finds the tokens of a description in the vocabulary.
func (d description) special(t *fileTokenizer) (*Special, error) {
	roles := map[string]Token{}
	for role, text := range d.roles {
		if id, ok := t.idOf(text); ok {
			roles[role] = Token{id, text}
		} else if text != "" && role == RoleEOS {
			return nil, fmt.Errorf("eos_token %q of %s is not in the vocabulary", text, ConfigFile)
		}
	}
	_, named := d.roles[RoleEOS]
	assumed := false
	if !named {
		if token, ok := t.usualEnd(); ok {
			roles[RoleEOS], assumed = token, true
		}
	}
	s := newSpecial(roles, d.ends)
	s.Templates, s.Assumed = d.templates, assumed
	s.AddBOS, s.AddEOS = d.addBOS != nil && *d.addBOS, d.addEOS != nil && *d.addEOS
	return s, nil
}

// usualEOS are the names under which published vocabularies keep the token that ends a document.
var usualEOS = []string{"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>", "<｜end▁of▁sentence｜>", "[EOS]"}

// usualEnd finds a token that ends a document by its name.
func (t *fileTokenizer) usualEnd() (Token, bool) {
	for _, text := range usualEOS {
		if id, ok := t.idOf(text); ok {
			return Token{id, text}, true
		}
	}
	return Token{}, false
}

// idOf returns the token of a spelling.
func (t *fileTokenizer) idOf(text string) (uint32, bool) {
	if id, ok := t.addedID(text); ok {
		return id, true
	}
	id, ok := t.model.vocab().ids[text]
	return id, ok
}

// Files are the files of a folder that Open, and Hugging Face's transformers, read as the tokenizer, by name: a
// tokenizer.json and what belongs to it. maxLength is the context of the tokenizer's model; 0: it is not known.
func Files(t Tokenizer, maxLength int) map[string][]byte {
	s := t.Special()
	config := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	for role, token := range s.Roles {
		config[role] = token.Text
	}
	for key, add := range map[string]bool{"add_bos_token": s.AddBOS, "add_eos_token": s.AddEOS} {
		if add {
			config[key] = true
		}
	}
	if maxLength > 0 {
		config["model_max_length"] = maxLength
	}
	files := map[string][]byte{File: t.JSON(), GenerationFile: jsonText(SpecialIDs(t))}
	if source := s.Template(""); source != "" && len(s.Templates) == 1 {
		files[TemplateFile] = []byte(source)
	} else if len(s.Templates) > 0 {
		var list []object
		for _, t := range s.Templates {
			list = append(list, object{"name": t.Name, "template": t.Source})
		}
		config["chat_template"] = list
	}
	files[ConfigFile] = jsonText(config)
	return files
}

// SpecialIDs are the keys of a tokenizer in Hugging Face's config.json and generation_config.json. Where the first two
// are missing, transformers takes those of Llama.
func SpecialIDs(t Tokenizer) map[string]any {
	s := t.Special()
	ids := map[string]any{"bos_token_id": nil, "eos_token_id": nil}
	for role, key := range map[string]string{RoleBOS: "bos_token_id", RolePad: "pad_token_id"} {
		if id, ok := s.ID(role); ok {
			ids[key] = id
		}
	}
	switch len(s.Ends) {
	case 0:
	case 1:
		ids["eos_token_id"] = s.Ends[0]
	default:
		ids["eos_token_id"] = s.Ends
	}
	return ids
}

func jsonText(v map[string]any) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // names of tokens have angle brackets
	if err := e.Encode(v); err != nil {
		panic(err) // texts and numbers
	}
	return text.Bytes()
}
