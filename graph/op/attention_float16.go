package op

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// read is the expression of an element, or unit, of an array: of q, k and v ($in0, $in1 and $in2) in f32. 16-bit floats
// are converted by a function, so the arithmetic is in f32, and the results have the bits of f32 arithmetic.
func (k attentionKernels) read(array, at string) string {
	if k.operands.Float16() && (array == "$in0" || array == "$in1" || array == "$in2") {
		return array[1:] + "_at(" + at + ")"
	}
	return array + "[" + at + "]"
}

// withReads is a pass with the functions of read.
func (k attentionKernels) withReads(p graph.Pass) graph.Pass {
	if k.operands == graph.F32 {
		return p
	}
	p.Declarations += fmt.Sprintf("fn single(bits: u32) -> f32 { return %v; }\n", k.operands.Widen(scalar.Var("bits", scalar.U32, 0)))
	for _, array := range []string{"in0", "in1", "in2"} {
		if slices.Contains(p.Uses, array) {
			p.Declarations += readFloat16(array, slices.Contains(p.Vec4, array))
		}
	}
	return p
}

// narrowing returns the WGSL functions that round f32 to 16-bit floats as a cast does: word packs two values into one
// u32, narrowed packs a vec4 into two. It is empty if the result is f32.
func (k attentionKernels) narrowing() string {
	if !k.result.Float16() {
		return ""
	}
	return narrowing("narrow", k.result) + `fn word(x: f32, y: f32) -> u32 { return narrow(x) | (narrow(y) << 16u); }
fn narrowed(x: vec4<f32>) -> vec2<u32> { return vec2<u32>(word(x.x, x.y), word(x.z, x.w)); }
`
}

// readFloat16 returns the WGSL function <array>_at, which reads one element of an array of 16-bit floats, or four
// elements if the array is bound as vec4.
func readFloat16(array string, vec4 bool) string {
	if vec4 {
		return fmt.Sprintf("fn %[1]s_at(x: u32) -> vec4<f32> {\n  let w = $%[1]s[x];\n"+
			"  return vec4<f32>(single(w.x & 0xffffu), single(w.x >> 16u), single(w.y & 0xffffu), single(w.y >> 16u));\n}\n", array)
	}
	return fmt.Sprintf("fn %[1]s_at(x: u32) -> f32 { return single(($%[1]s[x / 2u] >> (x %% 2u * 16u)) & 0xffffu); }\n", array)
}
