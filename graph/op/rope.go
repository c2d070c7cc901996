package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// RoPEOp rotates the pairs (c, c + D/2) of the last axis of x [B,T,H,D] by the angles of the tables [S,D/2], row
// t + position, or back. The position is u32[1], or u32[B] with one for each sequence; without it 0.
type RoPEOp struct {
	Inverse bool `json:"inverse"`
}

func (*RoPEOp) Name() string { return "rope" }

// Fixed reports that no gradient flows to the tables.
func (*RoPEOp) Fixed(input int) bool { return input > 0 }

func (*RoPEOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) != 3 && len(in) != 4 {
		return nil, fmt.Errorf("got %d inputs, expected 3 or 4", len(in))
	}
	x, table := in[0], in[1]
	if err := wantFloat(0, x); err != nil {
		return nil, err
	}
	if len(x.Shape) != 4 || x.Shape[3]%2 != 0 {
		return nil, fmt.Errorf("input 0 is %v, expected [batch, sequence, heads, an even extent]", x)
	}
	if len(table.Shape) != 2 {
		return nil, fmt.Errorf("the cosines are %v, expected [positions, %d]", table, x.Shape[3]/2)
	}
	if err := wantType("the cosines", table, x.DType, table.Shape[0], x.Shape[3]/2); err != nil {
		return nil, err
	}
	if err := wantType("the sines", in[2], x.DType, table.Shape...); err != nil {
		return nil, err
	}
	if table.Shape[0] < x.Shape[1] {
		return nil, fmt.Errorf("the tables have %d positions, the sequence %d", table.Shape[0], x.Shape[1])
	}
	if len(in) == 4 {
		if in[3].Equal(graph.T(graph.U32, x.Shape[0])) {
			return in[:1], nil
		}
		return in[:1], wantType("the position", in[3], graph.U32, 1)
	}
	return in[:1], nil
}

func (o *RoPEOp) Kernel(n *graph.Node) graph.Kernel {
	d, positions := n.Inputs[0].Shape[3], n.Inputs[1].Shape[0]
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		row, c := at[1], at[3]
		if len(n.Inputs) == 4 {
			// A position beyond the tables reads their last row, never other memory.
			sequence := graph.Const(0)
			if n.Inputs[3].Shape[0] > 1 {
				sequence = at[0]
			}
			p := e.Let(e.Input(3, []graph.Index{sequence}))
			from := scalar.Min(p, scalar.U(uint32(positions)))
			row = graph.IndexOf(scalar.Min(row.Expr().Add(from), scalar.U(uint32(positions-1))), positions)
		}
		partner := c.Plus(graph.Const(d / 2)).Mod(d)
		angle := []graph.Index{row, c.Mod(d / 2)}
		x := e.Input(0, at)
		y := e.Let(e.Input(0, []graph.Index{at[0], at[1], at[2], partner}))
		first, second := y.Neg(), y
		if o.Inverse {
			first, second = second, first
		}
		turned := scalar.Select(second, first, c.Expr().Less(scalar.U(uint32(d/2))))
		return x.Mul(e.Input(1, angle)).Add(turned.Mul(e.Input(2, angle)))
	}}
}

func (o *RoPEOp) Eval(in, out []*graph.Tensor) {
	x, positions := in[0], in[1].Shape[0]
	d := x.Shape[3]
	h := d / 2
	for i := 0; i < len(x.Data); i += d {
		start := 0
		if len(in) == 4 {
			start = int(in[3].Data[i/(d*x.Shape[2]*x.Shape[1])%in[3].Shape[0]])
		}
		t := min(i/(d*x.Shape[2])%x.Shape[1]+start, positions-1)
		for c := range h {
			cos, sin := in[1].Data[t*h+c], in[2].Data[t*h+c]
			if o.Inverse {
				sin = -sin
			}
			a, b := x.Data[i+c], x.Data[i+h+c]
			out[0].Data[i+c] = a*cos - b*sin
			out[0].Data[i+h+c] = b*cos + a*sin
		}
	}
}

func (o *RoPEOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	in := append([]*graph.Value{d[0]}, n.Inputs[1:]...)
	grads := make([]*graph.Value, len(in))
	grads[0] = graph.Apply1(&RoPEOp{!o.Inverse}, in...)
	return grads
}

