package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/hub/client"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"go.yaml.in/yaml/v3"
)

type fetchCommand struct {
	Names []string `arg:"" name:"name" hub:"model" help:"Models and data sets: hf:org/name[@revision], hf:datasets/org/name[/path][@revision][:split]."`
	JSON  bool     `help:"Print a JSON object."`
}

func (c *fetchCommand) Help() string {
	return `Downloads what a command that names the same model or data set would download, into the cache of the Hugging Face Hub's tools
(HF_HOME, HF_HUB_CACHE), and prints where it is. Commands download by themselves; this one is for machines without a network, with
HF_HUB_OFFLINE=1 later. A download that was stopped continues. HF_TOKEN or HF_TOKEN_PATH give a token, HF_ENDPOINT another Hub.

Examples:
  gpupipe fetch hf:HuggingFaceTB/SmolLM2-135M
  gpupipe fetch hf:datasets/roneneldan/TinyStories:train`
}

// Run prints the paths; the names were fetched before, as for every command.
func (c *fetchCommand) Run(a *app) error {
	found := map[string][]string{}
	for _, name := range c.Names {
		n, ok, err := hub.Parse(name)
		if err == nil && !(ok && hub.IsAddress(name)) {
			err = fmt.Errorf("%s: expected hf:org/name or hf:datasets/org/name", name)
		}
		if err != nil {
			return usererror.New(err)
		}
		var paths []string
		if n.Kind == hub.DataSets {
			paths, err = hub.Files(name)
		} else {
			var path string
			path, err = hub.Locate(name)
			paths = []string{path}
		}
		if err != nil {
			return usererror.New(err)
		}
		found[name] = paths
		for _, path := range paths {
			if !c.JSON {
				a.printf("%s\n", path)
			}
		}
	}
	if c.JSON {
		return a.printJSON(found)
	}
	return nil
}

// hubTag is the tag of arguments and flags that may be names of the Hub. Its value says what they are used for: a
// model, a tokenizer, data or a file; config: a file that has such names, or keys with values; shape: the same, without
// weights and data.
const hubTag = "hub"

// fetchNames downloads the models, tokenizers and data sets that a command line names, and those that its files name.
func (a *app) fetchNames(parsed *kong.Context) error {
	command := parsed.Selected()
	if command == nil || hub.Offline() {
		return nil
	}
	requests := requestsOf(command)
	if len(requests) == 0 {
		return nil
	}
	return a.download(func(c *client.Client) error { return c.Fetch(a.ctx, requests) })
}

// fetchText downloads the training text of a config for a run, and gives its names the commits. If it is streamed, only
// its first file: the others arrive while the run trains, until stop is called.
func (a *app) fetchText(c *config.Config, o *train.Options) (stop func(), err error) {
	var requests []client.Request
	var at []int // the place of each in data.train
	for i, name := range c.TextAsGiven() {
		for _, k := range request(trainingText, name, "config") {
			requests, at = append(requests, k.Request), append(at, i)
		}
	}
	if len(requests) == 0 || hub.Offline() {
		return func() {}, nil
	}
	streamed := func(paths []string) bool { return data.StreamOf(string(c.Stream())).Streams(c.Data.Train, paths) }
	var names []string
	var arrivals *client.Arrivals // nil: all is there
	err = a.download(func(hub *client.Client) error {
		names, arrivals, err = hub.Stream(a.ctx, requests, streamed)
		return err
	})
	c.Data.Train = slices.Clone(c.Data.Train)
	for i, name := range names {
		c.Data.Train[at[i]] = name
	}
	if arrivals != nil {
		o.Prepared.Arrivals = arrivals
	}
	return arrivals.Close, err
}

// whileShown does what r shows the progress of. Meanwhile notes of downloads wait for r's next output, so that they do
// not break its line.
func (a *app) whileShown(r *progress, do func() error) error {
	a.downloads.divert(r.later)
	err := do()
	a.downloads.divert(nil)
	r.end()
	return err
}

// download runs what downloads, with a status line.
func (a *app) download(do func(*client.Client) error) error {
	if a.fetching == nil {
		a.downloads = &status{app: a}
		var err error
		if a.fetching, err = a.hub(a.downloads, "downloading", false); err != nil {
			return err
		}
	}
	defer a.fetching.Close()
	a.downloads.mute(false)
	err := do(a.fetching)
	a.downloads.mute(true) // what arrives later is shown where a run waits for it
	if err != nil && a.ctx.Err() == nil {
		return usererror.New(err)
	}
	if err != nil {
		a.note("stopped; the same command continues the download")
		return errInterrupted
	}
	return nil
}

// hub returns a client of the Hub that shows on a status line what it does. explicit says that the command needs a
// token.
func (a *app) hub(s *status, what string, explicit bool) (*client.Client, error) {
	o, err := client.FromEnvironment(explicit)
	if err != nil {
		return nil, usererror.New(err)
	}
	var began time.Time
	o.Progress = func(done, total int64) {
		if began.IsZero() {
			began = time.Now()
		}
		rate := float64(done) / max(1e-3, time.Since(began).Seconds())
		s.say("%s: %d%% of %s, %s/s", what, 100*done/max(1, total), inBytes(total), inBytes(int64(rate)))
	}
	o.Note = s.note
	o.CheckData = data.CheckName
	c, err := client.New(o)
	return c, usererror.New(err)
}

