package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// StochasticRoundOp rounds f32 to bf16, up or down at random: to the neighbor that is the share p of their distance
// away with probability 1 − p. So the mean of many roundings is x, and changes that are smaller than half the distance
// of neighbors are kept on average, which rounding to the nearest loses (Zamirai et al., Revisiting BFloat16 Training,
// arXiv:2010.06192). What bf16 holds stays as it is, infinities and NaNs too.
//
// The inputs are x and the two words of a key, u32 [1] each. The random number of an element is 16 bits of Threefry
// under the key, of the element's position and the stream.
type StochasticRoundOp struct {
	Stream uint32 `json:"stream"`
}

func (*StochasticRoundOp) Name() string  { return "stochastic_round" }
func (*StochasticRoundOp) TakesFloat16() {}

// Infer returns bf16 of the shape of x.
func (*StochasticRoundOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 3); err != nil {
		return nil, err
	}
	if in[0].DType != graph.F32 {
		return nil, fmt.Errorf("input 0 is %v, expected f32", in[0])
	}
	for i, name := range []string{"the key's first word", "the key's second word"} {
		if err := wantType(name, in[i+1], graph.U32, 1); err != nil {
			return nil, err
		}
	}
	return []graph.Type{{DType: graph.BF16, Shape: in[0].Shape}}, nil
}

// The bits of an f32: those below a bf16's, the magnitude, and the magnitude of infinity.
const (
	bitsBelowBF16 = 16
	magnitudeBits = 1<<31 - 1
	infinityBits  = 255 << 23
	quietBF16     = 1 << 6 // of a NaN
)

// Kernel adds the random number to the bits that bf16 lacks, and drops them. It works on the bits alone, like
// graph.DType.Narrow.
func (o *StochasticRoundOp) Kernel(n *graph.Node) graph.Kernel {
	shape := n.Outputs[0].Shape
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		word := func(input int) *scalar.Expr { return e.Input(input, []graph.Index{graph.Const(0)}) }
		random := emitBlock(e, [2]*scalar.Expr{word(1), word(2)}, graph.Flatten(shape, at).Expr(), o.Stream)
		u := e.Let(e.Input(0, at).As(scalar.U32))
		size, infinity := e.Let(u.And(scalar.U(magnitudeBits))), scalar.U(infinityBits)
		special := u.Right(bitsBelowBF16).Or(scalar.Select(scalar.U(0), scalar.U(quietBF16), size.More(infinity)))
		rounded := u.Add(random.Right(bitsBelowBF16)).Right(bitsBelowBF16)
		return scalar.Select(rounded, special, size.AtLeast(infinity))
	}}
}

// Eval rounds numbers that are more precise than f32 towards zero first.
func (o *StochasticRoundOp) Eval(in, out []*graph.Tensor) {
	key := [2]uint32{uint32(in[1].Data[0]), uint32(in[2].Data[0])}
	for i, x := range in[0].Data {
		random := Threefry(key, [2]uint32{uint32(i), o.Stream})[0]
		out[0].Data[i] = StochasticallyRounded(x, random)
	}
}

// StochasticallyRounded is x rounded to bf16 by a random number, of which the high 16 bits count.
func StochasticallyRounded(x float64, random uint32) float64 {
	f := float32(x)
	if math.Abs(float64(f)) > math.Abs(x) {
		f = math.Nextafter32(f, 0)
	}
	u := math.Float32bits(f)
	switch size := u & magnitudeBits; {
	case size > infinityBits:
		return graph.BF16.FromBits(u>>bitsBelowBF16 | quietBF16)
	case size == infinityBits:
		return graph.BF16.FromBits(u >> bitsBelowBF16)
	}
	return graph.BF16.FromBits((u + random>>bitsBelowBF16) >> bitsBelowBF16)
}

// Grad passes the gradient on, as if nothing were rounded.
func (*StochasticRoundOp) Grad(_ *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{d[0], nil, nil}
}

// Cases has odd and even numbers of elements, and the ends of the ranges of bf16.
func (*StochasticRoundOp) Cases() []graph.Case {
	var cs []graph.Case
	for i, s := range []graph.Shape{{}, {1}, {2}, {7}, {3, 5}, {2, 3, 4}, {70001}} {
		cs = append(cs, graph.Case{
			Op: &StochasticRoundOp{Stream: uint32(i)}, Inputs: []graph.Type{{DType: graph.F32, Shape: s}, graph.T(graph.U32, 1),
				graph.T(graph.U32, 1)},
			NoGrad: true, Tolerance: exact,
			Fill: func(i, j int) float64 {
				if i > 0 {
					return float64(uint32(i*0x9E3779B9 + j))
				}
				return float64(float32(float16Edges(0, j) * (1 + float64(j)*0x1p-20)))
			},
		})
	}
	return cs
}

// StochasticRound rounds f32 to bf16 at random: see StochasticRoundOp. The result is a function of x, the two words of
// the key (u32 [1] each), the stream, and the element's position.
func StochasticRound(x, key0, key1 *graph.Value, stream uint32) *graph.Value {
	return graph.Apply1(&StochasticRoundOp{stream}, x, key0, key1)
}
