package op

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func arithmetic() []graph.Op {
	return []graph.Op{add(), sub(), mul(), div(), pow(), maximum(), minimum()}
}

// of1 and of2 are the kernels of functions of one and of two numbers.
func of1(f func(x *scalar.Expr) *scalar.Expr) func(graph.Emitter, []*scalar.Expr) *scalar.Expr {
	return func(_ graph.Emitter, a []*scalar.Expr) *scalar.Expr { return f(a[0]) }
}
func of2(f func(x, y *scalar.Expr) *scalar.Expr) func(graph.Emitter, []*scalar.Expr) *scalar.Expr {
	return func(_ graph.Emitter, a []*scalar.Expr) *scalar.Expr { return f(a[0], a[1]) }
}

// wrapping is the reference of a function of two floats and, with the wrapping of their dtype, of two whole numbers.
func wrapping(f func(x, y float64) float64, whole func(x, y int64) int64) func(graph.DType, []float64) float64 {
	return func(d graph.DType, a []float64) float64 {
		if d.Float() {
			return f(a[0], a[1])
		}
		return integer(d, a[0], a[1], whole)
	}
}

// call is the kernel of a built-in function.
func call(name string) func(graph.Emitter, []*scalar.Expr) *scalar.Expr {
	return func(_ graph.Emitter, a []*scalar.Expr) *scalar.Expr { return scalar.Apply(name, a...) }
}

// apply2 broadcasts x and y to one shape and applies the op.
func apply2(o graph.Op, x, y *graph.Value) *graph.Value {
	vs := align(o, x, y)
	return graph.Apply1(o, vs[0], vs[1])
}

// align broadcasts values to one shape.
func align(o graph.Op, vs ...*graph.Value) []*graph.Value {
	shape := vs[0].Shape
	for _, v := range vs[1:] {
		s, err := BroadcastShapes(shape, v.Shape)
		if err != nil {
			v.Builder().Fail(o.Name(), "%v", err)
		}
		shape = s
	}
	out := make([]*graph.Value, len(vs))
	for i, v := range vs {
		out[i] = Broadcast(v, shape...)
	}
	return out
}

// Add is x + y with NumPy's broadcasting; integers wrap.
func Add(x, y *graph.Value) *graph.Value { return apply2(add(), x, y) }

func add() graph.Op {
	return &pointwise{
		name: "add", inputs: 2, accept: anyDType, emit: of2((*scalar.Expr).Add),
		eval: wrapping(func(x, y float64) float64 { return x + y }, func(x, y int64) int64 { return x + y }),
		grad: func(_ *graph.Node, d *graph.Value) []*graph.Value { return []*graph.Value{d, d} },
	}
}

// Sub is x − y with NumPy's broadcasting; integers wrap.
func Sub(x, y *graph.Value) *graph.Value { return apply2(sub(), x, y) }

func sub() graph.Op {
	return &pointwise{
		name: "sub", inputs: 2, accept: anyDType, emit: of2((*scalar.Expr).Sub),
		eval: wrapping(func(x, y float64) float64 { return x - y }, func(x, y int64) int64 { return x - y }),
		grad: func(_ *graph.Node, d *graph.Value) []*graph.Value { return []*graph.Value{d, Neg(d)} },
	}
}

// Mul is x · y with NumPy's broadcasting; integers wrap.
func Mul(x, y *graph.Value) *graph.Value { return apply2(mul(), x, y) }

// IsProduct reports whether o is Mul.
func IsProduct(o graph.Op) bool { return o.Name() == mul().Name() }

func mul() graph.Op {
	return &pointwise{
		name: "mul", inputs: 2, accept: anyDType, emit: of2((*scalar.Expr).Mul),
		eval: wrapping(func(x, y float64) float64 { return x * y }, func(x, y int64) int64 { return x * y }),
		grad: func(n *graph.Node, d *graph.Value) []*graph.Value {
			return []*graph.Value{Mul(d, n.Inputs[1]), Mul(d, n.Inputs[0])}
		},
	}
}

