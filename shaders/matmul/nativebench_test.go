package matmul

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkNative compares the kernels with OpenBLAS, if the machine has it, on one and two threads each. It prints
// ratios of times, those above 1 for kernels that are faster.
func BenchmarkNative(b *testing.B) {
	heads := func(m, n, k int, transA, transB bool) Spec {
		return Spec{Product: Product{Batch: 16, M: m, N: n, K: k, TransA: transA, TransB: transB, BatchStrideA: m * k, BatchStrideB: k * n}}
	}
	for _, s := range append(benchSpecs, []benchSpec{
		{"proj NN", Spec{Product: Product{Batch: 1, M: 2048, N: 128, K: 128}}},
		{"heads QKt", heads(128, 128, 32, false, true)},
		{"heads PV", heads(128, 32, 128, false, false)},
		{"heads dK", heads(128, 32, 128, true, false)},
		{"generate large NN", Spec{Product: Product{Batch: 1, M: 1, N: 1536, K: 576}}},
		{"generate large NT", Spec{Product: Product{Batch: 1, M: 1, N: 1536, K: 576, TransB: true}}},
		{"generate 4 NT", Spec{Product: Product{Batch: 1, M: 4, N: 1536, K: 576, TransB: true}}},
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
	cmd := exec.Command(b.link(t, "gcc", "bench.c", []string{"-lopenblas", "-lpthread"}, "-O2", "-ftree-vectorize", "-march=native",
		"-mprefer-vector-width=512"), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	require.NoError(t, cmd.Run())
}

// BenchmarkNativeBF16 compares the kernels for operands of bf16 with the first one for the same product of f32. It
// prints ratios as BenchmarkNative does.
func BenchmarkNativeBF16(b *testing.B) {
	for _, s := range append(benchSpecs, benchSpec{"2048x128x352 NN", Spec{Product: Product{Batch: 1, M: 2048, N: 128, K: 352}}}) {
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

// BenchmarkNativeTerms compares products of f32 by AMX with those by vectors, on one thread. It prints ratios as
// BenchmarkNative does.
func BenchmarkNativeTerms(b *testing.B) {
	for _, s := range append(benchSpecs, []benchSpec{
		{"proj 384 NT", Spec{Product: Product{Batch: 1, M: 2048, N: 384, K: 384, TransB: true}}},
		{"up 1024 NT", Spec{Product: Product{Batch: 1, M: 2048, N: 1024, K: 384, TransB: true}}},
		{"down 1024 NT", Spec{Product: Product{Batch: 1, M: 2048, N: 384, K: 1024, TransB: true}}},
		{"dw 384 TN", Spec{Product: Product{Batch: 1, M: 384, N: 384, K: 2048, TransA: true}}},
		{"dw 1024 TN", Spec{Product: Product{Batch: 1, M: 1024, N: 384, K: 2048, TransA: true}}},
		{"head NT", Spec{Product: Product{Batch: 1, M: 2048, N: 4096, K: 384, TransB: true}}},
	}...) {
		b.Run(s.name, func(b *testing.B) {
			build, c := newNativeBuild(b), newNativeCase(s.Spec)
			other := strings.TrimSuffix(build.add(b, Variants(c.spec, nativeLimits)[1], c), ".out")
			args := []string{"1"}
			for _, k := range termVariants(s.Spec, thisCPU(b)) {
				args = append(args, benchLine(strings.TrimSuffix(build.add(b, k, c), ".out")+"+"+other, "1", s, k))
			}
			build.bench(b, args)
		})
	}
}
