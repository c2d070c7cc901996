package hub

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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

// pattern is a split and a glob of its files, which the card may name.
type pattern struct {
	split, glob string
	ofCard      bool
}

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
	chosen, ok := configOf(configs, n.Path)
	switch {
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
	switch here := below(files, folder); {
	case len(here) == 0 && ok:
		return nil, n.cardLacks(folder)
	case len(here) == 0:
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

// cardLacks is the error of a file or folder that the card names and the repository does not have.
func (n Name) cardLacks(path string) error {
	return fmt.Errorf("%s of %s names %s, which it does not have at %s", card, n.ID, path, n.Revision)
}

// ofSplit returns the files of the split in the order of the patterns. Of files of several kinds it takes the most frequent.
func (n Name) ofSplit(files []File, patterns []pattern) ([]File, error) {
	var splits, globs []string
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
		globs = append(globs, p.glob)
		matched := match(files, p.glob)
		if len(matched) == 0 && p.ofCard && !strings.ContainsAny(p.glob, "*?[") {
			return nil, n.cardLacks(p.glob)
		}
		for _, f := range matched {
			if !slices.Contains(chosen, f) {
				chosen = append(chosen, f)
			}
		}
	}
	if !slices.Contains(splits, want) {
		return nil, fmt.Errorf("%s has no split %s, expected one of %s: %s, for example", n.ID, want, strings.Join(splits, ", "), n.with(splits))
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%s has no file of the split %s at %s: none matches %s", n.ID, want, n.Revision, inWords(globs))
	}
	kind := mostFrequent(chosen)
	if kind == "" || kind == unread {
		return nil, fmt.Errorf("%s has %s, expected .parquet, .arrow, .jsonl, .json, .txt or .bin. For most data sets the Hub has Parquet files at another revision: hf:datasets/%s@refs/convert/parquet",
			n.ID, inWords(Paths(chosen)), n.ID)
	}
	return slices.DeleteFunc(chosen, func(f File) bool {
		return !slices.ContainsFunc(endings(f.Path), func(e string) bool { return kindOfEnding(e) == kind })
	}), nil
}

// with is the name with the first of some splits.
func (n Name) with(splits []string) string {
	if len(splits) > 0 {
		n.Split = splits[0]
	}
	return n.Text()
}

// ignored are files that describe a data set.
var ignored = []string{card, "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"}

// unread is the kind of files that load_dataset reads and gpupipe does not.
const unread = "unread"

// kinds are the kinds of files of documents by the endings of their names.
var kinds = map[string]string{".parquet": "parquet", ".arrow": "arrow", ".json": "json", ".jsonl": "json", ".ndjson": "json",
	".txt": "text", ".feather": "arrow", ".jsonlines": "json", ".jl": "json", ".bin": "shards"}

// own are the endings in kinds that load_dataset does not know.
var own = []string{".feather", ".jsonlines", ".jl", ".bin"}

// others are endings that load_dataset knows and gpupipe does not read.
var others = strings.Fields(".csv .tsv .zip .tar .xml .hdf5 .h5 .md .toml .conll .conllu .lance .vortex .eval .geoparquet .gpq " +
	".png .jpg .jpeg .gif .bmp .tif .tiff .webp .wav .mp3 .flac .ogg .opus .m4a .mp4 .mkv .mov .avi .webm .pdf")

// metadata are files that describe the other files of a data set.
var metadata = []string{"metadata.csv", "metadata.jsonl", "metadata.parquet", "task.toml", "instruction.md"}

// preferred are endings that win against others of as many files, the last of them against all.
var preferred = []string{".csv", ".json", ".jsonl", ".arrow", ".vortex", ".lance", ".parquet"}

// endings are all endings of a file's name: .jsonl and .gz of a.jsonl.gz.
func endings(p string) []string {
	parts := strings.Split(path.Base(p), ".")[1:]
	for i := range parts {
		parts[i] = "." + parts[i]
	}
	return parts
}

// kindOfEnding is the kind of documents of a file with an ending; "" if that says nothing.
func kindOfEnding(ending string) string {
	if slices.Contains(others, ending) {
		return unread
	}
	return kinds[ending]
}

// mostFrequent is the kind of the most frequent ending, counted and compared as load_dataset does; "" without any.
func mostFrequent(files []File) string {
	type ending struct {
		text string
		rank int // 2; 1 of a file that describes others; 0 if load_dataset does not know it
	}
	count := map[ending]int{}
	for _, f := range files {
		for _, e := range endings(f.Path) {
			switch {
			case kindOfEnding(e) == "":
			case slices.Contains(own, e):
				count[ending{e, 0}]++
			case slices.Contains(metadata, path.Base(f.Path)):
				count[ending{e, 1}]++
			default:
				count[ending{e, 2}]++
			}
		}
	}
	if len(count) == 0 {
		return ""
	}
	best := slices.MaxFunc(slices.Collect(maps.Keys(count)), func(a, b ending) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(count[a], count[b]),
			cmp.Compare(slices.Index(preferred, a.text), slices.Index(preferred, b.text)), strings.Compare(a.text, b.text))
	})
	return kindOfEnding(best.text)
}

// config is a configuration in a data set's card.
type config struct {
	Name    string    `yaml:"config_name"`
	Files   yaml.Node `yaml:"data_files"`
	DataDir string    `yaml:"data_dir"`
	Default bool      `yaml:"default"`

	patterns []pattern
}

// head is the YAML at the beginning of a card.
var head = regexp.MustCompile(`^\s*---(?:\r\n|\r|\n)((?s:.*?))(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)`)

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
	var of struct {
		Configs []config `yaml:"configs"`
	}
	m := head.FindSubmatch(text)
	if m == nil {
		return nil, nil
	}
	if err := yaml.Unmarshal(m[1], &of); err != nil {
		return nil, fmt.Errorf("%s: the description of the data set: %w", card, err)
	}
	for i := range of.Configs {
		if err := of.Configs[i].complete(); err != nil {
			return nil, fmt.Errorf("%s: configs: %s: %w", card, of.Configs[i].Name, err)
		}
	}
	return of.Configs, nil
}

// complete reads data_files: a glob, a list of globs, or a list of splits with their globs.
func (c *config) complete() error {
	if c.DataDir = path.Join(c.DataDir); c.DataDir == "." {
		c.DataDir = ""
	}
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
			c.patterns = append(c.patterns, pattern{split: of.Split, glob: path.Join(c.DataDir, glob), ofCard: true})
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
		p := pattern{split: m[1], glob: path.Join(folder, "data", m[1]+"-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*")}
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
					p := pattern{split: s.split, glob: path.Join(folder, strings.ReplaceAll(glob, "WORD", word))}
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
	return []pattern{{split: trainSplit, glob: path.Join(folder, "**")}}
}

// match returns the files that a glob matches, by name. * and ? match within a name, ** any number of folders. Hidden files
// and folders match only names that are hidden in the glob, too, as do folders that begin with __. Files that describe a data
// set match only their own names.
func match(files []File, glob string) (matched []File) {
	elements := strings.Split(glob, "/")
	for _, f := range files {
		parts := strings.Split(f.Path, "/")
		name := path.Base(f.Path)
		if matches(parts, elements) && marked(parts) == marked(elements) && (!slices.Contains(ignored, name) || name == path.Base(glob)) {
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

// classes writes the classes of characters of Python's globs as Go's.
var classes = strings.NewReplacer("[!-", `[^\-`, "[!", "[^", "[-", `[\-`)

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
	ok, err := path.Match(classes.Replace(elements[0]), parts[0])
	return err == nil && ok && matches(parts[1:], elements[1:])
}
