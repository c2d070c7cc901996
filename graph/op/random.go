package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func randoms() []graph.Op {
	return []graph.Op{new(RandomBitsOp), new(DropoutOp)}
}

// Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): a block cipher of
// additions, rotations and exclusive ors, so that every device and the host compute the same bits.
var threefryRotations = [2][4]uint32{{13, 15, 26, 6}, {17, 29, 16, 24}}

const threefryParity = 0x1BD11BDA

// Threefry encrypts a counter under a key.
func Threefry(key, counter [2]uint32) [2]uint32 {
	ks := [3]uint32{key[0], key[1], threefryParity ^ key[0] ^ key[1]}
	x, y := counter[0]+ks[0], counter[1]+ks[1]
	for group := range uint32(5) {
		for _, r := range threefryRotations[group%2] {
			x += y
			y = (y<<r | y>>(32-r)) ^ x
		}
		x += ks[(group+1)%3]
		y += ks[(group+2)%3] + group + 1
	}
	return [2]uint32{x, y}
}

// emitThreefry is the first word of the block of the element at flat, under the key in the op's input.
func emitThreefry(e graph.Emitter, input int, flat graph.Index) *scalar.Expr {
	word := func(i int) *scalar.Expr { return e.Input(input, []graph.Index{graph.Const(i)}) }
	return emitBlock(e, [2]*scalar.Expr{word(0), word(1)}, flat.Expr(), 0)
}

// emitBlock is the first word of Threefry of a key and the counter (flat, stream).
func emitBlock(e graph.Emitter, key [2]*scalar.Expr, flat *scalar.Expr, stream uint32) *scalar.Expr {
	k0, k1 := e.Let(key[0]), e.Let(key[1])
	ks := [3]*scalar.Expr{k0, k1, e.Let(scalar.U(threefryParity).Xor(k0).Xor(k1))}
	x, y := e.Let(flat.Add(ks[0])), ks[1]
	if stream > 0 {
		y = e.Let(y.Add(scalar.U(stream)))
	}
	for group := range uint32(5) {
		for _, r := range threefryRotations[group%2] {
			x = e.Let(x.Add(y))
			y = e.Let(y.Left(r).Or(y.Right(32 - r)).Xor(x))
		}
		x = e.Let(x.Add(ks[(group+1)%3]))
		y = e.Let(y.Add(ks[(group+2)%3]).Add(scalar.U(group + 1)))
	}
	return x
}

// bits is the reference of emitThreefry.
func bits(key *graph.Tensor, i int) uint32 {
	return Threefry([2]uint32{uint32(key.Data[0]), uint32(key.Data[1])}, [2]uint32{uint32(i), 0})[0]
}

// RandomBitsOp is 32 random bits an element. Its input is the key, u32[2].
type RandomBitsOp struct {
	Shape graph.Shape `json:"shape"`
}

func (*RandomBitsOp) Name() string { return "random_bits" }

func (o *RandomBitsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	return []graph.Type{{DType: graph.U32, Shape: o.Shape}}, wantType("the key", in[0], graph.U32, 2)
}

func (*RandomBitsOp) Grad(*graph.Node, []*graph.Value) []*graph.Value { return []*graph.Value{nil} }

func (o *RandomBitsOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		return emitThreefry(e, 0, graph.Flatten(o.Shape, at))
	}}
}

func (*RandomBitsOp) Eval(in, out []*graph.Tensor) {
	for i := range out[0].Data {
		out[0].Data[i] = float64(bits(in[0], i))
	}
}

func (*RandomBitsOp) Cases() []graph.Case {
	var cs []graph.Case
	for i, s := range []graph.Shape{{}, {1}, {7}, {3, 5}, {2, 3, 4, 5}, {66000}} {
		cs = append(cs, graph.Case{
			Op: &RandomBitsOp{s}, Inputs: []graph.Type{graph.T(graph.U32, 2)}, NoGrad: true,
			Fill: func(_, j int) float64 { return float64(uint32(i*0x9E3779B9 + j*0x85EBCA6B)) },
		})
	}
	return cs
}

// RandomBits is 32 random bits an element: a function of the key (u32[2]) and the element's position alone.
func RandomBits(b *graph.Builder, key *graph.Value, shape ...int) *graph.Value {
	return b.Apply(&RandomBitsOp{graph.Shape(shape).Clone()}, key)[0]
}

// DropoutOp zeroes elements with probability P and scales the others by 1/(1−P). Its gradient makes the mask again.
type DropoutOp struct {
	P graph.Real `json:"p"`
}

func (*DropoutOp) Name() string { return "dropout" }

func (o *DropoutOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	if !(o.P >= 0 && o.P < 1) {
		return nil, fmt.Errorf("the probability is %v, expected 0 ≤ p < 1", o.P)
	}
	if err := wantFloat(0, in[0]); err != nil {
		return nil, err
	}
	return in[:1], wantType("the key", in[1], graph.U32, 2)
}

// threshold is the least bits of an element that stays.
func (o *DropoutOp) threshold() uint32 { return uint32(float64(o.P) * (1 << 32)) }

func (o *DropoutOp) Kernel(n *graph.Node) graph.Kernel {
	shape := n.Outputs[0].Shape
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		b := emitThreefry(e, 1, graph.Flatten(shape, at))
		kept := e.Input(0, at).Mul(scalar.F(1 / (1 - float64(o.P))))
		return scalar.Select(scalar.F(0), kept, b.AtLeast(scalar.U(o.threshold())))
	}}
}

func (o *DropoutOp) Eval(in, out []*graph.Tensor) {
	for i, x := range in[0].Data {
		out[0].Data[i] = 0
		if bits(in[1], i) >= o.threshold() {
			out[0].Data[i] = x / (1 - float64(o.P))
		}
	}
}

func (o *DropoutOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{Dropout(d[0], n.Inputs[1], float64(o.P)), nil}
}

func (*DropoutOp) Cases() []graph.Case {
	var cs []graph.Case
	for i, s := range []graph.Shape{{}, {1}, {50}, {3, 5, 7}, {65999}} {
		cs = append(cs, graph.Case{
			Op:     &DropoutOp{graph.Real(float64(i) * 0.2)},
			Inputs: []graph.Type{{DType: graph.F32, Shape: s}, graph.T(graph.U32, 2)},
		})
	}
	return cs
}

// Dropout zeroes elements of x with probability p and scales the others by 1/(1−p). The mask is a function of the key
// (u32[2]) and the element's position alone: give each use and each step a key of its own.
func Dropout(x, key *graph.Value, p float64) *graph.Value {
	if p == 0 {
		return x
	}
	return graph.Apply1(&DropoutOp{graph.Real(p)}, x, key)
}
