//go:build wasip1

package gpupipe

import "unsafe"

// Array is what hooks are called with: memory that the host has filled, or will read.
type Array struct {
	dtype, flags, rank uint32
	dims               [4]uint32
	data               uint32
}

// Element is what an array's elements can be.
type Element interface {
	float32 | int32 | uint8 | int64 | uint32 | float64
}

// Dims are the extents of the axes; the last is contiguous.
func (a *Array) Dims() []uint32 { return a.dims[:a.rank] }

// Elements returns the elements of an array, valid during the call. It fails if they are of another type.
func Elements[T Element](a *Array) []T {
	var z T
	want := uint32(0)
	switch any(z).(type) {
	case float32:
		want = 1
	case int32:
		want = 2
	case uint8:
		want = 3
	case int64:
		want = 4
	case uint32:
		want = 5
	case float64:
		want = 6
	}
	if a.dtype != want {
		fatal("the array's dtype is not that asked for")
	}
	n := uint32(1)
	for _, d := range a.Dims() {
		n *= d
	}
	at := uintptr(a.data)
	return unsafe.Slice(*(**T)(unsafe.Pointer(&at)), n) // an address that did not come from Go
}

// ArraysOf is for the packages of the hooks.
func ArraysOf(p unsafe.Pointer, count int32) []Array { return unsafe.Slice((*Array)(p), count) }

// Batch is a batch of Rows sequences of Length tokens, one after the other: each slice has Rows·Length elements.
type Batch struct {
	Rows, Length    int
	Tokens, Targets []uint32  // below the vocabulary's size; the target is the token that comes next
	Weights         []float32 // of each target's loss: 1 on entry; at least 0
	Segments        []uint32  // 0 on entry; a token sees the earlier tokens of its row that have its number
	Step, Steps     int64     // counted from 0, and the number of the run's steps
	Aligned         []Array   // the tensors of data.aligned, in the order of their names, [Rows, Length, …]
}

// BatchOf is for the packages of the hooks; a token_weights hook has neither Segments nor Aligned.
func BatchOf(a []Array, segments bool) *Batch {
	b := &Batch{Rows: int(a[0].dims[0]), Length: int(a[0].dims[1]), Tokens: Elements[uint32](&a[0]), Targets: Elements[uint32](&a[1]),
		Weights: Elements[float32](&a[2])}
	if a = a[3:]; segments {
		b.Segments = Elements[uint32](&a[0])
		a = a[1:]
	}
	clock := Elements[int64](&a[0])
	b.Step, b.Steps, b.Aligned = clock[0], clock[1], a[1:]
	return b
}
