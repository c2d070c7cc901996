package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func unary() []graph.Op {
	return []graph.Op{neg(), exp(), log(), sqrt(), rsqrt(), tanh(), sigmoid(), erf(), abs(), square(), reciprocal(), new(ClampOp),
		new(ScaleOp), new(ShiftOp)}
}

// one adapts a gradient rule of one input.
func one(f func(x, y, d *graph.Value) *graph.Value) func(*graph.Node, *graph.Value) []*graph.Value {
	return func(n *graph.Node, d *graph.Value) []*graph.Value {
		return []*graph.Value{f(n.Inputs[0], n.Outputs[0], d)}
	}
}

func float1(f func(float64) float64) func(graph.DType, []float64) float64 {
	return func(_ graph.DType, a []float64) float64 { return f(a[0]) }
}

// Neg is −x, of floats and i32.
func Neg(x *graph.Value) *graph.Value { return graph.Apply1(neg(), x) }

func neg() graph.Op {
	return &pointwise{
		name: "neg", inputs: 1, accept: signed,
		emit: of1((*scalar.Expr).Neg),
		eval: func(d graph.DType, a []float64) float64 {
			if d == graph.I32 {
				return wrap(d, -int64(a[0]))
			}
			return -a[0]
		},
		grad: one(func(_, _, d *graph.Value) *graph.Value { return Neg(d) }),
	}
}

// Exp is e to the power x.
func Exp(x *graph.Value) *graph.Value { return graph.Apply1(exp(), x) }

func exp() graph.Op {
	return &pointwise{
		name: "exp", inputs: 1, emit: call("exp"), eval: float1(math.Exp),
		grad: one(func(_, y, d *graph.Value) *graph.Value { return Mul(d, y) }),
	}
}

// Log is the natural logarithm of x > 0.
func Log(x *graph.Value) *graph.Value { return graph.Apply1(log(), x) }

func log() graph.Op {
	return &pointwise{
		name: "log", inputs: 1, emit: call("log"), eval: float1(math.Log), low: 0.05, high: 9,
		grad: one(func(x, _, d *graph.Value) *graph.Value { return Div(d, x) }),
	}
}

// Sqrt is the square root of x ≥ 0.
func Sqrt(x *graph.Value) *graph.Value { return graph.Apply1(sqrt(), x) }

func sqrt() graph.Op {
	return &pointwise{
		name: "sqrt", inputs: 1, emit: call("sqrt"), eval: float1(math.Sqrt), low: 0.05, high: 9,
		grad: one(func(_, y, d *graph.Value) *graph.Value { return half(Div(d, y)) }),
	}
}

// Rsqrt is 1/√x for x > 0.
func Rsqrt(x *graph.Value) *graph.Value { return graph.Apply1(rsqrt(), x) }

func rsqrt() graph.Op {
	return &pointwise{
		name: "rsqrt", inputs: 1, emit: call("inverseSqrt"), low: 0.05, high: 9,
		eval: float1(func(x float64) float64 { return 1 / math.Sqrt(x) }),
		grad: one(func(_, y, d *graph.Value) *graph.Value { return Mul(d, Scale(Mul(y, Square(y)), -0.5)) }),
	}
}

// Tanh is the hyperbolic tangent.
func Tanh(x *graph.Value) *graph.Value { return graph.Apply1(tanh(), x) }

func tanh() graph.Op {
	return &pointwise{
		name: "tanh", inputs: 1, eval: float1(math.Tanh), low: -12, high: 12,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr { return emitTanh(e, a[0]) },
		grad: one(func(_, y, d *graph.Value) *graph.Value { return Mul(d, Shift(Neg(Square(y)), 1)) }),
	}
}

