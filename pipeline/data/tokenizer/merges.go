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

// mergesClasses are the classes of transformers that read vocab.json and merges.txt.
var mergesClasses = []string{gpt2Class, codegenClass, neoxClass, qwen2Class, qwen35Class, cohereClass, robertaClass}

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
	path := filepath.Join(folder, ConfigFile)
	config, err := readClassConfig(path)
	if err != nil {
		return nil, err
	}
	d.setDefaults(path, class.roles)
	d.around = class.around
	return bpeFile(class.parts(config), bpeModel(vocab, merges, false)), nil
}

// findMergesClass finds the class that AutoTokenizer takes for a folder.
func findMergesClass(folder string) (jsonClass, error) {
	found, err := findClass(folder, false)
	switch {
	case err != nil:
		return jsonClass{}, err
	case slices.Contains(mergesClasses, found.name):
		return jsonClasses[found.name], nil
	case !found.named && found.modelType == "":
		return jsonClass{parts: gpt2Parts}, nil
	case !found.named:
		return jsonClass{}, fmt.Errorf("%s: model_type is %q, whose rules for %s and %s are not known: expected a %s, as save_pretrained of its transformers tokenizer writes",
			filepath.Join(folder, modelFileName), found.modelType, vocabFile, mergesFile, File)
	}
	return jsonClass{}, fmt.Errorf("%s: tokenizer_class is %q, whose rules for %s and %s are not known: expected a %s, as save_pretrained of its transformers tokenizer writes",
		filepath.Join(folder, ConfigFile), found.name, vocabFile, mergesFile, File)
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
