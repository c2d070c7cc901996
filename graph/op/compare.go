package op

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func comparisons() []graph.Op {
	return []graph.Op{less(), lessEqual(), greater(), greaterEqual(), equal(), notEqual(), and(), or(), not(), isFinite(), new(WhereOp)}
}

func comparison(name, operator string, f func(x, y float64) bool) graph.Op {
	return &pointwise{
		name: name, inputs: 2, accept: anyDType, predicate: true,
		emit: of2(func(x, y *scalar.Expr) *scalar.Expr { return x.Compare(operator, y).To(scalar.U32) }),
		eval: func(_ graph.DType, a []float64) float64 { return truth(f(a[0], a[1])) },
	}
}

func less() graph.Op { return comparison("less", "<", func(x, y float64) bool { return x < y }) }
func lessEqual() graph.Op {
	return comparison("less_equal", "<=", func(x, y float64) bool { return x <= y })
}
func greater() graph.Op { return comparison("greater", ">", func(x, y float64) bool { return x > y }) }
func greaterEqual() graph.Op {
	return comparison("greater_equal", ">=", func(x, y float64) bool { return x >= y })
}
func equal() graph.Op { return comparison("equal", "==", func(x, y float64) bool { return x == y }) }
func notEqual() graph.Op {
	return comparison("not_equal", "!=", func(x, y float64) bool { return x != y })
}

// Less is x < y as u32 0 or 1, with NumPy's broadcasting.
func Less(x, y *graph.Value) *graph.Value { return apply2(less(), x, y) }

// LessEqual is x ≤ y as u32 0 or 1, with NumPy's broadcasting.
func LessEqual(x, y *graph.Value) *graph.Value { return apply2(lessEqual(), x, y) }

// Greater is x > y as u32 0 or 1, with NumPy's broadcasting.
func Greater(x, y *graph.Value) *graph.Value { return apply2(greater(), x, y) }

// GreaterEqual is x ≥ y as u32 0 or 1, with NumPy's broadcasting.
func GreaterEqual(x, y *graph.Value) *graph.Value { return apply2(greaterEqual(), x, y) }

// Equal is x = y as u32 0 or 1, with NumPy's broadcasting.
func Equal(x, y *graph.Value) *graph.Value { return apply2(equal(), x, y) }

// NotEqual is x ≠ y as u32 0 or 1, with NumPy's broadcasting.
func NotEqual(x, y *graph.Value) *graph.Value { return apply2(notEqual(), x, y) }

func logic(name string, emit func(x, y *scalar.Expr) *scalar.Expr, f func(x, y bool) bool) graph.Op {
	return &pointwise{
		name: name, inputs: 2, accept: isU32, predicate: true,
		emit: of2(func(x, y *scalar.Expr) *scalar.Expr {
			return emit(x.Unequal(scalar.U(0)), y.Unequal(scalar.U(0))).To(scalar.U32)
		}),
		eval: func(_ graph.DType, a []float64) float64 { return truth(f(a[0] != 0, a[1] != 0)) },
	}
}

func and() graph.Op {
	return logic("and", (*scalar.Expr).Both, func(x, y bool) bool { return x && y })
}
func or() graph.Op {
	return logic("or", (*scalar.Expr).Either, func(x, y bool) bool { return x || y })
}

// And is 1 where both u32 are not zero, and 0 elsewhere.
func And(x, y *graph.Value) *graph.Value { return apply2(and(), x, y) }

// Or is 1 where one of two u32 is not zero, and 0 elsewhere.
func Or(x, y *graph.Value) *graph.Value { return apply2(or(), x, y) }

// Not is 1 where a u32 is zero, and 0 elsewhere.
func Not(x *graph.Value) *graph.Value { return graph.Apply1(not(), x) }

func not() graph.Op {
	return &pointwise{
		name: "not", inputs: 1, accept: isU32, predicate: true,
		emit: of1(func(x *scalar.Expr) *scalar.Expr { return x.Equal(scalar.U(0)).To(scalar.U32) }),
		eval: func(_ graph.DType, a []float64) float64 { return truth(a[0] == 0) },
	}
}

// IsFinite is 1 where a float is neither infinite nor NaN, and 0 elsewhere.
func IsFinite(x *graph.Value) *graph.Value { return graph.Apply1(isFinite(), x) }

// finite has cases with the values that it looks for.
type finite struct{ pointwise }

func (p *finite) Cases() []graph.Case {
	cs := p.pointwise.Cases()
	special := []float64{0, math.Inf(1), 1, math.Inf(-1), math.MaxFloat32, math.NaN(), -math.MaxFloat32}
	for i := range cs {
		cs[i].Op = p
		cs[i].Fill = func(_, j int) float64 { return special[j%len(special)] }
	}
	return cs
}

func isFinite() graph.Op {
	// By the bits of the exponent: compilers may assume that no float is NaN.
	return &finite{pointwise{
		name: "is_finite", inputs: 1, predicate: true,
		emit: of1(func(x *scalar.Expr) *scalar.Expr {
			exponent := scalar.U(infinityBits)
			return x.As(scalar.U32).And(exponent).Unequal(exponent).To(scalar.U32)
		}),
		eval: func(_ graph.DType, a []float64) float64 { return truth(!math.IsNaN(a[0]) && !math.IsInf(a[0], 0)) },
	}}
}

// WhereOp chooses between its second and third inputs by its first.
type WhereOp struct{}

func (*WhereOp) Name() string { return "where" }

func (*WhereOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 3); err != nil {
		return nil, err
	}
	if err := sameType(in[1:], 2); err != nil {
		return nil, err
	}
	return in[1:2], wantType("the condition", in[0], graph.U32, in[1].Shape...)
}

func (*WhereOp) Kernel(*graph.Node) graph.Kernel {
	return graph.Pointwise(3, func(_ graph.Emitter, a []*scalar.Expr) *scalar.Expr {
		return scalar.Select(a[2], a[1], a[0].Unequal(scalar.U(0)))
	})
}

func (*WhereOp) Eval(in, out []*graph.Tensor) {
	for i, c := range in[0].Data {
		if c != 0 {
			out[0].Data[i] = in[1].Data[i]
		} else {
			out[0].Data[i] = in[2].Data[i]
		}
	}
}

func (*WhereOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	zero := Scalar(d[0].Builder(), d[0].DType, 0)
	return []*graph.Value{nil, Where(n.Inputs[0], d[0], zero), Where(n.Inputs[0], zero, d[0])}
}

func (*WhereOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, s := range []graph.Shape{{}, {13}, {3, 5}, {2, 3, 2, 2}, {65537}} {
		for _, d := range []graph.DType{graph.F32, graph.I32} {
			t := graph.Type{DType: d, Shape: s}
			cond := graph.Type{DType: graph.U32, Shape: s}
			cs = append(cs, graph.Case{Op: new(WhereOp), Inputs: []graph.Type{cond, t, t}, NoGrad: d != graph.F32})
		}
	}
	return cs
}

// Where is x where cond (u32) is not zero, else y, with NumPy's broadcasting of all three.
func Where(cond, x, y *graph.Value) *graph.Value {
	o := new(WhereOp)
	return graph.Apply1(o, align(o, cond, x, y)...)
}
