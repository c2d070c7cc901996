package hub

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// trainSplit is the split that the name of a data set without one means.
const trainSplit = "train"

// card is the file that describes a repository.
const card = "README.md"

// pattern is a split and a glob of its files.
type pattern struct{ split, glob string }

// selectData returns the files of a data set that the name means, in the order in which load_dataset of Hugging Face's
// datasets reads them: a file or a glob, all files that match; else the files of the split, of a configuration of the card or
// of a folder.
func (n Name) selectData(files []File, read func(File) ([]byte, error)) ([]File, error) {
	if at := find(files, n.Path); at >= 0 {
		return files[at : at+1 : at+1], nil
	}
	configs, err := readCard(files, read)
	if err != nil {
		return nil, err
	}
	folder, patterns := "", []pattern(nil)
	switch chosen, ok := configOf(configs, n.Path); {
	case strings.ContainsAny(n.Path, "*?["):
		files = match(files, n.Path)
		if len(files) == 0 || n.Split == "" {
			return files, n.some(files)
		}
		patterns = guess(files, "")
	case ok:
		patterns, folder = chosen.patterns, chosen.DataDir
	case n.Path == "" && len(configs) > 0:
		var names []string
		for _, c := range configs {
			names = append(names, c.Name)
		}
		n.Path = names[0]
		return nil, fmt.Errorf("%s has the configurations %s: expected one, such as %s", n.ID, inWords(names), n.Text())
	default:
		folder = n.Path
	}
	if len(below(files, folder)) == 0 {
		return nil, n.noFile(files)
	}
	if patterns == nil {
		patterns = guess(files, folder)
	}
	return n.ofSplit(files, patterns)
}

// some refuses an empty selection.
func (n Name) some(files []File) error {
	if len(files) == 0 {
		return fmt.Errorf("the data set %s has no file that matches %s at %s", n.ID, n.Path, n.Revision)
	}
	return nil
}

// ofSplit returns the files of the split in the order of the patterns. Of files of several kinds it takes the most frequent.
func (n Name) ofSplit(files []File, patterns []pattern) ([]File, error) {
	var splits []string
	var chosen []File
	want := n.Split
	if want == "" {
		want = trainSplit
	}
	for _, p := range patterns {
		if !slices.Contains(splits, p.split) {
			splits = append(splits, p.split)
		}
		if p.split != want {
			continue
		}
		for _, f := range match(files, p.glob) {
			if !slices.Contains(chosen, f) && !slices.Contains(ignored, path.Base(f.Path)) {
				chosen = append(chosen, f)
			}
		}
	}
	if !slices.Contains(splits, want) {
		return nil, fmt.Errorf("%s has no split %s, expected one of %s: %s, for example", n.ID, want, strings.Join(splits, ", "), n.with(splits))
	}
	kind := mostFrequent(chosen)
	if kind == "" || kind == unread {
		return nil, fmt.Errorf("%s has %s, expected .parquet, .arrow, .jsonl, .json, .txt or .bin. For most data sets the Hub has Parquet files at another revision: hf:datasets/%s@refs/convert/parquet",
			n.ID, inWords(Paths(chosen)), n.ID)
	}
	return slices.DeleteFunc(chosen, func(f File) bool { return kindOfFile(f.Path) != kind }), nil
}

// with is the name with the first of some splits.
func (n Name) with(splits []string) string {
	if len(splits) > 0 {
		n.Split = splits[0]
	}
	return n.Text()
}

// ignored are files that describe a data set.
var ignored = []string{card, "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json", "state.json"}

// unread is the kind of tables as text, which are not read.
const unread = "csv"

// kinds are the kinds of files of documents by the ends of their names.
var kinds = map[string]string{".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".json": "json", ".jsonl": "json",
	".jsonlines": "json", ".jl": "json", ".ndjson": "json", ".txt": "text", ".bin": "shards", ".csv": unread, ".tsv": unread}

// kindOfFile is the kind of documents that a file has by its name; "" if that says nothing.
func kindOfFile(p string) string {
	p = strings.ToLower(p)
	return kinds[path.Ext(strings.TrimSuffix(strings.TrimSuffix(p, ".gz"), ".zst"))]
}

// mostFrequent is the most frequent kind of files; of two, that which comes first.
func mostFrequent(files []File) string {
	count := map[string]int{}
	best := ""
	for _, f := range files {
		if kind := kindOfFile(f.Path); kind != "" {
			if count[kind]++; count[kind] > count[best] {
				best = kind
			}
		}
	}
	return best
}

// config is a configuration in a data set's card.
type config struct {
	Name    string    `yaml:"config_name"`
	Files   yaml.Node `yaml:"data_files"`
	DataDir string    `yaml:"data_dir"`
	Default bool      `yaml:"default"`

	patterns []pattern
}

