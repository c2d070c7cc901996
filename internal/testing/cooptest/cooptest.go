// Package cooptest makes kernels that multiply matrices by subgroups run where no device has such matrices, for tests:
// each invocation computes every matrix of its subgroup on its own, by loops, and stores all of it.
package cooptest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
)

// The lines and statements that are understood. Where a matrix lies, and the stride, hold neither brackets nor
// parentheses.
var (
	subgroup = regexp.MustCompile(`@builtin\(subgroup_id\) (\w+): u32\) {`)
	enable   = regexp.MustCompile(`(?m)^enable (?:wgpu_cooperative_matrix|gpupipe_\w+);`)
	array    = regexp.MustCompile(`var<(?:workgroup|storage, *\w+)> (\w+): array<(f32|vec4<f32>)[,>]`)
	square   = regexp.MustCompile(`coop_mat(\d+)x`)
	zero     = regexp.MustCompile(`var (\w+) = coop_mat\d+x\d+<f32, C>\(\);`)
	load     = regexp.MustCompile(`(?:let|var) (\w+) = coopLoad(T?)<coop_mat\d+x\d+<f32, ([ABC])>>\(&(\w+)\[([^\][]+)\], ([^()]+)\);`)
	multiply = regexp.MustCompile(`(\w+) = coopMultiplyAdd\((\w+), (\w+), (\w+)\);`)
	store    = regexp.MustCompile(`coopStore(T?)\((\w+), &(\w+)\[([^\][]+)\], ([^()]+)\);`)
	unknown  = regexp.MustCompile(`.*(coop[A-Z]|coop_mat\d).*`)
)

// Memory is the number of bytes of workgroup memory that Scalar adds to a kernel.
const Memory = 4

// Scalar returns a kernel without its cooperative matrices and subgroups, which have so many lanes. The factors are
// 16-bit floats, two in each word of the arrays that they are loaded from: bf16 where the kernel says so, f16
// otherwise. Its error is a statement that is not understood.
func Scalar(wgsl string, lanes int) (string, error) {
	if !enable.MatchString(wgsl) {
		return wgsl, nil
	}
	size := sizeOf(wgsl)
	for _, m := range multiply.FindAllStringSubmatch(wgsl, -1) {
		if m[1] != m[4] {
			return "", fmt.Errorf("%s: expected the sum in the place of the third", m[0])
		}
	}
	text := enable.ReplaceAllString(wgsl, "")
	text = subgroup.ReplaceAllString(text, fmt.Sprintf("@builtin(local_invocation_index) coop_lane: u32) {\n  let $1 = coop_lane / %du;",
		lanes))
	l := loops{size: size, factor: graph.F16, vectors: map[string]bool{}}
	if strings.Contains(wgsl, target.Bfloat16Directive) {
		l.factor = graph.BF16
	}
	for _, m := range array.FindAllStringSubmatch(wgsl, -1) {
		l.vectors[m[1]] = m[2] != "f32"
	}
	text = zero.ReplaceAllString(text, "var $1 = "+l.typ()+"();")
	text = load.ReplaceAllStringFunc(text, func(s string) string {
		m := load.FindStringSubmatch(s)
		return l.load(m[1], m[3], m[4], m[5], m[6], m[2] == "T")
	})
	text = multiply.ReplaceAllStringFunc(text, func(s string) string {
		m := multiply.FindStringSubmatch(s)
		return l.multiply(m[2], m[3], m[1])
	})
	text = store.ReplaceAllStringFunc(text, func(s string) string {
		m := store.FindStringSubmatch(s)
		return l.store(m[2], m[3], m[4], m[5], m[1] == "T")
	})
	if left := unknown.FindString(text); left != "" {
		return "", fmt.Errorf("%s: is not understood", left)
	}
	text += "\nvar<workgroup> coop_zero: u32;\n"
	if strings.Contains(text, "pack2x16float(") {
		text = strings.ReplaceAll(text, "pack2x16float(", "coop_pack(") + packing()
	}
	return text, nil
}

// sizeOf finds the size of the matrices, which a directive says if they are not square.
func sizeOf(wgsl string) target.CooperativeMatrix {
	for line := range strings.Lines(wgsl) {
		if size, ok := target.ReadSizeDirective(line); ok {
			return size
		}
	}
	side, _ := strconv.Atoi(square.FindStringSubmatch(wgsl)[1])
	return target.CooperativeMatrix{M: side, N: side, K: side}
}

// loops writes statements. Its loops start at a number that is not constant, lest drivers unroll them: it is in
// workgroup memory, which is zero.
type loops struct {
	size    target.CooperativeMatrix
	factor  graph.DType
	vectors map[string]bool // whether an array's elements are vec4<f32>, and not f32
}

