package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWideTablesBecomeListsOnANarrowTerminal(t *testing.T) {
	rows := [][]string{{"NAME", "ADAPTER", "DRIVER"}, {"webgpu:0", "llvmpipe 模型", ""}, {"webgpu:1", "another one", "1.2"}}
	show := func(columns func() int) string {
		var out bytes.Buffer
		(&app{stdout: &out, stdoutColumns: columns}).headed(rows)
		return out.String()
	}
	wide := "NAME      ADAPTER        DRIVER\nwebgpu:0  llvmpipe 模型\nwebgpu:1  another one    1.2\n"
	assert.Equal(t, wide, show(nil))
	assert.Equal(t, wide, show(func() int { return 80 }))
	assert.Equal(t, "webgpu:0\n  adapter  llvmpipe 模型\nwebgpu:1\n  adapter  another one\n  driver   1.2\n", show(func() int { return 30 }))
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
