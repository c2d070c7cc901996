package target_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/stretchr/testify/assert"
)

func TestFold(t *testing.T) {
	l := target.DefaultLimits()
	for n, want := range map[int][3]int{0: {1, 1, 1}, 1: {1, 1, 1}, 65535: {65535, 1, 1}, 65536: {32768, 2, 1}, 200001: {50001, 4, 1}} {
		got := l.Fold(n)
		assert.Equal(t, want, got, "%d workgroups", n)
		assert.GreaterOrEqual(t, got[0]*got[1], n)
	}
}

func TestLargestCooperative(t *testing.T) {
	product := func(m, n, k int, input, result string) target.CooperativeMatrix {
		return target.CooperativeMatrix{M: m, N: n, K: k, Input: input, Result: result}
	}
	l := target.Limits{Cooperative: []target.CooperativeMatrix{
		product(8, 8, 16, "f16", "f32"), product(16, 16, 16, "f16", "f32"), product(8, 8, 8, "f16", "f32"),
		product(32, 32, 32, "f16", "f32"), product(16, 16, 16, "bf16", "f16"),
	}}
	best, ok := l.LargestCooperative("f16")
	assert.True(t, ok)
	assert.Equal(t, product(16, 16, 16, "f16", "f32"), best)
	_, ok = l.LargestCooperative("bf16")
	assert.False(t, ok, "sums must be f32")
	assert.True(t, l.HasCooperative("bf16"))
	assert.False(t, l.HasCooperative("f32"))
}

func TestCooperativeTypes(t *testing.T) {
	c := target.CooperativeMatrix{M: 8, N: 8, K: 8, Input: "f16"}
	assert.Equal(t, "coop_mat8x8<f32, A>", c.WGSL("A"))
	assert.Equal(t, "enable wgpu_cooperative_matrix;\n", c.Directives())
	c = target.CooperativeMatrix{M: 8, N: 16, K: 16, Input: "bf16"}
	assert.Equal(t, "coop_mat16x16<f32, B>", c.WGSL("B"))
	assert.Equal(t, "enable wgpu_cooperative_matrix;\nenable gpupipe_bf16;\nenable gpupipe_matrices_8x16x16;\n", c.Directives())
	size, ok := target.ReadSizeDirective("enable gpupipe_matrices_8x16x16;\n")
	assert.True(t, ok)
	assert.Equal(t, target.CooperativeMatrix{M: 8, N: 16, K: 16}, size)
	for _, line := range []string{"enable gpupipe_matrices_8x16x32;\n", "enable gpupipe_matrices_8x16;\n", "enable f16;\n", "\n"} {
		_, ok := target.ReadSizeDirective(line)
		assert.False(t, ok, line)
	}
}
