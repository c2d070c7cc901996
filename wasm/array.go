package wasm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"
)

// DType is the type of an array's elements, as descriptors have it.
type DType uint32

const (
	F32 DType = iota + 1
	I32
	U8
	I64
	U32
	F64
)

var dtypes = [...]struct {
	name string
	size int
}{F32: {"f32", 4}, I32: {"i32", 4}, U8: {"u8", 1}, I64: {"i64", 8}, U32: {"u32", 4}, F64: {"f64", 8}}

func (d DType) known() bool { return d >= F32 && d <= F64 }

// Size is that of an element in bytes.
func (d DType) Size() int { return dtypes[d].size }

func (d DType) String() string {
	if !d.known() {
		return fmt.Sprintf("dtype %d", uint32(d))
	}
	return dtypes[d].name
}

// Direction says who writes an array.
type Direction uint32

const (
	In    Direction = 1 // the host, before the call
	Out   Direction = 2 // the module
	InOut           = In | Out
)

const (
	maxRank        = 4
	maxArrays      = 64
	descriptorSize = 32
)

// Array is an argument of a hook.
//
// Its bytes are in the module's memory during the call. With Data nil they stay there, and nothing is copied: an input
// is what was written to the view that [Instance.Reserve] gave, and of an output Data becomes a view, valid until the
// instance is used again. Otherwise an input is copied from Data, and an output into it.
type Array struct {
	DType DType
	Dir   Direction
	Dims  []int  // of an output: on entry its capacity, afterwards the shape that the module stored
	Data  []byte // little-endian; an output's is cut to its shape
}

// number is what an array's elements can be in Go.
type number interface {
	float32 | int32 | uint8 | int64 | uint32 | float64
}

func dtypeOf[T number]() DType {
	var z T
	switch any(z).(type) {
	case float32:
		return F32
	case int32:
		return I32
	case uint8:
		return U8
	case int64:
		return I64
	case uint32:
		return U32
	default:
		return F64
	}
}

// Of is an array of a Go slice's elements, which it shares; without dims it is a vector.
func Of[T number](dir Direction, data []T, dims ...int) *Array {
	if len(dims) == 0 {
		dims = []int{len(data)}
	}
	return &Array{DType: dtypeOf[T](), Dir: dir, Dims: dims, Data: bytesOf(data)}
}

// InPlace is an array whose bytes stay in the module's memory.
func InPlace[T number](dir Direction, dims ...int) *Array {
	return &Array{DType: dtypeOf[T](), Dir: dir, Dims: dims}
}

func bytesOf[T number](s []T) []byte {
	if len(s) == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// Elements views an array's bytes as a slice of its element type, which must be T.
func Elements[T number](a *Array) []T { return As[T](a.Data) }

// As views bytes, such as Reserve's, as a slice of T.
func As[T number](b []byte) []T {
	var z T
	if len(b) == 0 {
		return nil
	}
	if uintptr(unsafe.Pointer(&b[0]))%unsafe.Alignof(z) != 0 {
		panic("wasm: bytes are not aligned")
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(z)))
}

// bytes is how many an array takes, checked against its data. A mistake in it is the caller's, and panics.
func (a *Array) bytes() uint32 {
	if !a.DType.known() || a.Dir == 0 || a.Dir > InOut || len(a.Dims) > maxRank {
		panic(fmt.Sprintf("wasm: array of %v, direction %d, dims %v", a.DType, a.Dir, a.Dims))
	}
	n := uint64(a.DType.Size())
	for _, d := range a.Dims {
		hi, lo := bits.Mul64(n, uint64(d))
		if d < 0 || hi != 0 || lo > 1<<32-1 {
			panic(fmt.Sprintf("wasm: array of dims %v", a.Dims))
		}
		n = lo
	}
	if a.Data != nil && uint64(len(a.Data)) != n {
		panic(fmt.Sprintf("wasm: array of %v %v has %d bytes of data, expected %d", a.DType, a.Dims, len(a.Data), n))
	}
	return uint32(n)
}

// Put writes the array's descriptor, of 32 bytes, for data at an address.
func (a *Array) Put(d []byte, data uint32) {
	w := [8]uint32{uint32(a.DType), uint32(a.Dir), uint32(len(a.Dims)), 1, 1, 1, 1, data}
	for i, n := range a.Dims {
		w[3+i] = uint32(n)
	}
	for i, v := range w {
		binary.LittleEndian.PutUint32(d[4*i:], v)
	}
}

// Returned checks the descriptor that came back for the arg-th array, and takes an output's shape from it. It gives the
// output's size in bytes.
func (a *Array) Returned(d []byte, arg int, data, capacity uint32) (uint32, error) {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(d[4*i:]) }
	for i, want := range [...]uint32{uint32(a.DType), uint32(a.Dir), uint32(len(a.Dims))} {
		if got := word(i); got != want {
			return 0, halted(Shape, "array %d: its %s came back as %d, was %d", arg, [...]string{"dtype", "flags", "rank"}[i], got, want)
		}
	}
	if got := word(7); got != data {
		return 0, halted(Shape, "array %d: its address came back as %#x, was %#x", arg, got, data)
	}
	if a.Dir&Out == 0 {
		return 0, nil
	}
	n, room := uint64(1), uint64(capacity)/uint64(a.DType.Size())
	dims := make([]int, len(a.Dims))
	for i := range dims {
		dims[i] = int(word(3 + i))
	}
	if slices.Contains(dims, 0) {
		n = 0
	}
	for i, d := range dims { // each is bounded, so that no product leaves 64 bits; of an empty array they may be what they were
		if n *= uint64(d); n > room || uint64(d) > room && d != a.Dims[i] {
			return 0, halted(Shape, "array %d: came back with more %v elements than %v has room for", arg, a.DType, a.Dims)
		}
	}
	a.Dims = dims
	return uint32(n) * uint32(a.DType.Size()), nil
}
