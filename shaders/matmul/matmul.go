// Package matmul generates kernels for batched matrix products with sums in f32.
//
// [Variants] takes a [Spec], the product with its operand types and epilogue, and returns the kernels that fit the
// device's limits in the order of their estimated cost: tiles in workgroup memory, tiles in registers shared by lanes,
// subgroup matrices, and workgroup matrices in SPIR-V assembly. The caller picks one by timing. Each variant sums over
// k in an order that its text fixes, so its bits repeat.
package matmul

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// Spec is the product C[b,i,j] = epilogue(Σ_k A[b,i,k]·B[b,k,j]).
type Spec struct {
	Product
	Epilogue
}

// Product is a batch of matrix products. The sums are f32.
type Product struct {
	Batch, M, N, K int  // each ≥ 1
	TransA, TransB bool // A is stored [K,M], B is stored [N,K]
	TypeA, TypeB   Element
	// BatchStrideA and BatchStrideB are elements from one matrix to the next; 0 uses one matrix for the whole
	// batch. C is contiguous, [Batch,M,N].
	BatchStrideA, BatchStrideB int
	Shared                     bool // A and B lie in the same memory, which a pass binds once
	Symmetric                  bool // every matrix of the product equals its transpose, before the epilogue, but for rounding
	// Grouping makes the product one of Groups groups; see graph.Contraction. With GroupedRows B has a matrix for each
	// group, BatchStrideB apart, and Batch is 1. With GroupedSums C has one, Batch is Groups, A is [K,M] and B [K,N].
	// The passes that store C bind the operand Offsets or what was made of it, and the epilogue's arrays at 4 and up.
	Grouping graph.Grouping
	Groups   int

	flattened int // rows of each product of the batch, where the rows of all are one matrix; 0: they are not
}

// Epilogue is what becomes of a sum before it is stored. The zero value stores it as it is.
type Epilogue struct {
	TypeC Element // that is stored; the code converts sums to 16-bit floats, and N must be a multiple of four then
	// Declare returns what declares the epilogue of a pass with these bindings; nil: there is none. It is called when
	// the pass is printed. A kernel calls the function once for each element of C, in any order. The function returns
	// the stored value: an f32, or the bits of a 16-bit float as a u32. In WGSL it is
	//
	//	fn mm_epilogue(acc: f32, b: u32, i: u32, j: u32)
	//
	// which reads elements of the pass's bindings by mm_at_a(at), mm_at_b(at) and mm_at_c(at), C's only where it
	// stores. In C it is
	//
	//	static inline f32 epilogue(const gp_arg *args, f32 acc, u32 b, u32 i, u32 j)
	//
	// with the arguments of the pass. Names that begin with mm_ are the kernel's.
	Declare func(Pass) Declarations
}

// Declarations are a function and its own arrays, which are bound behind the arrays of a pass.
type Declarations struct {
	Arrays []Array // of WGSL
	Text   string
}

// fewRegisters reports whether the device is one of Intel's, which alone multiply matrices that are longer than high
// by subgroups of 8 or 16 lanes. A lane has 128 registers there, half of what others have: a kernel with more than 32
// sums an invocation, or 64 in matrices, spills some to memory.
func fewRegisters(l target.Limits) bool {
	long := func(c target.CooperativeMatrix) bool { return c.K > c.M }
	return (l.SubgroupSize == 8 || l.SubgroupSize == 16) && slices.ContainsFunc(l.Cooperative, long)
}

// Kernel computes a Spec. Its passes run in order.
type Kernel struct {
	Name    string
	Passes  []Pass
	Scratch int     // bytes of scratch that the passes share; 0: none
	Cost    float64 // an estimate to order the variants of one Spec by; it has no unit
}