// emitTanh does not use the built-in, which may overflow. A polynomial near zero keeps the relative precision that
// 1 - 2/(…) would lose.
func emitTanh(e graph.Emitter, expr *scalar.Expr) *scalar.Expr {
	x, one := e.Let(expr), scalar.F(1)
	z := e.Let(x.Mul(x))
	near := polynomial(z, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
	size := scalar.Apply("abs", x)
	q := e.Let(scalar.Apply("exp", scalar.F(-2).Mul(size)))
	far := scalar.Apply("sign", x).Mul(one.Sub(q).Div(one.Add(q)))
	return scalar.Select(far, near.Mul(z).Mul(x).Add(x), size.Less(scalar.F(0.625)))
}

// polynomial is Horner's scheme, the highest coefficient first.
func polynomial(x *scalar.Expr, coefficients ...float64) *scalar.Expr {
	p := scalar.F(coefficients[0])
	for _, c := range coefficients[1:] {
		p = scalar.Fma(p, x, scalar.F(c))
	}
	return p
}

// Sigmoid is 1/(1+e⁻ˣ).
func Sigmoid(x *graph.Value) *graph.Value { return graph.Apply1(sigmoid(), x) }

func sigmoid() graph.Op {
	return &pointwise{
		name: "sigmoid", inputs: 1, eval: float1(logistic), low: -9, high: 9,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr { return emitSigmoid(e, a[0]) },
		grad: one(func(_, y, d *graph.Value) *graph.Value { return Mul(d, Mul(y, Shift(Neg(y), 1))) }),
	}
}

func logistic(x float64) float64 {
	if x < 0 {
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}

// emitSigmoid takes exponentials of negative values only, which cannot overflow.
func emitSigmoid(e graph.Emitter, expr *scalar.Expr) *scalar.Expr {
	x, one := e.Let(expr), scalar.F(1)
	q := e.Let(scalar.Apply("exp", scalar.Apply("abs", x).Neg()))
	return scalar.Select(q, one, x.AtLeast(scalar.F(0))).Div(one.Add(q))
}

// Erf is the error function.
func Erf(x *graph.Value) *graph.Value { return graph.Apply1(erf(), x) }

func erf() graph.Op {
	return &pointwise{
		name: "erf", inputs: 1, eval: float1(math.Erf), low: -5, high: 5,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr { return emitErf(e, a[0]) },
		grad: one(func(x, _, d *graph.Value) *graph.Value {
			return Mul(d, Scale(Exp(Neg(Square(x))), 2/math.Sqrt(math.Pi)))
		}),
	}
}

// emitErf is a minimax approximation with an error of about one unit in the last place of f32.
func emitErf(e graph.Emitter, expr *scalar.Expr) *scalar.Expr {
	x := e.Let(expr)
	t := e.Let(scalar.Min(scalar.Apply("abs", x), scalar.F(4))) // erf is 1 in f32 from there on
	s := e.Let(t.Mul(t))
	far := polynomial(t, -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1,
		-1.28717512e-1)
	far = scalar.Fma(far, t, t.Neg())
	near := polynomial(s, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
	saturating := scalar.Apply("sign", x).Mul(scalar.F(1).Sub(scalar.Apply("exp", far)))
	return scalar.Select(saturating, scalar.Fma(near, x, x), t.Less(scalar.F(0.927734375)))
}

// Abs is |x|, of floats and i32.
func Abs(x *graph.Value) *graph.Value { return graph.Apply1(abs(), x) }

func abs() graph.Op {
	return &pointwise{
		name: "abs", inputs: 1, accept: signed, emit: call("abs"),
		eval: func(d graph.DType, a []float64) float64 {
			if d == graph.I32 {
				return wrap(d, int64(math.Abs(a[0])))
			}
			return math.Abs(a[0])
		},
		grad: one(func(x, _, d *graph.Value) *graph.Value {
			zero := Scalar(x.Builder(), x.DType, 0)
			return Where(Greater(x, zero), d, Where(Less(x, zero), Neg(d), zero))
		}),
	}
}

// Square is x²; integers wrap.
func Square(x *graph.Value) *graph.Value { return graph.Apply1(square(), x) }

func square() graph.Op {
	return &pointwise{
		name: "square", inputs: 1, accept: anyDType,
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
			x := e.Let(a[0])
			return x.Mul(x)
		},
		eval: func(d graph.DType, a []float64) float64 {
			if !d.Float() {
				return integer(d, a[0], a[0], func(x, y int64) int64 { return x * y })
			}
			return a[0] * a[0]
		},
		grad: one(func(x, _, d *graph.Value) *graph.Value { return Mul(d, Scale(x, 2)) }),
	}
}

// Reciprocal is 1/x.
func Reciprocal(x *graph.Value) *graph.Value { return graph.Apply1(reciprocal(), x) }

func reciprocal() graph.Op {
	return &pointwise{
		name: "reciprocal", inputs: 1, low: 0.5, high: 5,
		emit: of1(scalar.F(1).Div),
		eval: float1(func(x float64) float64 { return 1 / x }),
		grad: one(func(_, y, d *graph.Value) *graph.Value { return Neg(Mul(d, Square(y))) }),
	}
}

// attributed is what the ops of one float input with attributes share.
type attributed struct{}

func (attributed) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	return in[:1], wantFloat(0, in[0])
}

func each(in, out []*graph.Tensor, f func(float64) float64) {
	for i, x := range in[0].Data {
		out[0].Data[i] = f(x)
	}
}

var attributedShapes = [][]graph.Shape{{{}}, {{9}}, {{4, 5}}, {{2, 3, 1, 4}}, {{66001}}}

// ClampOp is x limited to [Low, High].
type ClampOp struct {
	attributed
	Low  graph.Real `json:"low"`
	High graph.Real `json:"high"`
}

func (*ClampOp) Name() string { return "clamp" }

func (o *ClampOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if !(o.Low <= o.High) {
		return nil, fmt.Errorf("the limits are %v and %v, expected low ≤ high", o.Low, o.High)
	}
	return o.attributed.Infer(in)
}

func (o *ClampOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Pointwise(1, func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
		x := scalar.Max(a[0], number(e, scalar.F32, float64(o.Low)))
		return scalar.Min(x, number(e, scalar.F32, float64(o.High)))
	})
}

