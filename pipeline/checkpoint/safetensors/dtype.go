// Package safetensors reads and writes the safetensors format, one file or several with an index as Hugging
// Face lays them out, one tensor at a time.
package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// DType is an element type as the format spells it.
type DType string

const (
	F64    DType = "F64"
	F32    DType = "F32"
	F16    DType = "F16"
	BF16   DType = "BF16"
	F8E4M3 DType = "F8_E4M3"
	F8E5M2 DType = "F8_E5M2"
	I64    DType = "I64"
	I32    DType = "I32"
	I16    DType = "I16"
	I8     DType = "I8"
	U64    DType = "U64"
	U32    DType = "U32"
	U16    DType = "U16"
	U8     DType = "U8"
	Bool   DType = "BOOL"
)

// Size returns the bytes of one element, 0 for a type that this package does not know.
func (d DType) Size() int64 {
	switch d {
	case F64, I64, U64:
		return 8
	case F32, I32, U32:
		return 4
	case F16, BF16, I16, U16:
		return 2
	case F8E4M3, F8E5M2, I8, U8, Bool:
		return 1
	}
	return 0
}

// Tensor describes a tensor: row-major, little-endian.
type Tensor struct {
	Name  string
	DType DType
	Shape []int // empty for a scalar
}

// Bytes returns the tensor's size, or an error for an unknown type, a negative dimension or a product
// beyond 2⁶³.
func (t Tensor) Bytes() (int64, error) {
	n := t.DType.Size()
	if n == 0 {
		return 0, fmt.Errorf("tensor %q: unknown dtype %q", t.Name, string(t.DType))
	}
	for _, d := range t.Shape {
		if d < 0 {
			return 0, fmt.Errorf("tensor %q: shape %v has a negative dimension", t.Name, t.Shape)
		}
		if d != 0 && n > math.MaxInt64/int64(d) {
			return 0, fmt.Errorf("tensor %q: shape %v of %s overflows 64 bits", t.Name, t.Shape, t.DType)
		}
		n *= int64(d)
	}
	return n, nil
}

// toFloat32 converts src, whole elements of a float type, into dst.
func toFloat32(dst []float32, src []byte, d DType) {
	for i := range dst {
		switch d {
		case F64:
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		case F32:
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		case BF16:
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		case F16:
			dst[i] = halfToFloat32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// halfToFloat32 widens an IEEE binary16; exact for every value, NaN payloads kept.
func halfToFloat32(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 255<<23 | frac<<13)
	case exp == 0: // zero or subnormal: frac · 2⁻²⁴
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(v))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// maxHalf is the largest number of IEEE binary16; from 65520 on, the nearest is infinity.
const maxHalf = 65504

// WriteFloats writes numbers as F32, BF16 or F16, the nearest there is, ties to even. A finite number that F16 has no
// finite neighbour for is an error that names its element; NaN stays NaN.
func WriteFloats(w io.Writer, xs []float32, d DType) error {
	const chunk = 1 << 16
	buf := make([]byte, 0, int64(min(chunk, len(xs)))*d.Size())
	for at := 0; at < len(xs); at += chunk {
		buf = buf[:0]
		for i, x := range xs[at:min(at+chunk, len(xs))] {
			switch d {
			case F32:
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x))
			case BF16:
				buf = binary.LittleEndian.AppendUint16(buf, float32ToBF16(x))
			case F16:
				h := float32ToHalf(x)
				if h&0x7fff == halfInf && !math.IsInf(float64(x), 0) {
					return fmt.Errorf("element %d is %g, beyond F16, whose largest number is %d", at+i, x, maxHalf)
				}
				buf = binary.LittleEndian.AppendUint16(buf, h)
			default:
				return fmt.Errorf("dtype is %s, expected F32, BF16 or F16", d)
			}
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

const halfInf = 0x7c00

func float32ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40 // quiet: what tells NaN from infinity may be among the bits that go
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func float32ToHalf(x float32) uint16 {
	b := math.Float32bits(x)
	sign, size := uint16(b>>16)&0x8000, b&0x7fffffff
	switch {
	case x != x:
		return sign | halfInf | 0x200 | uint16(size>>13)&0x3ff
	case size >= math.Float32bits(maxHalf+16):
		return sign | halfInf
	case size < math.Float32bits(0x1p-14): // subnormal: a multiple of 2⁻²⁴
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(size))*0x1p24))
	}
	return sign | uint16((size+0xfff+size>>13&1-112<<23)>>13)
}
