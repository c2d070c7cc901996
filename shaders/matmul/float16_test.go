package matmul

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A product of 16-bit floats has the same bits as the same kernel's product of the same numbers in f32. The cases cover
// every way to read an operand: by element, by vec4, from a packed copy, by one invocation or by a workgroup. They are
// small, since compilation takes most of the time.
func TestFloat16HasTheBitsOfF32(t *testing.T) {
	tier.Rest(t)
	dev := testdevice.Translated(t)
	few := target.DefaultLimits()
	few.MaxInvocations = 64
	for i, c := range []struct {
		spec     Spec
		element  Element
		limits   target.Limits
		software bool
	}{
		{Spec{Product: Product{Batch: 1, M: 4, N: 4, K: 3, TransA: true}}, F16, target.DefaultLimits(), true},
		{Spec{Product: Product{Batch: 1, M: 12, N: 8, K: 5, TransA: true}}, F16, few, false},
		{Spec{Product: Product{Batch: 2, M: 3, N: 5, K: 9, TransB: true, BatchStrideA: 28}}, BF16, few, false},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			checkFloat16(t, dev, c.spec, c.element, c.limits, c.software)
		})
	}
}

var (
	declaration = regexp.MustCompile(`(?m)^(@group.*|fn (mm_.|src)_(widen|read)\(.*)\n`)
	reading     = regexp.MustCompile(`\b(mm_[ab]|src)_read\(`)
)

// Kernels for 16-bit floats differ from those for f32 only in how they read operands.
func TestFloat16ChangesReadsOnly(t *testing.T) {
	for _, c := range testCases() {
		if c.spec.Declare != nil {
			continue
		}
		for _, software := range []bool{true, false} {
			floats := map[string]Kernel{}
			for _, k := range Variants(c.spec, on(c.limits, software)) {
				floats[k.Name] = k
			}
			s, compared := c.spec, 0
			s.TypeA, s.TypeB = F16, BF16
			for _, k := range Variants(s, on(c.limits, software)) {
				f, ok := floats[k.Name]
				if !ok {
					continue
				}
				compared++
				require.Len(t, k.Passes, len(f.Passes), k.Name)
				for i, p := range k.Passes {
					assert.Equal(t, plain(f.Passes[i].Source()), plain(p.Source()), "%s: %s", c.name, k.Name)
				}
			}
			if software && c.spec.Grouping != graph.Ungrouped { // these have the naive kernel only
				assert.Equal(t, 1, compared, c.name)
			} else {
				assert.Greater(t, compared, 1, c.name)
			}
		}
	}
}

// plain returns a shader's text without declarations and with reads in the form for f32.
func plain(wgsl string) string {
	wgsl = declaration.ReplaceAllString(wgsl, "")
	for {
		m := reading.FindStringSubmatchIndex(wgsl)
		if m == nil {
			return wgsl
		}
		end := m[1]
		for depth := 1; depth > 0; end++ {
			depth += map[byte]int{'(': 1, ')': -1}[wgsl[end]]
		}
		wgsl = wgsl[:m[0]] + wgsl[m[2]:m[3]] + "[" + wgsl[m[1]:end-1] + "]" + wgsl[end:]
	}
}

func checkFloat16(t *testing.T, dev device.Device, s Spec, d Element, limits target.Limits, software bool) {
	r := rand.New(rand.NewPCG(1, 2))
	a, wordsA := randomFloat16Words(r, d, s.M*s.K+(s.Batch-1)*s.BatchStrideA)
	b, wordsB := randomFloat16Words(r, d, s.N*s.K+(s.Batch-1)*s.BatchStrideB)
	want := map[string][]float32{}
	var lanes []float32
	for _, k := range Variants(s, on(limits, software)) {
		want[k.Name] = product(t, dev, k, s, a, b)
		if strings.HasPrefix(k.Name, "lanes") {
			lanes = want[k.Name]
		}
	}
	s.TypeA, s.TypeB = d, d
	for _, k := range Variants(s, on(limits, software)) {
		w := want[k.Name]
		if w == nil { // it is not among the best for f32; all kernels of lanes add in the order of k
			require.True(t, strings.HasPrefix(k.Name, "lanes"), k.Name)
			w = lanes
		}
		assert.Equal(t, w, product(t, dev, k, s, wordsA, wordsB), k.Name)
	}
}

