// Package gguf reads and writes GGUF, the file format of llama.cpp: typed metadata and tensors in one file.
//
// Write lays out a file from keys and tensors and asks for the data of one tensor after the other. Open reads the
// header of a file, within limits, and converts tensors when they are asked for. The package knows the container and
// the element types F32, F16, BF16 and Q8_0, not what the keys mean: package model maps sizes and tensors, package
// tokenizer the vocabulary.
package gguf

import (
	"fmt"
	"math"
)

const (
	magic            = "GGUF"
	version          = 3
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
)

// Type is the element type of a tensor, as the format numbers it.
type Type uint32

// The types that this package reads and writes. Q8_0 stores blocks of 32 elements: a 16-bit scale and 32 integers of 8
// bits.
const (
	F32  Type = 0
	F16  Type = 1
	Q8_0 Type = 8
	BF16 Type = 30
)

// BlockSize is the number of elements in a block of Q8_0. Rows are whole blocks.
const BlockSize = 32

// blockBytes is the size of a block of Q8_0.
const blockBytes = 2 + BlockSize

// typeNames are the names of types, including types that this package only names in errors.
var typeNames = map[Type]string{F32: "F32", F16: "F16", Q8_0: "Q8_0", BF16: "BF16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1",
	10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
	20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M"}

func (t Type) String() string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// supported reports whether this package reads and writes elements of the type.
func (t Type) supported() bool { return t == F32 || t == F16 || t == BF16 || t == Q8_0 }

// Key is an entry of the metadata. Its value is a bool, uint8, int32, uint32, uint64, float32, string, []string,
// []int32 or []float32.
type Key struct {
	Name  string
	Value any
}

// Tensor describes a tensor. Shape is row-major: the last dimension is contiguous. Files list it in reverse.
type Tensor struct {
	Name  string
	Shape []int // 1 to 4 dimensions
	Type  Type
}

// Bytes returns the size of the tensor's data. It returns an error for types that this package does not read, shapes
// that are no tensor's, and rows of Q8_0 that are no whole blocks.
func (t Tensor) Bytes() (int64, error) {
	if !t.Type.supported() {
		return 0, fmt.Errorf("tensor %q is %v, expected F32, F16, BF16 or Q8_0", t.Name, t.Type)
	}
	if len(t.Shape) < 1 || len(t.Shape) > maxDims {
		return 0, fmt.Errorf("tensor %q has %d dimensions, expected 1 to %d", t.Name, len(t.Shape), maxDims)
	}
	n := int64(1)
	for _, d := range t.Shape {
		if d < 1 || n > math.MaxInt64/4/int64(d) {
			return 0, fmt.Errorf("tensor %q: shape %v has no size in 64 bits", t.Name, t.Shape)
		}
		n *= int64(d)
	}
	switch t.Type {
	case F32:
		return 4 * n, nil
	case Q8_0:
		if row := t.Shape[len(t.Shape)-1]; row%BlockSize != 0 {
			return 0, fmt.Errorf("tensor %q: rows of Q8_0 have %d elements, expected a multiple of %d", t.Name, row, BlockSize)
		}
		return n / BlockSize * blockBytes, nil
	}
	return 2 * n, nil
}
