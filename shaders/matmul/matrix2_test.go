package matmul

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// flexibleLimits are the limits of a device whose workgroups multiply matrices of any size.
func flexibleLimits() target.Limits {
	l := tensorLimits(square(16), 32, "f16")
	for _, input := range []string{"f16", "bf16"} {
		for _, n := range []int{128, 256} {
			l.Flexible = append(l.Flexible, target.FlexibleMatrix{M: 32, N: 16, K: 16, Input: input, Result: "f32", Invocations: n,
				Largest: 1024, Reserved: 4096})
		}
	}
	return l
}

// assemblyFeatures are all features that kernels in assembly may need.
const assemblyFeatures = spirv.Float16 | spirv.Subgroups | spirv.CooperativeMatrix | spirv.TensorAddressing

// float16Cases are the cooperative kernels' cases, alternating between f16 and bf16. Grouped products are not among
// them, because the kernels in assembly do not compute those; TestMatrix2NeedsTheDevice checks that none is offered.
func float16Cases() []testCase {
	out := slices.DeleteFunc(cooperativeCases(), func(c testCase) bool { return c.spec.Grouping != graph.Ungrouped })
	for i := range out {
		e := []Element{F16, BF16}[i%2]
		out[i].spec.TypeA, out[i].spec.TypeB = e, e
	}
	return out
}

// Every variant assembles to a valid module, whose workgroup size and bindings are those of its pass.
func TestMatrix2VariantsAreValid(t *testing.T) {
	tier.Rest(t)
	v, known := newValidator(t), true // known: the installed spirv-as knows the instructions
	for _, c := range float16Cases() {
		ks := matrix2Variants(c.spec, flexibleLimits())
		if s := c.spec; s.Batch > 1 && (s.BatchStrideA%8 > 0 || s.BatchStrideB%8 > 0 || s.M*s.N%4 > 0) {
			require.Empty(t, ks, c.name)
			continue
		}
		require.NotEmpty(t, ks, c.name)
		names := map[string]bool{}
		for _, k := range ks {
			assert.False(t, names[k.Name], "%s twice", k.Name)
			names[k.Name] = true
			checkLimits(t, testCase{limits: flexibleLimits()}, k)
			m, err := spirv.Assemble(k.Passes[0].Source(), assemblyFeatures)
			require.NoError(t, err, "%s, %s\n%s", c.name, k.Name, k.Passes[0].Source())
			assert.Equal(t, k.Passes[0].Workgroup, m.Workgroup)
			assert.Zero(t, m.WorkgroupMemory)
			assert.Equal(t, map[uint32]spirv.Binding{0: {}, 1: {}, 2: {Written: true}}, m.Bindings)
			v.check(t, m)
		}
		known = known && sameAsTools(t, ks[0].Passes[0].Source())
	}
	v.counted(t)
	if !known {
		t.Run("spirv-as", func(t *testing.T) { t.Skip("the installed spirv-as is older than tensor addressing") })
	}
}

// sameAsTools compares our assembler's output with that of the installed spirv-as. It reports whether spirv-as knows
// the instructions.
func sameAsTools(t *testing.T, text string) bool {
	if runtime.GOOS != "linux" {
		return false
	}
	path := filepath.Join(t.TempDir(), "m")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	out, err := exec.Command("spirv-as", "--target-env", "spv1.6", "-o", path+".spv", path).CombinedOutput()
	if strings.Contains(string(out), "Invalid capability") {
		return false
	}
	require.NoError(t, err, "spirv-as (Debian's spirv-tools): %s", out)
	want, err := os.ReadFile(path + ".spv")
	require.NoError(t, err)
	m, err := spirv.Assemble(text, assemblyFeatures)
	require.NoError(t, err)
	for i, w := range m.Code {
		if i != 2 { // word 2 identifies the assembler
			require.Equal(t, binary.LittleEndian.Uint32(want[4*i:]), w, "word %d", i)
		}
	}
	require.Len(t, want, 4*len(m.Code))
	return true
}

