package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// manCommand prints the manual page of the program. Packages install it as gpupipe.1.
type manCommand struct{}

func (c *manCommand) Help() string {
	return `Prints the manual page, which has all that --help of each command says.

Examples:
  gpupipe man | man -l -
  gpupipe man >~/.local/share/man/man1/gpupipe.1`
}

func (c *manCommand) Run(a *app, k *kong.Context) error {
	a.printf("%s", manual(k.Model.Node, a.build))
	return nil
}

// manual is a manual page in roff, with the macros of man(7).
func manual(program *kong.Node, build string) string {
	m := &manualPage{}
	m.line(".TH %s 1 \"\" \"%s %s\" \"User Commands\"", strings.ToUpper(program.Name), program.Name, escaped(build))
	summary, rest, _ := strings.Cut(program.Help, "\n\n")
	m.line(".SH NAME\n%s \\- %s", program.Name, escaped(strings.ToLower(summary[:1])+strings.TrimSuffix(summary[1:], ".")))
	m.line(".SH SYNOPSIS\n.B %s\n.I command\n[flags]", program.Name)
	m.line(".SH DESCRIPTION")
	m.text(summary + "\n\n" + rest)
	m.line(".SH COMMANDS")
	m.commands(program)
	for part := range strings.SplitSeq(strings.TrimSpace(examples), "\n\n") {
		if codes, found := strings.CutPrefix(part, "Exit codes: "); found {
			m.line(".SH EXIT STATUS")
			m.text(codes)
		} else if !strings.HasPrefix(part, "Examples:") {
			m.line(".SH EXAMPLES")
			m.text(part)
		}
	}
	return m.roff.String()
}

// manualPage collects lines of roff.
type manualPage struct{ roff strings.Builder }

func (m *manualPage) line(format string, args ...any) { fmt.Fprintf(&m.roff, format+"\n", args...) }

// commands describes the leaves below a command.
func (m *manualPage) commands(parent *kong.Node) {
	for _, n := range parent.Children {
		switch {
		case n.Hidden:
		case len(n.Children) > 0:
			m.commands(n)
		default:
			m.line(".SS %s", escaped(n.Summary()))
			m.text(n.Help + "\n\n" + n.Detail)
			for _, p := range n.Positional {
				m.item(p.Summary(), p.Help)
			}
			for _, f := range n.Flags {
				if !f.Hidden {
					m.item(f.String(), f.Help)
				}
			}
		}
	}
}

// item describes an argument or a flag.
func (m *manualPage) item(name, help string) {
	m.line(".TP\n.B %s", escaped(name))
	m.text(help)
}

// text writes paragraphs. Lines that begin with two spaces stay as they are.
func (m *manualPage) text(text string) {
	if text == "" {
		return
	}
	literal := false
	for l := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		if indented := strings.HasPrefix(l, "  "); indented != literal {
			literal = indented
			m.line("%s", map[bool]string{true: ".RS\n.nf", false: ".fi\n.RE"}[literal])
		}
		switch {
		case l == "":
			m.line(".PP")
		case literal:
			m.line("%s", escaped(strings.TrimPrefix(l, "  ")))
		default:
			m.line("%s", escaped(l))
		}
	}
	if literal {
		m.line(".fi\n.RE")
	}
}

// escaped writes text so that roff prints it as it is.
func escaped(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
