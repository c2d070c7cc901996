// Package safetensors reads and writes the safetensors format, one file or several with an index as Hugging
// Face lays them out, one tensor at a time.
package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/gpupipe/gpupipe/graph"
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

// floats are the types of numbers that models hold, as graphs have them.
var floats = map[DType]graph.DType{F32: graph.F32, F16: graph.F16, BF16: graph.BF16}

// toFloat32 converts src, whole elements of a float type, into dst.
func toFloat32(dst []float32, src []byte, d DType) {
	if d != F64 {
		graph.DecodeFloats(dst, src, floats[d])
		return
	}
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

// WriteFloats writes numbers as F32, BF16 or F16: see [graph.EncodeFloats].
func WriteFloats(w io.Writer, xs []float32, d DType) error {
	as, ok := floats[d]
	if !ok {
		return fmt.Errorf("dtype is %s, expected F32, BF16 or F16", d)
	}
	return graph.EncodeFloats(w, xs, as)
}
