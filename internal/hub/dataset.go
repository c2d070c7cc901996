package hub

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/suggest"
	"github.com/gpupipe/gpupipe/internal/userpath"
)

// trainSplit is the split that the name of a data set without one means.
const trainSplit = "train"

// pattern is a split and a glob of its files.
type pattern struct {
	split, glob string
	from        string // the file that describes the data set with it; "": none
}

// selectData returns the files of a data set that the name means, in the order in which load_dataset of Hugging Face's
// datasets reads them: a file or a glob, all files that match; else the files of the split, of a configuration of the
// card or of a folder.
func (n Name) selectData(files []File, read func(File) ([]byte, error)) ([]File, error) {
	if at := find(files, n.Path); at >= 0 {
		return files[at : at+1 : at+1], nil
	}
	isGlob, configs, err := userpath.IsGlob(n.Path), []config(nil), checkGlob(n.Path)
	if err == nil && !isGlob { // a glob names files, whatever the card says
		configs, err = readConfigs(files, read)
	}
	if err != nil {
		return nil, err
	}
	folder, patterns := "", []pattern(nil)
	chosen, ok := configOf(configs, n.Path)
	switch {
	case isGlob:
		all := files
		if files = match(all, n.Path); len(files) == 0 {
			return nil, n.noMatch(all)
		} else if n.Split == "" {
			return files, nil
		}
		if patterns, err = guess(files, ""); err != nil {
			return nil, fmt.Errorf("%s: %w", n.ID, err)
		}
	case len(defaults(configs)) > 1 && n.Path == "":
		return nil, n.noConfig("default configurations", defaults(configs))
	case n.script(files) != "":
		return nil, fmt.Errorf("%s is made by the script %s, which load_dataset no longer runs, and gpupipe never: name files of it, "+
			"such as hf:datasets/%[1]s/data/*.jsonl, or those that the Hub makes of most data sets: hf:datasets/%[1]s@refs/convert/parquet",
			n.ID, n.script(files))
	case ok && chosen.refused() != "":
		return nil, fmt.Errorf("%s of %s: the configuration %s has the key %s, which gpupipe does not follow: name its files, "+
			"such as hf:datasets/%[2]s/*.jsonl", chosen.file, n.ID, chosen.Name, chosen.refused())
	case ok:
		patterns, folder = chosen.patterns, chosen.DataDir
	case n.Path == "" && len(configs) > 0:
		return nil, n.noConfig("configurations", configs)
	default:
		folder = n.Path
	}
	switch here := below(files, folder); {
	case len(here) == 0 && ok:
		return nil, n.lacks(chosen.file, folder)
	case len(here) == 0 && find(files, n.Path+":"+n.Split) >= 0:
		n.Path, n.Split = n.Path+"?"+n.Split, ""
		return nil, fmt.Errorf("what follows a colon is the name of a split: a file with a colon in its name is written with ?: %s", n.Text())
	case len(here) == 0 && len(configs) > 0 && kindOfEnding(path.Ext(n.Path)) == "": // not the name of a file
		return nil, n.noConfig("configurations", configs)
	case len(here) == 0:
		return nil, n.noFile(files)
	}
	if patterns == nil {
		if patterns, err = guess(files, folder); err != nil {
			return nil, fmt.Errorf("%s: %w", n.ID, err)
		}
	}
	return n.ofSplit(files, patterns)
}

// script is the program that made the data set in earlier versions of load_dataset; "": there is none.
func (n Name) script(files []File) string {
	if p := path.Base(n.ID) + ".py"; find(files, p) >= 0 {
		return p
	}
	return ""
}

// noConfig is the error of a name with none of the configurations that there are.
func (n Name) noConfig(what string, configs []config) error {
	var names []string
	for _, c := range configs {
		names = append(names, c.Name)
	}
	lacks := ""
	if n.Path != "" {
		lacks = fmt.Sprintf("no configuration, file or folder %s at %s, and has ", n.Path, n.Revision)
	}
	with := n
	with.Path = append(suggest.Closest(n.Path, names), names...)[0]
	return fmt.Errorf("%s has %sthe %s %s: expected one, such as %s", n.ID, lacks, what, someOf(names, 100), with.Text())
}

// noMatch is the error of a glob that matches none of the files.
func (n Name) noMatch(files []File) error {
	if len(match(files, n.Path+"/**")) > 0 {
		return fmt.Errorf("the glob %s matches no file, but folders of the data set %s at %s: %[1]s/** matches the files in them", n.Path,
			n.ID, n.Revision)
	}
	here := below(files, parent(n.Path[:strings.IndexAny(n.Path, userpath.Globbing)]+"x"))
	if len(here) == 0 {
		here = files
	}
	return fmt.Errorf("the data set %s has no file that matches %s at %s: it has %s", n.ID, n.Path, n.Revision, inWords(Paths(here)))
}