// 16-bit results are the rounded f32 results of the same kernel, also with split-K. The conformance suite covers the
// kernels for software adapters.
func TestFloat16IsStored(t *testing.T) {
	dev := testdevice.Translated(t)
	few := target.DefaultLimits()
	few.MaxInvocations = 64
	floats := Spec{Product: Product{Batch: 2, M: 7, N: 12, K: 5, TypeA: F16, TypeB: F16, BatchStrideA: 35, BatchStrideB: 60}}
	long := Spec{Product: Product{Batch: 1, M: 7, N: 12, K: 300, TypeA: F16, TypeB: F16}}
	var narrow16 Spec
	for _, s := range []Spec{long, floats} {
		narrow16 = s
		narrow16.TypeC, narrow16.Declare = BF16, narrow("acc")
		ks := Variants(narrow16, few)
		require.Equal(t, s.K == long.K, slices.ContainsFunc(ks, func(k Kernel) bool { return strings.Contains(k.Name, "split") }))
		r := rand.New(rand.NewPCG(1, 2))
		_, a := randomFloat16Words(r, F16, s.Batch*s.M*s.K)
		_, b := randomFloat16Words(r, F16, s.Batch*s.N*s.K)
		want := map[string][]float32{}
		for _, k := range Variants(s, few) {
			want[k.Name] = product(t, dev, k, s, a, b)
		}
		for _, k := range ks {
			require.Len(t, want[k.Name], s.Batch*s.M*s.N, k.Name)
			for i, word := range product(t, dev, k, narrow16, a, b) {
				require.Equal(t, rounded(want[k.Name][2*i:]), math.Float32bits(word), "%s: word %d", k.Name, i)
			}
		}
	}
	ks := Variants(narrow16, tensorLimits(square(16), 32, "f16"))
	i := slices.IndexFunc(ks, func(k Kernel) bool { return strings.HasPrefix(k.Name, "tensor") })
	require.Positive(t, i)
	assert.Contains(t, ks[i].Passes[0].Source(), "mm_c: array<vec2<u32>>")
	assert.Contains(t, ks[i].Passes[0].Source(), "mm_c[(base + i * 12u + j) / 4u] = vec2<u32>(")
	narrow16.Declare = nil
	assert.PanicsWithValue(t, "matmul: a result of bf16 takes an epilogue and columns in fours, not 12",
		func() { Variants(narrow16, on(few, true)) })
}

// rounded returns the word that holds the first two elements of x in bf16.
func rounded(x []float32) uint32 {
	return BF16.Bits(float64(x[0])) | BF16.Bits(float64(x[1]))<<16
}

// narrow is an epilogue that rounds an expression to bf16.
func narrow(value string, arrays ...Array) func(Pass) Declarations {
	statements := ""
	bits := BF16.Narrow(scalar.Var(value, scalar.F32, 0), func(x *scalar.Expr) *scalar.Expr {
		statements += fmt.Sprintf("let bits: %v = %v;\n", x.Type, x)
		return scalar.Var("bits", x.Type, 0)
	})
	return epilogueOf(BF16, statements, bits.String(), arrays...)
}

// randomFloat16Words returns random numbers, and the words that hold them as 16-bit floats.
func randomFloat16Words(r *rand.Rand, d Element, n int) (x, words []float32) {
	x = random(r, n)
	bits := make([]uint32, (n+1)/2)
	for i, v := range x {
		x[i] = float32(d.Round(float64(v)))
		bits[i/2] |= d.Bits(float64(v)) << (i % 2 * 16)
	}
	for _, w := range bits {
		words = append(words, math.Float32frombits(w))
	}
	return x, words
}

// product runs a kernel on the words of the operands and returns C.
func product(t *testing.T, dev device.Device, k Kernel, s Spec, x, y []float32) []float32 {
	n := s.Batch * s.M * s.N * s.TypeC.Size() / 4
	b := &bench{t: t, dev: dev, bufs: map[Operand]device.Buffer{}}
	b.bufs[A], b.bufs[B] = b.buffer("a", floatBytes(x)), b.buffer("b", floatBytes(y))
	defer b.bufs[A].Release()
	defer b.bufs[B].Release()
	return b.run(k, n, asIs)[:n]
}
