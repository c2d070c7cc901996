package graph

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// DType is the element type of a tensor.
type DType uint8

const (
	F32 DType = iota
	F16
	BF16
	I32
	U32
	dtypes // count
)

var dtypeNames = [dtypes]string{"f32", "f16", "bf16", "i32", "u32"}

func (d DType) String() string {
	if d < dtypes {
		return dtypeNames[d]
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// ParseDType is the inverse of String.
func ParseDType(s string) (DType, error) {
	if i := slices.Index(dtypeNames[:], s); i >= 0 {
		return DType(i), nil
	}
	return 0, fmt.Errorf("unknown dtype %q, expected one of %s", s, strings.Join(dtypeNames[:], ", "))
}

// MarshalText writes the dtype's name.
func (d DType) MarshalText() ([]byte, error) {
	if d >= dtypes {
		return nil, fmt.Errorf("unknown %v", d)
	}
	return []byte(d.String()), nil
}

// UnmarshalText reads the dtype's name.
func (d *DType) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDType(string(b))
	return err
}

// Size is the bytes of one element.
func (d DType) Size() int {
	if d.Float16() {
		return 2
	}
	return 4
}

// Float reports whether the dtype holds real numbers, and so has a gradient.
func (d DType) Float() bool { return d <= BF16 }

// Shape is the extent of each dimension, outermost first; tensors are row-major and contiguous. A scalar has none.
type Shape []int

// Len is the number of elements.
func (s Shape) Len() int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Equal compares extents.
func (s Shape) Equal(o Shape) bool { return slices.Equal(s, o) }

// Clone copies.
func (s Shape) Clone() Shape { return slices.Clone(s) }

func (s Shape) String() string {
	if len(s) == 0 {
		return "[]"
	}
	return strings.ReplaceAll(fmt.Sprint([]int(s)), " ", ",")
}

// maxElements keeps every index of one tensor in WGSL's u32.
const maxElements = math.MaxUint32

// Check refuses extents below one and tensors that u32 cannot index.
func (s Shape) Check() error {
	if len(s) > 8 {
		return fmt.Errorf("shape %v has %d dimensions, at most 8 are allowed", s, len(s))
	}
	n := 1
	for _, d := range s {
		if d < 1 {
			return fmt.Errorf("shape %v has extent %d, expected at least 1", s, d)
		}
		if d > maxElements/n {
			return fmt.Errorf("shape %v has more than %d elements", s, maxElements)
		}
		n *= d
	}
	return nil
}

// Type is the dtype and shape of a value.
type Type struct {
	DType DType `json:"dtype"`
	Shape Shape `json:"shape"`
}

// T is a short way to write a Type.
func T(d DType, shape ...int) Type { return Type{d, Shape(shape).Clone()} }

// Bytes is the storage of a value of this type, rounded up to whole 32-bit words.
func (t Type) Bytes() int64 { return (int64(t.Shape.Len())*int64(t.DType.Size()) + 3) &^ 3 }

// Equal compares dtype and shape.
func (t Type) Equal(o Type) bool { return t.DType == o.DType && t.Shape.Equal(o.Shape) }

func (t Type) String() string { return t.DType.String() + t.Shape.String() }

// Tensor is a value on the host in the reference's precision: integers are held exactly as float64.
type Tensor struct {
	Type
	Data []float64
}

// NewTensor makes a tensor of zeros.
func NewTensor(t Type) *Tensor { return &Tensor{t, make([]float64, t.Shape.Len())} }
