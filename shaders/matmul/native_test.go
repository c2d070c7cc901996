package matmul

import (
	"bytes"
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
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var nativeLimits = target.Limits{Native: true} // of a CPU without instructions for matrices

// thisCPU returns the limits of the machine's CPU.
func thisCPU(t testing.TB) target.Limits {
	found, err := cpu.FindToolchain(t.TempDir())
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
// epilogues, sums that are split, and few rows.
func nativeSpecs() []Spec {
	var out []Spec
	for n, d := range [][3]int{
		{24, 32, 16}, {12, 16, 8}, {1, 1, 1}, {13, 33, 5}, {37, 48, 130}, {100, 96, 100}, {61, 15, 31}, {5, 80, 64}, {7, 300, 9},
		{1, 640, 300}, {2, 70, 33}, {3, 129, 2100}, {4, 33, 64}, {50, 31, 512}, {130, 260, 700}, {48, 64, 2048}, {33, 47, 1500},
	} {
		for trans := range 4 {
			s := Spec{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0}
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
				s.EpilogueC = testEpilogue(s.TypeC)
			}
			out = append(out, s)
		}
	}
	shared := Spec{Batch: 4, M: 9, N: 50, K: 70, BatchStrideA: 630, EpilogueC: testEpilogue(F32)}
	few := Spec{Batch: 3, M: 1, N: 100, K: 64, TransB: true, BatchStrideA: 64, TypeC: BF16, EpilogueC: testEpilogue(BF16)}
	out = append(out, pairSpecs()...)
	out = append(out, groupedSpecs()...)
	out = append(out, termSpecs()...)
	return append(out, shared, few, Spec{Batch: 3, M: 16, N: 32, K: 24, BatchStrideA: 384}, Spec{Batch: 2, M: 30, N: 20, K: 10, TransA: true, BatchStrideA: 300})
}

// pairSpecs are products of bf16 with bf16, for which CPUs have instructions: edges of tiles of 12 and 16 rows, of panels of
// 8 and 32 columns, and of steps of 2 and 32.
func pairSpecs() (out []Spec) {
	for n, d := range [][3]int{
		{1, 1, 1}, {12, 32, 64}, {32, 64, 96}, {33, 33, 33}, {16, 16, 31}, {61, 80, 1}, {7, 8, 62}, {45, 100, 515}, {96, 256, 1100}, {30, 72, 2050},
	} {
		for trans := range 4 {
			s := Spec{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0, TypeA: BF16, TypeB: BF16}
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
				s.EpilogueC = testEpilogue(s.TypeC)
			}
			out = append(out, s)
		}
	}
	return out
}

// termSpecs are products of f32 of which AMX computes the terms: edges of tiles of 16 rows and of cells of 32, k's at once
// and in blocks, sums that are split, a B that is packed once or by each group, and epilogues with all of them.
func termSpecs() (out []Spec) {
	for n, d := range [][3]int{{32, 64, 96}, {45, 100, 70}, {130, 80, 200}, {64, 48, 1100}, {97, 50, 1100}, {70, 530, 1000}, {33, 528, 1024}} {
		for trans := range 4 {
			s := Spec{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0}
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
				s.EpilogueC = testEpilogue(s.TypeC)
			}
			out = append(out, s)
		}
	}
	for n, d := range [][2]int{{96, 64}, {70, 40}, {112, 600}, {400, 100}, {45, 520}} {
		s := Spec{Batch: 2, M: d[0], N: d[0], K: d[1], TransA: n%2 == 0, TransB: n%2 != 0, Shared: true, Symmetric: true, BatchStrideA: d[0] * d[1], BatchStrideB: d[0] * d[1]}
		other := s
		other.TransA, other.TransB, other.EpilogueC = s.TransB, s.TransA, testEpilogue(F32)
		out = append(out, s, other)
	}
	return out
}

