package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"go.yaml.in/yaml/v3"
)

// paths remembers how the paths of a config are written, and which of them do not exist.
type paths struct {
	written map[string]string // the text in the config, by the path in use, where they differ
	missing map[string]string // what to say of it, by the path in use
	given   map[string]string // the name of the Hub as it was given, by the name with its commit
}

// LoadRun is LoadKept of file, the config in the folder of a run, with its commits. run.dir becomes that folder.
func LoadRun(dir, file string, overrides []string) (Config, error) {
	text, err := strictyaml.ReadSmall(file)
	if err != nil {
		return Config{}, usererror.New(err)
	}
	d, err := strictyaml.Parse(file, text)
	if err == nil {
		err = d.Put("run.dir", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: dir}, file)
	}
	if err != nil {
		return Config{}, usererror.New(err)
	}
	saved, unread := ParseSaved(file, text)
	commits := hub.Commits{}
	saved.record(commits)
	var c Config
	if err = applyKept(d, overrides, commits); err == nil {
		c, err = Resolve(d)
	}
	if unread != nil {
		return c, usererror.New(err)
	}
	start := startOf(dir, saved.Run.Dir)
	if err != nil {
		saved.explainMissing(d, start)
		return c, cmp.Or(saved.CheckPaths("init.from", "data.tokenizer"), usererror.New(err)) // Resolve reads these files
	}
	c.explainMissing(d, start)
	if c.Run.Dir == dir && userpath.SameFolder(dir, saved.Run.Dir) {
		c.paths.written[dir] = saved.paths.asWritten(saved.Run.Dir)
	}
	return c, nil
}

// startOf guesses where a run of an earlier version was started, by the folder in which it is and its run.dir.
func startOf(folder, dir string) string {
	abs, err := filepath.Abs(folder)
	if start, ok := strings.CutSuffix(abs, string(filepath.Separator)+filepath.Clean(dir)); err == nil && ok {
		return start
	}
	return "FOLDER"
}

// explainMissing prepares an explanation for each relative path of a run's file that does not exist: where the path may
// begin. It does so only for runs of an earlier version, which did not record where they were started.
func (c *Config) explainMissing(d *strictyaml.Document, start string) {
	if d.FromFile("run.started_in") || d.Overridden("run.started_in") {
		return
	}
	c.paths.missing = map[string]string{}
	must(c.eachPath(func(key string, path *string) error {
		if key != "run.dir" && d.FromFile(key) && !userpath.Rooted(*path) && !hub.IsName(*path) && !exists(fixedPart(*path)) {
			c.paths.missing[*path] = fmt.Sprintf("%s is not in the working directory, and the run is of an earlier version, which did not record "+
				"where it was started: repeat the command there, or add --set run.started_in=%s", *path, start)
		}
		return nil
	}))
}

