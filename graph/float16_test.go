package graph_test

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/stretchr/testify/assert"
)

func TestBits(t *testing.T) {
	for _, c := range []struct {
		d    graph.DType
		x    float64
		bits uint32
	}{
		{graph.F16, 1, 0x3c00}, {graph.F16, -2, 0xc000}, {graph.F16, 65504, 0x7bff}, {graph.F16, 65520, 0x7c00},
		{graph.F16, math.Inf(-1), 0xfc00},
		{graph.F16, 0x1p-14, 0x0400}, {graph.F16, 0x1.ff8p-15, 0x03ff}, {graph.F16, -0x1p-24, 0x8001},
		{graph.F16, math.Copysign(0, -1), 0x8000}, {graph.F16, math.NaN(), 0x7e00}, {graph.F16, 0.1, 0x2e66},
		{graph.BF16, 1, 0x3f80}, {graph.BF16, 0.1, 0x3dcd}, {graph.BF16, 0x1p-133, 1}, {graph.BF16, math.Inf(1), 0x7f80},
		{graph.BF16, math.NaN(), 0x7fc0},
		{graph.F32, 0.1, 0x3dcccccd}, {graph.I32, -1, math.MaxUint32}, {graph.U32, 1 << 31, 1 << 31},
	} {
		assert.Equal(t, c.bits, c.d.Bits(c.x), "%v of %v", c.d, c.x)
	}
}

// 16-bit floats grow with their bits, evenly within an exponent, and go there and back.
func TestEveryFloat16(t *testing.T) {
	for d, infinity := range map[graph.DType]uint32{graph.F16: 0x7c00, graph.BF16: 0x7f80} {
		last := math.Inf(-1)
		for h := range uint32(1 << 16) {
			x := d.FromBits(h)
			if math.IsNaN(x) {
				assert.Greater(t, h&0x7fff, infinity)
				continue
			}
			if d.Bits(x) != h || d.Round(x) != x || math.IsInf(x, 0) != (h&0x7fff == infinity) || d.FromBits(h^0x8000) != -x {
				t.Fatalf("%v %#x: widened %v, its bits %#x, rounded %v, the other sign %v", d, h, x, d.Bits(x), d.Round(x),
					d.FromBits(h^0x8000))
			}
			if h < 0x8000 {
				if !(x > last) {
					t.Fatalf("%v %#x: widened %v, expected more than %v", d, h, x, last)
				}
				last = x
			}
		}
	}
}