// interpreted runs an assembly pass on the machine. C has the given size in bytes and holds infinities before.
func interpreted(t *testing.T, s Spec, p Pass, a, b []byte, size int) []byte {
	m, err := spirv.Assemble(p.Source(), assemblyFeatures)
	require.NoError(t, err)
	machine := newMachine(m, s.TypeA, a, b, floatBytes(slices.Repeat([]float32{float32(math.Inf(1))}, size/4)))
	for z := range p.Groups[2] {
		for y := range p.Groups[1] {
			for x := range p.Groups[0] {
				machine.run([3]int{x, y, z})
			}
		}
	}
	return machine.buffers[2]
}

// The kernels compute correct products, including edges, split-K and batches. The machine runs the pass in assembly,
// and a device runs the second pass. A store outside of C panics or changes the memory behind it.
func TestMatrix2Kernels(t *testing.T) {
	tier.Rest(t)
	dev := testdevice.Translated(t)
	for i, c := range float16Cases() {
		t.Run(c.name, func(t *testing.T) {
			s, r := c.spec, rand.New(rand.NewPCG(1, 2))
			x, xBits := randomFloat16(r, s.M*s.K+(s.Batch-1)*s.BatchStrideA, s.TypeA)
			y, yBits := randomFloat16(r, s.N*s.K+(s.Batch-1)*s.BatchStrideB, s.TypeB)
			bias := random(r, s.N)
			want := reference(s, x, y, bias)
			for _, k := range some(matrix2Variants(s, flexibleLimits()), i) {
				if len(k.Passes) == 1 {
					got := floats(interpreted(t, s, k.Passes[0], xBits, yBits, 4*len(want)))
					requireClose(t, k, want, got, s.K)
					continue
				}
				b := &bench{t: t, dev: dev, bufs: map[Operand]device.Buffer{}}
				b.sums = interpreted(t, s, k.Passes[0], xBits, yBits, k.Passes[0].Bindings[2].Size)
				b.bias = b.buffer("bias", floatBytes(bias))
				k.Passes = k.Passes[1:]
				requireClose(t, k, want, b.run(k, len(want), asIs), s.K)
				b.bias.Release()
			}
		})
	}
}

