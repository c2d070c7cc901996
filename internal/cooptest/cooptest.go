// Package cooptest makes kernels that multiply matrices by subgroups run where no device has such matrices, for tests:
// each invocation computes every matrix of its subgroup on its own, by loops, and stores all of it.
package cooptest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// The lines and statements that are understood. Where a matrix lies, and the stride, hold neither brackets nor
// parentheses.
var (
	subgroup = regexp.MustCompile(`@builtin\(subgroup_id\) (\w+): u32\) {`)
	enable   = regexp.MustCompile(`(?m)^enable (wgpu_cooperative_matrix|gpupipe_bf16);`)
	array    = regexp.MustCompile(`var<(?:workgroup|storage, *\w+)> (\w+): array<(f32|vec4<f32>)[,>]`)
	matrix   = regexp.MustCompile(`coop_mat(\d+)x(\d+)<f32, ([ABC])>`)
	zero     = regexp.MustCompile(`var (\w+) = coop_mat\d+x\d+<f32, C>\(\);`)
	load     = regexp.MustCompile(`(?:let|var) (\w+) = coopLoad(T?)<coop_mat\d+x\d+<f32, ([ABC])>>\(&(\w+)\[([^\][]+)\], ([^()]+)\);`)
	multiply = regexp.MustCompile(`(\w+) = coopMultiplyAdd\((\w+), (\w+), (\w+)\);`)
	store    = regexp.MustCompile(`coopStore(T?)\((\w+), &(\w+)\[([^\][]+)\], ([^()]+)\);`)
	unknown  = regexp.MustCompile(`.*(coop[A-Z]|coop_mat\d).*`)
)

// Scalar returns a kernel without its cooperative matrices and subgroups, which have so many lanes. The factors are
// 16-bit floats, two in each word of the arrays that they are loaded from: bf16 where the kernel says so, f16
// otherwise. Its error is a statement that is not understood.
func Scalar(wgsl string, lanes int) (string, error) {
	if !enable.MatchString(wgsl) {
		return wgsl, nil
	}
	size, err := sizeOf(wgsl)
	if err != nil {
		return "", err
	}
	for _, m := range multiply.FindAllStringSubmatch(wgsl, -1) {
		if m[1] != m[4] {
			return "", fmt.Errorf("%s: expected the sum in the place of the third", m[0])
		}
	}
	text := enable.ReplaceAllString(wgsl, "")
	text = subgroup.ReplaceAllString(text, fmt.Sprintf("@builtin(local_invocation_index) coop_lane: u32) {\n  let $1 = coop_lane / %du;", lanes))
	text = zero.ReplaceAllString(text, "var $1 = CoopMatrix();")
	text = load.ReplaceAllStringFunc(text, func(s string) string {
		m := load.FindStringSubmatch(s)
		kind := "packed"
		if m[3] == "C" {
			kind = "singles"
		}
		return fmt.Sprintf("var %[2]s: CoopMatrix;\ncoop_%[1]s_%[3]s(&%[2]s, COOP_%[7]s, %[4]s, %[5]s, %[6]v);", kind, m[1], m[4], m[5], m[6], m[2] == "T", m[3])
	})
	text = multiply.ReplaceAllString(text, "coop_multiply(&$2, &$3, &$1);")
	text = store.ReplaceAllStringFunc(text, func(s string) string {
		m := store.FindStringSubmatch(s)
		return fmt.Sprintf("coop_store_%s(&%s, COOP_C, %s, %s, %v);", m[3], m[2], m[4], m[5], m[1] == "T")
	})
	if left := unknown.FindString(text); left != "" {
		return "", fmt.Errorf("%s: is not understood", left)
	}
	factor := graph.F16
	if strings.Contains(wgsl, "enable gpupipe_bf16;") {
		factor = graph.BF16
	}
	return text + functions(text, size, factor), nil
}

// sizeOf finds the sizes of the matrices, which are of one product.
func sizeOf(wgsl string) (target.CooperativeMatrix, error) {
	sizes := map[string][2]int{} // rows and columns
	for _, m := range matrix.FindAllStringSubmatch(wgsl, -1) {
		columns, _ := strconv.Atoi(m[1])
		rows, _ := strconv.Atoi(m[2])
		if other, ok := sizes[m[3]]; ok && other != [2]int{rows, columns} {
			return target.CooperativeMatrix{}, fmt.Errorf("%s: expected matrices of one size for each use", m[0])
		}
		sizes[m[3]] = [2]int{rows, columns}
	}
	a, b, c := sizes["A"], sizes["B"], sizes["C"]
	if a[1] != b[0] || c != [2]int{a[0], b[1]} {
		return target.CooperativeMatrix{}, fmt.Errorf("expected matrices of M rows and K columns, of K and N, and of M and N, found %v, %v and %v", a, b, c)
	}
	return target.CooperativeMatrix{M: c[0], N: c[1], K: a[1]}, nil
}

// functions are those that the text calls. Loops start at a number that is not constant, lest they are unrolled.
func functions(text string, size target.CooperativeMatrix, factor graph.DType) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
const COOP_A = vec2<u32>(%[1]d, %[3]d); // rows and columns
const COOP_B = vec2<u32>(%[3]d, %[2]d);
const COOP_C = vec2<u32>(%[1]d, %[2]d);
alias CoopMatrix = array<f32, %[4]d>;
var<private> coop_zero: u32;
fn coop_single(bits: u32) -> f32 { return %[5]s; }
fn coop_multiply(a: ptr<function, CoopMatrix>, b: ptr<function, CoopMatrix>, c: ptr<function, CoopMatrix>) {
  for (var i = coop_zero; i < COOP_C.x * COOP_C.y; i++) {
    var sum = (*c)[i];
    for (var k = coop_zero; k < COOP_A.y; k++) { sum += (*a)[i / COOP_C.y * COOP_A.y + k] * (*b)[k * COOP_C.y + i %% COOP_C.y]; }
    (*c)[i] = sum;
  }
}
fn coop_place(i: u32, columns: u32, stride: u32, rows: bool) -> u32 { return select(i %% columns * stride + i / columns, i / columns * stride + i %% columns, rows); }
`, size.M, size.N, size.K, max(size.M*size.N, size.M*size.K, size.K*size.N), factor.Widen("bits"))
	for _, m := range array.FindAllStringSubmatch(text, -1) {
		word, width := "%s[place]", 1
		if m[2] != "f32" {
			word, width = "%s[place / 4u][place %% 4u]", 4
		}
		word = fmt.Sprintf(word, m[1])
		half := fmt.Sprintf("let half = coop_place(i, size.y, stride * %du, rows);\n    let place = start * %du + half / 2u;\n    (*m)[i] = coop_single((bitcast<u32>(%s) >> (half %% 2u * 16u)) & 0xffffu);", 2*width, width, word)
		place := fmt.Sprintf("let place = start * %[1]du + coop_place(i, size.y, stride * %[1]du, rows);\n    ", width)
		for _, f := range [][2]string{{"packed", half}, {"singles", place + "(*m)[i] = " + word + ";"}, {"store", place + word + " = (*m)[i];"}} {
			if name := "coop_" + f[0] + "_" + m[1]; strings.Contains(text, name+"(") {
				fmt.Fprintf(&b, "fn %s(m: ptr<function, CoopMatrix>, size: vec2<u32>, start: u32, stride: u32, rows: bool) {\n  for (var i = coop_zero; i < size.x * size.y; i++) {\n    %s\n  }\n}\n", name, f[1])
			}
		}
	}
	return b.String()
}
