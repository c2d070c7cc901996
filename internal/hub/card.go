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

// card is the file that describes a repository, and standalone one with the same keys, which have precedence.
const (
	card       = "README.md"
	standalone = ".huggingface.yaml"
)

// config is a configuration of a data set.
type config struct {
	Name     string    `yaml:"config_name"`
	Files    yaml.Node `yaml:"data_files"`
	DataDir  string    `yaml:"data_dir"`
	Default  bool      `yaml:"default"`
	Field    any       `yaml:"field"`
	Filters  any       `yaml:"filters"`
	Encoding string    `yaml:"encoding"`

	patterns []pattern
	file     string // that has the configuration
}

// refused is a key by which load_dataset reads other texts of the files than gpupipe; "": there is none.
func (c config) refused() string {
	switch {
	case c.Field != nil:
		return "field"
	case c.Filters != nil:
		return "filters"
	case c.Encoding != "" && !slices.Contains([]string{"utf-8", "utf8"}, strings.ToLower(c.Encoding)):
		return "encoding"
	}
	return ""
}

// head is the YAML at the beginning of a card.
var head = regexp.MustCompile(`^(?:\x{FEFF})?\s*---(?:\r\n|\r|\n)((?s:.*?))(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)`)

// readConfigs returns the configurations that the files describing a data set list. Of two with one name the last one
// counts.
func readConfigs(files []File, read func(File) ([]byte, error)) (configs []config, err error) {
	var list yaml.Node
	from := ""
	for _, name := range []string{card, standalone} {
		at := find(files, name)
		if at < 0 {
			continue
		}
		text, err := read(files[at])
		if err != nil {
			return nil, err
		}
		if name == card {
			at := head.FindSubmatchIndex(text)
			if at == nil {
				continue
			}
			// Empty lines keep the numbers of the file's lines in errors.
			text = append(bytes.Repeat([]byte("\n"), bytes.Count(text[:at[2]], []byte("\n"))), text[at[2]:at[3]]...)
		}
		var of map[string]yaml.Node
		if err := yaml.Unmarshal(text, &of); err != nil {
			return nil, fmt.Errorf("%s: the description of the data set: %s", name, plain(err))
		}
		if n, ok := of["configs"]; ok {
			list, from = n, name
		}
	}
	var listed []config
	if err := list.Decode(&listed); err != nil && !list.IsZero() {
		return nil, fmt.Errorf("%s: configs: %s", from, plain(err))
	}
	for _, c := range listed {
		c.file = from
		if err := c.complete(); err != nil {
			return nil, fmt.Errorf("%s: configs: %s: %w", from, c.Name, err)
		}
		if i := slices.IndexFunc(configs, func(other config) bool { return other.Name == c.Name }); i >= 0 {
			configs[i] = c
		} else {
			configs = append(configs, c)
		}
	}
	return configs, nil
}

// mismatch is how yaml says that a value is of another type than Go's.
var mismatch = regexp.MustCompile("cannot unmarshal (!!\\w+)( `.*?`)? into (\\S+)")

// yamlWords are words for YAML's types and for those of a description.
var yamlWords = strings.NewReplacer("!!map", "a mapping", "!!seq", "a list", "!!str", "the text", "!!int", "the number",
	"!!float", "the number", "[]hub.config", "a list", "hub.config", "a mapping", "map[string]yaml.Node", "a mapping", "string", "a text", "bool", "true or false")

// plain is the text of an error of yaml on one line, without the types of Go.
func plain(err error) string {
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  "), "\n  ", "; ")
	return mismatch.ReplaceAllStringFunc(text, func(found string) string {
		m := mismatch.FindStringSubmatch(found)
		return "found " + yamlWords.Replace(m[1]) + m[2] + ", expected " + yamlWords.Replace(m[3])
	})
}

var errDataFiles = errors.New("data_files: expected globs, or a list of different splits with paths")

// complete reads data_files: a glob, a list of globs, or a list of splits with their globs.
func (c *config) complete() error {
	if c.DataDir = path.Join(c.DataDir); c.DataDir == "." {
		c.DataDir = ""
	}
	files := resolved(c.Files)
	switch {
	case c.Name == "":
		return errors.New("expected config_name")
	case files.IsZero() || files.Tag == "!!null":
		return nil
	case files.Kind == yaml.ScalarNode:
		return c.add(trainSplit, []string{files.Value})
	case files.Kind != yaml.SequenceNode:
		return errDataFiles
	}
	var globs []string
	if files.Decode(&globs) == nil {
		return c.add(trainSplit, globs)
	}
	var splits []map[string]yaml.Node
	if err := files.Decode(&splits); err != nil {
		return errDataFiles
	}
	var seen []string
	for _, of := range splits {
		split, paths := resolved(of["split"]), resolved(of["path"])
		if split.Kind != yaml.ScalarNode || len(of) > 2 || slices.Contains(seen, split.Value) {
			return errDataFiles
		} else if !splitName.MatchString(split.Value) {
			return fmt.Errorf("data_files: found the split %q, expected letters, digits, _ and dots", split.Value)
		}
		seen = append(seen, split.Value)
		globs := []string{paths.Value}
		if paths.Kind == yaml.SequenceNode && paths.Decode(&globs) != nil {
			return errDataFiles
		}
		if err := c.add(split.Value, globs); err != nil {
			return err
		}
	}
	return nil
}

// resolved is the node that an alias stands for.
func resolved(n yaml.Node) yaml.Node {
	if n.Kind == yaml.AliasNode {
		return *n.Alias
	}
	return n
}

// add adds globs of a split, in which a backslash is a character as any other.
func (c *config) add(split string, globs []string) error {
	for _, glob := range globs {
		if glob == "" {
			return fmt.Errorf("data_files: %s has no path", split)
		}
		if err := checkGlob(glob); err != nil {
			return err
		}
		if glob = strings.ReplaceAll(glob, `\`, `\\`); !scheme.MatchString(glob) { // an address stays as written
			glob = path.Join(c.DataDir, glob)
		}
		c.patterns = append(c.patterns, pattern{split: split, glob: glob, from: c.file})
	}
	return nil
}

// configOf is the configuration with a name, or the default for no name.
func configOf(configs []config, name string) (config, bool) {
	for _, c := range configs {
		if c.Name == name || name == "" && (c.isDefault() || len(configs) == 1) {
			return c, true
		}
	}
	return config{}, false
}

func (c config) isDefault() bool { return c.Default || c.Name == "default" }

// defaults are the configurations each of which is the default.
func defaults(configs []config) []config {
	return slices.DeleteFunc(slices.Clone(configs), func(c config) bool { return !c.isDefault() })
}