func floats(b []byte) (out []float32) {
	for ; len(b) > 0; b = b[4:] {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return out
}

// The reduction stores 16-bit floats as whole words.
func TestMatrix2StoresFloat16(t *testing.T) {
	tier.Rest(t)
	s := Spec{Product: Product{Batch: 2, M: 7, N: 12, K: 5, TypeA: F16, TypeB: F16, BatchStrideA: 40, BatchStrideB: 64},
		Epilogue: Epilogue{TypeC: BF16, Declare: narrow("acc")}}
	r := rand.New(rand.NewPCG(1, 2))
	x, xBits := randomFloat16(r, 75, F16)
	y, yBits := randomFloat16(r, 124, F16)
	floats := s
	floats.Declare = nil
	want := reference(floats, x, y, nil)
	dev := testdevice.Translated(t)
	k := matrix2Variants(s, flexibleLimits())[0]
	b := &bench{t: t, dev: dev, bufs: map[Operand]device.Buffer{}}
	b.sums = interpreted(t, s, k.Passes[0], xBits, yBits, k.Passes[0].Bindings[2].Size)
	k.Passes = k.Passes[1:]
	for i, word := range b.run(k, len(want)/2, asIs)[:len(want)/2] {
		bits := BF16.Bits(float64(float32(want[2*i]))) | BF16.Bits(float64(float32(want[2*i+1])))<<16
		require.Equal(t, bits, math.Float32bits(word), "word %d", i)
	}
}

func TestMatrix2NeedsTheDevice(t *testing.T) {
	s := Spec{Product: Product{Batch: 1, M: 256, N: 256, K: 256, TypeA: F16, TypeB: F16}}
	names := func(change func(s *Spec, l *target.Limits)) (out []string) {
		s, l := s, flexibleLimits()
		change(&s, &l)
		for _, k := range matrix2Variants(s, l) {
			if !strings.Contains(k.Name, "split") {
				out = append(out, strings.TrimPrefix(k.Name, "matrix2 "))
			}
		}
		return out
	}
	each := func(change func(f *target.FlexibleMatrix)) []string {
		return names(func(_ *Spec, l *target.Limits) {
			for i := range l.Flexible {
				change(&l.Flexible[i])
			}
		})
	}
	all := []string{"64x64x32/128", "128x128x32/128", "128x128x64/128", "128x128x32/256", "128x128x64/256", "256x128x64/256",
		"128x256x64/256"}
	assert.Equal(t, all, names(func(*Spec, *target.Limits) {}))
	assert.Equal(t, all[3:], each(func(f *target.FlexibleMatrix) { f.Invocations = 256 }), "each once")
	assert.Equal(t, all[:3], names(func(_ *Spec, l *target.Limits) { l.MaxInvocations = 128 }))
	assert.Equal(t, all[5:6], each(func(f *target.FlexibleMatrix) { f.M = 256 }))
	assert.Equal(t, all[6:], each(func(f *target.FlexibleMatrix) { f.N = 256 }))
	assert.Equal(t, []string{all[2], all[4], all[5], all[6]}, each(func(f *target.FlexibleMatrix) { f.K = 64 }))
	assert.Equal(t, all[:5], each(func(f *target.FlexibleMatrix) { f.Largest = 128 }))
	for what, none := range map[string][]string{
		"f32":          names(func(s *Spec, _ *target.Limits) { s.TypeA, s.TypeB = F32, F32 }),
		"grouped rows": names(func(s *Spec, _ *target.Limits) { s.Grouping, s.Groups, s.BatchStrideB = graph.GroupedRows, 4, s.N*s.K }),
		"grouped sums": names(func(s *Spec, _ *target.Limits) {
			s.Grouping, s.Groups, s.Batch, s.TransA = graph.GroupedSums, 4, 4, true
		}),
		"two types":       names(func(s *Spec, _ *target.Limits) { s.TypeB = BF16 }),
		"a large operand": names(func(s *Spec, _ *target.Limits) { s.Batch, s.BatchStrideB = 3, 1<<30 }),
		"odd strides":     names(func(s *Spec, _ *target.Limits) { s.Batch, s.BatchStrideA, s.BatchStrideB = 2, 1<<16, 1<<16+4 }),
		"an odd result":   names(func(s *Spec, _ *target.Limits) { s.Batch, s.M, s.N = 2, 129, 129 }),
		"a large result":  names(func(s *Spec, _ *target.Limits) { s.M, s.N, s.K = 1<<16, 1<<15, 8 }),
		"many":            names(func(s *Spec, l *target.Limits) { s.Batch = l.MaxDispatchDimension + 1 }),
		"no memory":       each(func(f *target.FlexibleMatrix) { f.Reserved = 1 << 20 }),
		"other results":   each(func(f *target.FlexibleMatrix) { f.Result = "f16" }),
		"nonsense":        each(func(f *target.FlexibleMatrix) { f.M, f.Invocations = 0, 0 }),
		"no such device":  names(func(_ *Spec, l *target.Limits) { l.Flexible = nil }),
	} {
		assert.Empty(t, none, what)
	}
	_, err := spirv.Assemble(matrix2Variants(s, flexibleLimits())[0].Passes[0].Source(), assemblyFeatures&^spirv.TensorAddressing)
	assert.ErrorContains(t, err, "the device has no TensorAddressingNV")
}

// Without timing, a kernel for tensor cores is chosen only if its text is WGSL, not assembly.
func TestMatrix2IsChosenByTiming(t *testing.T) {
	for _, d := range [][3]int{{4096, 4096, 4096}, {8192, 50257, 768}, {8192, 768, 768}, {1024, 1024, 1024}, {768, 768, 65536},
		{128, 128, 64}} {
		s := Spec{Product: Product{Batch: 1, M: d[0], N: d[1], K: d[2], TypeA: F16, TypeB: F16}}
		ks := Variants(s, flexibleLimits())
		assert.Equal(t, Variants(s, tensorLimits(square(16), 32, "f16"))[1].Name, ks[1].Name)
		first := slices.IndexFunc(ks, func(k Kernel) bool { return strings.HasPrefix(k.Name, "matrix2") })
		require.Positive(t, first)
		assert.True(t, slices.ContainsFunc(ks[first:], func(k Kernel) bool { return strings.HasPrefix(k.Name, "tile") }),
			fmt.Sprint("before all without tensor cores: ", d))
		for _, k := range Variants(s, on(flexibleLimits(), true)) {
			assert.NotContains(t, k.Name, "matrix2", "software computes by its own kernels")
		}
	}
}
