package matmul

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

type testCase struct {
	name   string
	spec   Spec
	limits target.Limits
}

// testCases covers all transposes and all kinds of sizes, with and without batches and epilogues.
func testCases() []testCase {
	wide := target.DefaultLimits()
	wide.MaxWorkgroupMemory, wide.MaxInvocations = 32768, 1024
	folded := target.DefaultLimits()
	folded.MaxDispatchDimension = 16
	narrow := target.DefaultLimits()
	narrow.MaxInvocations, narrow.MaxWorkgroupMemory = 64, 5120
	var out []testCase
	for n, d := range [][3]int{{128, 96, 64}, {33, 36, 100}, {100, 33, 7}, {1, 65, 40}, {67, 1, 33}, {5, 8, 300}} {
		for trans := range 4 {
			s := Spec{Product: Product{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0}}
			limits := []target.Limits{target.DefaultLimits(), wide, folded, narrow}[(n+trans)%4]
			if (n+trans)%3 == 0 {
				s.Batch, s.BatchStrideA, s.BatchStrideB = 3, d[0]*d[2], d[1]*d[2]+4*(n%2)
			}
			if (n+trans)%3 == 1 {
				s.Batch, s.BatchStrideA = 2, d[0]*d[2]+1
			}
			if trans%2 == n%2 {
				s.Declare = biased
			}
			out = append(out, testCase{fmt.Sprintf("%dx%dx%d,%v,%v", d[0], d[1], d[2], s.TransA, s.TransB), s, limits})
		}
	}
	long := Spec{Product: Product{Batch: 1, M: 40, N: 24, K: 2000, TransA: true}}
	out = append(out, groupedCases(wide, narrow)...)
	return append(out, testCase{"split", long, wide}, testCase{"split folded", long, folded})
}

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = r.Float32() - 0.5
	}
	return x
}

func wideFloats(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// reference computes the product with gonum, in float64.
func reference(s Spec, a, b, bias []float32) []float64 {
	if s.Grouping != graph.Ungrouped {
		return groupedReference(s, a, b, bias, groupRows(s))
	}
	shape := func(x []float64, rows, cols int, trans bool) (blas64.General, blas.Transpose) {
		if trans {
			return blas64.General{Rows: cols, Cols: rows, Stride: rows, Data: x}, blas.Trans
		}
		return blas64.General{Rows: rows, Cols: cols, Stride: cols, Data: x}, blas.NoTrans
	}
	wa, wb, c := wideFloats(a), wideFloats(b), make([]float64, s.Batch*s.M*s.N)
	for n := range s.Batch {
		ga, ta := shape(wa[n*s.BatchStrideA:], s.M, s.K, s.TransA)
		gb, tb := shape(wb[n*s.BatchStrideB:], s.K, s.N, s.TransB)
		out := c[n*s.M*s.N : (n+1)*s.M*s.N]
		blas64.Gemm(ta, tb, 1, ga, gb, 0, blas64.General{Rows: s.M, Cols: s.N, Stride: s.N, Data: out})
		if s.Declare != nil {
			for i := range out {
				out[i] = 2*out[i] + float64(i/s.N) + 100*float64(n) + float64(bias[i%s.N])
			}
		}
	}
	return c
}

func TestVariantsComputeTheProduct(t *testing.T) {
	type use struct {
		test string
		testCase
		Kernel
	}
	var uses []use
	core := map[string]bool{}
	cases := testCases()
	for _, software := range []bool{true, false} {
		few := spread(cases, software, onCasesOfTheCore)
		for n, ks := range spread(cases, software, onCases) {
			test := fmt.Sprintf("%s,software=%v", cases[n].name, software)
			for _, k := range few[n] {
				core[test+k.Name] = true
				if !slices.ContainsFunc(ks, func(other Kernel) bool { return other.Name == k.Name }) {
					ks = append(ks, k)
				}
			}
			for _, k := range ks {
				uses = append(uses, use{test, cases[n], k})
			}
		}
	}
	chosen := map[string][]Kernel{}
	tests := map[string]testCase{}
	for _, u := range tier.Divide(t, uses, func(_ int, u use) bool { return core[u.test+u.Kernel.Name] }) {
		chosen[u.test], tests[u.test] = append(chosen[u.test], u.Kernel), u.testCase
	}
	dev := testdevice.Translated(t)
	for _, test := range slices.Sorted(maps.Keys(chosen)) {
		t.Run(test, func(t *testing.T) { check(t, dev, tests[test], chosen[test], asIs) })
	}
}

// TestKindsOnADriver runs the shortest kernel of each kind for GPUs on an adapter, whose driver makes workgroup memory
// and barriers of what it is given.
func TestKindsOnADriver(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	type use struct {
		testCase
		Kernel
	}
	shortest := map[string]use{}
	for _, c := range testCases() {
		for _, k := range Variants(c.spec, on(c.limits, false)) {
			kind, _, _ := strings.Cut(k.Name, " ")
			kind = fmt.Sprint(kind, c.spec.Grouping, len(k.Passes))
			if u, ok := shortest[kind]; !ok || len(k.Passes[0].Source()) < len(u.Passes[0].Source()) {
				shortest[kind] = use{c, k}
			}
		}
	}
	assert.Greater(t, len(shortest), 5)
	ungrouped := func(_ int, kind string) bool { return shortest[kind].spec.Grouping == graph.Ungrouped }
	for _, kind := range tier.Divide(t, slices.Sorted(maps.Keys(shortest)), ungrouped) {
		u := shortest[kind]
		t.Run(kind, func(t *testing.T) { check(t, dev, u.testCase, []Kernel{u.Kernel}, asIs) })
	}
}

// On how many cases of each grouping a kernel runs. The core's are among all.
const (
	onCases          = 4
	onCasesOfTheCore = 2
)

// spread chooses the kernels to run on each case: each name on the given number of cases of each grouping, from the
// first to the last that have it, or on all. Each case has at least one.
func spread(cases []testCase, software bool, most int) (chosen [][]Kernel) {
	type use struct {
		at int
		Kernel
	}
	uses := map[string][]use{}
	for n, c := range cases {
		for _, k := range Variants(c.spec, on(c.limits, software)) {
			name := fmt.Sprint(c.spec.Grouping, k.Name)
			uses[name] = append(uses[name], use{n, k})
		}
	}
	chosen = make([][]Kernel, len(cases))
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		all := uses[name]
		n := len(all)
		if !*every {
			n = min(n, most)
		}
		for i := range n {
			u := all[i*len(all)/n]
			chosen[u.at] = append(chosen[u.at], u.Kernel)
		}
	}
	for n, c := range cases {
		if ks := Variants(c.spec, on(c.limits, software)); len(chosen[n]) == 0 {
			chosen[n] = ks[n%len(ks):][:1]
		}
	}
	return chosen
}

