package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Files of a byte-level BPE as GPT-2 was published.
const (
	vocabFile  = "vocab.json"
	mergesFile = "merges.txt"
)

// mergesClass is what a class of transformers makes of vocab.json and merges.txt.
type mergesClass struct {
	names      []string // of the class, without "Fast"
	modelTypes []string // of config.json, that use it if no class is named
	pattern    string
	nfc        bool
	roles      map[string]string
	framed     bool // a text is put between cls_token and sep_token
}

// ends gives bos_token, eos_token and unk_token one text.
func ends(text string) map[string]string {
	return map[string]string{RoleBOS: text, RoleEOS: text, RoleUnknown: text}
}

var mergesClasses = []mergesClass{
	{names: []string{"GPT2Tokenizer"}, modelTypes: []string{"gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"}, roles: ends("<|endoftext|>")},
	{names: []string{"RobertaTokenizer", "BartTokenizer"}, modelTypes: []string{"roberta", "bart"}, framed: true,
		roles: map[string]string{RoleBOS: "<s>", RoleEOS: "</s>", "sep_token": "</s>", "cls_token": "<s>", RoleUnknown: "<unk>", RolePad: "<pad>", "mask_token": "<mask>"}},
	{names: []string{"Qwen2Tokenizer"}, modelTypes: []string{"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}, nfc: true, pattern: qwenPattern,
		roles: map[string]string{RoleEOS: "<|endoftext|>", RoleUnknown: "<|endoftext|>", RolePad: "<|endoftext|>"}},
}

// readVocabAndMerges reads vocab.json and merges.txt as the class of transformers that the folder names does. A folder
// that names none has GPT-2's rules, and no token has a role unless a file gives it one.
func readVocabAndMerges(folder string, d *description) ([]byte, error) {
	class, err := findMergesClass(folder)
	if err != nil {
		return nil, err
	}
	vocab, err := readVocab(filepath.Join(folder, vocabFile))
	if err != nil {
		return nil, err
	}
	merges, err := readMerges(filepath.Join(folder, mergesFile), vocab)
	if err != nil {
		return nil, err
	}
	config, err := readObject(filepath.Join(folder, ConfigFile))
	if err != nil {
		return nil, err
	}
	b := byteLevelBPE{vocab: vocab, merges: merges, pattern: class.pattern, nfc: class.nfc}
	if raw := config["add_prefix_space"]; !isNull(raw) && json.Unmarshal(raw, &b.prefixSpace) != nil {
		return nil, fmt.Errorf("%s: add_prefix_space is %.40s: expected true or false", filepath.Join(folder, ConfigFile), raw)
	}
	d.setDefaults(filepath.Join(folder, ConfigFile), class.roles)
	if class.framed {
		sep, cls := d.roles["sep_token"].Content, d.roles["cls_token"].Content
		if _, ok := vocab[sep]; !ok {
			return nil, fmt.Errorf("%s: no token %q, which ends a text of %s", filepath.Join(folder, vocabFile), sep, class.names[0])
		}
		if _, ok := vocab[cls]; !ok {
			return nil, fmt.Errorf("%s: no token %q, which begins a text of %s", filepath.Join(folder, vocabFile), cls, class.names[0])
		}
		b.post = object{"type": "RobertaProcessing", "sep": []any{sep, vocab[sep]}, "cls": []any{cls, vocab[cls]}, "trim_offsets": true,
			"add_prefix_space": b.prefixSpace}
	}
	return b.json()
}

// findMergesClass finds the class that tokenizer_config.json names or that belongs to the model of config.json.
func findMergesClass(folder string) (mergesClass, error) {
	named := func(file, key string) (path, name string, err error) {
		path = filepath.Join(folder, file)
		fields, err := readObject(path)
		if raw := fields[key]; err == nil && !isNull(raw) && json.Unmarshal(raw, &name) != nil {
			err = fmt.Errorf("%s: %s is %.40s: expected a name", path, key, raw)
		}
		return path, strings.TrimSuffix(name, "Fast"), err
	}
	path, name, err := named(ConfigFile, "tokenizer_class")
	if err == nil && name == "" {
		path, name, err = named(modelFileName, "tokenizer_class")
	}
	if err != nil {
		return mergesClass{}, err
	}
	_, model, err := named(modelFileName, "model_type")
	if err != nil || name == "" && model == "" {
		return mergesClass{}, err
	}
	for _, c := range mergesClasses {
		if slices.Contains(c.names, name) || name == "" && slices.Contains(c.modelTypes, model) {
			return c, nil
		}
	}
	if name == "" {
		return mergesClass{}, fmt.Errorf("%s: model_type is %q, whose rules for %s and %s are not known: expected a %s, as save_pretrained of its transformers tokenizer writes",
			filepath.Join(folder, modelFileName), model, vocabFile, mergesFile, File)
	}
	return mergesClass{}, fmt.Errorf("%s: tokenizer_class is %q, whose rules for %s and %s are not known: expected a %s, as save_pretrained of its transformers tokenizer writes",
		path, name, vocabFile, mergesFile, File)
}

// readVocab reads vocab.json, an object of tokens and ids.
func readVocab(path string) (map[string]int, error) {
	data, err := readLimited(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such file, which belongs to %s", path, mergesFile)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("%s: %w", path, jsonError(json.Unmarshal(data, new(any))))
	}
	ids, err := parseVocab(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	vocab := make(map[string]int, len(ids))
	for token, id := range ids {
		vocab[token] = int(id)
	}
	return vocab, nil
}

// readMerges reads merges.txt: a line for each pair of tokens, and lines that begin with #version.
func readMerges(path string, vocab map[string]int) (merges [][2]string, err error) {
	data, err := readLimited(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such file, which belongs to %s", path, vocabFile)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	seen := map[[2]string]int{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if strings.HasPrefix(line, "#version") {
			continue
		}
		pair := strings.Split(line, " ")
		if len(pair) != 2 || pair[0] == "" || pair[1] == "" {
			return nil, fmt.Errorf("%s: line %d is %.60q: expected two tokens with a space between them", path, number, line)
		}
		m := [2]string{pair[0], pair[1]}
		for _, token := range []string{m[0], m[1], m[0] + m[1]} {
			if _, ok := vocab[token]; !ok {
				return nil, fmt.Errorf("%s: line %d is %.60q: token %q is not in %s", path, number, line, token, vocabFile)
			}
		}
		if first, ok := seen[m]; ok {
			return nil, fmt.Errorf("%s: line %d is %.60q, as line %d: expected each pair once", path, number, line, first)
		}
		seen[m] = number
		merges = append(merges, m)
	}
	return merges, nil
}
