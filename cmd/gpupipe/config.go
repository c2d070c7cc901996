package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gpupipe/gpupipe/internal/suggest"
	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
)

type configCommand struct {
	Prefix     string `arg:"" optional:"" name:"key" help:"Show only this key, or the keys of this section."`
	JSONSchema bool   `name:"json-schema" help:"Print a JSON schema, for completion and checks in editors."`
}

func (c *configCommand) Help() string {
	return `Lists the keys of a run's YAML file with their type, default and meaning.

Examples:
  gpupipe config optimizer
  gpupipe config --json-schema > gpupipe.schema.json
  then, as the first line of a YAML file:
    # yaml-language-server: $schema=gpupipe.schema.json`
}

func (c *configCommand) Run(a *app) error {
	if c.JSONSchema {
		a.printf("%s", config.JSONSchema())
		return nil
	}
	width := 100
	if a.stdoutColumns != nil {
		width = min(width, max(20, a.stdoutColumns()-1))
	}
	found := false
	for _, k := range config.Keys() {
		if !within(k.Name, c.Prefix) {
			continue
		}
		found = true
		facts := k.Name + ": " + k.Type
		if k.Default != "" {
			facts += "; default: " + k.Default
		}
		if k.Section() {
			facts = k.Name + ":"
		}
		for i, line := range table.Wrap(facts, width-4) {
			a.printf("%s%s\n", strings.Repeat("    ", min(i, 1)), line)
		}
		for _, line := range table.Wrap(onSystem(runtime.GOOS, k.Explanation()), width-4) {
			a.printf("    %s\n", line)
		}
	}
	if !found {
		var names []string
		for _, k := range config.Keys() {
			names = append(names, k.Name)
		}
		return usererror.Errorf("key: found %q, expected a key or a section, which gpupipe config lists%s", c.Prefix,
			suggest.DidYouMean(c.Prefix, names))
	}
	return nil
}

// within reports whether a key is, or is below, the one that a prefix names. All keys are within "".
func within(key, prefix string) bool {
	below, ok := strings.CutPrefix(key, prefix)
	return ok && (prefix == "" || below == "" || below[0] == '.' || below[0] == '[')
}

type initCommand struct {
	File string   `arg:"" optional:"" help:"YAML file to write." default:"run.yaml"`
	For  string   `help:"Hardware to train on: ${targets}." enum:"${targetNames}" default:"cpu" placeholder:"HARDWARE"`
	Data []string `help:"Files to train on, or globs. Default: text/*.txt." placeholder:"FILE" sep:"none"`
	Dir  string   `help:"Folder for the output of the run. Default: runs/ and the file's name." placeholder:"DIR"`
}

func (c *initCommand) Help() string {
	return `Writes a commented YAML file that describes a run. Does not replace an existing file.

Examples:
  gpupipe init my.yaml --data 'books/*.txt'
  gpupipe init big.yaml --for 2gpus --data shards/train_*.bin`
}

// targetVars are the variables of initCommand's help.
func targetVars() map[string]string {
	var names, summaries []string
	for _, t := range config.Targets() {
		names, summaries = append(names, t.Name), append(summaries, t.Name+" for "+t.Summary)
	}
	return map[string]string{"targetNames": strings.Join(names, ","), "targets": strings.Join(summaries, "; ")}
}

func (c *initCommand) Run(a *app) error {
	data, dir := c.Data, cmp.Or(c.Dir, "runs/"+strings.TrimSuffix(filepath.Base(c.File), filepath.Ext(c.File)))
	if len(data) == 0 {
		data = []string{"text/*.txt"}
	}
	for _, t := range config.Targets() {
		if t.Name != c.For {
			continue
		}
		if err := writeNew(c.File, t.Template(data, dir)); err != nil {
			return usererror.New(err)
		}
	}
	a.note("wrote %s; to train: gpupipe train %s", c.File, c.File)
	return nil
}

// writeNew writes a file that must not exist.
func writeNew(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: the file exists, expected the name of a new one", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