// typ is the type of all matrices, so that each has room for any.
func (l loops) typ() string {
	return fmt.Sprintf("array<f32, %d>", max(l.size.M*l.size.N, l.size.M*l.size.K, l.size.K*l.size.N))
}

func (l loops) multiply(a, b, c string) string {
	return fmt.Sprintf(`for (var coop_i = coop_zero; coop_i < %[4]du; coop_i++) {
  var coop_sum = %[3]s[coop_i];
  for (var coop_k = coop_zero; coop_k < %[5]du; coop_k++) { coop_sum += %[1]s[coop_i / %[6]du * %[5]du + coop_k] * %[2]s[coop_k * %[6]du + coop_i %% %[6]du]; }
  %[3]s[coop_i] = coop_sum;
}`, a, b, c, l.size.M*l.size.N, l.size.K, l.size.N)
}

// load declares a matrix and loads it. A factor's elements are two in a word.
func (l loops) load(matrix, role, array, start, stride string, rows bool) string {
	words := 1
	if l.vectors[array] {
		words = 4
	}
	if role == "C" {
		return fmt.Sprintf("var %s: %s;\n", matrix, l.typ()) +
			l.each(role, fmt.Sprintf("let coop_at = (%s) * %du + %s;\n%s[coop_i] = %s;", start, words, l.place(role, stride, words, rows),
				matrix, l.word(array, "coop_at")))
	}
	return fmt.Sprintf("var %s: %s;\n", matrix, l.typ()) +
		l.each(role, fmt.Sprintf("let coop_half = %s;\nlet coop_at = (%s) * %du + coop_half / 2u;\nlet coop_bits = (bitcast<u32>(%s) >> (coop_half %% 2u * 16u)) & 0xffffu;\n%s[coop_i] = %v;",
			l.place(role, stride, 2*words, rows), start, words, l.word(array, "coop_at"), matrix,
			l.factor.Widen(scalar.Var("coop_bits", scalar.U32, 0))))
}

func (l loops) store(matrix, array, start, stride string, rows bool) string {
	words := 1
	if l.vectors[array] {
		words = 4
	}
	return l.each("C", fmt.Sprintf("let coop_at = (%s) * %du + %s;\n%s = %s[coop_i];", start, words, l.place("C", stride, words, rows),
		l.word(array, "coop_at"), matrix))
}

// each runs a statement for each element of a matrix, coop_i.
func (l loops) each(role, statement string) string {
	rows, columns := l.shape(role)
	return fmt.Sprintf("for (var coop_i = coop_zero; coop_i < %du; coop_i++) {\n%s\n}", rows*columns, statement)
}

// place is where element coop_i lies behind a matrix's first, in elements of which units of the array have so many.
func (l loops) place(role, stride string, elements int, rows bool) string {
	_, columns := l.shape(role)
	across, along := fmt.Sprintf("coop_i / %du", columns), fmt.Sprintf("coop_i %% %du", columns)
	if !rows {
		across, along = along, across
	}
	return fmt.Sprintf("%s * ((%s) * %du) + %s", across, stride, elements, along)
}

func (l loops) word(array, at string) string {
	if l.vectors[array] {
		return fmt.Sprintf("%s[%s / 4u][%s %% 4u]", array, at, at)
	}
	return fmt.Sprintf("%s[%s]", array, at)
}

func (l loops) shape(role string) (rows, columns int) {
	switch role {
	case "A":
		return l.size.M, l.size.K
	case "B":
		return l.size.K, l.size.N
	}
	return l.size.M, l.size.N
}

// packing defines pack2x16float, which package translate does not know. What WGSL leaves to the device is zero: the
// results for numbers that f16 has not.
func packing() string {
	var lets strings.Builder
	count := 0
	bits := graph.F16.Narrow(scalar.Var("x", scalar.F32, 0), func(x *scalar.Expr) *scalar.Expr {
		count++
		fmt.Fprintf(&lets, "  let x%d: %v = %v;\n", count, x.Type, x)
		return scalar.Var(fmt.Sprintf("x%d", count), x.Type, 0)
	})
	return "fn coop_half(x: f32) -> u32 {\n" + lets.String() + "  return select(" + bits.String() +
		", 0u, (bitcast<u32>(x) & 0x7fffffffu) >= 0x477ff000u); // from 65520 on\n}\n" +
		"fn coop_pack(x: vec2<f32>) -> u32 { return coop_half(x.x) | (coop_half(x.y) << 16u); }\n"
}
