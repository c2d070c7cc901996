package op

import (
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func activations() []graph.Op { return []graph.Op{silu(), gelu(), geluTanh(), squaredReLU()} }

// IsActivation reports whether o is SiLU, GELU, GELUTanh or SquaredReLU.
func IsActivation(o graph.Op) bool {
	return slices.ContainsFunc(activations(), func(a graph.Op) bool { return a.Name() == o.Name() })
}

// SiLU is x · sigmoid(x).
func SiLU(x *graph.Value) *graph.Value { return graph.Apply1(silu(), x) }

func silu() graph.Op {
	return &pointwise{
		name: "silu", inputs: 1, low: -8, high: 8,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
			x := e.Let(a[0])
			return x.Mul(emitSigmoid(e, x))
		},
		eval: float1(func(x float64) float64 { return x * logistic(x) }),
		grad: one(func(x, _, d *graph.Value) *graph.Value {
			s := Sigmoid(x)
			return Mul(d, Mul(s, Shift(Mul(x, Shift(Neg(s), 1)), 1)))
		}),
	}
}

// GELU is x · Φ(x) with the normal distribution's Φ, by erf.
func GELU(x *graph.Value) *graph.Value { return graph.Apply1(gelu(), x) }

func gelu() graph.Op {
	return &pointwise{
		name: "gelu", inputs: 1, low: -6, high: 6,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
			x := e.Let(a[0])
			return scalar.F(0.5).Mul(x).Mul(scalar.F(1).Add(emitErf(e, x.Mul(scalar.F(math.Sqrt2/2)))))
		},
		eval: float1(func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }),
		grad: one(func(x, _, d *graph.Value) *graph.Value {
			phi := Shift(half(Erf(Scale(x, math.Sqrt2/2))), 0.5)
			density := Scale(Exp(Scale(Square(x), -0.5)), 1/math.Sqrt(2*math.Pi))
			return Mul(d, Add(phi, Mul(x, density)))
		}),
	}
}

// The constants of GELU's tanh form, x · sigmoid(2u) with u = geluRoot · (x + geluCube · x³).
const geluCube = 0.044715

var geluRoot = math.Sqrt(2 / math.Pi)

// GELUTanh is GELU in its tanh form, as GPT-2 has it.
func GELUTanh(x *graph.Value) *graph.Value { return graph.Apply1(geluTanh(), x) }

func geluTanh() graph.Op {
	return &pointwise{
		name: "gelu_tanh", inputs: 1, low: -6, high: 6,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
			x := e.Let(a[0])
			u := x.Mul(scalar.Fma(x.Mul(x), scalar.F(2*geluRoot*geluCube), scalar.F(2*geluRoot)))
			return x.Mul(emitSigmoid(e, u))
		},
		eval: float1(func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(geluRoot*(x+geluCube*x*x*x)))
		}),
		grad: one(func(x, _, d *graph.Value) *graph.Value {
			x2 := Square(x)
			s := Sigmoid(Mul(x, Shift(Scale(x2, 2*geluRoot*geluCube), 2*geluRoot)))
			slope := Shift(Scale(x2, 6*geluRoot*geluCube), 2*geluRoot)
			return Mul(d, Mul(s, Shift(Mul(Mul(x, slope), Shift(Neg(s), 1)), 1)))
		}),
	}
}

// SquaredReLU is max(x, 0)² (So et al., Primer, arXiv 2109.08668).
func SquaredReLU(x *graph.Value) *graph.Value { return graph.Apply1(squaredReLU(), x) }

func squaredReLU() graph.Op {
	return &pointwise{
		name: "squared_relu", inputs: 1, low: -4, high: 4,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
			x := e.Let(a[0])
			zero := scalar.F(0)
			return scalar.Select(x.Mul(x), zero, x.Less(zero)) // of NaN NaN
		},
		eval: float1(func(x float64) float64 {
			if x < 0 {
				return 0
			}
			return x * x
		}),
		grad: one(func(x, _, d *graph.Value) *graph.Value {
			return Mul(d, Scale(Maximum(x, Scalar(x.Builder(), graph.F32, 0)), 2))
		}),
	}
}
