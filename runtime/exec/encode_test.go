package exec_test

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
)

func TestEncode(t *testing.T) {
	x := []float64{1, -2, 65504}
	for d, want := range map[graph.DType][]byte{
		graph.F32:  {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0xe0, 0x7f, 0x47},
		graph.F16:  {0, 0x3c, 0, 0xc0, 0xff, 0x7b, 0, 0},
		graph.BF16: {0x80, 0x3f, 0, 0xc0, 0x80, 0x47, 0, 0}, // 65536
	} {
		got := exec.Encode(d, x)
		assert.Equal(t, want, got, d.String())
		assert.EqualValues(t, graph.T(d, 3).Bytes(), len(got))
		back := exec.Decode(d, got)
		assert.Equal(t, []float64{1, -2, d.Round(65504)}, back[:3])
		assert.Equal(t, d.Float16(), len(back) == 4, "padding is a last half")
	}
	ints := []float64{-1, math.MinInt32, 7}
	assert.Equal(t, ints, exec.Decode(graph.I32, exec.Encode(graph.I32, ints)))
	assert.Equal(t, []float64{math.MaxUint32}, exec.Decode(graph.U32, exec.Encode(graph.U32, []float64{math.MaxUint32})))
	assert.Empty(t, exec.Encode(graph.F16, nil))
}