// lacks is the error of a file or folder that a description of the data set names and the repository does not have.
func (n Name) lacks(description, path string) error {
	return fmt.Errorf("%s of %s names %s, which it does not have at %s", description, n.ID, path, n.Revision)
}

// ofSplit returns the files of the split in the order of the patterns. Of files of several kinds it takes the most
// frequent.
func (n Name) ofSplit(files []File, patterns []pattern) ([]File, error) {
	var splits, globs []string
	var chosen []File
	seen := map[string]bool{} // the paths of chosen
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
		if len(matched) == 0 && p.from != "" && !userpath.IsGlob(p.glob) {
			return nil, n.lacks(p.from, strings.ReplaceAll(p.glob, `\\`, `\`))
		}
		for _, f := range matched {
			switch again := seen[f.Path]; {
			case again && p.from != "":
				return nil, fmt.Errorf("%s of %s has two globs of the split %s that match %s, which load_dataset then reads twice: name the files, "+
					"such as hf:datasets/%[2]s/%[4]s", p.from, n.ID, want, f.Path)
			case !again:
				chosen = append(chosen, f)
				seen[f.Path] = true
			}
		}
	}
	if len(chosen) == 0 && mostFrequent(match(files, "**")) == "" {
		return nil, fmt.Errorf("%s has no files of text at %s: it has %s", n.ID, n.Revision, inWords(Paths(files)))
	}
	if !slices.Contains(splits, want) {
		n.Split = splits[0]
		return nil, fmt.Errorf("%s has no split %s, expected one of %s: %s, for example", n.ID, want, strings.Join(splits, ", "), n.Text())
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

// splitWords are the words in the names of files and folders by which datasets knows splits.
var splitWords = []struct {
	split string
	words []string
}{
	{trainSplit, []string{"train", "training"}},
	{"validation", []string{"validation", "valid", "dev", "val"}},
	{"test", []string{"test", "testing", "eval", "evaluation"}},
}

// shard ends the globs of shards, which have their split in front.
const shard = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*"

var (
	sharded   = regexp.MustCompile(`(?s)^(.*)-\d{5}-of-\d{5}.*\.`)
	splitName = regexp.MustCompile(`^[\pL\pN_]+(?:\.[\pL\pN_]+)*$`)
)

// kindPatterns are globs by which datasets knows data sets of kinds that have splits of their own.
var kindPatterns = [][]pattern{
	{{split: "logs", glob: "**/*.eval"}},
	{{split: "test", glob: "**/task.toml"}, {split: "test", glob: "**/instruction.md"}},
}

// guess finds the splits of files that no card describes, as datasets does: by the names of shards, of folders or of
// files. Without any, all files are the split train.
func guess(files []File, folder string) (patterns []pattern, err error) {
	here := below(files, folder)
	for _, f := range match(here, path.Join(folder, "data", "*"+shard)) {
		m := sharded.FindStringSubmatch(path.Base(f.Path))
		if m == nil {
			continue
		}
		split := m[1]
		if !splitName.MatchString(split) {
			return nil, fmt.Errorf("the name of %q has the split %q, expected letters, digits, _ and dots, as load_dataset does", f.Path, split)
		}
		p := pattern{split: split, glob: path.Join(folder, "data", split+shard)}
		if !slices.Contains(patterns, p) {
			patterns = append(patterns, p)
		}
	}
	if len(patterns) > 0 {
		return patterns, nil
	}
	for _, of := range kindPatterns {
		for _, p := range of {
			if p.glob = path.Join(folder, p.glob); len(match(here, p.glob)) > 0 {
				patterns = append(patterns, p)
			}
		}
		if len(patterns) > 0 {
			return patterns, nil
		}
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
			return patterns, nil
		}
	}
	return []pattern{{split: trainSplit, glob: path.Join(folder, "**")}}, nil
}

// match returns the files that a glob matches, by name. * and ? match within a name, ** any number of folders. Hidden
// files and folders match only names that are hidden in the glob, too, as do folders that begin with __. Files that
// describe a data set match only their own names.
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

var stars = regexp.MustCompile(`\*\*+`)

// checkGlob refuses a glob in which ** is less than a whole name, as load_dataset does.
func checkGlob(glob string) error {
	elements := strings.Split(glob, "/")
	for i, e := range elements {
		if e != "**" && strings.Contains(e, "**") {
			elements[i] = "**/" + stars.ReplaceAllString(e, "*")
		}
	}
	if expected := strings.Join(elements, "/"); expected != glob {
		return fmt.Errorf("found the glob %s, expected ** between slashes: %s", glob, expected)
	}
	return nil
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
