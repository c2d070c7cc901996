package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTablesKeepTheirHeaderOnANarrowTerminal(t *testing.T) {
	rows := [][]string{{"NAME", "ADAPTER", "DRIVER"}, {"webgpu:0", "llvmpipe 模型", ""}, {"webgpu:1", "another one", "1.2"}}
	show := func(columns func() int) string {
		var out bytes.Buffer
		(&app{stdout: &out, stdoutColumns: columns}).headed(rows)
		return out.String()
	}
	wide := "NAME      ADAPTER        DRIVER\nwebgpu:0  llvmpipe 模型\nwebgpu:1  another one    1.2\n"
	assert.Equal(t, wide, show(nil))
	assert.Equal(t, wide, show(func() int { return 80 }))
	assert.Equal(t, "NAME     webgpu:0\nADAPTER  llvmpipe 模型\n\nNAME     webgpu:1\nADAPTER  another one\nDRIVER   1.2\n",
		show(func() int { return 21 }))
}

func TestMarkdownTablesFitATerminal(t *testing.T) {
	text := "Text.\n\n| trial | loss |\n| --- | ---: |\n| a     | 1.5  |\n\nEnd.\n"
	show := func(columns func() int) string {
		var out bytes.Buffer
		(&app{stdout: &out, stdoutColumns: columns}).markdown(text)
		return out.String()
	}
	assert.Equal(t, text, show(nil))
	assert.Equal(t, "Text.\n\ntrial  loss\na      1.5\n\nEnd.\n", show(func() int { return 80 }))
}

func TestLabeledTextsWrapOnATerminal(t *testing.T) {
	show := func(columns func() int) string {
		var out bytes.Buffer
		(&app{stdout: &out, stdoutColumns: columns}).labeled("memory", "12 bytes on the device, 3 more")
		return out.String()
	}
	assert.Equal(t, "memory      12 bytes on the device, 3 more\n", show(nil))
	assert.Equal(t, "memory      12 bytes on the\n            device, 3 more\n", show(func() int { return 34 }))
}
