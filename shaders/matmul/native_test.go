package matmul

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var nativeLimits = target.Limits{Native: true} // of a CPU without instructions for matrices

// thisCPU returns the limits of the machine's CPU.
func thisCPU(t testing.TB) target.Limits {
	dir, err := testdevice.Cache("cpu")
	require.NoError(t, err)
	found, err := cpu.FindToolchain(dir)
	require.NoError(t, err)
	return found.Limits()
}

// nativeCase is a Spec with operands for it.
type nativeCase struct {
	name string
	spec Spec
	want []float64
	a, b []byte
	bias []float32
	rows []int // of the groups
}

// nativeSpecs are products of every kind: edges of tiles, panels and blocks, transpositions, batches, element types,
// epilogues, sums that are split, and few rows. CPUs without AMX have the same kernels for termSpecs as for others.
func nativeSpecs(l target.Limits) []Spec {
	var out []Spec
	for n, d := range [][3]int{
		{24, 32, 16}, {12, 16, 8}, {1, 1, 1}, {13, 33, 5}, {37, 48, 130}, {100, 96, 100}, {61, 15, 31}, {5, 80, 64}, {7, 300, 9},
		{1, 640, 300}, {2, 70, 33}, {3, 129, 2100}, {4, 33, 64}, {50, 31, 512}, {130, 260, 700}, {48, 64, 2048}, {33, 47, 1500},
	} {
		for trans := range 4 {
			s := Spec{Product: Product{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0}}
			s.TypeA, s.TypeB = [...]Element{F32, F32, F16, BF16}[(n+trans)%4], [...]Element{F32, F32, BF16, F32, F16}[(n+3*trans)%5]
			switch small := d[0]*d[1]*d[2] < 1e6; {
			case small && (n+trans)%4 == 0:
				s.Batch, s.BatchStrideA, s.BatchStrideB = 3, d[0]*d[2], d[1]*d[2]+n%3
			case small && (n+trans)%4 == 1:
				s.Batch, s.BatchStrideA = 2, d[0]*d[2]+1
			}
			if (n+trans)%3 != 0 {
				s.TypeC = [...]Element{F32, BF16}[n%2]
				if s.Batch*s.M*s.N%2 != 0 {
					s.TypeC = F32
				}
				s.Declare = testEpilogue(s.TypeC)
			}
			out = append(out, s)
		}
	}
	shared := Spec{Product: Product{Batch: 4, M: 9, N: 50, K: 70, BatchStrideA: 630}, Epilogue: Epilogue{Declare: testEpilogue(F32)}}
	few := Spec{Product: Product{Batch: 3, M: 1, N: 100, K: 64, TransB: true, BatchStrideA: 64},
		Epilogue: Epilogue{TypeC: BF16, Declare: testEpilogue(BF16)}}
	out = append(out, pairSpecs()...)
	out = append(out, groupedSpecs()...)
	out = append(out, symmetricSpecs()...)
	if slices.Contains(l.Cooperative, target.AMX) {
		out = append(out, termSpecs()...)
	}
	return append(out, shared, few, Spec{Product: Product{Batch: 3, M: 16, N: 32, K: 24, BatchStrideA: 384}},
		Spec{Product: Product{Batch: 2, M: 30, N: 20, K: 10, TransA: true, BatchStrideA: 300}})
}

// pairSpecs are products of bf16 with bf16, for which CPUs have instructions: edges of tiles of 12 and 16 rows, of
// panels of 8 and 32 columns, and of steps of 2 and 32.
func pairSpecs() (out []Spec) {
	for n, d := range [][3]int{
		{1, 1, 1}, {12, 32, 64}, {32, 64, 96}, {33, 33, 33}, {16, 16, 31}, {61, 80, 1}, {7, 8, 62}, {45, 100, 515}, {96, 256, 1100},
		{30, 72, 2050},
	} {
		for trans := range 4 {
			s := Spec{Product: Product{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0, TypeA: BF16,
				TypeB: BF16}}
			switch (n + trans) % 5 {
			case 0:
				s.Batch, s.BatchStrideA, s.BatchStrideB = 2, d[0]*d[2], d[1]*d[2]+1
			case 1:
				s.Batch, s.BatchStrideA = 3, d[0]*d[2]
			case 2:
				s.Batch, s.BatchStrideB = 2, d[1]*d[2]
			}
			if n/2%2 == trans%2 {
				s.TypeC = [...]Element{F32, BF16}[n%2]
				if s.Batch*s.M*s.N%2 != 0 {
					s.TypeC = F32
				}
				s.Declare = testEpilogue(s.TypeC)
			}
			out = append(out, s)
		}
	}
	return out
}

