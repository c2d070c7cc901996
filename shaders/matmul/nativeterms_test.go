package matmul

import (
	"strings"
	"testing"
)

// BenchmarkNativeTerms compares products of f32 by AMX with those by vectors, on one thread. It prints ratios as
// BenchmarkNative does.
func BenchmarkNativeTerms(b *testing.B) {
	for _, s := range append(benchSpecs, []benchSpec{
		{"proj 384 NT", Spec{Batch: 1, M: 2048, N: 384, K: 384, TransB: true}},
		{"up 1024 NT", Spec{Batch: 1, M: 2048, N: 1024, K: 384, TransB: true}},
		{"down 1024 NT", Spec{Batch: 1, M: 2048, N: 384, K: 1024, TransB: true}},
		{"dw 384 TN", Spec{Batch: 1, M: 384, N: 384, K: 2048, TransA: true}},
		{"dw 1024 TN", Spec{Batch: 1, M: 1024, N: 384, K: 2048, TransA: true}},
		{"head NT", Spec{Batch: 1, M: 2048, N: 4096, K: 384, TransB: true}},
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
