package matmul

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/cooptest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cooperativeCases are products of 16-bit floats: sizes that are and are not multiples of the tiles, every transpose,
// batches, strides, split-K and epilogues.
func cooperativeCases() []testCase {
	var out []testCase
	for n, d := range [][3]int{{64, 64, 64}, {32, 40, 24}, {33, 50, 44}, {72, 35, 21}, {130, 20, 9}, {1, 100, 8}} {
		for trans := range 4 {
			s := Spec{Product: Product{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0, TypeA: F16,
				TypeB: F16}}
			if (n+trans)%3 == 0 {
				s.Batch, s.BatchStrideA, s.BatchStrideB = 3, d[0]*d[2]+8*(n%2), d[1]*d[2]
			}
			if (n+trans)%3 == 1 {
				s.Batch, s.BatchStrideA = 2, d[0]*d[2]+n%2
			}
			if trans%2 == n%2 {
				s.Declare = biased
			}
			out = append(out, testCase{name: fmt.Sprintf("%dx%dx%d,%v,%v", d[0], d[1], d[2], s.TransA, s.TransB), spec: s})
		}
	}
	for _, c := range groupedCases(target.Limits{}, target.Limits{}) {
		c.spec.TypeA, c.spec.TypeB = F16, F16
		out = append(out, c)
	}
	return append(out,
		testCase{name: "parts", spec: Spec{Product: Product{Batch: 1, M: 40, N: 24, K: 2000, TransA: true, TypeA: F16, TypeB: F16}}},
		testCase{name: "parts of odd rows", spec: Spec{Product: Product{Batch: 2, M: 40, N: 23, K: 1003, BatchStrideA: 40 * 1003,
			TypeA: F16, TypeB: F16}}},
		testCase{name: "logits", spec: Spec{Product: Product{Batch: 1, M: 24, N: 1003, K: 32, TransB: true, TypeA: F16, TypeB: F16}}},
		testCase{name: "gradient of hidden states", spec: Spec{Product: Product{Batch: 1, M: 24, N: 32, K: 1003, TypeA: F16, TypeB: F16}}},
		testCase{name: "gradient of the head", spec: Spec{Product: Product{Batch: 1, M: 1003, N: 32, K: 24, TransA: true, TypeA: F16,
			TypeB: F16}}})
}

// oblong are the matrices of Intel's Xe-HPG and Xe2, which are not square.
var oblong = []target.CooperativeMatrix{{M: 8, N: 8, K: 16}, {M: 8, N: 16, K: 16}}

func square(side int) target.CooperativeMatrix {
	return target.CooperativeMatrix{M: side, N: side, K: side}
}

// tensorLimits are the limits of a device whose subgroups, of the given number of lanes, multiply matrices of one size.
func tensorLimits(size target.CooperativeMatrix, lanes int, input string) target.Limits {
	l := target.DefaultLimits()
	l.MaxWorkgroupMemory, l.MaxInvocations, l.MaxWorkgroupSize[0] = 49152, 1024, 1024
	l.SubgroupSize = lanes
	size.Input, size.Result = input, "f32"
	l.Cooperative = []target.CooperativeMatrix{size}
	return l
}

var every = flag.Bool("every", false, "run every kernel on every case")

// some returns two of the variants, different ones for each case, or all of them.
func some(ks []Kernel, i int) []Kernel {
	if *every || len(ks) < 2 {
		return ks
	}
	return []Kernel{ks[i%len(ks)], ks[(i+1+i/len(ks)%(len(ks)-1))%len(ks)]}
}

// randomFloat16 returns random numbers that the type represents exactly, and their bits, two in a word.
func randomFloat16(r *rand.Rand, n int, e Element) ([]float32, []byte) {
	digits := map[Element]int{F16: 10, BF16: 7}[e]
	x, bits := make([]float32, n), make([]byte, 4*((n+1)/2), 4*((n+1)/2)+16)
	for i := range x {
		x[i] = float32(r.IntN(1<<digits)-1<<(digits-1)) / float32(int(1)<<digits)
		binary.LittleEndian.PutUint16(bits[2*i:], uint16(e.Bits(float64(x[i]))))
	}
	return x, bits
}