func requireClose(t testing.TB, k Kernel, want []float64, got []float32, terms int) {
	for i, w := range want {
		tolerance := 1e-6*math.Abs(w) + 3e-8*float64(terms)
		require.InDelta(t, w, got[i], tolerance, "%s: element %d\n%s", k.Name, i, k.Passes[len(k.Passes)-1].Source())
	}
}

func TestVariantsKeepTheLimits(t *testing.T) {
	cases := testCases()
	huge := Spec{Product: Product{Batch: 70000, M: 700, N: 129, K: 8, BatchStrideA: 5600}}
	cases = append(cases, testCase{"huge", huge, target.DefaultLimits()},
		testCase{"large", Spec{Product: Product{Batch: 1, M: 4096, N: 4096, K: 4096}}, target.DefaultLimits()})
	for _, c := range cases {
		for _, software := range []bool{true, false} {
			ks := Variants(c.spec, on(c.limits, software))
			if !software || c.spec.Grouping == graph.Ungrouped {
				require.Greater(t, len(ks), 1, c.name)
			}
			assert.Equal(t, "naive", ks[0].Name)
			names := map[string]bool{}
			for i, k := range ks {
				assert.False(t, names[k.Name], "%s: %s twice", c.name, k.Name)
				names[k.Name] = true
				assert.True(t, i < 2 || ks[i-1].Cost <= k.Cost, "%s: order of cost", c.name)
				checkLimits(t, c, k)
			}
		}
	}
}

// on returns the limits l as those of a software adapter or of a GPU.
func on(l target.Limits, software bool) target.Limits {
	l.Software = software
	return l
}

func checkLimits(t *testing.T, c testCase, k Kernel) {
	l := c.limits
	for _, p := range k.Passes {
		assert.LessOrEqual(t, max(p.Groups[0], p.Groups[1], p.Groups[2]), l.MaxDispatchDimension, k.Name)
		assert.LessOrEqual(t, p.Workgroup[0]*p.Workgroup[1]*p.Workgroup[2], l.MaxInvocations, k.Name)
		assert.LessOrEqual(t, p.Workgroup[0], l.MaxWorkgroupSize[0], k.Name)
		assert.LessOrEqual(t, p.Workgroup[1], l.MaxWorkgroupSize[1], k.Name)
		assert.LessOrEqual(t, p.WorkgroupMemory, l.MaxWorkgroupMemory, k.Name)
		for _, b := range p.Bindings {
			if b.Operand == Scratch {
				assert.Zero(t, b.Offset%256, k.Name)
				assert.Positive(t, b.Size, k.Name)
				assert.LessOrEqual(t, b.Offset+b.Size, k.Scratch, k.Name)
			}
		}
	}
}

func TestVariantsRefuseBadShapes(t *testing.T) {
	assert.Panics(t, func() { Variants(Spec{Product: Product{Batch: 1, M: 0, N: 1, K: 1}}, on(target.DefaultLimits(), true)) })
	assert.Panics(t, func() {
		Variants(Spec{Product: Product{Batch: 1, M: 1, N: 1, K: 1, BatchStrideB: -1}}, on(target.DefaultLimits(), true))
	})
}

// Every variant translates to MSL and HLSL.
func TestVariantsTranslate(t *testing.T) {
	tier.Rest(t)
	naga, err := exec.LookPath("naga")
	if err != nil {
		t.Skip("naga is not on PATH")
	}
	seen := map[string]bool{}
	for _, c := range testCases() {
		for _, software := range []bool{true, false} {
			for _, k := range Variants(c.spec, on(c.limits, software)) {
				for _, p := range k.Passes {
					if !seen[p.Source()] {
						seen[p.Source()] = true
						translate(t, naga, k.Name, p.Source())
					}
				}
			}
		}
	}
}

func translate(t *testing.T, naga, name, wgsl string) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.wgsl")
	require.NoError(t, os.WriteFile(in, []byte(wgsl), 0o600))
	out, err := exec.Command(naga, in, filepath.Join(dir, "out.metal"), filepath.Join(dir, "out.hlsl")).CombinedOutput()
	require.NoError(t, err, "%s: %s\n%s", name, out, wgsl)
}
