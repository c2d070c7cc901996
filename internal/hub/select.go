package hub

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Need is what a name is used for.
type Need int

// Needs. Data are files of documents; ForFiles are other files of a data set.
const (
	ForModel Need = iota
	ForTokenizer
	ForData
	ForFiles
)

// Select returns the files that a use of the name needs, of all files of its commit. read returns the content of a
// small file. A file whose path this machine cannot have is refused.
func (n Name) Select(need Need, files []File, read func(File) ([]byte, error)) ([]File, error) {
	chosen, err := n.choose(need, files, func(f File) ([]byte, error) {
		if err := n.checkLocal(f); err != nil {
			return nil, err
		}
		return read(f)
	})
	for _, f := range chosen {
		err = cmp.Or(err, n.checkLocal(f))
	}
	return chosen, err
}

func (n Name) checkLocal(f File) error {
	if f.Local() {
		return nil
	}
	return fmt.Errorf("%s has the file %q, expected a path that this machine can have below a folder", n.ID, f.Path)
}

// choose returns the files that a use needs.
func (n Name) choose(need Need, files []File, read func(File) ([]byte, error)) ([]File, error) {
	if need >= ForData {
		return n.selectData(files, read)
	}
	folder := n.Path
	if at := find(files, n.Path); at >= 0 {
		folder = parent(n.Path)
		if isGGUF(n.Path) {
			return ggufParts(files, n.Path), nil
		}
		if need == ForModel {
			return nil, fmt.Errorf("found the file %s, expected a GGUF file, or the folder of a model", n.Path)
		}
	} else if n.Path != "" && !slices.ContainsFunc(files, func(f File) bool { return strings.HasPrefix(f.Path, n.Path+"/") }) {
		return nil, n.noFile(files)
	}
	here := below(files, folder)
	chosen, hasTokenizer := tokenizerFiles(here, folder)
	if at := find(files, n.Path); at >= 0 && !slices.Contains(chosen, files[at]) {
		chosen = append(chosen, files[at])
	}
	gguf := slices.DeleteFunc(slices.Clone(here), func(f File) bool { return !isGGUF(f.Path) || parent(f.Path) != folder })
	if need == ForTokenizer && (hasTokenizer || len(gguf) == 0) {
		return chosen, nil
	}
	weights, err := n.weights(here, gguf, folder, read)
	return append(chosen, weights...), err
}

// find is the place of a path in a list of files, or -1.
func find(files []File, path string) int {
	return slices.IndexFunc(files, func(f File) bool { return f.Path == path })
}

// parent is the folder of a path; "" for the root.
func parent(p string) string { return strings.TrimPrefix(path.Dir(p), ".") }

// below are the files in a folder and below it; "" is the root.
func below(files []File, folder string) []File {
	if folder == "" {
		return files
	}
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool { return !strings.HasPrefix(f.Path, folder+"/") })
}

// noFile is the error of a path that is not in the repository.
func (n Name) noFile(files []File) error {
	return fmt.Errorf("the %s %s has no file or folder %s at %s: it has %s", n.Kind, n.ID, n.Path, n.Revision, inWords(Paths(files)))
}

// Paths are the paths of files.
func Paths(files []File) []string {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.Path
	}
	return paths
}

// beside are the files that say how a model and its tokenizer are used.
var beside = []string{"config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
	"added_tokens.json", "chat_template.jinja", "chat_template.json", "adapter_config.json"}

// tokenizers are the files of tokenizers, in the order in which a folder is searched for one.
var tokenizers = [][]string{{"tokenizer.json"}, {"tekken.json"}, {"tokenizer.model"}, {"tiktoken.model"}, {"qwen.tiktoken"},
	{"merges.txt", "vocab.json"}}

// Optional are the files of a folder that a model or tokenizer may lack.
func Optional(folder string) []string {
	var paths []string
	for _, name := range slices.Concat(append([][]string{beside}, tokenizers...)...) {
		paths = append(paths, path.Join(folder, name))
	}
	return paths
}