// Pass is one dispatch. Its entry point is main; its bindings are group 0, all read_write storage. No index leaves its
// array.
type Pass struct {
	// Head and Code are WGSL without directives and bindings, SPIR-V assembly, which begins with target.Assembly, or C,
	// which begins with target.C. The declarations of the epilogue are between them.
	Head, Code        string
	Directives        string                  // of WGSL
	Arrays            []Array                 // what WGSL calls the bindings
	Bindings          []Binding               // 0, 1, …
	Epilogue          func(Pass) Declarations // nil: the pass has none
	Workgroup, Groups [3]int
	WorkgroupMemory   int // bytes
}

// Array is a binding in Source: its name and the type of its elements.
type Array struct{ Name, Type string }

// Source is the whole text of the pass.
func (p Pass) Source() string {
	var d Declarations
	if p.Epilogue != nil {
		d = p.Epilogue(p)
	}
	var s strings.Builder
	s.WriteString(p.Directives)
	for i, a := range slices.Concat(p.Arrays, d.Arrays) {
		fmt.Fprintf(&s, "@group(0) @binding(%d) var<storage, read_write> %s: array<%s>;\n", i, a.Name, a.Type)
	}
	s.WriteString(p.Head + d.Text + p.Code)
	return s.String()
}

// Binding is what a Pass binds. The ranges of one pass do not overlap unless the caller's A and B do.
type Binding struct {
	Operand      Operand
	Offset, Size int // bytes, of Scratch only (Offset is a multiple of 256); the others are bound whole
}

// Operand names a buffer.
type Operand uint8

const (
	A Operand = iota
	B
	C
	Scratch
	Offsets // of groups
)

// Variants returns the kernels for s that fit the limits: the naive one first, then by rising Cost. For a native device
// they are C.
func Variants(s Spec, l target.Limits) []Kernel {
	if s.Batch < 1 || s.M < 1 || s.N < 1 || s.K < 1 || s.BatchStrideA < 0 || s.BatchStrideB < 0 {
		panic(fmt.Sprintf("matmul: bad shape: batch %d, m %d, n %d, k %d, strides %d and %d",
			s.Batch, s.M, s.N, s.K, s.BatchStrideA, s.BatchStrideB))
	}
	s.checkGroups()
	if l.Native {
		if s.TypeC.Float16() && (s.Batch*s.M*s.N%2 != 0 || s.Declare == nil) {
			panic(fmt.Sprintf("matmul: a result of %v takes an epilogue and an even number of elements, not %d", s.TypeC, s.Batch*s.M*s.N))
		}
		return nativeVariants(s, l)
	}
	if s.TypeC.Float16() && (s.N%4 != 0 || s.Declare == nil) {
		panic(fmt.Sprintf("matmul: a result of %v takes an epilogue and columns in fours, not %d", s.TypeC, s.N))
	}
	var ks []Kernel
	if s.Grouping != graph.Ungrouped {
		ks = groupedVariants(s, l)
	} else if l.Software {
		ks = lanesVariants(s, l)
	} else {
		ks = append(tileVariants(s, l), vectorVariants(s, l)...)
		ks = append(ks, cooperativeVariants(s, l)...)
		ks = append(ks, matrix2Variants(s, l)...)
	}
	byCost(ks)
	return append([]Kernel{naive(s, l)}, slices.DeleteFunc(ks, Kernel.divided)...)
}

// byCost sorts kernels by rising Cost.
func byCost(ks []Kernel) {
	slices.SortStableFunc(ks, func(a, b Kernel) int { return cmp.Compare(a.Cost, b.Cost) })
}

// divided reports whether a pass would read one array as elements of two types.
func (k Kernel) divided() bool {
	return slices.ContainsFunc(k.Passes, func(p Pass) bool { return len(p.Arrays) > len(p.Bindings) })
}