func (o *ClampOp) Eval(in, out []*graph.Tensor) {
	each(in, out, func(x float64) float64 { return math.Min(math.Max(x, float64(o.Low)), float64(o.High)) })
}

func (o *ClampOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	b, x := d[0].Builder(), n.Inputs[0]
	inside := And(GreaterEqual(x, Scalar(b, x.DType, float64(o.Low))), LessEqual(x, Scalar(b, x.DType, float64(o.High))))
	return []*graph.Value{Where(inside, d[0], Scalar(b, x.DType, 0))}
}

func (*ClampOp) Cases() []graph.Case {
	cs := cases(graph.Case{Op: &ClampOp{Low: -1, High: 0.5}}, attributedShapes...)
	half := &ClampOp{Low: 0, High: graph.Real(math.Inf(1))}
	return append(cs, cases(graph.Case{Op: half}, []graph.Shape{{5, 7}})...)
}

// Clamp is x limited to [lo, hi], which may be infinite. The gradient flows where x is inside.
func Clamp(x *graph.Value, lo, hi float64) *graph.Value {
	return graph.Apply1(&ClampOp{Low: graph.Real(lo), High: graph.Real(hi)}, x)
}

// ScaleOp is Factor · x.
type ScaleOp struct {
	attributed
	Factor graph.Real `json:"factor"`
}

func (*ScaleOp) Name() string { return "scale" }

func (o *ScaleOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Pointwise(1, func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
		return a[0].Mul(number(e, scalar.F32, float64(o.Factor)))
	})
}

func (o *ScaleOp) Eval(in, out []*graph.Tensor) {
	each(in, out, func(x float64) float64 { return x * float64(o.Factor) })
}

func (o *ScaleOp) Grad(_ *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{Scale(d[0], float64(o.Factor))}
}

func (*ScaleOp) Cases() []graph.Case {
	return cases(graph.Case{Op: &ScaleOp{Factor: -1.7}}, attributedShapes...)
}

// Scale is c · x.
func Scale(x *graph.Value, c float64) *graph.Value {
	return graph.Apply1(&ScaleOp{Factor: graph.Real(c)}, x)
}

// ShiftOp is x + Offset.
type ShiftOp struct {
	attributed
	Offset graph.Real `json:"offset"`
}

func (*ShiftOp) Name() string { return "shift" }

func (o *ShiftOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Pointwise(1, func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
		return a[0].Add(number(e, scalar.F32, float64(o.Offset)))
	})
}

func (o *ShiftOp) Eval(in, out []*graph.Tensor) {
	each(in, out, func(x float64) float64 { return x + float64(o.Offset) })
}

func (o *ShiftOp) Grad(_ *graph.Node, d []*graph.Value) []*graph.Value { return d[:1] }

func (*ShiftOp) Cases() []graph.Case {
	return cases(graph.Case{Op: &ShiftOp{Offset: 0.3}}, attributedShapes...)
}

// Shift is x + c.
func Shift(x *graph.Value, c float64) *graph.Value {
	return graph.Apply1(&ShiftOp{Offset: graph.Real(c)}, x)
}