// termSpecs are products of f32 of which AMX computes the terms: edges of tiles of 16 rows and of cells of 32, k's at
// once and in blocks, sums that are split, a B that is packed once or by each group, and epilogues with all of them.
func termSpecs() (out []Spec) {
	for n, d := range [][3]int{{32, 64, 96}, {45, 100, 70}, {130, 80, 200}, {64, 48, 1100}, {97, 50, 1100}, {70, 530, 1000},
		{33, 528, 1024}} {
		for trans := range 4 {
			s := Spec{Product: Product{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0}}
			switch small := d[0]*d[1]*d[2] < 1e6; {
			case small && (n+trans)%3 == 0:
				s.Batch, s.BatchStrideA, s.BatchStrideB = 2, d[0]*d[2], d[1]*d[2]+1
			case small && (n+trans)%3 == 1:
				s.Batch, s.BatchStrideA = 2, d[0]*d[2]+1
			}
			if (n/2+trans)%2 == 0 {
				s.TypeC = [...]Element{F32, BF16}[n%2]
				if s.Batch*s.M*s.N%2 != 0 {
					s.TypeC = F32
				}
				s.Declare = testEpilogue(s.TypeC)
			}
			out = append(out, s)
		}
	}
	return out
}

// symmetricSpecs are products of a matrix with its transpose, of a symmetric matrix with itself, and of two that
// commute: tiles on the diagonal that are cut off, several groups of columns, k's at once and in blocks, sums that are
// split, and rows of C that evict each other.
func symmetricSpecs() (out []Spec) {
	for n, d := range [][2]int{{96, 64}, {70, 40}, {112, 600}, {400, 100}, {45, 520}, {300, 700}, {13, 5}, {77, 77}, {150, 150},
		{129, 1100}, {48, 2048}, {1024, 390}} {
		s := Spec{Product: Product{Batch: 2, M: d[0], N: d[0], K: d[1], Shared: true, Symmetric: true, BatchStrideA: d[0] * d[1],
			BatchStrideB: d[0] * d[1]}}
		if d[0] >= 1000 {
			s.Batch, s.BatchStrideA, s.BatchStrideB = 1, 0, 0
		}
		other := s
		if d[0] != d[1] {
			s.TransA, s.TransB = n%2 == 0, n%2 != 0
			other.TransA, other.TransB = s.TransB, s.TransA
		} else {
			other.Shared = false
			out = append(out, other) // without an epilogue sums lie in C
		}
		if d[0] < 1000 {
			other.Declare = testEpilogue(F32)
		}
		out = append(out, s, other)
	}
	return out
}

// testEpilogue is C for 2·acc + i + 100·b + bias[j], rounded to TypeC.
func testEpilogue(c Element) func(Pass) Declarations {
	return func(p Pass) Declarations {
		value := fmt.Sprintf("2.0f * acc + (f32)i + 100.0f * (f32)b + ((const f32 *)args[%d].at)[j]", len(p.Bindings))
		if c == F32 {
			return Declarations{Text: "static inline f32 epilogue(const gp_arg *args, f32 acc, u32 b, u32 i, u32 j) { return " + value + "; }"}
		}
		return Declarations{Text: "static inline u32 epilogue(const gp_arg *args, f32 acc, u32 b, u32 i, u32 j) {\n" +
			"union { f32 f; u32 u; } x = {" + value + "};\nreturn (x.u + 0x7fff + (x.u >> 16 & 1)) >> 16;\n}"}
	}
}

