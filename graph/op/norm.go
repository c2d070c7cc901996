package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
)

func norms() []graph.Op {
	return []graph.Op{new(LayerNormOp), new(RMSNormOp)}
}

// normalize is the shape rule of x […, D] with parameters [D] and results […, D], then a number a row, […, 1], of which
// there are stats.
func normalize(in []graph.Type, inputs, stats int, eps graph.Real) ([]graph.Type, error) {
	if err := graph.Arity(in, inputs); err != nil {
		return nil, err
	}
	if err := wantRows(in[0]); err != nil {
		return nil, err
	}
	if !(eps >= 0) || math.IsInf(float64(eps), 0) {
		return nil, fmt.Errorf("eps is %v, expected a number of at least 0", eps)
	}
	d := len(in[0].Shape) - 1
	for i, p := range in[1:] {
		if err := wantType(fmt.Sprintf("input %d", i+1), p, in[0].DType, in[0].Shape[d]); err != nil {
			return nil, err
		}
	}
	out := in[:1:1]
	for range stats {
		out = append(out, graph.Type{DType: in[0].DType, Shape: keepDims(in[0].Shape, []int{d})})
	}
	return out, nil
}

var normShapes = []graph.Shape{{1}, {7}, {3, 5}, {2, 3, 64}, {2, 1, 2, 3, 6}, {300, 96}, {22000, 3}, {2, 1003}}

func normCases(o graph.Op, parameters int) []graph.Case {
	var cs []graph.Case
	for _, s := range normShapes {
		shapes := []graph.Shape{s}
		for range parameters {
			shapes = append(shapes, s[len(s)-1:])
		}
		cs = append(cs, cases(graph.Case{Op: o, Tolerance: 1e-5}, shapes)...)
	}
	return cs
}

// plus adds two gradients, either of which may be nil.
func plus(x, y *graph.Value) *graph.Value {
	switch {
	case x == nil:
		return y
	case y == nil:
		return x
	}
	return Add(x, y)
}

// RMSNormOp is x·r·w with r = 1/√(mean(x²) + eps) along the last axis. Its second result is r, for the gradient.
type RMSNormOp struct {
	Eps graph.Real `json:"eps"`
}

func (*RMSNormOp) Name() string                                  { return "rms_norm" }
func (o *RMSNormOp) Infer(in []graph.Type) ([]graph.Type, error) { return normalize(in, 2, 1, o.Eps) }

func (o *RMSNormOp) Kernel(*graph.Node) graph.Kernel {
	return expansion(func(in []*graph.Value) []*graph.Value {
		x := in[0]
		r := Rsqrt(Shift(Mean(Square(x), lastAxis(x), true), float64(o.Eps)))
		return []*graph.Value{Mul(Mul(x, r), in[1]), r}
	})
}

func (o *RMSNormOp) Eval(in, out []*graph.Tensor) {
	w, row := in[1].Data, 0
	rows(in[0], out[0], func(x, y []float64) {
		r := 1 / math.Sqrt(floats.Dot(x, x)/float64(len(x))+float64(o.Eps))
		for i, v := range x {
			y[i] = v * r * w[i]
		}
		out[1].Data[row] = r
		row++
	})
}

func (o *RMSNormOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	x, w, r := n.Inputs[0], n.Inputs[1], n.Outputs[1]
	xhat := Mul(x, r)
	var dx, dw *graph.Value
	if d[0] != nil {
		g := Mul(d[0], w)
		dx = Mul(r, Sub(g, Mul(xhat, Mean(Mul(g, xhat), lastAxis(x), true))))
		// Not xhat: what dw needs besides x and r would be kept for it where dw is computed later than dx.
		dw = Sum(Mul(d[0], Mul(x, r)), leading(x.Shape), false)
	}
	if d[1] != nil {
		dx = plus(dx, rstdGradient(d[1], xhat, r))
	}
	return []*graph.Value{dx, dw}
}

// rstdGradient is the gradient that reaches x through r = 1/√(mean(x²) + eps): −dr·r³·x/D.
func rstdGradient(dr, xhat, r *graph.Value) *graph.Value {
	return Mul(xhat, Mul(dr, Scale(Square(r), -1/float64(lastExtent(xhat)))))
}

func (*RMSNormOp) Cases() []graph.Case { return normCases(&RMSNormOp{1e-5}, 1) }

// RMSNorm is x/√(mean(x²) + eps)·w along the last axis; w is [D].
func RMSNorm(x, w *graph.Value, eps float64) *graph.Value {
	return graph.Apply1(&RMSNormOp{graph.Real(eps)}, x, w)
}

// LayerNormOp is (x − m)·r·w + b with the mean m and r = 1/√(variance + eps) along the last axis. Its second and third
// results are m and r, for the gradient.
type LayerNormOp struct {
	Eps graph.Real `json:"eps"`
}

func (*LayerNormOp) Name() string                                  { return "layer_norm" }
func (o *LayerNormOp) Infer(in []graph.Type) ([]graph.Type, error) { return normalize(in, 3, 2, o.Eps) }

func (o *LayerNormOp) Kernel(*graph.Node) graph.Kernel {
	return expansion(func(in []*graph.Value) []*graph.Value {
		x := in[0]
		m := Mean(x, lastAxis(x), true)
		centred := Sub(x, m)
		r := Rsqrt(Shift(Mean(Square(centred), lastAxis(x), true), float64(o.Eps)))
		return []*graph.Value{Add(Mul(Mul(centred, r), in[1]), in[2]), m, r}
	})
}

func (o *LayerNormOp) Eval(in, out []*graph.Tensor) {
	w, b, row := in[1].Data, in[2].Data, 0
	rows(in[0], out[0], func(x, y []float64) {
		m, variance := stat.PopMeanVariance(x, nil)
		r := 1 / math.Sqrt(variance+float64(o.Eps))
		for i, v := range x {
			y[i] = (v-m)*r*w[i] + b[i]
		}
		out[1].Data[row], out[2].Data[row] = m, r
		row++
	})
}

func (o *LayerNormOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	x, w, m, r := n.Inputs[0], n.Inputs[1], n.Outputs[1], n.Outputs[2]
	xhat := Mul(Sub(x, m), r)
	var dx, dw, db *graph.Value
	if d[0] != nil {
		g := Mul(d[0], w)
		along := Mul(xhat, Mean(Mul(g, xhat), lastAxis(x), true))
		dx = Mul(r, Sub(Sub(g, Mean(g, lastAxis(x), true)), along))
		again := Mul(Sub(x, m), r) // not xhat, which would be kept where dw is computed later than dx
		dw, db = Sum(Mul(d[0], again), leading(x.Shape), false), Sum(d[0], leading(x.Shape), false)
	}
	if d[1] != nil {
		dx = plus(dx, Broadcast(Scale(d[1], 1/float64(lastExtent(x))), x.Shape...))
	}
	if d[2] != nil {
		dx = plus(dx, rstdGradient(d[2], xhat, r))
	}
	return []*graph.Value{dx, dw, db}
}

// With one element per row r is 1/√eps, beyond the precision of f32 for a small eps: that shape has a large one.
func (*LayerNormOp) Cases() []graph.Case { return normCases(&LayerNormOp{0.1}, 2) }

// LayerNorm is (x − mean)/√(variance + eps)·w + b along the last axis; w and b are [D].
func LayerNorm(x, w, b *graph.Value, eps float64) *graph.Value {
	return graph.Apply1(&LayerNormOp{graph.Real(eps)}, x, w, b)
}
