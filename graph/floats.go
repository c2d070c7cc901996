package graph

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// EncodeFloats writes numbers as elements of F32, BF16 or F16, little-endian: the nearest there is, ties to even. A
// finite number that F16 has no finite neighbor for is an error that names its element; NaN stays NaN.
func EncodeFloats(w io.Writer, xs []float32, d DType) error {
	const chunk = 1 << 16
	buf := make([]byte, min(chunk, len(xs))*d.Size())
	for at := 0; at < len(xs); at += chunk {
		part := xs[at:min(at+chunk, len(xs))]
		if i, ok := putFloats(buf, part, d); !ok {
			return fmt.Errorf("element %d is %g, beyond F16, whose largest number is 65504", at+i, part[i])
		}
		if _, err := w.Write(buf[:len(part)*d.Size()]); err != nil {
			return err
		}
	}
	return nil
}

// putFloats fills the start of dst. It returns the first element that F16 has no neighbor for, and whether there is
// none.
func putFloats(dst []byte, xs []float32, d DType) (beyond int, ok bool) {
	if d == F32 {
		for i, x := range xs {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
		return 0, true
	}
	for i, x := range xs {
		bits, fits := d.fits(x)
		if !fits {
			return i, false
		}
		binary.LittleEndian.PutUint16(dst[2*i:], bits)
	}
	return 0, true
}

// fits returns the bits of x as BF16 or F16. It reports false for a finite number beyond F16.
func (d DType) fits(x float32) (bits uint16, ok bool) {
	const infinity = 0x7c00
	bits = uint16(d.Bits(float64(x)))
	return bits, d != F16 || bits&0x7fff != infinity || math.IsInf(float64(x), 0)
}

// DecodeFloats converts elements of F32, BF16 or F16 to dst.
func DecodeFloats(dst []float32, src []byte, d DType) {
	if d == F32 {
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
		return
	}
	for i := range dst {
		dst[i] = float32(d.FromBits(uint32(binary.LittleEndian.Uint16(src[2*i:]))))
	}
}