// operand returns random elements as they are stored, and their values.
func operand(r *rand.Rand, e Element, n int) (stored []byte, values []float32) {
	values = random(r, n)
	for i, v := range values {
		if e == F32 {
			stored = binary.LittleEndian.AppendUint32(stored, math.Float32bits(v))
			continue
		}
		if i%50 == 7 {
			v *= 1e-6 // a subnormal f16
		}
		bits := e.Bits(float64(v))
		stored, values[i] = binary.LittleEndian.AppendUint16(stored, uint16(bits)), float32(e.FromBits(bits))
	}
	return stored, values
}

// mirrored returns matrices of f32 whose elements on the left of the diagonal are those on the right.
func mirrored(a []float32, s Spec) (stored []byte, values []float32) {
	return arranged(a, s, func(row, col int) (int, int) { return min(row, col), max(row, col) })
}

// circulant returns symmetric matrices of f32 whose rows are those above them, turned by one. They commute.
func circulant(a []float32, s Spec) (stored []byte, values []float32) {
	return arranged(a, s, func(row, col int) (int, int) {
		apart := max(row, col) - min(row, col)
		return 0, min(apart, s.K-apart)
	})
}

// arranged returns square matrices of f32, each of whose elements is the one at its place among random ones. place must
// be idempotent: a is changed in order.
func arranged(a []float32, s Spec, place func(row, col int) (int, int)) (stored []byte, values []float32) {
	for n := range s.Batch {
		for i := range s.M {
			for k := range s.K {
				row, col := place(i, k)
				a[n*s.BatchStrideA+i*s.K+k] = a[n*s.BatchStrideA+row*s.K+col]
			}
		}
	}
	for _, v := range a {
		stored = binary.LittleEndian.AppendUint32(stored, math.Float32bits(v))
	}
	return stored, a
}

func newNativeCase(s Spec) nativeCase {
	r := rand.New(rand.NewPCG(uint64(s.M), uint64(s.K)))
	c := nativeCase{spec: s, bias: random(r, s.N), rows: groupRows(s)}
	c.name = fmt.Sprintf("%dx%dx%dx%d,%v%v,%v%v%v", s.Batch, s.M, s.N, s.K, s.TransA, s.TransB, s.TypeA, s.TypeB, s.TypeC)
	var a, b []float32
	c.a, a = operand(r, s.TypeA, s.M*s.K+(s.Batch-1)*s.BatchStrideA)
	c.b, b = operand(r, s.TypeB, s.N*s.K+(max(s.Batch, s.Groups)-1)*s.BatchStrideB)
	switch {
	case s.Symmetric && !s.Shared:
		c.a, a = circulant(a, s)
		c.b, b = circulant(b, s)
	case s.Symmetric:
		if !s.TransA && !s.TransB {
			c.a, a = mirrored(a, s)
		}
		c.b, b = c.a, a
	}
	if s.Grouping != graph.Ungrouped {
		c.name += fmt.Sprintf(",%d groups %v", s.Grouping, c.rows)
	}
	c.want = reference(s, a, b, c.bias)
	return c
}

// checkNative compares the results of three runs with the reference, and with each other.
func checkNative(t *testing.T, c nativeCase, k Kernel, file string) {
	out, err := os.ReadFile(file)
	require.NoError(t, err)
	n := len(out) / 3
	assert.Equal(t, out[:n], out[n:2*n], "%s: %s: groups one by one give other bits", c.name, k.Name)
	assert.Equal(t, out[:n], out[2*n:], "%s: %s: groups in other ranges give other bits", c.name, k.Name)
	got := make([]float64, len(c.want))
	for i := range got {
		if c.spec.TypeC == F32 {
			got[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])))
		} else {
			got[i] = c.spec.TypeC.FromBits(uint32(binary.LittleEndian.Uint16(out[2*i:])))
		}
	}
	for i, w := range c.want {
		tolerance := 1e-6*math.Abs(w) + 3e-8*float64(c.spec.K)
		if c.spec.Symmetric { // sums of squares grow, and so does what is rounded off
			tolerance *= 2
		}
		if c.spec.TypeC == BF16 {
			tolerance += math.Abs(w) / 256
		}
		if !assert.InDelta(t, w, got[i], tolerance, "%s: %s: element %d", c.name, k.Name, i) {
			return
		}
	}
}

