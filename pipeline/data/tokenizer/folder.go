package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files that may lie beside a tokenizer.
const (
	ConfigFile     = "tokenizer_config.json"
	GenerationFile = "generation_config.json"
	TemplateFile   = "chat_template.jinja"
	templateFolder = "additional_chat_templates"
	modelFileName  = "config.json"
)

// description is what files beside a tokenizer say of it.
type description struct {
	roles     map[string]addedToken // by role; without content: the files say that there is none
	objects   []string              // keys of d.roles besides roles: those that are objects, or of special_tokens_map.json,
	texts     []string              // and others, each in the order of their files
	extra     []addedToken          // further special tokens
	added     []sideToken           // that belong to the vocabulary
	ends      []uint32
	endsFrom  string // the file and the key that have the ends
	templates []Template
	addBOS    *bool // bos_token is put before a text; nil: not said
	addEOS    *bool // eos_token is put after it

	numbered bool       // tokenizer_config.json has added_tokens_decoder
	around   *[2]string // roles of the tokens that the class of the folder puts before and after a text; nil: the file says it
	notes    []string   // for the user

	namesExtra bool // extra comes from tokenizer_config.json, or from extra_special_tokens
	extraOfMap bool // extra is additional_special_tokens of special_tokens_map.json
}

// note adds a note.
func (d *description) note(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

// describe reads the files in the folder of a tokenizer.
func describe(folder string) (d description, err error) {
	for _, read := range []func(string) error{d.readConfig, d.readTemplates, d.readEnds} {
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
	d.roles = map[string]addedToken{}
	if err := d.readAdded(folder, fields); err != nil {
		return err
	}
	var split *bool
	for key, to := range map[string]**bool{"add_bos_token": &d.addBOS, "add_eos_token": &d.addEOS, "split_special_tokens": &split} {
		if raw := fields[key]; !isNull(raw) && json.Unmarshal(raw, to) != nil {
			return fmt.Errorf("%s: %s is %.40s: expected true or false", path, key, raw)
		}
	}
	if is(split, false) {
		return fmt.Errorf("%s: split_special_tokens is true: expected false, and data.special_text: text in its place", path)
	}
	if d.templates, err = parseTemplates(fields["chat_template"]); err != nil {
		return fmt.Errorf("%s: chat_template: %w", path, err)
	}
	return nil
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

// readTemplates reads chat_template.jinja and the folder additional_chat_templates. If there are any, those of
// tokenizer_config.json do not count.
func (d *description) readTemplates(folder string) error {
	names := map[string]string{DefaultTemplate: filepath.Join(folder, TemplateFile)}
	more, err := os.ReadDir(filepath.Join(folder, templateFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("tokenizer: %w", err)
	}
	for _, f := range more {
		if name, ok := strings.CutSuffix(f.Name(), ".jinja"); ok {
			names[name] = filepath.Join(folder, templateFolder, f.Name())
		}
	}
	var all []Template
	for _, name := range slices.Sorted(maps.Keys(names)) {
		source, err := readLimited(names[name], maxTemplate)
		switch {
		case err == nil:
			all = setTemplate(all, name, string(source))
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("tokenizer: %w", err)
		}
	}
	if len(all) > 0 {
		d.templates = all
	}
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
	d.endsFrom = path + ": eos_token_id"
	return nil
}

// checkEnds refuses an end outside of the vocabulary of size tokens.
func (d description) checkEnds(size int) error {
	for _, id := range d.ends {
		if int64(id) >= int64(size) {
			return fmt.Errorf("%s: found the token %d, expected one of the tokenizer's %d tokens, from 0 to %d", d.endsFrom, id, size,
				size-1)
		}
	}
	return nil
}

// special finds the tokens of a description in the vocabulary.
func (d description) special(t *fileTokenizer) *Special {
	roles := map[string]Token{}
	for role, a := range d.roles {
		if id, ok := t.idOf(a.Content); ok {
			roles[role] = Token{id, a.Content}
		}
	}
	if _, named := d.roles[RoleEOS]; !named { // null names none
		if token, ok := t.usualEnd(); ok {
			roles[RoleEOS] = token
			t.notes = append(t.notes, fmt.Sprintf("no file says which token ends a document: it is assumed to be %s", token.Text))
		}
	}
	s := newSpecial(roles, d.ends)
	s.Templates = d.templates
	for _, a := range d.extra {
		s.Extra = append(s.Extra, a.Content)
	}
	return s
}

// usualEOS are the names under which published vocabularies keep the token that ends a document.
var usualEOS = []string{"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>", "<｜end▁of▁sentence｜>",
	"[EOS]"}

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
	if id, ok := t.added.id(text); ok {
		return id, true
	}
	id, ok := t.model.vocab().ids[text]
	return id, ok
}

// Files are the files of a folder that Open, and Hugging Face's transformers, read as the tokenizer, by name: a
// tokenizer.json and what belongs to it. maxLength is the context of the tokenizer's model; 0: it is not known.
func Files(t Tokenizer, maxLength int) map[string][]byte {
	s := t.Special()
	config := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false, RoleEOS: nil}
	for role, token := range s.Roles {
		config[role] = token.Text
	}
	if len(s.Extra) > 0 {
		config["additional_special_tokens"] = s.Extra
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
// are missing, transformers takes Llama's.
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
