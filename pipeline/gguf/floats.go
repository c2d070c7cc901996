package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/gpupipe/gpupipe/graph"
)

// chunk is how many elements are converted at a time: a multiple of BlockSize.
const chunk = 1 << 16

// EncodeFloats writes numbers as elements of a type, the nearest there are. F16, also the scale of a block, has no
// finite numbers beyond 65504: such a number is an error that names its element. So is NaN or Inf as Q8_0.
func EncodeFloats(w io.Writer, xs []float32, t Type) error {
	var buf []byte
	for at := 0; at < len(xs); at += chunk {
		var err error
		if buf, err = appendFloats(buf[:0], xs[at:min(at+chunk, len(xs))], t, at); err != nil {
			return err
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// appendFloats appends the elements of xs, the first of which is element at of its tensor.
func appendFloats(buf []byte, xs []float32, t Type, at int) ([]byte, error) {
	switch t {
	case F32:
		for _, x := range xs {
			buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x))
		}
	case BF16:
		for _, x := range xs {
			buf = binary.LittleEndian.AppendUint16(buf, uint16(graph.BF16.Bits(float64(x))))
		}
	case F16:
		for i, x := range xs {
			h, ok := f16Bits(x)
			if !ok {
				return nil, fmt.Errorf("element %d is %g, beyond F16, whose largest number is 65504", at+i, x)
			}
			buf = binary.LittleEndian.AppendUint16(buf, h)
		}
	case Q8_0:
		if len(xs)%BlockSize != 0 {
			return nil, fmt.Errorf("%d elements, expected a multiple of %d for Q8_0", len(xs), BlockSize)
		}
		for i := 0; i < len(xs); i += BlockSize {
			var ok bool
			if buf, ok = appendBlock(buf, xs[i:i+BlockSize]); !ok {
				return nil, fmt.Errorf("elements %d to %d have no scale in F16: expected finite numbers of at most %d", at+i, at+i+BlockSize-1, 127*65504)
			}
		}
	default:
		return nil, fmt.Errorf("type is %v, expected F32, F16, BF16 or Q8_0", t)
	}
	return buf, nil
}

// f16Bits returns the bits of the nearest F16. It reports false for a finite number that has no finite neighbor.
func f16Bits(x float32) (uint16, bool) {
	const infinity = 0x7c00
	h := uint16(graph.F16.Bits(float64(x)))
	return h, h&0x7fff != infinity || math.IsInf(float64(x), 0)
}

// appendBlock appends a block of Q8_0: the scale is the largest magnitude / 127, and halves are rounded away from zero,
// as llama.cpp does.
func appendBlock(buf []byte, xs []float32) ([]byte, bool) {
	var most float32
	for _, x := range xs {
		if x != x {
			return nil, false
		}
		most = max(most, float32(math.Abs(float64(x))))
	}
	scale := most / 127
	h, ok := f16Bits(scale)
	if !ok || math.IsInf(float64(most), 0) {
		return nil, false
	}
	var inverse float32
	if scale != 0 {
		inverse = 1 / scale
	}
	if math.IsInf(float64(inverse), 0) { // a scale this small is 0 in F16
		inverse = 0
	}
	buf = binary.LittleEndian.AppendUint16(buf, h)
	for _, x := range xs {
		buf = append(buf, byte(int8(math.Round(float64(x*inverse)))))
	}
	return buf, true
}

// decodeFloats converts whole elements, or whole blocks, of a type to dst.
func decodeFloats(dst []float32, src []byte, t Type) {
	if t == Q8_0 {
		for b := 0; b < len(dst); b += BlockSize {
			block := src[b/BlockSize*blockBytes:]
			scale := float32(graph.F16.FromBits(uint32(binary.LittleEndian.Uint16(block))))
			for i := range BlockSize {
				dst[b+i] = scale * float32(int8(block[2+i]))
			}
		}
		return
	}
	for i := range dst {
		switch t {
		case F32:
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		case BF16:
			dst[i] = float32(graph.BF16.FromBits(uint32(binary.LittleEndian.Uint16(src[2*i:]))))
		case F16:
			dst[i] = float32(graph.F16.FromBits(uint32(binary.LittleEndian.Uint16(src[2*i:]))))
		}
	}
}