// nativeUse is a product and the kernels that compute it.
type nativeUse struct {
	Spec
	kernels []Kernel
}

// kind returns a kernel's name without the number of its splits. Sums that are split change how C is written, and
// depend on sizes.
func kind(name, property string) string {
	whole, _, split := strings.Cut(name, " split")
	if split && (property[0] == 'C' || property[0] == 's') {
		return whole + " split"
	}
	return whole
}

// properties are what a product's kernels depend on: how A and B are read, how C is written, which transposes go
// together, batches and sizes. Edges are those of register tiles and of steps.
func (s Spec) properties() []string {
	kind := fmt.Sprint(s.Grouping, s.Symmetric)
	rows, columns, steps := s.M%12 == 0, s.N%32 == 0, s.K%32 == 0
	return []string{
		fmt.Sprint("A", kind, s.TypeA, s.TransA), fmt.Sprint("A", kind, s.TransA, rows, steps),
		fmt.Sprint("B", kind, s.TypeB, s.TransB), fmt.Sprint("B", kind, s.TransB, columns, steps),
		fmt.Sprint("C", kind, s.TypeC, s.Declare != nil), fmt.Sprint("edges", kind, rows, columns),
		fmt.Sprint("operands", kind, s.Shared, s.Declare != nil),
		fmt.Sprint("transposes", kind, s.TransA, s.TransB),
		fmt.Sprint("batch", kind, s.Batch > 1, s.BatchStrideA > 0, s.BatchStrideB > 0),
		fmt.Sprint("sizes", kind, s.M < 12, s.M > 96, s.N > 64, s.K > 512),
	}
}

// covering returns each kind of kernel with each property that products have, the smallest products first. It leaves
// out the kernels whose properties are all those of others.
func covering(specs []Spec, l target.Limits) (out []nativeUse) {
	specs = slices.Clone(specs)
	slices.SortStableFunc(specs, func(a, b Spec) int { return cmp.Compare(a.flops(), b.flops()) })
	seen := map[string]bool{}
	for _, s := range specs {
		use := nativeUse{Spec: s}
		for _, k := range Variants(s, l) {
			needed := *every
			for _, p := range s.properties() {
				if key := kind(k.Name, p) + p; !seen[key] {
					seen[key], needed = true, true
				}
			}
			if needed {
				use.kernels = append(use.kernels, k)
			}
		}
		if len(use.kernels) > 0 {
			out = append(out, use)
		}
	}
	return out
}

// testNative checks kernels of products.
func testNative(t *testing.T, uses []nativeUse, cc string, flags ...string) {
	b := newNativeBuild(t)
	var checks []func()
	for _, u := range uses {
		c := newNativeCase(u.Spec)
		for _, k := range u.kernels {
			file := b.add(t, k, c)
			checks = append(checks, func() { checkNative(t, c, k, file) })
		}
	}
	b.run(t, cc, flags...)
	for _, check := range checks {
		check()
	}
}

// oneIn returns one in n of the products on a CPU that cover their kernels: each from below n gives others.
func oneIn(n, from int, l target.Limits) (out []nativeUse) {
	for i, u := range covering(nativeSpecs(l), l) {
		if i%n == from {
			out = append(out, u)
		}
	}
	return out
}

// TestNativeComputesTheProduct and the two tests behind it check every kind of kernel on this CPU, together with
// TestNativeStaysInsideItsArrays: a quarter by the device's flags, one with fewer passes, one by clang, and one with
// sanitizers.
func TestNativeComputesTheProduct(t *testing.T) {
	uses := oneIn(4, 1, thisCPU(t))
	testNative(t, tier.Divide(t, uses, everyKernel()), "gcc", "-O2", "-ftree-vectorize", "-march=native", "-mprefer-vector-width=512")
}

