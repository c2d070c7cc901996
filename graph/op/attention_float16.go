package op

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// operandRead is an element, or unit, of q, k or v as kernels write it. No index of theirs holds a bracket.
var operandRead = regexp.MustCompile(`\b(in[012])\[([^\]]+)\]`)

// unpacked makes a pass that was written for f32 one for 16-bit floats: each read of q, k or v becomes a call of a
// function that unpacks. All arithmetic is the same, and so are the bits of the results.
func (k attentionKernels) unpacked(p graph.Pass) graph.Pass {
	if k.operands == graph.F32 {
		return p
	}
	p.Body = operandRead.ReplaceAllString(p.Body, "${1}_at($2)")
	p.Declarations += "fn single(bits: u32) -> f32 { return " + k.operands.Widen("bits") + "; }\n"
	for _, array := range []string{"in0", "in1", "in2"} {
		if slices.Contains(p.Uses, array) {
			p.Declarations += readFloat16(array, slices.Contains(p.Vec4, array))
		}
	}
	return p
}

// narrowing has the functions that round results to 16-bit floats as a cast does: two to a word, or a unit of four to
// two.
func (k attentionKernels) narrowing() string {
	if !k.result.Float16() {
		return ""
	}
	return narrowing("narrow", k.result) + `fn word(x: f32, y: f32) -> u32 { return narrow(x) | (narrow(y) << 16u); }
fn narrowed(x: vec4<f32>) -> vec2<u32> { return vec2<u32>(word(x.x, x.y), word(x.z, x.w)); }
`
}

// readFloat16 is the function <array>_at, which reads an element of an array of 16-bit floats, or four at once.
func readFloat16(array string, vec4 bool) string {
	if vec4 {
		return fmt.Sprintf("fn %[1]s_at(x: u32) -> vec4<f32> {\n  let w = %[1]s[x];\n"+
			"  return vec4<f32>(single(w.x & 0xffffu), single(w.x >> 16u), single(w.y & 0xffffu), single(w.y >> 16u));\n}\n", array)
	}
	return fmt.Sprintf("fn %[1]s_at(x: u32) -> f32 { return single((%[1]s[x / 2u] >> (x %% 2u * 16u)) & 0xffffu); }\n", array)
}