func floatBytes(x []float32) []byte {
	out := make([]byte, 0, 4*len(x))
	for _, v := range x {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// The kernels compute correct products on an emulation of subgroup matrices. The shapes are smaller than the real ones,
// whose unrolled loops a software adapter would compile for minutes.
func TestCooperativeKernelsEmulated(t *testing.T) {
	tier.Rest(t)
	dev := testdevice.Translated(t)
	sizes := append([]target.CooperativeMatrix{square(8)}, oblong...)
	shapes := []cooperative{{down: 2, right: 1, m: 1, n: 2, k: 1}, {down: 1, right: 2, m: 2, n: 1, k: 1, double: true},
		{down: 2, right: 2, m: 1, n: 1, k: 2, double: true}}
	names := []string{"64x64x64,true,true", "33x50x44,false,false", "72x35x21,true,false", "parts of odd rows",
		"gradient of hidden states", "grouped 2", "grouped 3", "grouped 4", "grouped 5"}
	for i, c := range cooperativeCases() {
		if !*every && !slices.Contains(names, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			shape := shapes[i%len(shapes)]
			shape.size, shape.lanes, shape.splits = sizes[i/3%len(sizes)], 8, 1
			if c.spec.K > 1000 {
				shape.splits = 3
			}
			transposed := shape
			transposed.transposes = true
			l := tensorLimits(shape.size, shape.lanes, "f16")
			check(t, dev, c, []Kernel{shape.kernel(c.spec, l), transposed.kernel(c.spec, l)}, func(p Pass) Pass {
				text, err := cooptest.Scalar(p.Source(), shape.lanes)
				p = p.of(text)
				p.WorkgroupMemory += cooptest.Memory
				require.NoError(t, err)
				return p
			})
		})
	}
}

// With split-K only the last pass rounds: its 16-bit floats are the rounded sums of the kernel that stores f32.
func TestCooperativeKernelsStoreFloat16OfPartialSums(t *testing.T) {
	tier.Rest(t)
	dev := testdevice.Translated(t)
	s := Spec{Product: Product{Batch: 1, M: 20, N: 12, K: 100, TypeA: F16, TypeB: F16},
		Epilogue: Epilogue{Declare: epilogueOf(F32, "", "acc + bias[j]", bias)}}
	half := s
	half.TypeC = BF16
	half.Declare = narrow("(acc + bias[j])", bias)
	r := rand.New(rand.NewPCG(1, 2))
	_, x := randomFloat16(r, s.M*s.K, F16)
	_, y := randomFloat16(r, s.N*s.K, F16)
	b := &bench{t: t, dev: dev, bufs: map[Operand]device.Buffer{}}
	b.bufs[A], b.bufs[B], b.bias = b.buffer("a", x), b.buffer("b", y), b.buffer("bias", floatBytes(random(r, s.N)))
	shape := cooperative{size: square(8), lanes: 8, down: 2, right: 1, m: 1, n: 2, k: 1, splits: 3}
	scalar := func(p Pass) Pass {
		text, err := cooptest.Scalar(p.Source(), shape.lanes)
		p = p.of(text)
		p.WorkgroupMemory += cooptest.Memory
		require.NoError(t, err)
		return p
	}
	l := tensorLimits(square(8), 8, "f16")
	want := b.run(shape.kernel(s, l), s.M*s.N, scalar)
	got := b.run(shape.kernel(half, l), s.M*s.N/2, scalar)
	for i, word := range got[:s.M*s.N/2] {
		require.Equal(t, rounded(want[2*i:]), math.Float32bits(word), "word %d", i)
	}
	assert.True(t, math.IsInf(float64(got[s.M*s.N/2]), 1), "it writes behind C")
	half.K = 2000
	assert.True(t, slices.ContainsFunc(cooperativeVariants(half, tensorLimits(square(16), 32, "f16")),
		func(k Kernel) bool { return strings.Contains(k.Name, "split") }))
}

// The lanes of narrow subgroups hold no more sums than fit into their registers.
func TestNarrowSubgroups(t *testing.T) {
	for i, want := range []string{"tensor 128x64x16/128", "tensor 128x128x16/256"} {
		l := tensorLimits(oblong[i], 8<<i, "f16")
		s := Spec{Product: Product{Batch: 1, M: 4096, N: 4096, K: 4096, TypeA: F16, TypeB: F16}}
		assert.Equal(t, want, Variants(s, l)[1].Name)
		for _, k := range cooperativeVariants(s, l) {
			var rows, cols, depth, lanes int
			_, err := fmt.Sscanf(k.Name, "tensor %dx%dx%d/%d", &rows, &cols, &depth, &lanes)
			require.NoError(t, err)
			assert.LessOrEqual(t, rows*cols/lanes, 64, k.Name)
		}
		for _, k := range tileVariants(s, l) {
			var rows, cols, depth, lanes int
			_, err := fmt.Sscanf(k.Name, "tile %dx%dx%d/%d", &rows, &cols, &depth, &lanes)
			require.NoError(t, err)
			assert.LessOrEqual(t, rows*cols/lanes, 32, k.Name)
		}
	}
}

// Where lanes load matrices element by element, slices lie along k in workgroup memory, so that each load is of
// several.
func TestSlicesAreTransposed(t *testing.T) {
	amd, nvidia := tensorLimits(square(16), 32, "f16"), tensorLimits(square(16), 32, "f16")
	nvidia.Cooperative = append(nvidia.Cooperative, target.CooperativeMatrix{M: 16, N: 8, K: 16, Input: "f16", Result: "f32"})
	s := Spec{Product: Product{Batch: 1, M: 1024, N: 1024, K: 1024, TransA: true, TypeA: F16, TypeB: F16}}
	for _, c := range []struct {
		limits     target.Limits
		transposed bool
	}{{amd, true}, {tensorLimits(oblong[1], 16, "f16"), true}, {nvidia, false}} {
		text := cooperativeVariants(s, c.limits)[0].Passes[0].Source()
		assert.Equal(t, c.transposed, strings.Contains(text, "coopLoadT<coop_mat16x16<f32, A>>"), "A is loaded by rows")
		assert.Equal(t, c.transposed, strings.Contains(text, "coopLoad<coop_mat16x16<f32, B>>"), "B is loaded by columns")
	}
}

func TestCooperativeNeedsTheDevice(t *testing.T) {
	s := Spec{Product: Product{Batch: 1, M: 64, N: 64, K: 64, TypeA: F16, TypeB: F16}}
	assert.NotEmpty(t, cooperativeVariants(s, tensorLimits(square(16), 32, "f16")))
	assert.Empty(t, cooperativeVariants(s, tensorLimits(square(16), 32, "bf16")))
	assert.Empty(t, cooperativeVariants(s, tensorLimits(square(16), 0, "f16")))
	assert.Empty(t, cooperativeVariants(s, target.DefaultLimits()))
}