// everyKernel chooses the uses with a kernel that no use before has.
func everyKernel() func(_ int, u nativeUse) bool {
	seen := map[string]bool{}
	return func(_ int, u nativeUse) bool {
		chosen := false
		for _, k := range u.kernels {
			name := kind(k.Name, "C")
			chosen = chosen || !seen[name]
			seen[name] = true
		}
		return chosen
	}
}

func TestNativeComputesTheProductWithFewerPasses(t *testing.T) {
	testNative(t, tier.Divide(t, oneIn(4, 2, thisCPU(t)), tier.First[nativeUse](0)), "gcc", fewerPasses, "-march=native",
		"-mprefer-vector-width=512")
}

func TestNativeComputesTheProductByClang(t *testing.T) {
	uses := tier.Divide(t, oneIn(4, 0, thisCPU(t)), tier.First[nativeUse](0))
	if _, err := exec.LookPath("clang"); err != nil {
		t.Skip("omitted: no clang here; .ci/setup.sh cross installs it")
	}
	testNative(t, uses, "clang", fewerPasses, "-march=native")
}

// The product of a matrix with its transpose, or of a symmetric matrix with itself, has the bits of the one that
// computes all elements, with vectors of any size. AMX adds the terms of both operands in an order of its own.
func TestHalfOfASymmetricProductHasItsBits(t *testing.T) {
	tier.Rest(t)
	flags := []string{"-march=native"}
	if runtime.GOARCH == "amd64" {
		flags = append(flags, "-march=x86-64-v3", "-march=x86-64")
	}
	for i, march := range flags {
		b := newNativeBuild(t)
		var checks []func()
		for n, s := range symmetricSpecs() {
			if n/2%len(flags) != i || !s.Shared {
				continue
			}
			c, full := newNativeCase(s), s
			full.Symmetric = false
			whole := Variants(full, nativeLimits)
			for _, k := range Variants(s, nativeLimits) {
				other := whole[slices.IndexFunc(whole, func(o Kernel) bool { return o.Name == k.Name })]
				if k.Name == "naive" || k.Name == "native small" || strings.Contains(k.Name, "vector") {
					continue
				}
				assert.NotEqual(t, other.Passes, k.Passes)
				half, all := b.add(t, k, c), b.add(t, other, c)
				checks = append(checks, func() {
					want, err := os.ReadFile(all)
					require.NoError(t, err)
					got, err := os.ReadFile(half)
					require.NoError(t, err)
					assert.True(t, slices.Equal(want, got), "%s, %s, %s", c.name, k.Name, march)
				})
			}
		}
		b.run(t, "gcc", fewerPasses, march)
		for _, check := range checks {
			check()
		}
	}
}

// fewerPasses compiles in less time than the device's -O2. The tests that use it are of the text of kernels, not of the
// optimizer.
const fewerPasses = "-O1"

// Vectors of 32 and of 16 bytes have register tiles of their own; all else is as on this CPU, so an eighth is enough.
func TestNativeComputesTheProductOnOldCPUs(t *testing.T) {
	tier.Rest(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the flags are those of amd64")
	}
	testNative(t, oneIn(8, 1, nativeLimits), "gcc", fewerPasses, "-march=x86-64-v3")
	testNative(t, oneIn(8, 2, nativeLimits), "gcc", fewerPasses, "-march=x86-64")
}

func TestNativeStaysInsideItsArrays(t *testing.T) {
	tier.Rest(t)
	l := thisCPU(t)
	uses := oneIn(4, 3, l)
	novel := everyKernel()
	for i, u := range uses {
		novel(i, u)
	}
	for i, u := range covering(nativeSpecs(l), l) { // kinds of kernels that the quarter lacks
		if novel(i, u) {
			uses = append(uses, u)
		}
	}
	testNative(t, uses, "gcc", fewerPasses, "-march=native", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
}
