package shaders

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Only whole identifiers are replaced.
func TestRename(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"in1":                     "out0",
		"in1[in1 + in10]":         "out0[out0 + in10]",
		"_in1 xin1 in1in1 0in1":   "_in1 xin1 in1in1 0in1",
		"vec4(in1,in1.x, -in1)":   "vec4(out0,out0.x, -out0)",
		"let in = tin1; in1 += 1": "let in = tin1; out0 += 1",
	} {
		assert.Equal(t, want, rename(text, "in1", "out0"))
	}
}

// Arguments that hold the same memory become one. A text may name more arguments than there are.
func TestRenumberedArguments(t *testing.T) {
	text := "x = args[0][i] + args[12][j] * args[3];\nEPILOGUE(args[k])"
	assert.Equal(t, "x = args[0][i] + args[12][j] * args[1];\nEPILOGUE(args[k])", renumberArgs(text, []int{0, 1, 2, 1}))
}
