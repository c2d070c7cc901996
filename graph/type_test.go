package graph_test

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/stretchr/testify/assert"
)

func TestRealsAsText(t *testing.T) {
	for want, x := range map[string]float64{"33554432": 1 << 25, "-1000000": -1e6, "1e+30": 1e30, "0.1": 0.1, "1e-05": 1e-5, "0": 0,
		"NaN": math.NaN(), "+Inf": math.Inf(1)} {
		assert.Equal(t, want, graph.Real(x).String())
	}
}

func TestRound(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		d       graph.DType
		x, want float64
	}{
		{graph.F32, 0.1, float64(float32(0.1))},
		{graph.F32, 1e39, inf},
		{graph.F16, 65504, 65504},
		{graph.F16, 65519, 65504},
		{graph.F16, 65520, inf},
		{graph.F16, -1e9, -inf},
		{graph.F16, 1 + 0x1p-11, 1},           // a tie goes to even
		{graph.F16, 1 + 0x3p-11, 1 + 0x1p-9},  // and here up
		{graph.F16, 0x1p-24, 0x1p-24},         // the least subnormal
		{graph.F16, 0x1p-25, 0},               // a tie goes to zero
		{graph.F16, 0x1.8p-25, 0x1p-24},       // beyond it up
		{graph.F16, 0x1.ff8p-15, 0x1.ff8p-15}, // subnormals have fewer bits
		{graph.F16, 0x1.ffcp-15, 0x1p-14},
		{graph.BF16, 1 + 0x1p-8, 1},
		{graph.BF16, 1 + 0x3p-8, 1 + 0x1p-6},
		{graph.BF16, 3.4e38, inf},
		{graph.BF16, 0x1p-133, 0x1p-133},
		{graph.BF16, 0x1p-134, 0},
		{graph.U32, 7, 7},
		{graph.F16, inf, inf},
	} {
		assert.Equal(t, c.want, c.d.Round(c.x), "%v of %v", c.d, c.x)
	}
	assert.True(t, math.IsNaN(graph.F16.Round(math.NaN())))
}
