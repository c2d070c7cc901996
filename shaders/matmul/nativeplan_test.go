package matmul

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// What the default kernel packs, as docs/BENCHMARKS.md measures: a B that exceeds a small cache where many rows use it
// or its rows share cache sets, and rows of A that share cache sets.
func TestNativePacking(t *testing.T) {
	for _, c := range []struct {
		name         string
		spec         Spec
		packA, packB bool
	}{
		{"a small B", Spec{Product: Product{M: 2048, N: 128, K: 352}}, false, false},
		{"a larger B", Spec{Product: Product{M: 2048, N: 384, K: 384}}, false, true},
		{"few rows", Spec{Product: Product{M: 128, N: 384, K: 384}}, false, false},
		{"of weights, small", Spec{Product: Product{M: 128, N: 352, K: 2048, TransA: true}}, true, false},
		{"of weights", Spec{Product: Product{M: 384, N: 384, K: 2048, TransA: true}}, true, true},
		{"of weights, rows of B in the same sets", Spec{Product: Product{M: 128, N: 1024, K: 2048, TransA: true}}, true, true},
		{"rows of A in the same sets", Spec{Product: Product{M: 2048, N: 384, K: 1024}}, true, true},
		{"few columns", Spec{Product: Product{M: 2048, N: 32, K: 1024}}, false, false},
		{"B transposed", Spec{Product: Product{M: 2048, N: 128, K: 352, TransB: true}}, false, true},
		{"bf16", Spec{Product: Product{M: 2048, N: 128, K: 352, TypeA: BF16, TypeB: BF16}}, true, true},
	} {
		c.spec.Batch = 1
		p := planNative(c.spec)
		assert.Equal(t, [2]bool{c.packA, c.packB}, [2]bool{p.packA, p.packB}, c.name)
	}
}
