package main

import (
	"embed"
	"runtime"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/wasm/sdk"
)

//go:embed completion
var completionScripts embed.FS

type completionCommand struct {
	Shell string `arg:"" help:"Shell: bash, zsh or fish." enum:"bash,zsh,fish"`
}

func (c *completionCommand) Help() string {
	return `Prints a script with which a shell completes commands, flags, their values and the keys of --set. The first lines say how to load it.

Examples:
  source <(gpupipe completion bash)
  gpupipe completion fish | source`
}

func (c *completionCommand) Run(a *app) error {
	script, err := completionScripts.ReadFile("completion/gpupipe." + c.Shell)
	if err != nil {
		return err
	}
	a.printf("%s", script)
	return nil
}

// completeCommand answers the scripts of completionCommand. It prints nothing where the shell is to complete file
// names.
type completeCommand struct {
	Shell string   `enum:"bash,zsh,fish" default:"bash"`
	Words []string `arg:"" optional:"" passthrough:""`
}

func (c *completeCommand) Help() string {
	return `Example:
  gpupipe complete --shell bash -- train --set optimizer.`
}

func (c *completeCommand) Run(a *app, k *kong.Context) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if c.Shell != "bash" {
		for _, x := range complete(k.Model.Node, words) {
			a.printf("%s\t%s\n", x.text, x.help)
		}
		return nil
	}
	words = joined(words)
	for _, x := range complete(k.Model.Node, words) {
		text := x.text
		if at := strings.LastIndexAny(words[len(words)-1], "=:"); at >= 0 { // bash replaces what comes after
			text = text[at+1:]
		}
		a.printf("%s\n", text)
	}
	return nil
}

// joined undoes bash's splitting of words at = and :.
func joined(words []string) []string {
	var out []string
	for i, w := range words {
		split := func(w string) bool { return w == "=" || w == ":" }
		if len(out) > 0 && (split(w) || i > 0 && split(words[i-1])) {
			out[len(out)-1] += w
		} else {
			out = append(out, w)
		}
	}
	return out
}

// candidate is a word that may be completed to.
type candidate struct{ text, help string }

// complete lists what the last of some words may become. No words stand for an empty one.
func complete(node *kong.Node, words []string) []candidate {
	if len(words) == 0 {
		words = []string{""}
	}
	var flag *kong.Flag // waits for its value
	for _, w := range words[:len(words)-1] {
		switch {
		case flag != nil:
			flag = nil
		case strings.HasPrefix(w, "-"):
			if flag = findFlag(node, w); strings.Contains(w, "=") || flag != nil && flag.IsBool() {
				flag = nil
			}
		case w == "help" && node.Parent == nil: // the names of commands follow
		default:
			if i := slices.IndexFunc(node.Children, func(c *kong.Node) bool { return c.Name == w }); i >= 0 {
				node = node.Children[i]
			}
		}
	}
	last := words[len(words)-1]
	all := arguments(node)
	if name, _, ok := strings.Cut(last, "="); ok && flag == nil && strings.HasPrefix(last, "--") {
		all = nil
		if f := findFlag(node, name); f != nil {
			for _, v := range flagValues(f, last[len(name)+1:]) {
				all = append(all, candidate{name + "=" + v.text, v.help})
			}
		}
	} else if flag != nil {
		all = flagValues(flag, last)
	} else if strings.HasPrefix(last, "-") {
		all = flags(node)
	}
	return slices.DeleteFunc(all, func(c candidate) bool { return !strings.HasPrefix(c.text, last) })
}

func findFlag(node *kong.Node, word string) *kong.Flag {
	name, _, _ := strings.Cut(word, "=")
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short) {
				return f
			}
		}
	}
	return nil
}

func flags(node *kong.Node) (all []candidate) {
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			all = append(all, candidate{"--" + f.Name, firstSentence(f.Help)})
			if f.Tag.Negatable != "" {
				all = append(all, candidate{"--no-" + f.Name, firstSentence(f.Help)})
			}
		}
	}
	return all
}

// arguments lists the subcommands of a command, or the values of its argument.
func arguments(node *kong.Node) (all []candidate) {
	for _, c := range node.Children {
		if !c.Hidden {
			all = append(all, candidate{c.Name, firstSentence(c.Help)})
		}
	}
	for _, p := range node.Positional {
		for _, v := range p.EnumSlice() {
			if v != "" {
				all = append(all, candidate{v, ""})
			}
		}
	}
	if node.Name == "config" {
		for _, k := range config.Keys() {
			all = append(all, candidate{k.Name, firstSentence(k.Help)})
		}
	}
	return all
}

// flagValues lists the values of a flag. begun is the beginning of the value so far.
func flagValues(f *kong.Flag, begun string) (all []candidate) {
	list := f.EnumSlice()
	switch f.Name {
	case "set":
		return assignments(begun)
	case "device":
		list = strings.Split(onSystem(runtime.GOOS, "cpu:0, webgpu:0, vulkan:0, null"), ", ")
	case "name":
		list = schedule.Names()
	case "lang":
		list = sdk.Languages()
	}
	for _, v := range list {
		if v != "" {
			all = append(all, candidate{v, ""})
		}
	}
	return all
}

// assignments lists the keys of --set, or the values of the key that was begun.
func assignments(begun string) (all []candidate) {
	if name, _, ok := strings.Cut(begun, "="); ok {
		k, _ := config.FindKey(name)
		if k.Values == nil && k.Type == "true or false" {
			k.Values = []string{"true", "false"}
		}
		for _, v := range k.Values {
			all = append(all, candidate{name + "=" + v, ""})
		}
		return all
	}
	for _, k := range config.Keys() {
		if !k.Section() && !strings.Contains(k.Name, "[]") {
			all = append(all, candidate{k.Name + "=", firstSentence(k.Help)})
		}
	}
	return all
}

func firstSentence(text string) string {
	first, _, _ := strings.Cut(strings.TrimSuffix(text, "."), ". ")
	return first
}
