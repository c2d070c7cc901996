package matmul

import (
	"os"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A small product has the bits of the kernel for larger ones: a row's sums do not depend on how many rows there are.
func TestSmallProductsHaveTheBitsOfOthers(t *testing.T) {
	b := newNativeBuild(t)
	var checks []func()
	specs := smallSpecs()
	require.NotEmpty(t, specs)
	for _, s := range tier.Divide(t, specs, tier.Every[Spec](3)) {
		c := newNativeCase(s)
		product := planNative(s.flat())
		small, other := b.add(t, product.smallKernel(), c), b.add(t, product.kernel("native", 1), c)
		checks = append(checks, func() {
			want, err := os.ReadFile(other)
			require.NoError(t, err)
			got, err := os.ReadFile(small)
			require.NoError(t, err)
			assert.True(t, slices.Equal(want, got), c.name)
		})
	}
	b.run(t, "gcc", fewerPasses, "-march=native")
	for _, check := range checks {
		check()
	}
}

// smallSpecs cover the properties of small products.
func smallSpecs() (out []Spec) {
	for _, u := range covering(nativeSpecs(nativeLimits), nativeLimits) {
		small := func(k Kernel) bool { return k.Name == "native small" }
		if u.Grouping == graph.Ungrouped && planNative(u.flat()).small() && slices.ContainsFunc(u.kernels, small) {
			out = append(out, u.Spec)
		}
	}
	return out
}

// A product is small if it is soon computed, has one order of sums, and its B fits the stack. CPUs that multiply bf16
// add in another order.
func TestWhichProductsAreSmall(t *testing.T) {
	first := func(s Spec, l target.Limits) string { return Variants(s, l)[1].Name }
	of := func(m, n, k int) Spec { return Spec{Product: Product{Batch: 1, M: m, N: n, K: k}} }
	assert.Equal(t, "native small", first(of(128, 128, 128), nativeLimits))
	assert.Equal(t, "native", first(of(128, 128, 129), nativeLimits))
	assert.Equal(t, "native", first(of(16, 256, 160), nativeLimits), "B on the stack")
	assert.Equal(t, "native vector", first(of(4, 64, 64), nativeLimits))
	parts := of(65, 32, 1000)
	parts.TransA = true
	assert.Equal(t, "native split 2", first(parts, nativeLimits))
	rounded := of(64, 64, 64)
	rounded.TypeA, rounded.TypeB = BF16, BF16
	assert.Equal(t, "native small", first(rounded, nativeLimits))
	square := of(24, 24, 64)
	square.Symmetric = true
	assert.NotEqual(t, "native small", first(square, nativeLimits))
	square.Shared = true
	assert.Equal(t, "native small", first(square, nativeLimits))
	for _, k := range Variants(rounded, target.Limits{Native: true, Cooperative: []target.CooperativeMatrix{target.AVX512}}) {
		assert.NotEqual(t, "native small", k.Name)
	}
}