// Div is x / y with NumPy's broadcasting. Integers truncate; where the quotient does not exist (y is zero, or the
// least i32 by −1) the result is x.
func Div(x, y *graph.Value) *graph.Value { return apply2(div(), x, y) }

func div() graph.Op {
	return &pointwise{
		name: "div", inputs: 2, accept: anyDType, low: 0.5, high: 2, // a divisor near zero has no bound on the error
		emit: func(e graph.Emitter, a []*scalar.Expr) *scalar.Expr {
			if a[0].Type == scalar.F32 {
				return a[0].Div(a[1])
			}
			x, y := e.Let(a[0]), e.Let(a[1])
			if x.Type == scalar.U32 {
				return x.Div(scalar.Select(y, scalar.U(1), y.Equal(scalar.U(0))))
			}
			overflows := y.Equal(scalar.I(-1)).Both(x.Equal(scalar.I(math.MinInt32)))
			return x.Div(scalar.Select(y, scalar.I(1), y.Equal(scalar.I(0)).Either(overflows)))
		},
		eval: func(d graph.DType, a []float64) float64 {
			if d.Float() {
				return a[0] / a[1]
			}
			if a[1] == 0 || a[1] == -1 && a[0] == math.MinInt32 {
				return a[0]
			}
			return math.Trunc(a[0] / a[1]) // exact: both have 32 bits
		},
		grad: func(n *graph.Node, d *graph.Value) []*graph.Value {
			q := Div(d, n.Inputs[1])
			return []*graph.Value{q, Neg(Mul(q, n.Outputs[0]))}
		},
	}
}

// Pow is x to the power y, for x > 0, with NumPy's broadcasting.
func Pow(x, y *graph.Value) *graph.Value { return apply2(pow(), x, y) }

func pow() graph.Op {
	return &pointwise{
		name: "pow", inputs: 2, emit: call("pow"), low: 0.5, high: 2.5, tolerance: 2e-5,
		eval: func(_ graph.DType, a []float64) float64 { return math.Pow(a[0], a[1]) },
		grad: func(n *graph.Node, d *graph.Value) []*graph.Value {
			x, y, p := n.Inputs[0], n.Inputs[1], n.Outputs[0]
			return []*graph.Value{Mul(d, Mul(y, Pow(x, Shift(y, -1)))), Mul(d, Mul(p, Log(x)))}
		},
	}
}

// Maximum is the larger of x and y, with NumPy's broadcasting. Where they are equal each gets half of the gradient.
func Maximum(x, y *graph.Value) *graph.Value { return apply2(maximum(), x, y) }

func maximum() graph.Op {
	return &pointwise{
		name: "maximum", inputs: 2, accept: anyDType, emit: call("max"),
		eval: func(_ graph.DType, a []float64) float64 { return math.Max(a[0], a[1]) },
		grad: func(n *graph.Node, d *graph.Value) []*graph.Value { return share(n.Inputs[0], n.Inputs[1], d) },
	}
}

// Minimum is the smaller of x and y, with NumPy's broadcasting. Where they are equal each gets half of the gradient.
func Minimum(x, y *graph.Value) *graph.Value { return apply2(minimum(), x, y) }

func minimum() graph.Op {
	return &pointwise{
		name: "minimum", inputs: 2, accept: anyDType, emit: call("min"),
		eval: func(_ graph.DType, a []float64) float64 { return math.Min(a[0], a[1]) },
		grad: func(n *graph.Node, d *graph.Value) []*graph.Value { return share(n.Inputs[1], n.Inputs[0], d) },
	}
}

// share gives d to its first result where x is larger than y, and to its second where it is smaller.
func share(x, y, d *graph.Value) []*graph.Value {
	zero := Scalar(d.Builder(), d.DType, 0)
	tie := Where(Equal(x, y), half(d), zero)
	return []*graph.Value{Where(Greater(x, y), d, tie), Where(Less(x, y), d, tie)}
}
