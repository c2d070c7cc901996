package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The page has every command with every flag, and only the requests of man(7) that it needs.
func TestManual(t *testing.T) {
	code, page, errs := command("man")
	require.Equal(t, exitOK, code, errs)
	for _, name := range completed(t, "fish", "") {
		heading := "\n.SS " + escaped(name)
		require.Contains(t, page, heading)
		for _, flag := range completed(t, "fish", name, "--") {
			if !strings.HasPrefix(flag, "--no-") && flag != "--help" && flag != "--version" {
				section := page[strings.Index(page, heading):]
				assert.Contains(t, section, `\-\-`+strings.ReplaceAll(flag[2:], "-", `\-`), "%s %s", name, flag)
			}
		}
	}
	requests := regexp.MustCompile(`(?m)^['.]\w*`).FindAllString(page, -1)
	assert.Subset(t, []string{".TH", ".SH", ".SS", ".B", ".I", ".PP", ".TP", ".RS", ".RE", ".nf", ".fi"}, requests)
	assert.NotContains(t, page, "\n\n")
}

func TestEscaped(t *testing.T) {
	assert.Equal(t, "\\&.a \\-\\-b\n\\&'c \\ed", escaped(".a --b\n'c \\d"))
}
