package graphhook

import (
	bits "encoding/binary" // this package has a function binary
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/wasm"
)

// Caller is the calling module: its memory and its count of work. Addresses outside of the memory are errors.
type Caller interface {
	// Read returns a view of n bytes, valid until the module runs again.
	Read(address, n uint32) ([]byte, error)
	Write(address uint32, data []byte) error
	Charge(units int64)
}

// Import is a function with which a module builds a graph. Its parameters and its result are i32.
type Import struct {
	Name   string
	Params int
	Call   func(b *Builder, c Caller, args []uint32) (uint32, error)
}

// Imports lists the functions; docs/HOOKS.md describes them.
func Imports() []Import {
	return []Import{{"graph_input", 2, graphInput}, {"graph_scalar", 2, graphScalar}, {"graph_op", 6, graphOp},
		{"graph_shape", 3, graphShape},
		{"graph_dtype", 1, graphDType}, {"graph_parameter", 6, graphParameter}, {"graph_unit", 2, graphUnit}}
}

// Units of work that count for the host's part of a call.
const (
	opWork   = 20_000 // an op, including its shape rule
	byteWork = 4      // a byte of attributes, or of text
)

const (
	maxText = 256 // bytes of a name in the module's memory
	maxRank = 8   // dims of a parameter
)

// codes are the numbers of the dtypes, as in descriptors of arrays.
var codes = map[graph.DType]wasm.DType{graph.F32: wasm.F32, graph.I32: wasm.I32, graph.U32: wasm.U32}

func readName(c Caller, address, length uint32) (string, error) {
	if length > maxText {
		return "", fmt.Errorf("found a name of %d bytes, expected at most %d", length, maxText)
	}
	b, err := c.Read(address, length)
	return string(b), err
}

// readWords reads 32-bit numbers from the module's memory.
func readWords(c Caller, address, count uint32) ([]uint32, error) {
	b, err := c.Read(address, 4*count)
	if err != nil {
		return nil, err
	}
	words := make([]uint32, count)
	for n := range words {
		words[n] = bits.LittleEndian.Uint32(b[4*n:])
	}
	return words, nil
}

// graphInput (name, length) → handle
func graphInput(b *Builder, c Caller, a []uint32) (uint32, error) { return graphSource(c, a, b.Input) }

// graphScalar (name, length) → handle
func graphScalar(b *Builder, c Caller, a []uint32) (uint32, error) {
	return graphSource(c, a, b.Scalar)
}

func graphSource(c Caller, a []uint32, get func(name string) (Handle, error)) (uint32, error) {
	c.Charge(opWork)
	name, err := readName(c, a[0], a[1])
	if err != nil {
		return 0, err
	}
	h, err := get(name)
	return uint32(h), err
}

// graphOp (name, length, inputs, count, attributes, length) → handle
func graphOp(b *Builder, c Caller, a []uint32) (uint32, error) {
	name, err := readName(c, a[0], a[1])
	if err != nil {
		return 0, err
	}
	count, length := a[3], a[5]
	if count > MaxInputs {
		return 0, fmt.Errorf("%.64q: found %d inputs, expected at most %d", name, count, MaxInputs)
	}
	c.Charge(opWork + byteWork*int64(length))
	words, err := readWords(c, a[2], count)
	if err != nil {
		return 0, err
	}
	inputs := make([]Handle, count)
	for n, w := range words {
		inputs[n] = Handle(w)
	}
	attributes, err := c.Read(a[4], length)
	if err != nil {
		return 0, err
	}
	h, err := b.Op(name, inputs, attributes)
	return uint32(h), err
}

// graphShape (handle, dims, capacity) → rank; it stores at most capacity dims
func graphShape(b *Builder, c Caller, a []uint32) (uint32, error) {
	t, err := b.Type(Handle(a[0]))
	if err != nil {
		return 0, err
	}
	var dims []byte
	for _, d := range t.Shape[:min(len(t.Shape), int(a[2]))] {
		dims = bits.LittleEndian.AppendUint32(dims, uint32(d))
	}
	return uint32(len(t.Shape)), c.Write(a[1], dims)
}

// graphDType (handle) → dtype, as in arrays
func graphDType(b *Builder, _ Caller, a []uint32) (uint32, error) {
	t, err := b.Type(Handle(a[0]))
	return uint32(codes[t.DType]), err
}

// graphParameter (name, length, shape, rank, attributes, length) → handle
func graphParameter(b *Builder, c Caller, a []uint32) (uint32, error) {
	name, err := readName(c, a[0], a[1])
	if err != nil {
		return 0, err
	}
	rank, length := a[3], a[5]
	if rank > maxRank {
		return 0, fmt.Errorf("parameter %.64q: found %d dims, expected at most %d", name, rank, maxRank)
	}
	c.Charge(opWork + byteWork*int64(length))
	words, err := readWords(c, a[2], rank)
	if err != nil {
		return 0, err
	}
	shape := make([]int, rank)
	for n, w := range words {
		shape[n] = int(w)
	}
	attributes, err := c.Read(a[4], length)
	if err != nil {
		return 0, err
	}
	h, err := b.Parameter(name, shape, attributes)
	return uint32(h), err
}

// graphUnit (name, length) → index
func graphUnit(b *Builder, c Caller, a []uint32) (uint32, error) {
	c.Charge(opWork)
	name, err := readName(c, a[0], a[1])
	if err != nil {
		return 0, err
	}
	n, err := b.Unit(name)
	return uint32(n), err
}
