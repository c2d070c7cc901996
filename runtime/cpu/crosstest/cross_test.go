//go:build linux && cgo

package crosstest

import (
	"os/exec"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample returns some of the op cases, with at least one of each op, and some graphs.
func sample(every, graphs int) []devicetest.Task {
	var out []devicetest.Task
	for i, o := range graph.Catalogue() {
		for j, t := range devicetest.Cases(o) {
			if j == 0 || (i+j)%every == 0 {
				out = append(out, t)
			}
		}
	}
	all := devicetest.Graphs()
	for i := 0; i < len(all); i += every {
		out = append(out, all[i])
	}
	return append(append(out, devicetest.Chains(graphs)...), devicetest.MixedChains(graphs)...)
}

// check compares the results of tasks with the reference, with all variants of their kernels.
func check(t *testing.T, b build, tasks []devicetest.Task) {
	t.Helper()
	for _, r := range devicetest.Check(open(t, b), tasks) {
		assert.True(t, r.OK(), "%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
	}
}

// need fails without a command of these packages.
func need(t *testing.T, command, packages string) {
	t.Helper()
	_, err := exec.LookPath(command)
	require.NoError(t, err, "this test needs %s: install %s", command, packages)
}

// Kernels do what C leaves undefined nowhere, and access no memory but their arguments.
func TestSanitizers(t *testing.T) {
	need(t, "gcc", "gcc")
	sanitizers := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
	check(t, build{
		compiler: "gcc",
		flags:    append([]string{"-O1", "-g1", "-fno-omit-frame-pointer"}, sanitizers...),
		harness:  sanitizers,
		env:      []string{"ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0", "UBSAN_OPTIONS=print_stacktrace=1"},
	}, sample(6, 8))
}

// ARM's kernels are checked by an emulator.
func TestARM64(t *testing.T) {
	const packages = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static"
	need(t, "aarch64-linux-gnu-gcc", packages)
	need(t, "qemu-aarch64-static", packages)
	check(t, build{compiler: "aarch64-linux-gnu-gcc", runner: []string{"qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"}}, sample(8, 4))
}

// The same kernels are right without AVX, with AVX2, and by the other compiler.
func TestX86(t *testing.T) {
	need(t, "clang", "clang")
	for _, cpu := range []string{"x86-64", "haswell"} {
		t.Run(cpu, func(t *testing.T) { check(t, build{compiler: "clang", flags: []string{"-march=" + cpu}}, sample(8, 4)) })
	}
}