// testEpilogue is C for 2·acc + i + 100·b + bias[j], rounded to TypeC.
func testEpilogue(c Element) func([]Binding) string {
	return func(own []Binding) string {
		value := fmt.Sprintf("2.0f * acc + (f32)i + 100.0f * (f32)b + ((const f32 *)args[%d].at)[j]", len(own))
		if c == F32 {
			return "static inline f32 epilogue(const gp_arg *args, f32 acc, u32 b, u32 i, u32 j) { return " + value + "; }"
		}
		return "static inline u32 epilogue(const gp_arg *args, f32 acc, u32 b, u32 i, u32 j) {\n" +
			"union { f32 f; u32 u; } x = {" + value + "};\nreturn (x.u + 0x7fff + (x.u >> 16 & 1)) >> 16;\n}"
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

func newNativeCase(s Spec) nativeCase {
	r := rand.New(rand.NewPCG(uint64(s.M), uint64(s.K)))
	c := nativeCase{spec: s, bias: random(r, s.N), rows: groupRows(s)}
	c.name = fmt.Sprintf("%dx%dx%dx%d,%v%v,%v%v%v", s.Batch, s.M, s.N, s.K, s.TransA, s.TransB, s.TypeA, s.TypeB, s.TypeC)
	var a, b []float32
	c.a, a = operand(r, s.TypeA, s.M*s.K+(s.Batch-1)*s.BatchStrideA)
	c.b, b = operand(r, s.TypeB, s.N*s.K+(max(s.Batch, s.Groups)-1)*s.BatchStrideB)
	if s.Symmetric {
		c.b, b = c.a, a
	}
	if s.EpilogueC != nil {
		s.Epilogue = func(_, _, _, _ string) (string, string) { return "", "" } // for the reference
	}
	if s.Grouping != graph.Ungrouped {
		c.name += fmt.Sprintf(",%d groups %v", s.Grouping, c.rows)
	}
	c.want = reference(s, a, b, c.bias)
	return c
}

// nativeBuild collects kernels to compile into one program.
type nativeBuild struct {
	dir      string
	prelude  string
	kernels  []string // each text once
	commands []string // files of the passes to run
}

func newNativeBuild(t testing.TB) *nativeBuild {
	prelude, err := filepath.Abs("testdata/prelude.h")
	require.NoError(t, err)
	return &nativeBuild{dir: t.TempDir(), prelude: prelude}
}

// kernel returns the index of a kernel's text. Passes of equal text, such as those that pack, share one kernel.
func (b *nativeBuild) kernel(text string) int {
	if i := slices.Index(b.kernels, text); i >= 0 {
		return i
	}
	b.kernels = append(b.kernels, text)
	return len(b.kernels) - 1
}

// add writes the file that runs a kernel on a case's operands, and returns the name of its results.
func (b *nativeBuild) add(t testing.TB, k Kernel, c nativeCase) string {
	var f bytes.Buffer
	number := func(x ...int) {
		for _, v := range x {
			require.NoError(t, binary.Write(&f, binary.LittleEndian, uint32(v)))
		}
	}
	size := 4
	if c.spec.TypeC.Float16() {
		size = 2
	}
	buffers := [][]byte{A: c.a, B: c.b, C: make([]byte, size*len(c.want)), Scratch: make([]byte, k.Scratch)}
	bias, err := binary.Append(nil, binary.LittleEndian, c.bias)
	require.NoError(t, err)
	var offsets []byte
	for _, x := range offsetsOf(c.rows) {
		offsets = binary.LittleEndian.AppendUint32(offsets, x)
	}
	buffers = append(buffers, offsets, bias)
	number(len(buffers))
	for _, x := range buffers {
		number(len(x))
		f.Write(append(x[:len(x):len(x)], make([]byte, -len(x)&3)...))
	}
	number(len(k.Passes))
	for _, p := range k.Passes {
		bindings := p.Bindings
		if p.Epilogue {
			bindings = append(bindings[:len(bindings):len(bindings)], Binding{Operand: Offsets + 1})
		}
		number(b.kernel(p.WGSL), p.Groups[0]*p.Groups[1]*p.Groups[2], len(bindings))
		for _, x := range bindings {
			if x.Operand != Scratch {
				x.Size = len(buffers[x.Operand])
			}
			number(int(x.Operand), x.Offset, x.Size)
		}
	}
	name := filepath.Join(b.dir, fmt.Sprintf("run%d", len(b.commands)))
	require.NoError(t, os.WriteFile(name, f.Bytes(), 0o600))
	b.commands = append(b.commands, name)
	return name + ".out"
}

// run compiles all kernels and runs them.
func (b *nativeBuild) run(t testing.TB, cc string, flags ...string) {
	out, err := exec.Command(b.link(t, cc, "run.c", nil, flags...), b.commands...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// link compiles all kernels and links them with the main program of testdata.
func (b *nativeBuild) link(t testing.TB, cc, main string, libraries []string, flags ...string) string {
	flags = append(flags, "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
		"-fopenmp-simd", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Wno-psabi", "-Wno-unknown-warning-option", "-Wno-aggressive-loop-optimizations", "-Werror")
	table := "#include \"prelude.h\"\ntypedef void kernel(const gp_arg *, u32, u32, const u32 *);\n"
	var list strings.Builder
	objects := make([]string, len(b.kernels))
	errs := make([]error, len(b.kernels))
	var wait sync.WaitGroup
	slots := make(chan bool, 2)
	for i, text := range b.kernels {
		table += fmt.Sprintf("kernel gp_%d;\n", i)
		fmt.Fprintf(&list, "gp_%d, ", i)
		file := filepath.Join(b.dir, fmt.Sprintf("kernel%d.c", i))
		objects[i] = file + ".o"
		head := fmt.Sprintf("#define KERNEL void gp_%d(const gp_arg *args, u32 first, u32 last, const u32 *grid)\n", i)
		require.NoError(t, os.WriteFile(file, []byte("#include \""+b.prelude+"\"\n"+head+text), 0o600))
		wait.Go(func() {
			slots <- true
			out, err := exec.Command(cc, append(flags, "-c", "-o", objects[i], file)...).CombinedOutput()
			if err != nil {
				errs[i] = fmt.Errorf("%w: %s", err, out)
			}
			<-slots
		})
	}
	wait.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	file, program := filepath.Join(b.dir, "table.c"), filepath.Join(b.dir, "program")
	require.NoError(t, os.WriteFile(file, []byte(table+"kernel *kernels[] = {"+list.String()+"};\n"), 0o600))
	args := append(flags, "-I", filepath.Dir(b.prelude), "-o", program, filepath.Join(filepath.Dir(b.prelude), main), file)
	out, err := exec.Command(cc, append(append(args, objects...), libraries...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
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
		if c.spec.TypeC == BF16 {
			tolerance += math.Abs(w) / 256
		}
		if !assert.InDelta(t, w, got[i], tolerance, "%s: %s: element %d", c.name, k.Name, i) {
			return
		}
	}
}

// testNative checks the kernels of products. The naive one has no tiles, so every fourth product is enough for it.
func testNative(t *testing.T, specs []Spec, l target.Limits, cc string, flags ...string) {
	b := newNativeBuild(t)
	var checks []func()
	for i, s := range specs {
		c := newNativeCase(s)
		for _, k := range Variants(s, l) {
			if k.Name == "naive" && (i+i/4)%4 > 0 {
				continue
			}
			file := b.add(t, k, c)
			checks = append(checks, func() { checkNative(t, c, k, file) })
		}
	}
	b.run(t, cc, flags...)
	for _, check := range checks {
		check()
	}
}

// everyFourth returns a quarter of the products, of all transpositions.
func everyFourth(from int) (out []Spec) {
	for i, s := range nativeSpecs() {
		if (i+i/4)%4 == from {
			out = append(out, s)
		}
	}
	return out
}

// TestNativeComputesTheProduct checks every product on this CPU, together with TestNativeStaysInsideItsArrays: two
// quarters by the device's flags, and one by clang.
func TestNativeComputesTheProduct(t *testing.T) {
	device := []string{"-O3", "-march=native", "-mprefer-vector-width=512"}
	for _, quarter := range []int{1, 2} {
		testNative(t, everyFourth(quarter), thisCPU(t), "gcc", device...)
	}
	if _, err := exec.LookPath("clang"); err != nil {
		t.Log("no clang on this machine: only gcc was checked")
		testNative(t, everyFourth(0), thisCPU(t), "gcc", device...)
		return
	}
	testNative(t, everyFourth(0), thisCPU(t), "clang", fewerPasses, "-march=native")
}

// fewerPasses compiles in less time than the device's -O3. The tests that use it are of the text of kernels, not of the
// optimizer.
const fewerPasses = "-O1"

// Vectors of 32 and of 16 bytes have register tiles of their own.
func TestNativeComputesTheProductOnOldCPUs(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Log("the flags are those of amd64")
		return
	}
	testNative(t, everyFourth(1), nativeLimits, "gcc", fewerPasses, "-march=x86-64-v3")
	testNative(t, everyFourth(2), nativeLimits, "gcc", fewerPasses, "-march=x86-64")
}

func TestNativeStaysInsideItsArrays(t *testing.T) {
	testNative(t, everyFourth(3), thisCPU(t), "gcc", fewerPasses, "-march=native", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
}

// Sizes of groups, blocks and passes are multiples of the sizes that they are made of, and depend on the shape alone.
func TestNativeKernelsKeepTheirLimits(t *testing.T) {
	specs := nativeSpecs()
	for _, s := range benchSpecs {
		specs = append(specs, s.Spec)
	}
	for _, s := range append(specs, Spec{Batch: 1, M: 384, N: 1536, K: 2048, EpilogueC: testEpilogue(F32)}, Spec{Batch: 70, M: 700, N: 129, K: 8},
		Spec{Batch: 1, M: 4096, N: 50000, K: 576, TransB: true}) {
		ks := Variants(s, target.Limits{Native: true, Cooperative: []target.CooperativeMatrix{target.AMX, target.AVX512, target.NEON}})
		assert.Equal(t, "naive", ks[0].Name)
		names := map[string]bool{}
		for i, k := range ks {
			assert.False(t, names[k.Name], "%s twice", k.Name)
			names[k.Name] = true
			assert.True(t, i < 2 || ks[i-1].Cost <= k.Cost, "order of cost")
			for _, p := range k.Passes {
				assert.True(t, strings.HasPrefix(p.WGSL, target.C+"\n"))
				own := 3
				if s.Grouping != graph.Ungrouped {
					own = 4
				}
				assert.True(t, len(p.Bindings) == own || !p.Epilogue, "the epilogue's bindings follow")
				for _, b := range p.Bindings {
					assert.Zero(t, b.Offset%256, k.Name)
					assert.LessOrEqual(t, b.Offset+b.Size, k.Scratch, k.Name)
				}
			}
		}
		if s.Grouping != graph.Ungrouped {
			p := planGrouped(s)
			assert.LessOrEqual(t, 4*(p.block*p.steps+p.block*p.columns), 256<<10, "bytes on the stack of a thread")
			terms := planGroupedTerms(s)
			assert.Zero(t, terms.rows%terms.block+terms.block%cellSide+terms.columns%cellSide+terms.steps%cellSide, "%+v", s)
			assert.LessOrEqual(t, (terms.block+cellSide)*terms.steps/cellSide/cellSide*cellBytes+4*terms.block*terms.columns, 512<<10, "bytes on the stack, %+v", s)
			continue
		}
		for _, u := range matrixUnits {
			p := planPairs(s, u)
			assert.Zero(t, p.rows%p.block+p.columns%panelColumns+p.steps%32, "%s %+v", u.name, s)
			assert.True(t, p.splits == 1 || p.split%32 == 0 && p.split*(p.splits-1) < s.K)
			assert.LessOrEqual(t, 2*p.block*(p.steps+pairPad)+4*p.block*p.columns, 100<<10, "bytes on the stack")
		}
		p := planTerms(s)
		assert.Zero(t, p.rows%p.block+p.block%cellSide+p.columns%cellSide+p.steps%cellSide, "%+v", s)
		assert.True(t, p.splits == 1 || p.split%cellSide == 0 && p.split*(p.splits-1) < s.K)
		bytes := (p.block + cellSide) * p.steps / cellSide / cellSide * cellBytes
		switch {
		case p.splits == 1 && s.EpilogueC == nil && s.M%16 == 0 && s.N%16 == 0:
		case p.split <= p.steps:
			bytes += 4 * p.block * cellSide
		default:
			bytes += 4 * p.block * p.columns
		}
		assert.LessOrEqual(t, bytes, 512<<10, "bytes on the stack of a thread, %+v", s)
		n := planNative(s)
		assert.Zero(t, n.rows%n.block+n.block%tileRows+n.columns%panelColumns)
		stack := 0 // floats
		if n.packA {
			stack += n.block * n.steps
		}
		if inPlace := s.EpilogueC == nil && s.N%16 == 0 || n.splits > 1; !inPlace {
			stack += n.block * n.columns
		}
		assert.LessOrEqual(t, 4*stack, 256<<10, "bytes on the stack of a thread")
		assert.GreaterOrEqual(t, n.count(n.rows), min(leastGroups/2, int(s.flops()/groupFlops)), "%+v", s)
	}
}

// BenchmarkNative compares the kernels with OpenBLAS, if the machine has it, on one and two threads each. It prints ratios of
// times, those above 1 for kernels that are faster.
func BenchmarkNative(b *testing.B) {
	heads := func(m, n, k int, transA, transB bool) Spec {
		return Spec{Batch: 16, M: m, N: n, K: k, TransA: transA, TransB: transB, BatchStrideA: m * k, BatchStrideB: k * n}
	}
	for _, s := range append(benchSpecs, []benchSpec{
		{"proj NN", Spec{Batch: 1, M: 2048, N: 128, K: 128}},
		{"heads QKt", heads(128, 128, 32, false, true)},
		{"heads PV", heads(128, 32, 128, false, false)},
		{"heads dK", heads(128, 32, 128, true, false)},
		{"generate large NN", Spec{Batch: 1, M: 1, N: 1536, K: 576}},
		{"generate large NT", Spec{Batch: 1, M: 1, N: 1536, K: 576, TransB: true}},
		{"generate 4 NT", Spec{Batch: 1, M: 4, N: 1536, K: 576, TransB: true}},
	}...) {
		for _, threads := range []string{"1", "2"} {
			b.Run(s.name+"/threads="+threads, func(b *testing.B) { benchNative(b, s, threads) })
		}
	}
}

func benchNative(b *testing.B, s benchSpec, threads string) {
	build := newNativeBuild(b)
	args := []string{threads}
	c := newNativeCase(s.Spec)
	for _, k := range Variants(s.Spec, nativeLimits)[1:] {
		args = append(args, benchLine(strings.TrimSuffix(build.add(b, k, c), ".out"), threads, s, k))
	}
	build.bench(b, args)
}

// benchLine is an argument of the program that times kernels.
func benchLine(file, threads string, s benchSpec, k Kernel) string {
	number := map[bool]int{true: 1}
	return fmt.Sprintf("%s:%s %s %s:%d:%d:%d:%d:%d:%d:%d:%d", file, threads, s.name, k.Name, s.M, s.N, s.K,
		number[s.TransA], number[s.TransB], s.Batch, s.BatchStrideA, s.BatchStrideB)
}

func (b *nativeBuild) bench(t testing.TB, args []string) {
	cmd := exec.Command(b.link(t, "gcc", "bench.c", []string{"-lopenblas", "-lpthread"}, "-O3", "-march=native", "-mprefer-vector-width=512"), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	require.NoError(t, cmd.Run())
}

// BenchmarkNativeBF16 compares the kernels for operands of bf16 with the first one for the same product of f32. It prints
// ratios as BenchmarkNative does.
func BenchmarkNativeBF16(b *testing.B) {
	for _, s := range append(benchSpecs, benchSpec{"2048x128x352 NN", Spec{Batch: 1, M: 2048, N: 128, K: 352}}) {
		for _, threads := range []string{"1", "2"} {
			b.Run(s.name+"/threads="+threads, func(b *testing.B) {
				build, wide := newNativeBuild(b), newNativeCase(s.Spec)
				other := build.add(b, Variants(wide.spec, nativeLimits)[1], wide)
				s.TypeA, s.TypeB = BF16, BF16
				c, args := newNativeCase(s.Spec), []string{threads}
				for _, k := range Variants(s.Spec, thisCPU(b))[1:] {
					file := strings.TrimSuffix(build.add(b, k, c), ".out") + "+" + strings.TrimSuffix(other, ".out")
					args = append(args, benchLine(file, threads, s, k))
				}
				build.bench(b, args)
			})
		}
	}
}