func (*RoPEOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, inverse := range []bool{false, true} {
		for _, s := range []graph.Shape{{1, 1, 1, 2}, {2, 5, 3, 6}, {1, 7, 2, 16}, {1, 100, 11, 64}} {
			t := graph.T(graph.F32, s[1]+3, s[3]/2)
			in := []graph.Type{{DType: graph.F32, Shape: s}, t, t}
			cs = append(cs, graph.Case{Op: &RoPEOp{inverse}, Inputs: in},
				graph.Case{Op: &RoPEOp{inverse}, Inputs: append(in, graph.T(graph.U32, 1))},
				graph.Case{Op: &RoPEOp{inverse}, Inputs: append(in[:3:3], graph.T(graph.U32, s[0]))})
		}
	}
	return cs
}

// RoPE rotates the pairs (c, c + D/2) of the last axis of x [B,T,H,D] as Hugging Face's Llama does, by the tables
// [S,D/2] that RoPETables makes. Row t uses the tables' row t + position; position is u32[1], u32[B] with one for each
// sequence, or nil for 0.
func RoPE(x, cos, sin, position *graph.Value) *graph.Value {
	in := []*graph.Value{x, cos, sin}
	if position != nil {
		in = append(in, position)
	}
	return graph.Apply1(new(RoPEOp), in...)
}

// RoPETables are the cosines and sines of t·f, rows t < s, columns i < d/2, where f is the scaled frequency θ^(−2i/d).
// With YaRN they are multiplied by its attention factor.
func RoPETables(theta float64, s, d int, scaling RoPEScaling) (cos, sin []float64) {
	h := d / 2
	cos, sin = make([]float64, s*h), make([]float64, s*h)
	for i := range h {
		f := scaling.frequency(math.Pow(theta, -2*float64(i)/float64(d)), i, d, theta)
		for t := range s {
			sin[t*h+i], cos[t*h+i] = math.Sincos(float64(t) * f)
			if scaling.YaRN {
				sin[t*h+i], cos[t*h+i] = sin[t*h+i]*scaling.Attention, cos[t*h+i]*scaling.Attention
			}
		}
	}
	return cos, sin
}

// RoPEFactors are the divisors of the d/2 frequencies.
func RoPEFactors(theta float64, d int, scaling RoPEScaling) []float32 {
	factors := make([]float32, d/2)
	for i := range factors {
		f := math.Pow(theta, -2*float64(i)/float64(d))
		factors[i] = float32(f / scaling.frequency(f, i, d, theta))
	}
	return factors
}

// RoPEScaling adapts the frequencies of a model to contexts longer than the one it was first trained with, as Llama 3.1
// does and as Hugging Face's transformers compute it. A frequency that turns less than Low times within Original
// positions is divided by Factor. One that turns more than High times is kept. Frequencies in between are interpolated.
// YaRN interpolates along the columns of the tables instead, between the columns of the two frequencies, rounded
// outwards. The zero value does not scale.
type RoPEScaling struct {
	Factor, Low, High float64 // Low < High
	Original          float64 // positions of the first training
	YaRN              bool
	Attention         float64 // factor of YaRN's tables
}

// frequency is the scaled frequency f = θ^(−2i/d) of column i.
func (s RoPEScaling) frequency(f float64, i, d int, theta float64) float64 {
	switch {
	case s == (RoPEScaling{}):
		return f
	case s.YaRN:
		divided := s.ramp(i, d, theta)
		return divided*f/s.Factor + (1-divided)*f
	}
	turns := s.Original * f / (2 * math.Pi)
	kept := min(max((turns-s.Low)/(s.High-s.Low), 0), 1)
	return (1-kept)*f/s.Factor + kept*f
}

// ramp is the share of YaRN's division in the frequency of column i of d/2.
func (s RoPEScaling) ramp(i, d int, theta float64) float64 {
	column := func(turns float64) float64 {
		return float64(d) * math.Log(s.Original/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	first, last := max(math.Floor(column(s.High)), 0), min(math.Ceil(column(s.Low)), float64(d-1))
	if first == last {
		last += 0.001 // as transformers does
	}
	return min(max((float64(i)-first)/(last-first), 0), 1)
}