// naive is one invocation an element, the baseline and the fallback.
func naive(s Spec, l target.Limits) Kernel {
	wx := min(64, l.MaxInvocations, l.MaxWorkgroupSize[0])
	total := s.Batch * s.M * s.N
	if s.TypeC.Float16() {
		return naiveQuads(s, l, wx, total/4)
	}
	g := newSource(s, false, false, false)
	groups := g.main([2]int{wx, 1}, [3]int{ceilDiv(total, wx), 1, 1}, l, true)
	g.line("let id = tx * %du + l.x;", wx)
	g.line("if (id >= %du) { return; }", total)
	g.line("let b = id / %du; let i = id / %du %% %du; let j = id %% %du;", s.M*s.N, s.N, s.M, s.N)
	g.line("var s = 0.0;")
	begin, end := g.steps()
	g.line("for (var k = %s; k < %s; k++) { s += %s * %s; }", begin, end, g.a.read(s.indexA("i")), g.b.read(s.indexB("j")))
	g.line("mm_c[id] = %s;", g.value("s", "i", "j"))
	cost := float64(total) * float64(s.K) * 4
	if l.Software {
		cost = float64(total) * float64(s.K) * 100 / 8
	}
	return Kernel{Name: "naive", Cost: cost, Passes: []Pass{g.pass([3]int{wx, 1, 1}, groups, 0)}}
}

// naiveQuads is naive with four columns an invocation, which are whole words of 16-bit floats.
func naiveQuads(s Spec, l target.Limits, wx, total int) Kernel {
	g := newSource(s, false, false, true)
	groups := g.main([2]int{wx, 1}, [3]int{ceilDiv(total, wx), 1, 1}, l, true)
	g.line("let id = tx * %du + l.x;", wx)
	g.line("if (id >= %du) { return; }", total)
	g.line("let b = id / %du; let i = id / %du %% %du; let j = id %% %du * 4u;", s.M*s.N/4, s.N/4, s.M, s.N/4)
	g.line("var s = vec4<f32>();")
	var b [4]string
	for q := range b {
		b[q] = g.b.read(s.indexB(fmt.Sprintf("j + %du", q)))
	}
	begin, end := g.steps()
	g.line("for (var k = %s; k < %s; k++) { s += %s * vec4<f32>(%s); }", begin, end, g.a.read(s.indexA("i")), strings.Join(b[:], ", "))
	g.line("mm_c[id] = %s;", g.quadValue("s"))
	return Kernel{Name: "naive", Cost: float64(total) * float64(s.K) * 16, Passes: []Pass{g.pass([3]int{wx, 1, 1}, groups, 0)}}
}

// indexA is the element index of A[b,i,k]; indexB of B[b,k,j]. i and j are WGSL, b and k variables there.
func (s Spec) indexA(i string) string {
	if s.TransA {
		return fmt.Sprintf("b * %du + (k) * %du + (%s)", s.BatchStrideA, s.M, i)
	}
	return fmt.Sprintf("b * %du + (%s) * %du + (k)", s.BatchStrideA, i, s.K)
}

func (s Spec) indexB(j string) string {
	if s.TransB {
		return fmt.Sprintf("%s * %du + (%s) * %du + (k)", s.matrixB(), s.BatchStrideB, j, s.K)
	}
	return fmt.Sprintf("%s * %du + (k) * %du + (%s)", s.matrixB(), s.BatchStrideB, s.N, j)
}

// quadsA says that A can be read as vec4 along i, quadsB that B can along j.
func (s Spec) quadsA() bool { return s.TransA && s.M%4 == 0 && s.BatchStrideA%4 == 0 }
func (s Spec) quadsB() bool { return !s.TransB && s.N%4 == 0 && s.BatchStrideB%4 == 0 }

// source builds the text of one shader.
type source struct {
	strings.Builder
	spec       Spec
	a, b, c    array
	directives string
	head       string  // the text before the epilogue
	arrays     []Array // the bindings in order
	builtins   string  // more parameters of main
}

func (g *source) line(format string, args ...any) { fmt.Fprintf(g, format+"\n", args...) }

// newSource starts a shader of bindings A, B and C with the epilogue; the flags say which are arrays of vec4.
func newSource(s Spec, quadA, quadB, quadC bool) *source {
	g := &source{spec: s, a: array{"mm_a", "mm_a", s.TypeA, quadA}, b: array{"mm_b", "mm_b", s.TypeB, quadB},
		c: array{"mm_c", "mm_c", s.TypeC, quadC}}
	if s.Shared && g.a.typ() == g.b.typ() {
		g.b.memory = g.a.memory
	}
	for i, bind := range []func(array){g.bindOperand, g.bindOperand, g.bind} {
		x := []array{g.a, g.b, g.c}[i]
		bind(x)
		if s.Declare != nil {
			g.declareAt(x)
		}
	}
	g.groups()
	g.endHead()
	return g
}

