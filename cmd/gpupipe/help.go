package main

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/internal/suggest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/pipeline/config"
)

type helpCommand struct {
	Command []string `arg:"" optional:"" help:"A command, as in: gpupipe help hook check."`
}

func (c *helpCommand) Help() string {
	return `Shows what --help shows. gpupipe help config describes the command; gpupipe config describes the keys of YAML files.

Examples:
  gpupipe help
  gpupipe help train`
}

func (c *helpCommand) Run(ctx *kong.Context, a *app) error {
	node := ctx.Model.Node
	for _, name := range c.Command {
		if node.Type == kong.ArgumentNode || len(node.Children) == 0 {
			return usererror.Errorf("%s has no commands of its own: found %q", node.FullPath(), name)
		}
		next, names := child(node, name)
		if next == nil {
			return usererror.Errorf("no such command: %s %s%s\nSee %s --help.", node.FullPath(), name, suggest.DidYouMean(name, names),
				node.FullPath())
		}
		node = next
	}
	return exited(a.run(append(c.Command, "--help")))
}

// child returns the command of a name below another, nil if there is none, and the names of the commands that help
// lists.
func child(node *kong.Node, name string) (found *kong.Node, names []string) {
	for _, n := range node.Children {
		if n.Name == name {
			found = n
		}
		if !n.Hidden {
			names = append(names, n.Name)
		}
	}
	return found, names
}

type versionCommand struct{}

func (versionCommand) Help() string { return "Example:\n  gpupipe version" }

func (versionCommand) Run(a *app) error {
	a.printf("%s\n", versionText())
	return nil
}

func versionText() string { return "gpupipe " + version.String() + " " + version.Platform() }

// selected is the command whose arguments were wrong; nil: that is not known.
func selected(err error) *kong.Node {
	var wrong *kong.ParseError
	if !errors.As(err, &wrong) || wrong.Context == nil {
		return nil
	}
	return wrong.Context.Selected()
}

// commandOf is the command whose arguments were wrong, as users write it.
func commandOf(err error) string {
	if n := selected(err); n != nil {
		return n.FullPath()
	}
	return "gpupipe"
}

// keyMeant says which key of the config an unknown flag of a command with --set may stand for.
func keyMeant(err error) string {
	_, flag, unknown := strings.Cut(err.Error(), "unknown flag --")
	command := selected(err)
	if !unknown || strings.Contains(flag, "did you mean") || command == nil || findFlag(command, "--set") == nil {
		return ""
	}
	flag = strings.ReplaceAll(flag, "-", "_")
	keys := map[string][]string{} // by their last parts
	for _, k := range config.Keys() {
		if last := k.Name[strings.LastIndexByte(k.Name, '.')+1:]; !k.Section() {
			keys[last] = append(keys[last], "--set "+k.Name+"=…")
		}
	}
	if len(keys[flag]) == 0 {
		if close := suggest.Closest(flag, slices.Sorted(maps.Keys(keys))); len(close) == 1 {
			flag = close[0]
		}
	}
	return suggest.Question(keys[flag])
}
