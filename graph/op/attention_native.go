package op

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

//go:embed native/attention.c
var nativeAttention string

//go:embed native/attention_forward.c
var nativeAttentionForward string

//go:embed native/attention_backward.c
var nativeAttentionBackward string

//go:embed native/attention_pairs.c
var nativeAttentionPairs string

//go:embed native/attention_pairs_forward.c
var nativeAttentionPairsForward string

//go:embed native/attention_pairs_backward.c
var nativeAttentionPairsBackward string

// nativeQueries is the number of queries in a block of the kernels for CPUs, where there are so many: BLOCK in C.
const nativeQueries = 64

// maxPairsDim is the largest head dimension of the kernels by pairs, whose blocks lie on the stack.
const maxPairsDim = 128

// nativePass is a pass in C. The function that it calls takes the arrays of these names; "" is an array that this
// attention has not.
func (k attentionKernels) nativePass(text, function string, groups int, arrays ...string) graph.Pass {
	var uses []string
	for i, a := range arrays {
		if a == "" {
			arrays[i] = "0"
		} else {
			uses = append(uses, a)
			arrays[i] = "$" + a
		}
	}
	return graph.Pass{Native: true, Declarations: k.nativeConstants() + nativeAttention + text, Groups: groups, Workgroup: 1, Uses: uses,
		Body: fmt.Sprintf("    %s(group, %s);\n", function, strings.Join(arrays, ", "))}
}

// nativeVariants are the kernels for CPUs: pass makes one of its text. For bf16 there is a second kernel, pairs,
// if the CPU has AVX512-BF16. The last one is the default. Intel's cores start two f32 FMAs a cycle but one VDPBF16PS
// every two, so there it is not pairs; they are those with AMX.
func (k attentionKernels) nativeVariants(l target.Limits, pass func(text string) graph.Pass, text, pairs string) []graph.Variant {
	vs := []graph.Variant{{Name: "native", Passes: []graph.Pass{pass(text)}}}
	if k.operands == graph.BF16 && !k.position && k.dim%16 == 0 && k.dim <= maxPairsDim && slices.Contains(l.Cooperative, target.AVX512) {
		v := graph.Variant{Name: "native avx512 bf16", Tolerance: k.matrixTolerance(), Passes: []graph.Pass{pass(nativeAttentionPairs + pairs)}}
		if slices.Contains(l.Cooperative, target.AMX) {
			return append([]graph.Variant{v}, vs...)
		}
		vs = append(vs, v)
	}
	return vs
}

func (k attentionKernels) nativeForward(text string) graph.Pass {
	extra, slots := k.segments, ""
	if k.position {
		extra = "in3"
	}
	if k.caches > 0 {
		slots = "in4"
	}
	blocks := (k.queries + nativeQueries - 1) / nativeQueries
	return k.nativePass(text, "forward", k.batch*k.heads*blocks, "in0", "in1", "in2", "out0", "out1", extra, slots)
}

func (k attentionKernels) nativeBackward(text string) graph.Pass {
	lseGradient := ""
	if k.lseGrad {
		lseGradient = "in6"
	}
	return k.nativePass(text, "backward", k.batch*k.kvHeads,
		"in0", "in1", "in2", "in3", "in4", "in5", lseGradient, k.segments, "out0", "out1", "out2")
}

// nativeConstants are the definitions that the C expects.
func (k attentionKernels) nativeConstants() string {
	var s strings.Builder
	for _, c := range []struct {
		name  string
		value int
	}{{"BATCH", k.batch}, {"TQ", k.queries}, {"TK", k.keys}, {"HEADS", k.heads}, {"KV", k.kvHeads}, {"GROUP", k.group()}, {"DIM", k.dim},
		{"POSITION", boolean(k.position)}, {"SEGMENTS", boolean(k.segments != "")}, {"LSE_GRADIENT", boolean(k.lseGrad)},
		{"WINDOW", k.window}, {"CACHES", k.caches}, {"BLOCK", nativeQueries}} {
		fmt.Fprintf(&s, "#define %s %d\n", c.name, c.value)
	}
	fmt.Fprintf(&s, "#define SCALE ((f32)%v)\n", float32(k.scale()))
	for _, e := range []struct {
		name string
		of   graph.DType
	}{{"operand", k.operands}, {"result", k.result}} {
		element := "f32"
		if e.of.Float16() {
			element = "u16"
		}
		fmt.Fprintf(&s, "typedef %s %s;\n#define widen_%s widen_%v\n#define narrow_%s narrow_%v\n", element, e.name, e.name, e.of, e.name,
			e.of)
	}
	return s.String()
}

func boolean(x bool) int {
	if x {
		return 1
	}
	return 0
}