// readCard returns the configurations that the card of a data set lists.
func readCard(files []File, read func(File) ([]byte, error)) ([]config, error) {
	at := find(files, card)
	if at < 0 {
		return nil, nil
	}
	text, err := read(files[at])
	if err != nil {
		return nil, err
	}
	var head struct {
		Configs []config `yaml:"configs"`
	}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	text, ok := bytes.CutPrefix(text, []byte("---\n"))
	if text, _, closed := bytes.Cut(text, []byte("\n---")); !ok || !closed {
		return nil, nil
	} else if err := yaml.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("%s: the description of the data set: %w", card, err)
	}
	for i := range head.Configs {
		if err := head.Configs[i].complete(); err != nil {
			return nil, fmt.Errorf("%s: configs: %s: %w", card, head.Configs[i].Name, err)
		}
	}
	return head.Configs, nil
}

// complete reads data_files: a glob, a list of globs, or a list of splits with their globs.
func (c *config) complete() error {
	if c.Files.IsZero() {
		return nil
	}
	entries := []*yaml.Node{&c.Files}
	if c.Files.Kind == yaml.SequenceNode {
		entries = c.Files.Content
	}
	for _, e := range entries {
		of := struct {
			Split string    `yaml:"split"`
			Path  yaml.Node `yaml:"path"`
		}{trainSplit, *e}
		if e.Kind == yaml.MappingNode {
			if err := e.Decode(&of); err != nil {
				return err
			}
		}
		globs := []string{of.Path.Value}
		if of.Path.Kind == yaml.SequenceNode {
			if err := of.Path.Decode(&globs); err != nil {
				return err
			}
		}
		for _, glob := range globs {
			if glob == "" {
				return errors.New("data_files: expected globs, or a list of splits with paths")
			}
			c.patterns = append(c.patterns, pattern{of.Split, path.Join(c.DataDir, glob)})
		}
	}
	return nil
}

// configOf is the configuration with a name, or the default for no name.
func configOf(configs []config, name string) (config, bool) {
	for _, c := range configs {
		if c.Name == name || name == "" && (c.Default || c.Name == "default" || len(configs) == 1) {
			return c, true
		}
	}
	return config{}, false
}

// splitWords are the words in the names of files and folders by which datasets knows splits.
var splitWords = []struct {
	split string
	words []string
}{
	{trainSplit, []string{"train", "training"}},
	{"validation", []string{"validation", "valid", "dev", "val"}},
	{"test", []string{"test", "testing", "eval", "evaluation"}},
}

// sharded is the name of a shard that has its split in front.
var sharded = regexp.MustCompile(`^data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*$`)

// guess finds the splits of files that no card describes, as datasets does: by the names of shards, of folders or of files.
// Without any, all files are the split train.
func guess(files []File, folder string) (patterns []pattern) {
	here := below(files, folder)
	for _, f := range here {
		m := sharded.FindStringSubmatch(strings.TrimPrefix(f.Path, folder+"/"))
		if folder == "" {
			m = sharded.FindStringSubmatch(f.Path)
		}
		if m == nil {
			continue
		}
		p := pattern{m[1], path.Join(folder, "data", m[1]+"-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*")}
		if !slices.Contains(patterns, p) {
			patterns = append(patterns, p)
		}
	}
	if len(patterns) > 0 {
		return patterns
	}
	const sep = "[-._ 0-9]"
	for _, globs := range [][]string{{"**/WORD/**", "**/WORD" + sep + "*/**", "**/*" + sep + "WORD/**", "**/*" + sep + "WORD" + sep + "*/**"},
		{"**/WORD" + sep + "*", "**/*" + sep + "WORD" + sep + "*"}} {
		for _, s := range splitWords {
			var of []pattern
			found := false
			for _, word := range s.words {
				for _, glob := range globs {
					p := pattern{s.split, path.Join(folder, strings.ReplaceAll(glob, "WORD", word))}
					of, found = append(of, p), found || len(match(here, p.glob)) > 0
				}
			}
			if found {
				patterns = append(patterns, of...)
			}
		}
		if len(patterns) > 0 {
			return patterns
		}
	}
	return []pattern{{trainSplit, path.Join(folder, "**")}}
}

// match returns the files that a glob matches, by name. * and ? match within a name, ** any number of folders. Hidden files
// and folders match only names that are hidden in the glob, too, as do folders that begin with __.
func match(files []File, glob string) (matched []File) {
	elements := strings.Split(glob, "/")
	for _, f := range files {
		parts := strings.Split(f.Path, "/")
		if matches(parts, elements) && marked(parts) == marked(elements) {
			matched = append(matched, f)
		}
	}
	sortFiles(matched)
	return matched
}

// marked counts the elements that begin with a dot, and the folders that begin with __.
func marked(elements []string) (n [2]int) {
	for i, e := range elements {
		if strings.HasPrefix(e, ".") {
			n[0]++
		}
		if strings.HasPrefix(e, "__") && i < len(elements)-1 {
			n[1]++
		}
	}
	return n
}

func matches(parts, elements []string) bool {
	switch {
	case len(elements) == 0:
		return len(parts) == 0
	case elements[0] == "**" && len(elements) == 1:
		return len(parts) > 0
	case elements[0] == "**":
		return matches(parts, elements[1:]) || len(parts) > 1 && matches(parts[1:], elements)
	case len(parts) == 0:
		return false
	}
	ok, err := path.Match(strings.ReplaceAll(elements[0], "[-._ 0-9]", "[\\-._ 0-9]"), parts[0])
	return err == nil && ok && matches(parts[1:], elements[1:])
}
