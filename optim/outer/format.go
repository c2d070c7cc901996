package outer

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Format is how messages write the elements of a fragment: a row of the table.
//
// A format of b bits writes element x of a block as the code ⌊x/s + z + u⌋, from 1 to 2z − 1 with z = 2^(b−1), for the
// number (code − z)·s. u is random in [0, 1), in steps of 2⁻¹⁶, so that the mean of many roundings is x. 0 stays 0. s
// is the scale of the block. Codes are packed into words of 32 bits, the first in the lowest bits.
type Format struct {
	Name  string
	About string
	bits  int // of a code; 0: elements are f32, maybe rounded
	bf16  bool
	scale func(x *graph.Value) *graph.Value // of blocks [n, BlockSize], as [n, 1]
}

// zero is the code of 0.
func (f Format) zero() float64 { return math.Exp2(float64(f.bits - 1)) }

// Formats is the table of formats, the default one first. With 2 bits the scale is the root mean square of the block:
// it makes the error of normally distributed numbers smallest, about a quarter of their variance, and what it cuts off
// remains in the residue. Otherwise the largest magnitude of a block has the highest code.
func Formats() []Format {
	return []Format{
		{Name: "f32", About: "exact"},
		{Name: "bf16", About: "16 bits, rounded to the nearest", bf16: true},
		{Name: "int8", About: "8 bits", bits: 8, scale: largestAs(127)},
		{Name: "int4", About: "4 bits", bits: 4, scale: largestAs(7)},
		{Name: "int2", About: "2 bits", bits: 2, scale: rootMeanSquare},
	}
}

// FormatNames lists the names of the table Formats.
func FormatNames() (names []string) {
	for _, f := range Formats() {
		names = append(names, f.Name)
	}
	return names
}

func (c Config) format() Format {
	all := Formats()
	return all[slices.IndexFunc(all, func(f Format) bool { return f.Name == c.Format })]
}

// Exact reports whether messages round nothing. Send has no residue then, and the message of Step is the new base.
func (c Config) Exact() bool { return c.format().bits == 0 && !c.format().bf16 }

// Rounds reports whether the rounding of messages is random: Send and Step have the input KeyInput.
func (c Config) Rounds() bool { return c.format().bits > 0 }

// Largest is the largest magnitude that a scale of 1 describes; 1, if messages have no scales.
func (c Config) Largest() float64 {
	if f := c.format(); f.bits > 0 {
		return f.zero() - 1
	}
	return 1
}

// BF16 reports whether the elements of messages are f32 with the values of bf16: half of their bytes describe them.
func (c Config) BF16() bool { return c.format().bf16 }

// Bytes is the size of a message of n blocks.
func (c Config) Bytes(n int) int64 {
	f := c.format()
	switch {
	case f.bits > 0:
		return int64(n) * (BlockSize*int64(f.bits)/8 + 4)
	case f.bf16:
		return int64(n) * BlockSize * 2
	}
	return int64(n) * BlockSize * 4
}

// Message lists the tensors of a message of n blocks, by their names as outputs of Send and Step and as inputs of Add
// and Apply.
func (c Config) Message(n int) []graph.Named {
	f := c.format()
	if f.bits == 0 {
		return []graph.Named{{ID: "values", Type: graph.T(graph.F32, n, BlockSize)}}
	}
	return []graph.Named{{ID: "codes", Type: graph.T(graph.U32, n, BlockSize*f.bits/32)}, {ID: "scales", Type: graph.T(graph.F32, n, 1)}}
}

// Key is the input KeyInput for a message: two words that depend on the seed, the step, the sender (a replica, or −1
// for the owner) and the number of the matrix.
func (c Config) Key(step, sender, matrix int) []uint32 {
	key := op.Threefry([2]uint32{uint32(c.Seed), uint32(c.Seed >> 32)}, [2]uint32{uint32(step), keyDomain})
	key = op.Threefry(key, [2]uint32{uint32(sender + 1), uint32(matrix)})
	return key[:]
}

const keyDomain = 0x6f757465 // distinguishes these keys from others of the seed

// scope keeps the kernels of messages the same in all programs: kernels never span scopes.
const scope = "outer message"

