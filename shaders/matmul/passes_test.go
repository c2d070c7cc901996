package matmul

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// trainingSpecs are the products of a layer and of the head, forward and backward.
func trainingSpecs(tokens, dim, hidden, vocab int) (out []benchSpec) {
	add := func(label string, m, n, k int, transA, transB bool) {
		out = append(out, benchSpec{fmt.Sprintf("%s %dx%dx%d", label, m, n, k),
			Spec{Product: Product{Batch: 1, M: m, N: n, K: k, TransA: transA, TransB: transB, TypeA: BF16, TypeB: BF16}}})
	}
	for _, w := range [][2]int{{dim, dim}, {dim, hidden}, {hidden, dim}, {dim, vocab}} {
		in, o := w[0], w[1]
		add("y", tokens, o, in, false, true)
		add("dx", tokens, in, o, false, false)
		add("dw", o, in, tokens, true, false)
	}
	return out
}

// BenchmarkPasses times each pass of the products of bf16 in training, on one thread. It prints GFLOP/s with packing,
// µs of each pass, and GFLOP/s of the last one.
func BenchmarkPasses(b *testing.B) {
	for _, w := range []struct {
		name               string
		dim, hidden, vocab int
	}{{"A", 128, 352, 256}, {"B", 384, 1024, 4096}, {"smollm2-135m", 576, 1536, 49152}} {
		b.Run(w.name, func(b *testing.B) {
			build := newNativeBuild(b)
			var args []string
			for _, s := range trainingSpecs(2048, w.dim, w.hidden, w.vocab) {
				r := rand.New(rand.NewPCG(1, 2))
				c := nativeCase{spec: s.Spec, want: make([]float64, s.M*s.N), bias: make([]float32, s.N)}
				c.a, _ = operand(r, BF16, s.M*s.K)
				c.b, _ = operand(r, BF16, s.N*s.K)
				for _, k := range pairVariants(s.Spec, thisCPU(b)) {
					file := strings.TrimSuffix(build.add(b, k, c), ".out")
					args = append(args, fmt.Sprintf("%s:%s %s:%f", file, s.name, strings.TrimPrefix(k.Name, "native "), s.flops()/1e9))
				}
			}
			program := build.link(b, "gcc", "passes.c", nil, "-O2", "-ftree-vectorize", "-march=native", "-mprefer-vector-width=512")
			cmd := exec.Command(program, args...)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			require.NoError(b, cmd.Run())
		})
	}
}
