package main

import (
	"strings"

	"github.com/alecthomas/kong"
)

// linux is the only system with the devices cpu:0 and vulkan:N.
const linux = "linux"

// elsewhere replaces what texts say of Linux's devices.
var elsewhere = strings.NewReplacer("cpu:0, ", "", ", vulkan:0", "", ", vulkan:N or", " or", " --device vulkan:0 --filter", " --filter",
	"--device cpu:0/4", "--device webgpu:0", "--device cpu:0", "--device webgpu:0", "--device vulkan:0", "--device webgpu:0",
	"such as vulkan:0", "such as webgpu:0", "the first that is no vulkan:N", "the first",
	"through WebGPU or Vulkan compute shaders, and on CPUs", "through WebGPU's compute shaders")

// onSystem adapts a text to a system. Without cpu:0 and vulkan:N, lists of devices omit them, commands name webgpu:0,
// and sentences about them are dropped.
func onSystem(goos, text string) string {
	if goos == linux {
		return text
	}
	text = elsewhere.Replace(text)
	if !linuxOnly(text) {
		return text
	}
	var kept strings.Builder
	for paragraph := range strings.SplitAfterSeq(text, "\n\n") {
		for sentence := range strings.SplitAfterSeq(paragraph, ". ") {
			if !linuxOnly(sentence) {
				kept.WriteString(sentence)
			} else if strings.HasSuffix(sentence, "\n\n") {
				kept.WriteString("\n\n")
			}
		}
	}
	return kept.String()
}

// linuxOnly reports whether a text names a device that only Linux has.
func linuxOnly(text string) bool {
	return strings.Contains(text, "cpu:0") || strings.Contains(text, "vulkan:")
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
