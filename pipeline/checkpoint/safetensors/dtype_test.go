package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// narrowed is what WriteFloats makes of one number.
func narrowed(t *testing.T, x float32, d DType) uint16 {
	var w bytes.Buffer
	if err := WriteFloats(&w, []float32{x}, d); err != nil || w.Len() != 2 {
		t.Fatalf("%v of %s has %d bytes, error %v", x, d, w.Len(), err)
	}
	return binary.LittleEndian.Uint16(w.Bytes())
}

// widened is what a reader makes of one.
func widened(h uint16, d DType) float32 {
	var x [1]float32
	toFloat32(x[:], binary.LittleEndian.AppendUint16(nil, h), d)
	return x[0]
}

// Each number of 16 bits stays itself, what lies between two goes to the nearer, and what lies in the middle to the
// even.
func TestNarrowingIsToTheNearest(t *testing.T) {
	infinity := map[DType]uint16{F16: 0x7c00, BF16: 0x7f80}
	inf := float32(math.Inf(1))
	for _, d := range []DType{F16, BF16} {
		widen := func(h uint16) float32 { return widened(h, d) }
		expect := func(want uint16, x float32) { // faster than assertions, of which there are 300,000
			if got := narrowed(t, x, d); got != want {
				t.Fatalf("%s: %v narrowed to %#x, expected %#x", d, x, got, want)
			}
		}
		for h := range infinity[d] {
			for _, sign := range []uint16{0, 0x8000} {
				expect(sign|h, widen(sign|h))
			}
			if h+1 == infinity[d] {
				break
			}
			middle := float32((float64(widen(h)) + float64(widen(h+1))) / 2)
			expect(h+h&1, middle)
			expect(h, math.Nextafter32(middle, 0))
			expect(h+1, math.Nextafter32(middle, inf))
		}
		for _, sign := range []float32{1, -1} {
			assert.Equal(t, sign*inf, widen(narrowed(t, sign*inf, d)))
		}
		for _, nan := range []uint32{0x7fc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff} {
			got := widen(narrowed(t, math.Float32frombits(nan), d))
			assert.True(t, math.IsNaN(float64(got)), "%s: %#x became %v", d, nan, got)
			assert.Equal(t, nan>>31 == 1, math.Signbit(float64(got)))
		}
	}
	assert.Equal(t, uint16(0x7f80), narrowed(t, math.MaxFloat32, BF16), "as far from the largest number of BF16 as infinity is")
	assert.Equal(t, uint16(0x7bff), narrowed(t, math.Nextafter32(65520, 0), F16))
}

// broken fails at its second write.
type broken struct{ writes int }

func (w *broken) Write(p []byte) (int, error) {
	if w.writes++; w.writes > 1 {
		return 0, errors.New("the disk is full")
	}
	return len(p), nil
}

func TestWriteFloats(t *testing.T) {
	xs := make([]float32, 1<<16+3)
	for i := range xs {
		xs[i] = float32(i) - 1e5/3
	}
	for d, size := range map[DType]int{F32: 4, BF16: 2, F16: 2} {
		var w bytes.Buffer
		require.NoError(t, WriteFloats(&w, xs, d))
		require.Equal(t, size*len(xs), w.Len())
		got := make([]float32, len(xs))
		toFloat32(got, w.Bytes(), d)
		for i, x := range xs {
			require.InDelta(t, x, got[i], math.Abs(float64(x))*map[DType]float64{F32: 0, BF16: 1.0 / 256, F16: 1.0 / 2048}[d])
		}
		assert.ErrorContains(t, WriteFloats(&broken{}, xs, d), "the disk is full")
	}
	xs[1<<16+1] = -65520
	assert.ErrorContains(t, WriteFloats(&bytes.Buffer{}, xs, F16), "element 65537 is -65520, beyond F16, whose largest number is 65504")
	assert.ErrorContains(t, WriteFloats(&bytes.Buffer{}, xs, I32), "dtype is I32, expected F32, BF16 or F16")
	require.NoError(t, WriteFloats(&bytes.Buffer{}, nil, F16))
}
