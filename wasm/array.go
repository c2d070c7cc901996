package wasm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"
)

// DType is the type of an array's elements, by its number in descriptors.
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

// Size is the size of an element in bytes.
func (d DType) Size() int { return dtypes[d].size }

func (d DType) String() string {
	if !d.known() {
		return fmt.Sprintf("dtype %d", uint32(d))
	}
	return dtypes[d].name
}

// Direction is which side writes an array.
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
// Its bytes are in the module's memory during the call, which copies inputs from Data and outputs to Data.
type Array struct {
	DType DType
	Dir   Direction
	Dims  []int  // for an output the capacity before the call, and the shape that the module stored after it
	Data  []byte // little-endian; the call cuts an output's to its shape
}

// number is a Go type of an array's elements.
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

// Of returns an array that shares the elements of a Go slice. Without dims it is a vector.
func Of[T number](dir Direction, data []T, dims ...int) *Array {
	if len(dims) == 0 {
		dims = []int{len(data)}
	}
	return &Array{DType: dtypeOf[T](), Dir: dir, Dims: dims, Data: bytesOf(data)}
}

func bytesOf[T number](s []T) []byte {
	if len(s) == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// Elements views an array's bytes as a slice of its element type, which must be T.
func Elements[T number](a *Array) []T { return As[T](a.Data) }

// As views bytes as a slice of T.
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

// bytes returns the size of the array. It panics if the array is invalid, which is an error of the caller.
func (a *Array) bytes() uint32 {
	if !a.DType.known() || a.Dir == 0 || a.Dir > InOut || len(a.Dims) > maxRank {
		panic(fmt.Sprintf("wasm: invalid array of %v, direction %d, dims %v", a.DType, a.Dir, a.Dims))
	}
	n := uint64(a.DType.Size())
	for _, d := range a.Dims {
		hi, lo := bits.Mul64(n, uint64(d))
		if d < 0 || hi != 0 || lo > 1<<32-1 {
			panic(fmt.Sprintf("wasm: invalid array of dims %v", a.Dims))
		}
		n = lo
	}
	if a.Data != nil && uint64(len(a.Data)) != n {
		panic(fmt.Sprintf("wasm: array of %v %v has %d bytes of data, expected %d", a.DType, a.Dims, len(a.Data), n))
	}
	return uint32(n)
}

// Put writes the array's descriptor of 32 bytes to d. data is the address of the array in the module's memory.
func (a *Array) Put(d []byte, data uint32) {
	w := [8]uint32{uint32(a.DType), uint32(a.Dir), uint32(len(a.Dims)), 1, 1, 1, 1, data}
	for i, n := range a.Dims {
		w[3+i] = uint32(n)
	}
	for i, v := range w {
		binary.LittleEndian.PutUint32(d[4*i:], v)
	}
}

// Returned checks the descriptor of the arg-th array after the call, and sets an output's Dims from it. It returns the
// output's size in bytes. data is the address of the array, and capacity its size in bytes before the call.
func (a *Array) Returned(d []byte, arg int, data, capacity uint32) (uint32, error) {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(d[4*i:]) }
	for i, want := range [...]uint32{uint32(a.DType), uint32(a.Dir), uint32(len(a.Dims))} {
		if got := word(i); got != want {
			return 0, halted(Shape, "array %d: found %s %d after the call, expected %d", arg, [...]string{"dtype", "flags", "rank"}[i],
				got, want)
		}
	}
	if got := word(7); got != data {
		return 0, halted(Shape, "array %d: found address %#x after the call, expected %#x", arg, got, data)
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
	// The bound on each dimension keeps products within 64 bits. An empty array may keep its larger dimensions.
	for i, d := range dims {
		if n *= uint64(d); n > room || uint64(d) > room && d != a.Dims[i] {
			return 0, halted(Shape, "array %d: found the shape %v after the call, expected at most the %v elements of %v", arg, dims,
				a.DType, a.Dims)
		}
	}
	a.Dims = dims
	return uint32(n) * uint32(a.DType.Size()), nil
}
