package main

import (
	"strings"

	"github.com/alecthomas/kong"
)

// linux is the only system on which the CPU is a device of its own, cpu:0.
const linux = "linux"

// onSystem adapts a text to a system. Without cpu:0, lists of devices omit it, commands name webgpu:0, and sentences
// about it are dropped.
func onSystem(goos, text string) string {
	if goos == linux || !strings.Contains(text, "cpu:0") {
		return text
	}
	text = strings.NewReplacer("cpu:0, ", "", ", or use cpu:0", "", "--device cpu:0/4", "--device webgpu:0", "--device cpu:0",
		"--device webgpu:0").Replace(text)
	var kept strings.Builder
	for paragraph := range strings.SplitAfterSeq(text, "\n\n") {
		for sentence := range strings.SplitAfterSeq(paragraph, ". ") {
			if !strings.Contains(sentence, "cpu:0") {
				kept.WriteString(sentence)
			} else if strings.HasSuffix(sentence, "\n\n") {
				kept.WriteString("\n\n")
			}
		}
	}
	return kept.String()
}

// adaptHelp adapts the help of a command and of all below it to a system.
func adaptHelp(n *kong.Node, goos string) {
	n.Help, n.Detail = onSystem(goos, n.Help), onSystem(goos, n.Detail)
	for _, f := range n.Flags {
		f.Help = onSystem(goos, f.Help)
	}
	for _, child := range n.Children {
		adaptHelp(child, goos)
	}
}
