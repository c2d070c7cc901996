//go:build linux && cgo

package crosstest

import (
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample returns some of the op cases, with at least one of each op, and some graphs.
func sample(every, graphs int) []compute.Task {
	var out []compute.Task
	for i, o := range op.Catalogue() {
		for j, t := range compute.Cases(o) {
			if j == 0 || (i+j)%every == 0 {
				out = append(out, t)
			}
		}
	}
	all := compute.Graphs()
	for i := 0; i < len(all); i += every {
		out = append(out, all[i])
	}
	return append(append(out, compute.Chains(graphs)...), compute.MixedChains(graphs)...)
}

// check compares the results of tasks with the reference, with all variants of their kernels, whose names it returns.
func check(t *testing.T, d device.Device, tasks []compute.Task) (names []string) {
	t.Helper()
	for _, r := range compute.Check(d, tasks) {
		assert.True(t, r.OK(), "%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
		names = append(names, r.Candidate)
	}
	return names
}

// sized reports whether a task's kernels have loops over tiles, whose edges depend on sizes. Those of products do, too:
// on x86 and with sanitizers they have tests of their own, in shaders/matmul.
func sized(t compute.Task) bool { return strings.Contains(t.Op, "attention") }

// sizedOrProduct is sized where products have no other tests.
func sizedOrProduct(t compute.Task) bool { return sized(t) || strings.Contains(t.Op, "matmul") }

// distinct leaves out tasks that add no statement. It keeps those chosen.
func distinct(d device.Device, tasks []compute.Task, keep func(compute.Task) bool) (out []compute.Task) {
	var others []compute.Task
	for _, t := range tasks {
		if keep(t) {
			out = append(out, t)
		} else {
			others = append(others, t)
		}
	}
	return append(out, compute.Novel(d, others)...)
}

// need fails without a command of these packages.
func need(t *testing.T, command, packages string) {
	t.Helper()
	_, err := exec.LookPath(command)
	require.NoError(t, err, "this test needs %s: install %s", command, packages)
}

// sanitized is gcc with its sanitizers.
func sanitized(t *testing.T) build {
	need(t, "gcc", "gcc")
	found, err := cpu.FindToolchain("")
	require.NoError(t, err)
	sanitizers := []string{"-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"}
	return build{compiler: "gcc", flags: append([]string{fewerPasses, "-g1"}, sanitizers...), harness: sanitizers,
		env: []string{"ASAN_OPTIONS=detect_leaks=0"}, matrices: found.Limits().Cooperative}
}

// fewerPasses compiles in less time than the device's -O2. What is tested is the text of kernels, not the optimizer.
const fewerPasses = "-O1"

// arm64 is a cross compiler and an emulator.
func arm64(t *testing.T) build {
	const packages = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static"
	need(t, "aarch64-linux-gnu-gcc", packages)
	need(t, "qemu-aarch64-static", packages)
	return build{compiler: "aarch64-linux-gnu-gcc", flags: []string{fewerPasses},
		runner: []string{"qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"}}
}

// arm64BF16 is arm64 with instructions for bf16.
func arm64BF16(t *testing.T) build {
	b := arm64(t)
	b.flags = []string{"-march=armv8.2-a+bf16"}
	b.runner = append([]string{b.runner[0], "-cpu", "max"}, b.runner[1:]...)
	b.matrices = []target.CooperativeMatrix{target.NEON}
	return b
}

// x86 is clang for a CPU.
func x86(t *testing.T, cpu string) build {
	need(t, "clang", "clang")
	return build{compiler: "clang", flags: []string{"-march=" + cpu, fewerPasses}}
}

// Kernels do nothing that C leaves undefined, and access no memory but their arguments.
func TestSanitizers(t *testing.T) {
	tier.Rest(t)
	d := open(t, sanitized(t))
	assert.Greater(t, len(check(t, d, distinct(d, sample(8, 6), sized))), 100)
}

func TestARM64(t *testing.T) {
	tier.Rest(t)
	d := open(t, arm64(t))
	assert.Greater(t, len(check(t, d, distinct(d, sample(12, 4), sizedOrProduct))), 100)
}

// Products of bf16 by instructions: edges of tiles, panels and steps, sums that are split, batches and transpositions.
// A and B are packed apart, so that with each size either is transposed once.
func TestProductsOfBF16OnARM64(t *testing.T) {
	tier.Rest(t)
	names := check(t, open(t, arm64BF16(t)), productsOfBF16())
	assert.Contains(t, names, "native neon bf16")
	assert.Contains(t, names, "native neon bf16 split 4")
}

func productsOfBF16() (out []compute.Task) {
	for _, t := range compute.Cases(new(op.MatMulOp)) {
		if strings.Contains(t.Name, "bf16") {
			out = append(out, t)
		}
	}
	for i, d := range [][3]int{{24, 16, 64}, {29, 35, 77}, {48, 47, 2050}} {
		for _, transA := range []bool{false, true} {
			o := &op.MatMulOp{TransA: transA, TransB: transA == (i%2 == 0)}
			a, b := graph.Shape{d[0], d[2]}, graph.Shape{d[2], d[1]}
			if o.TransA {
				slices.Reverse(a)
			}
			if o.TransB {
				slices.Reverse(b)
			}
			out = append(out, compute.Case(graph.Case{Op: o, Tolerance: 1e-5, NoGrad: true,
				Inputs: []graph.Type{graph.T(graph.BF16, a...), graph.T(graph.BF16, b...)}}))
		}
	}
	return out
}

// The same text serves CPUs without AVX and with AVX2, and another compiler. Both run the ops whose kernels are made
// for vectors of a size, and divide the others.
func TestX86(t *testing.T) {
	tier.Rest(t)
	tasks, keep := sample(12, 4), sized
	if runtime.GOARCH != "amd64" { // shaders/matmul tests old CPUs on x86 alone
		keep = sizedOrProduct
	}
	for i, cpu := range []string{"x86-64", "haswell"} {
		t.Run(cpu, func(t *testing.T) {
			var some []compute.Task
			d := open(t, x86(t, cpu))
			for j, task := range tasks {
				if j%2 == i || keep(task) {
					some = append(some, task)
				}
			}
			check(t, d, distinct(d, some, keep))
		})
	}
}

// What a kernel does wrong is the error of its run, and the device goes on.
func TestFaultsAreFound(t *testing.T) {
	tier.Rest(t)
	const good = "u32 *x = args[0].at; for (u32 i = 0; i < args[0].bytes / 4; i++) x[i]++;"
	faults := []struct{ name, body, sanitized, guarded string }{
		{"reads behind", "u32 *x = args[0].at; x[0] = x[args[0].bytes / 4 + group];", "heap-buffer-overflow", ""},
		{"reads a page behind", "u32 *x = args[0].at; x[0] = x[args[0].bytes / 4 + 16 + group];", "AddressSanitizer", "signal"},
		{"reads before", "u32 *x = args[0].at; x[0] = x[-1 - (int)group];", "heap-buffer-overflow", ""},
		{"writes behind", "u32 *x = args[0].at; x[args[0].bytes / 4] = group;", "heap-buffer-overflow",
			"a kernel has written behind its buffer"},
		{"leaves a private array", "u32 y[4] = {0}; u32 *x = args[0].at; for (u32 i = 0; i <= args[0].bytes / 4; i++) y[i] = i; x[0] = y[x[1] & 3];", "error", ""},
		{"overflows", "i32 *x = args[0].at; x[0] = x[1] + 0x7fffffff + 1;", "kernel.c:4:", ""},
		{"shifts too far", "i32 *x = args[0].at; x[0] = x[1] << (x[1] + 32);", "shift exponent", ""},
		{"reads a misaligned vector", "v4f32 *x = (void *)((char *)args[0].at + 4); f32 *y = args[0].at; y[0] += x[0][1];",
			"misaligned address", ""},
		{"divides by zero", "i32 *x = args[0].at; x[0] = 1 / x[1];", "division by zero", ""},
		{"converts too large a float", "f32 *y = args[0].at; i32 *x = args[0].at; x[0] = (i32)(y[0] * 0.f + 1e20f);",
			"outside the range of representable values", ""},
	}
	for name, b := range map[string]build{"sanitized": sanitized(t), "guarded": x86(t, "x86-64"), "arm64": arm64(t)} {
		t.Run(name, func(t *testing.T) {
			d := open(t, b)
			for _, f := range faults {
				require.NoError(t, dispatch(t, d, good))
				want := f.guarded
				if name == "sanitized" {
					want = f.sanitized
				}
				if err := dispatch(t, d, f.body); want != "" {
					require.ErrorContains(t, err, want, f.name)
				}
			}
		})
	}
}

// dispatch runs a kernel of two workgroups with one argument of 20 bytes.
func dispatch(t *testing.T, d device.Device, body string) error {
	t.Helper()
	b, err := d.Alloc("b", 20)
	require.NoError(t, err)
	defer b.Release()
	l, err := d.Load(&device.Program{Label: "one",
		Commands: []device.Command{{Args: []device.Range{{Buffer: b, Size: 20}}, Groups: [3]int{2, 1, 1}}},
		Shaders: []device.Shader{{Label: "kernel", Workgroup: [3]int{1, 1, 1}, Bindings: make([]device.Access, 1),
			Source: target.C + "\nKERNEL {\nfor (u32 group = first; group < last; group++) {\n" + body + "\n}\n}\n"}}})
	require.NoError(t, err)
	defer l.Release()
	return d.Run(l)
}