// endHead ends what comes before the epilogue.
func (g *source) endHead() {
	g.head = g.String()
	g.Reset()
}

// value is the stored value of accumulator acc, an expression, of row i and column j of matrix b.
func (g *source) value(acc, i, j string) string {
	if g.spec.Declare == nil {
		return acc
	}
	return fmt.Sprintf("mm_epilogue(%s, b, %s, %s)", acc, i, j)
}

// quadValue is value of row i and the four columns from j on, as they are stored.
func (g *source) quadValue(acc string) string {
	if g.spec.Declare == nil {
		return acc
	}
	var parts [4]string
	for q := range parts {
		parts[q] = g.value(fmt.Sprintf("%s.%c", acc, "xyzw"[q]), "i", fmt.Sprintf("j + %du", q))
	}
	if g.spec.TypeC.Float16() {
		return fmt.Sprintf("vec2<u32>(%s | (%s << 16u), %s | (%s << 16u))", parts[0], parts[1], parts[2], parts[3])
	}
	return "vec4<f32>(" + strings.Join(parts[:], ", ") + ")"
}

// main opens the entry point; tx, ty and tz are then the workgroup's place in tiles. A grid beyond the
// dispatch limit is folded. linear omits ty and tz, if tiles has one dimension.
func (g *source) main(workgroup [2]int, tiles [3]int, l target.Limits, linear bool) (groups [3]int) {
	g.line("@compute @workgroup_size(%d, %d)", workgroup[0], workgroup[1])
	g.line("fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>%s) {", g.builtins)
	if max(tiles[0], tiles[1], tiles[2]) <= l.MaxDispatchDimension {
		g.line("let tx = w.x;")
		if !linear {
			g.line("let ty = w.y; let tz = w.z;")
		}
		return tiles
	}
	total := tiles[0] * tiles[1] * tiles[2]
	x := min(total, l.MaxDispatchDimension)
	y := min(ceilDiv(total, x), l.MaxDispatchDimension)
	groups = [3]int{x, y, ceilDiv(total, x*y)}
	g.line("let fold = (w.z * %du + w.y) * %du + w.x;", y, x)
	g.line("if (fold >= %du) { return; }", total)
	if linear {
		g.line("let tx = fold;")
	} else {
		g.line("let tx = fold %% %du; let ty = fold / %du %% %du; let tz = fold / %du;", tiles[0], tiles[0], tiles[1], tiles[0]*tiles[1])
	}
	return groups
}

// pass closes the entry point of a shader that binds A, B and C.
func (g *source) pass(workgroup, groups [3]int, memory int) Pass {
	g.line("}")
	return Pass{
		Head: g.head, Code: g.String(), Directives: g.directives, Arrays: g.arrays, Bindings: g.spec.bindings(),
		Epilogue: g.spec.Declare, Workgroup: workgroup, Groups: groups, WorkgroupMemory: memory,
	}
}

// bind has the pass bind scratch memory in the place of an operand.
func (p Pass) bind(operand Operand, scratch Binding) {
	i := slices.IndexFunc(p.Bindings, func(b Binding) bool { return b.Operand == operand })
	p.Bindings[i] = scratch
}

// bindings are the arrays of a pass that reads A and B and stores C.
func (s Spec) bindings() []Binding {
	operands := []Operand{A, B, C}
	if s.Shared {
		operands = []Operand{A, C}
	}
	if s.Grouping != graph.Ungrouped {
		operands = append(operands, Offsets)
	}
	var out []Binding
	for _, o := range operands {
		out = append(out, Binding{Operand: o})
	}
	return out
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func roundUp(a, b int) int { return ceilDiv(a, b) * b }