// keyed is a request, and the key of the config that has the name; "": an argument or flag of its own.
type keyed struct {
	client.Request
	key string
}

// trainingText is the key of the text that a run may stream.
const trainingText = "data.train"

// requestsOf are the requests for the names in a command's arguments and flags, and in the files that these name, but
// for keys that flags override, and for the training text of a command that fetches it by itself. Names of runs that go
// on have the commits that these have recorded. Mistakes in names are reported by the command itself.
func requestsOf(command *kong.Node) (requests []client.Request) {
	values := slices.Clone(command.Positional)
	for _, f := range command.Flags {
		values = append(values, f.Value)
	}
	target := command.Target.Addr().Interface()
	_, withoutText := target.(interface{ streams() })
	commits, pins := hub.Commits{}, hub.Pins{}
	if run, ok := target.(interface{ commits() hub.Commits }); ok {
		maps.Copy(commits, run.commits())
	}
	var named, files, set []keyed
	var overridden []string
	for _, v := range values {
		use := v.Tag.Get(hubTag)
		for _, text := range texts(v) {
			switch {
			case use == "" || text == "":
			case use != "config" && use != "shape":
				named = append(named, request("", text, use)...)
			case strings.Contains(text, "=") && v.Flag != nil:
				key, value, _ := strings.Cut(text, "=")
				overridden = append(overridden, key)
				set = append(outside(set, key), inValue(key, value, use)...)
			default:
				files = append(files, inFile(text, use)...)
				maps.Copy(pins, runs.PinsOf(text))
			}
		}
	}
	for _, key := range overridden {
		files = outside(files, key)
	}
	for i, k := range slices.Concat(files, named, set) {
		if key, _, _ := strings.Cut(k.key, "["); !withoutText || key != trainingText {
			if i < len(files) || !k.Name.Revised() { // one on the command line is another wish
				k.Name = commits.KeepOf(k.Name)
			}
			k.Name = pins.Of(k.Name)
			requests = append(requests, k.Request)
		}
	}
	return requests
}

// outside drops the requests of a key, or of the keys of a section.
func outside(all []keyed, key string) []keyed {
	return slices.DeleteFunc(all, func(k keyed) bool { return k.key == key || strings.HasPrefix(k.key, key+".") })
}

// texts are the values of an argument or flag.
func texts(v *kong.Value) []string {
	switch x := v.Target.Interface().(type) {
	case string:
		return []string{x}
	case []string:
		return x
	}
	return nil
}

// inValue are the requests for the names in an override.
func inValue(key, value, use string) []keyed {
	if found := request(key, value, use); len(found) > 0 {
		return found
	}
	n := yaml.Node{}
	if yaml.Unmarshal([]byte(value), &n) != nil {
		return nil
	}
	return inYAML(&n, key, use)
}

// request is the request for a name; none for another text. The key of a tokenizer says what the name is used for.
func request(key, text, use string) []keyed {
	n, ok, err := hub.Parse(text)
	if !hub.IsAddress(text) || err != nil || !ok {
		return nil
	}
	need := hub.ForModel
	switch {
	case n.Kind == hub.DataSets && use == "shape":
		return nil
	case n.Kind == hub.DataSets && (use == "file" || key == "data.aligned" || key == "train.eval_tasks"):
		need = hub.ForFiles
	case n.Kind == hub.DataSets:
		need = hub.ForData
	case use == "tokenizer" || use == "shape" || key == "tokenizer" || strings.HasSuffix(key, ".tokenizer"):
		need = hub.ForTokenizer
	}
	return []keyed{{client.Request{Name: n, Need: need}, key}}
}

// ofRuns are the sections of the file of a sweep or study that have keys of a config.
var ofRuns = []string{"base", "set", "keys"}

// inYAML are the requests for the names in a document.
func inYAML(n *yaml.Node, key, use string) (found []keyed) {
	switch n.Kind {
	case yaml.ScalarNode:
		return request(key, n.Value, use)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			child := n.Content[i].Value
			switch {
			case key == "" && slices.Contains(ofRuns, child):
				child = ""
			case key != "":
				child = key + "." + child
			}
			found = append(found, inYAML(n.Content[i+1], child, use)...)
		}
	default:
		for _, child := range n.Content {
			found = append(found, inYAML(child, key, use)...)
		}
	}
	return found
}

// inFile are the requests for the names in a config, in the config of a run folder, or in the file of a sweep or study
// and its base.
func inFile(path, use string) []keyed {
	if f, err := runs.OpenFile(path); err == nil {
		path = f.Path
	} else if path, err = configIn(path); err != nil {
		return nil
	}
	n, err := readYAML(path)
	if err != nil {
		return nil
	}
	found := inYAML(n, "", use)
	var of struct {
		Base string `yaml:"base"`
	}
	if n.Decode(&of) != nil || of.Base == "" { // none, or a config in the file
		return found
	}
	base, err := userpath.Expand(of.Base)
	if err != nil {
		return found
	}
	if !userpath.Rooted(base) {
		base = filepath.Join(filepath.Dir(path), base)
	}
	if n, err = readYAML(base); err == nil {
		found = append(found, inYAML(n, "", use)...)
	}
	return found
}

// readYAML reads a document.
func readYAML(path string) (*yaml.Node, error) {
	text, err := strictyaml.ReadSmall(path)
	if err != nil {
		return nil, err
	}
	n := new(yaml.Node)
	return n, yaml.Unmarshal(text, n)
}