// write returns the message of x by name, and the values that it describes.
func (f Format) write(b *graph.Builder, x *graph.Value) (message map[string]*graph.Value, values *graph.Value) {
	b.Scope(scope, func() {
		switch {
		case f.bits > 0:
			codes, scales := f.quantize(b, x)
			message, values = map[string]*graph.Value{"codes": f.pack(b, codes), "scales": scales}, f.dequantize(codes, scales)
		case f.bf16:
			values = op.Cast(op.Cast(x, graph.BF16), graph.F32)
			message = map[string]*graph.Value{"values": values}
		default:
			message, values = map[string]*graph.Value{"values": x}, x
		}
	})
	return message, values
}

// read declares a message as inputs and returns the values that it describes.
func (c Config) read(b *graph.Builder, n int) (values *graph.Value) {
	var in []*graph.Value
	for _, t := range c.Message(n) {
		in = append(in, b.Input(t.ID, t.Type))
	}
	if len(in) == 1 {
		return in[0]
	}
	f := c.format()
	b.Scope(scope, func() { values = f.dequantize(f.unpack(b, in[0]), in[1]) })
	return values
}

// quantize returns the codes of blocks as u32 [n, BlockSize] and the scales [n, 1].
func (f Format) quantize(b *graph.Builder, x *graph.Value) (codes, scales *graph.Value) {
	key := b.Input(KeyInput, graph.T(graph.U32, 2))
	scales = f.scale(x)
	normal := op.Greater(scales, op.Scalar(b, graph.F32, smallestScale))
	zeros := op.Full(b, graph.F32, 0, scales.Shape...)
	scales = op.Where(normal, scales, zeros)
	inverse := op.Where(normal, op.Reciprocal(op.Where(normal, scales, op.Full(b, graph.F32, 1, scales.Shape...))), zeros)
	random := op.Div(op.RandomBits(b, key, x.Shape...), op.Scalar(b, graph.U32, 1<<16))
	at := op.Add(op.Mul(x, inverse), op.Shift(op.Scale(op.Cast(random, graph.F32), 0x1p-16), f.zero()))
	return op.Cast(op.Clamp(at, 1, 2*f.zero()-0.5), graph.U32), scales
}

// smallestScale is the least scale of a block whose elements are not all described as zeros: the inverse of smaller
// ones may overflow.
const smallestScale = 1e-30

// dequantize returns the values that codes describe.
func (f Format) dequantize(codes, scales *graph.Value) *graph.Value {
	return op.Mul(op.Shift(op.Cast(codes, graph.F32), -f.zero()), scales)
}

// pack puts codes into words.
func (f Format) pack(b *graph.Builder, codes *graph.Value) *graph.Value {
	n, per := codes.Shape[0], 32/f.bits
	parts := op.Reshape(codes, n, BlockSize/per, per)
	return op.Sum(op.Mul(parts, f.places(b)), []int{2}, false)
}

// unpack is the inverse of pack.
func (f Format) unpack(b *graph.Builder, words *graph.Value) *graph.Value {
	n, per := words.Shape[0], 32/f.bits
	base := op.Scalar(b, graph.U32, float64(uint(1)<<f.bits))
	above := op.Div(op.Reshape(words, n, BlockSize/per, 1), f.places(b))
	return op.Reshape(op.Sub(above, op.Mul(op.Div(above, base), base)), n, BlockSize)
}

// places are the values of a code's lowest bit at its places in a word.
func (f Format) places(b *graph.Builder) *graph.Value {
	per := 32 / f.bits
	places := make([]float64, per)
	for i := range places {
		places[i] = math.Exp2(float64(i * f.bits))
	}
	return b.Constant(fmt.Sprint("places/", f.bits), graph.T(graph.U32, 1, 1, per), places)
}

// largestAs returns the scale with which the largest magnitude of a block is that many steps.
func largestAs(steps float64) func(*graph.Value) *graph.Value {
	return func(x *graph.Value) *graph.Value { return op.Scale(op.ReduceMax(op.Abs(x), []int{1}, true), 1/steps) }
}

func rootMeanSquare(x *graph.Value) *graph.Value {
	return op.Sqrt(op.Mean(op.Square(x), []int{1}, true))
}