// tokenizerFiles are the files of a folder's tokenizer and beside it, and whether there is a tokenizer.
func tokenizerFiles(files []File, folder string) (chosen []File, found bool) {
	add := func(names ...string) (added bool) {
		for _, name := range names {
			if at := find(files, path.Join(folder, name)); at >= 0 {
				chosen, added = append(chosen, files[at]), true
			}
		}
		return added
	}
	add(beside...)
	for _, f := range files {
		if parent(f.Path) == path.Join(folder, "additional_chat_templates") && strings.HasSuffix(f.Path, ".jinja") {
			chosen = append(chosen, f)
		}
	}
	for _, names := range tokenizers {
		if add(names...) {
			return chosen, true
		}
	}
	for _, f := range files {
		if parent(f.Path) == folder && strings.HasSuffix(f.Path, ".tiktoken") {
			chosen, found = append(chosen, f), true
		}
	}
	return chosen, found
}

// Names of weights that transformers writes.
const (
	tensors = "model.safetensors"
	index   = "model.safetensors.index.json"
)

// weights are the files with a model's tensors.
func (n Name) weights(files, gguf []File, folder string, read func(File) ([]byte, error)) ([]File, error) {
	if at := find(files, path.Join(folder, tensors)); at >= 0 {
		return files[at : at+1 : at+1], nil
	}
	if at := find(files, path.Join(folder, index)); at >= 0 {
		return n.shards(files, files[at], folder, read)
	}
	whole := slices.DeleteFunc(slices.Clone(gguf), func(f File) bool {
		m := ggufPart.FindStringSubmatch(f.Path)
		return m != nil && m[2] != "00001"
	})
	switch {
	case len(whole) == 1:
		return ggufParts(gguf, whole[0].Path), nil
	case len(whole) > 1:
		n.Path = whole[0].Path
		return nil, fmt.Errorf("%s has %d GGUF files, expected the name of one, such as %s: it has %s", n.ID, len(whole), n.Text(),
			inWords(Paths(whole)))
	}
	for _, f := range files {
		if ext := path.Ext(f.Path); parent(f.Path) == folder && slices.Contains([]string{".bin", ".pt", ".pth", ".ckpt"}, ext) {
			return nil, fmt.Errorf("%s has its weights in %s, a pickle of PyTorch, which gpupipe does not read, since reading one runs code: convert it with Python: AutoModelForCausalLM.from_pretrained(%q).save_pretrained(NEW), and name the new folder",
				n.ID, f.Path, n.ID)
		}
	}
	if find(files, path.Join(folder, "adapter_config.json")) >= 0 {
		return nil, fmt.Errorf("%s is a PEFT adapter, expected a whole model: merge it into its base model with merge_and_unload() and save_pretrained() of PEFT", n.ID)
	}
	return nil, fmt.Errorf("%s has no weights: expected %s, shards with %s, or a GGUF file: it has %s", n.ID, tensors, index,
		inWords(Paths(files)))
}

// shards are the files that an index names, and the index.
func (n Name) shards(files []File, list File, folder string, read func(File) ([]byte, error)) ([]File, error) {
	text, err := read(list)
	if err != nil {
		return nil, err
	}
	var content struct {
		Shards map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &content); err != nil || len(content.Shards) == 0 {
		return nil, fmt.Errorf("%s: expected an object with weight_map%w", list.Path, orSilent(err))
	}
	chosen := []File{list}
	for _, name := range slices.Compact(slices.Sorted(maps.Values(content.Shards))) {
		at := find(files, path.Join(folder, name))
		if at < 0 {
			return nil, fmt.Errorf("%s names the shard %q, which %s does not have", list.Path, name, n.ID)
		}
		chosen = append(chosen, files[at])
	}
	return chosen, nil
}

// orSilent is an error behind a text, or an error without a text.
func orSilent(err error) error {
	if err == nil {
		return silent{errors.New("")}
	}
	return fmt.Errorf(": %w", err)
}

// ggufPart is the name of a part of a GGUF file.
var ggufPart = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

func isGGUF(p string) bool { return strings.EqualFold(path.Ext(p), ".gguf") }

// ggufParts are a GGUF file or, if it is a part, all parts.
func ggufParts(files []File, p string) []File {
	m := ggufPart.FindStringSubmatch(p)
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool {
		other := ggufPart.FindStringSubmatch(f.Path)
		return f.Path != p && (m == nil || other == nil || other[1] != m[1] || other[3] != m[3])
	})
}