// withoutStart removes run.started_in from a document that is not the config in the folder of a run, but was copied
// from one: relative paths of a file that users write begin at the working directory. It returns a note, or "".
func withoutStart(d *strictyaml.Document, file string, text []byte) (note string, err error) {
	c, err := ParseSaved(file, text)
	if err != nil || elsewhere(c.Run.StartedIn) == "" || c.besideRun(file) {
		return "", nil // its faults are found later
	}
	note = fmt.Sprintf("run.started_in: %s is of the run that %s was copied from: relative paths begin at the working directory",
		c.Run.StartedIn, file)
	return note, d.Put("run.started_in", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str"}, file)
}

// besideRun reports whether a file is in the folder of the config's run or, like the best config of a sweep, in the
// folder that it will be in.
func (c Config) besideRun(file string) bool {
	dir := filepath.Dir(file)
	return userpath.SameFolder(dir, c.Run.Dir) || userpath.SameFolder(dir, filepath.Dir(c.Run.Dir))
}

// SavedYAML is YAML for a run folder: run.started_in is the working directory unless the config has one.
func (c Config) SavedYAML() []byte {
	if dir, err := os.Getwd(); err == nil && c.Run.StartedIn == "" {
		c.Run.StartedIn = dir
	}
	return c.YAML()
}

// Here is the config with all paths as this process uses them.
func (c Config) Here() Config {
	c.paths, c.Run.StartedIn = paths{}, ""
	return c
}

// CheckPaths refuses a path of a run's config that is found neither from run.started_in nor from the working
// directory. It checks the keys that begin with one of the prefixes; without prefixes, all.
func (c Config) CheckPaths(prefixes ...string) error {
	begins := func(key string) bool {
		return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
	}
	return c.eachPath(func(key string, path *string) error {
		found, missing := c.paths.missing[*path]
		if !missing || !begins(key) {
			return nil
		}
		return usererror.Errorf("%s: %s", key, found)
	})
}

// usePaths expands ~ and variables in the paths of a decoded document. Relative paths of its file begin at
// run.started_in if that folder exists, paths of the command line and a run.dir that Put has set at the working
// directory, and paths that Put has set at start; "" is the working directory. Without run.started_in it is start.
// lenient accepts variables that are not set. Names of the Hub
// get the commit that they mean.
func (c *Config) usePaths(d *strictyaml.Document, start string, lenient bool) error {
	c.paths = paths{map[string]string{}, map[string]string{}, map[string]string{}}
	if c.Run.StartedIn == "" {
		c.Run.StartedIn = start
	}
	base := elsewhere(c.Run.StartedIn)
	start = elsewhere(start)
	gone := base != "" && !exists(base)
	if gone { // the run goes on as one of the working directory
		c.Run.StartedIn = start
	}
	return c.eachPath(func(key string, path *string) error {
		if hub.IsAddress(*path) {
			given := *path
			*path = hub.Pinned(given)
			c.paths.given[*path] = given
			return nil
		}
		written, from := *path, base
		switch file, typed := d.FromFile(key), d.FromCommandLine(key); {
		case !file && !typed && key != "run.dir":
			from = start
		case !file || gone && key == "run.dir":
			from = ""
		}
		if from != base && !gone {
			written = relative(base, from, *path)
		}
		used, tried, err := locate(from, *path, key != "run.dir")
		if err != nil && lenient {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", d.At(key), key, err)
		}
		if tried != "" {
			c.paths.missing[used] = fmt.Sprintf("found neither %s, from run.started_in, nor %s, from the working directory", used, tried)
		}
		if used != written {
			c.paths.written[used] = written
		}
		*path = used
		return nil
	})
}

// elsewhere is a folder, or "" for the working directory.
func elsewhere(folder string) string {
	if userpath.SameFolder(folder, ".") {
		return ""
	}
	return folder
}

// locate returns the path that a text stands for, relative to a folder if it is relative; "" is the working directory.
// A file that is not in the folder is looked for in the working directory, too; if it is in neither, tried is the path
// there.
func locate(from, text string, file bool) (used, tried string, err error) {
	if from != "" && !userpath.Rooted(text) && exists(filepath.Join(from, text)) {
		return filepath.Join(from, text), "", nil
	}
	if used, err = userpath.Expand(text); err != nil || from == "" || userpath.Rooted(used) || file && hub.IsName(used) {
		return used, "", err
	}
	fixed := fixedPart(used)
	there := filepath.Join(from, used)
	if fixed != used {
		there = filepath.Join(userpath.Literal(from), used)
	}
	switch {
	case !file || exists(filepath.Join(from, fixed)):
		return there, "", nil
	case exists(fixed):
		return used, "", nil
	}
	tried, err = filepath.Abs(used)
	return there, tried, err
}

// fixedPart is a path, or the folder that a glob begins with.
func fixedPart(path string) string {
	if i := strings.IndexAny(path, userpath.Globbing); i >= 0 && !exists(path) {
		return filepath.Dir(path[:i] + "_")
	}
	return path
}

// relative is a path that begins at one folder as seen from another; "" is the working directory.
func relative(folder, from, path string) string {
	if strings.HasPrefix(path, "~") || strings.HasPrefix(path, "$") || userpath.Rooted(path) {
		return path
	}
	seen, err := filepath.Abs(folder)
	if err != nil {
		return path
	}
	abs, err := filepath.Abs(filepath.Join(from, path))
	if err != nil {
		return path
	}
	if r, err := filepath.Rel(seen, abs); err == nil {
		return r
	}
	return abs
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// asWritten is the text that stands for a path in use.
func (p paths) asWritten(used string) string {
	if text, ok := p.written[used]; ok {
		return text
	}
	return used
}

// Record adds the commits of the names of the Hub in the config of a run, if the file is one.
func Record(file string, commits hub.Commits) {
	text, err := strictyaml.ReadSmall(file)
	if err != nil {
		return
	}
	if c, err := ParseSaved(file, text); err == nil { // the run reports the error
		c.record(commits)
	}
}

func (c Config) record(commits hub.Commits) {
	must(c.eachPath(func(_ string, path *string) error {
		commits.Record(*path)
		return nil
	}))
}

// TextAsGiven is data.train before names of the Hub got the commits that the cache had.
func (c Config) TextAsGiven() []string {
	given := slices.Clone(c.Data.Train)
	for i, name := range given {
		given[i] = cmp.Or(c.paths.given[name], name)
	}
	return given
}

// asWritten is the config with its paths as they are written.
func (c Config) asWritten() Config {
	c.Data.Train, c.Data.Val, c.Data.Aligned = slices.Clone(c.Data.Train), slices.Clone(c.Data.Val), slices.Clone(c.Data.Aligned)
	c.Data.Mix, c.Train.EvalTasks, c.Hooks = slices.Clone(c.Data.Mix), slices.Clone(c.Train.EvalTasks), slices.Clone(c.Hooks)
	for i, s := range c.Data.Mix {
		c.Data.Mix[i].Train = slices.Clone(s.Train)
	}
	must(c.eachPath(func(_ string, path *string) error {
		*path = c.paths.asWritten(*path)
		return nil
	}))
	return c
}

// eachPath visits the paths of the config, up to an error. An empty text and the name of a built-in tokenizer are none.
func (c *Config) eachPath(visit func(key string, path *string) error) error {
	var err error
	one := func(key string, path *string) {
		if err == nil && *path != "" {
			err = visit(key, path)
		}
	}
	list := func(key string, list []string) {
		for i := range list {
			one(fmt.Sprintf("%s[%d]", key, i), &list[i])
		}
	}
	one("run.dir", &c.Run.Dir)
	one("init.from", &c.Init.From)
	list("data.train", c.Data.Train)
	for i, s := range c.Data.Mix {
		list(fmt.Sprintf("data.mix[%d].train", i), s.Train)
	}
	list("data.val", c.Data.Val)
	list("data.aligned", c.Data.Aligned)
	if !tokenizer.BuiltIn(c.Data.Tokenizer) {
		one("data.tokenizer", &c.Data.Tokenizer)
	}
	list("train.eval_tasks", c.Train.EvalTasks)
	if c.Pipeline.HasScheduleFile() {
		one("pipeline.schedule", &c.Pipeline.Schedule)
	}
	for i := range c.Hooks {
		one(fmt.Sprintf("hooks[%d].file", i), &c.Hooks[i].File)
	}
	return err
}
