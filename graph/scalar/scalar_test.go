package scalar_test

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/stretchr/testify/assert"
)

func u(name string) *scalar.Expr { return scalar.Var(name, scalar.U32, 1) }
func f(name string) *scalar.Expr { return scalar.Var(name, scalar.F32, 1) }

// WGSL has parentheses where operators would bind otherwise, and where WGSL does not allow their mix.
func TestParentheses(t *testing.T) {
	a, b, c := u("a"), u("b"), u("c")
	zero := scalar.U(0)
	for want, x := range map[string]*scalar.Expr{
		"a + b + c":                          a.Add(b).Add(c),
		"a + (b + c)":                        a.Add(b.Add(c)),
		"a - (b - c)":                        a.Sub(b.Sub(c)),
		"(a + b) * c":                        a.Add(b).Mul(c),
		"a * b + c":                          a.Mul(b).Add(c),
		"a / b % c":                          a.Div(b).Rem(c),
		"a % (b * c)":                        a.Rem(b.Mul(c)),
		"(a + b) >> 3u":                      a.Add(b).Right(3),
		"(a << 2u) + b":                      a.Left(2).Add(b),
		"(a >> 1u) >> 1u":                    a.Right(1).Right(1),
		"a & b & c":                          a.And(b).And(c),
		"(a & b) | c":                        a.And(b).Or(c),
		"a | (b ^ c)":                        a.Or(b.Xor(c)),
		"(a & b) == 0u":                      a.And(b).Equal(zero),
		"a >> 1u == b + c":                   a.Right(1).Equal(b.Add(c)),
		"a < b && b < c":                     a.Less(b).Both(b.Less(c)),
		"a == 0u || (b == 0u && c == 0u)":    a.Equal(zero).Either(b.Equal(zero).Both(c.Equal(zero))),
		"x * (-y)":                           f("x").Mul(f("y").Neg()),
		"-(x + y)":                           f("x").Add(f("y")).Neg(),
		"(-2f) * x":                          scalar.F(-2).Mul(f("x")),
		"select(x, 1f, a < b)":               scalar.Select(f("x"), scalar.F(1), a.Less(b)),
		"u32(a < b)":                         a.Less(b).To(scalar.U32),
		"bitcast<f32>(a << 16u)":             a.Left(16).As(scalar.F32),
		"fma(x, y, (-1f))":                   scalar.Fma(f("x"), f("y"), scalar.F(-1)),
		"b0[a * 4u + b]":                     scalar.At("b0", scalar.F32, a.Mul(scalar.U(4)).Add(b)),
		"i32(-2147483648)":                   scalar.I(math.MinInt32),
		"(-5i)":                              scalar.I(-5),
		"f32(a & 1023u) * 5.9604645e-08f":    a.And(scalar.U(1023)).To(scalar.F32).Mul(scalar.F(0x1p-24)),
		"min(a, 7u) - 1u":                    scalar.Min(a, scalar.U(7)).Sub(scalar.U(1)),
		"a != 0u && (b == 0u || c == 0u)":    a.Unequal(zero).Both(b.Equal(zero).Either(c.Equal(zero))),
		"((a << 16u) | (b >> 16u)) ^ c":      a.Left(16).Or(b.Right(16)).Xor(c),
		"select(0u, b << 16u, a % 2u == 1u)": scalar.Select(zero, b.Left(16), a.Rem(scalar.U(2)).Equal(scalar.U(1))),
		"a - 3u < 5u":                        a.Sub(scalar.U(3)).Less(scalar.U(5)),
		"(x + y) / (x - y)":                  f("x").Add(f("y")).Div(f("x").Sub(f("y"))),
		"-exp(x)":                            scalar.Apply("exp", f("x")).Neg(),
		"clamp(a, 1u, 5u) - 1u":              scalar.Apply("clamp", a, scalar.U(1), scalar.U(5)).Sub(scalar.U(1)),
		"max(x, (-3.4028234663852886e+38f)) * y + x * y": scalar.Max(f("x"), scalar.F(-math.MaxFloat32)).Mul(f("y")).Add(f("x").Mul(f("y"))),
	} {
		assert.Equal(t, want, x.String())
	}
}

// The depth follows from the parts.
func TestProperties(t *testing.T) {
	row, col := scalar.Var("row", scalar.U32, 1), scalar.Var("col", scalar.U32, 2)
	at := row.Mul(scalar.U(8)).Add(col)
	assert.Equal(t, 2, at.Depth)
	assert.Equal(t, 1, scalar.At("b0", scalar.F32, row).Depth)
	assert.True(t, at.Uses("col"))
	assert.False(t, at.Uses("co"))
}

// Constructors refuse what WGSL would.
func TestTypes(t *testing.T) {
	for want, make := range map[string]func(){
		"scalar: +: x is f32, expected [u32]":                        func() { u("a").Add(f("x")) },
		"scalar: &: x is f32, expected [u32]":                        func() { f("x").And(u("a")) },
		"scalar: exp: a is u32, expected [f32]":                      func() { scalar.Apply("exp", u("a")) },
		"scalar: no function exp of 2 arguments":                     func() { scalar.Apply("exp", f("x"), f("y")) },
		"scalar: an index: x is f32, expected [u32]":                 func() { scalar.At("b0", scalar.F32, f("x")) },
		"scalar: the condition of select: a is u32, expected [bool]": func() { scalar.Select(f("x"), f("y"), u("a")) },
		"scalar: the constant +Inf is not finite":                    func() { scalar.F(math.Inf(1)) },
		"scalar: a negation: a is u32, expected [f32 i32]":           func() { u("a").Neg() },
		"scalar: select: a is u32, expected [f32]":                   func() { scalar.Select(f("x"), u("a"), u("a").Less(u("b"))) },
		"scalar: no comparison =":                                    func() { u("a").Compare("=", u("b")) },
		"scalar: no bitwise operator &&":                             func() { u("a").Bitwise("&&", u("b")) },
		"scalar: a conversion to bool":                               func() { u("a").To(scalar.Bool) },
		"scalar: a bitcast: a < b is bool, expected [f32 i32 u32]":   func() { u("a").Less(u("b")).As(scalar.U32) },
		"scalar: min: x is f32, expected [u32]":                      func() { scalar.Min(u("a"), f("x")) },
		"scalar: &&: a is u32, expected [bool]":                      func() { u("a").Both(u("a").Less(u("b"))) },
		"scalar: %: x is f32, expected [i32 u32]":                    func() { f("x").Rem(f("x")) },
	} {
		assert.PanicsWithValue(t, want, make)
	}
}

// The check finds names and types that do not fit, and indices that may lie outside.
func TestCheck(t *testing.T) {
	arrays := []scalar.Array{{Name: "b0", Type: scalar.F32, Len: 10}, {Name: "b1", Type: scalar.U32, Len: 10}}
	b0 := func(at *scalar.Expr) *scalar.Expr { return scalar.At("b0", scalar.F32, at) }
	i := scalar.Var("i", scalar.U32, 1)
	one := scalar.F(1)
	loop := func(body ...scalar.Stmt) scalar.Stmt {
		return scalar.Count("i", 1, scalar.U(0), scalar.U(10), scalar.U(1), body...)
	}
	for _, c := range []struct {
		want string
		body []scalar.Stmt
	}{
		{"", []scalar.Stmt{loop(scalar.Assign{To: b0(i), Value: one})}},
		{"b0[i + 1u] may be element 10, of an array of 10", []scalar.Stmt{loop(scalar.Assign{To: b0(i.Add(scalar.U(1))), Value: one})}},
		{"the variable i is not declared", []scalar.Stmt{scalar.Assign{To: b0(i), Value: one}}},
		{"the variable i is declared twice", []scalar.Stmt{loop(loop())}},
		{"the array b2 is not declared", []scalar.Stmt{scalar.Assign{To: scalar.At("b2", scalar.F32, scalar.U(0)), Value: one}}},
		{"b0[0u] is f32, the value 1u is u32", []scalar.Stmt{scalar.Assign{To: b0(scalar.U(0)), Value: scalar.U(1)}}},
		{"b1[0u] is f32, of an array of u32", []scalar.Stmt{scalar.Let{Name: "x", Value: scalar.At("b1", scalar.F32, scalar.U(0))}}},
		{"the variable x is declared twice", []scalar.Stmt{scalar.Let{Name: "x", Value: one}, scalar.Let{Name: "x", Value: one}}},
		{"x is assigned to, expected a variable or an element", []scalar.Stmt{scalar.Let{Name: "x", Value: one},
			scalar.Assign{To: f("x"), Value: one}}},
		{"the variable x is u32, declared f32", []scalar.Stmt{scalar.Let{Name: "x", Value: one}, scalar.Let{Name: "y", Value: u("x")}}},
	} {
		err := scalar.Kernel{Bindings: arrays, Lanes: 1, Groups: 1, Grid: [3]int{1, 1, 1}, Body: c.body}.Check()
		if c.want == "" {
			assert.NoError(t, err)
		} else {
			assert.EqualError(t, err, c.want)
		}
	}
}

// A loop of sums alone may take its elements in any order.
func TestSums(t *testing.T) {
	acc, top, x := f("acc"), f("top"), scalar.At("b0", scalar.F32, u("i"))
	loop := func(body ...scalar.Stmt) scalar.For {
		return scalar.Count("i", 1, scalar.U(0), scalar.U(10), scalar.U(1), body...)
	}
	add, largest := scalar.Assign{To: acc, Value: acc.Add(x)}, scalar.Assign{To: top, Value: scalar.Max(top, x)}
	assert.Equal(t, []scalar.Sum{{Variable: "acc", Operator: "+"}, {Variable: "top", Operator: "max"}},
		loop(scalar.Let{Name: "y", Value: x}, add, largest).Sums())
	assert.Empty(t, loop(add, scalar.Assign{To: x, Value: acc}).Sums())
	assert.Empty(t, loop(scalar.Assign{To: acc, Value: acc.Add(acc.Mul(x))}).Sums())
	n := u("n")
	assert.Empty(t, loop(scalar.Assign{To: n, Value: n.Add(u("i"))}).Sums(), "sums of integers have one value")
}

// The check finds the largest index that a kernel may have from its declarations and conditions, and from nothing else.
func TestRanges(t *testing.T) {
	n := scalar.U
	i, j, x := u("i"), u("j"), u("x")
	read := scalar.Let{Name: "x", Value: scalar.At("b1", scalar.U32, n(0))}
	store := func(at *scalar.Expr) scalar.Stmt {
		return scalar.Assign{To: scalar.At("b0", scalar.F32, at), Value: scalar.F(1)}
	}
	count := func(name string, below *scalar.Expr, body ...scalar.Stmt) scalar.Stmt {
		return scalar.Count(name, 1, n(0), below, n(1), body...)
	}
	both := func(at *scalar.Expr) []scalar.Stmt {
		return []scalar.Stmt{count("i", n(6), count("j", n(10), store(at)))}
	}
	unless := func(condition *scalar.Expr) scalar.Stmt {
		return scalar.If{Condition: condition, Body: []scalar.Stmt{scalar.Return{}}}
	}
	const unknown = math.MaxUint32
	for _, c := range []struct {
		most uint32
		body []scalar.Stmt
	}{
		{59, both(i.Mul(n(10)).Add(j))}, {14, both(i.Add(j))}, {9, both(scalar.Max(i, j))}, {5, both(scalar.Min(i, j))},
		{2, both(i.Div(n(2)))}, {3, both(j.Rem(n(4)))}, {5, both(i.Rem(n(7)))}, {2, both(j.Right(2))}, {3, both(j.And(n(3)))},
		{40, both(i.Left(3))}, {9, both(n(9).Sub(i))}, {unknown, both(i.Sub(j))}, {unknown, both(i.Mul(n(1 << 31)))},
		{9, both(scalar.Select(i, j, i.Less(j)))}, {1, both(i.Less(j).To(scalar.U32))}, {7, both(scalar.Apply("clamp", j, n(2), n(7)))},
		{unknown, []scalar.Stmt{read, store(x)}}, {4, []scalar.Stmt{read, store(scalar.Min(x, n(4)))}},
		{7, []scalar.Stmt{read, unless(x.AtLeast(n(8))), store(x)}},
		{7, []scalar.Stmt{read, scalar.If{Condition: x.Less(n(8)), Body: []scalar.Stmt{store(x)}}}},
		{unknown, []scalar.Stmt{read, scalar.If{Condition: x.Less(n(8)), Body: []scalar.Stmt{store(n(0))}}, store(x)}},
		{7, []scalar.Stmt{read, unless(x.AtLeast(n(8)).Either(x.AtLeast(n(10)))), store(x)}},
		{unknown, []scalar.Stmt{scalar.Declare{Name: "x", Value: n(3)}, unless(x.AtLeast(n(8))), scalar.Assign{To: x, Value: n(9)},
			store(x)}},
		{4, []scalar.Stmt{store(scalar.Group)}}, {2, []scalar.Stmt{store(scalar.Lane)}},
		{16, []scalar.Stmt{scalar.For{Name: "i", From: n(16), While: i.More(n(0)), Next: i.Right(1), Body: []scalar.Stmt{store(i)}}}},
		// the rows of the last block end with the last row
		{49, []scalar.Stmt{scalar.Let{Name: "i", Value: scalar.Group.Mul(n(12))},
			scalar.Let{Name: "x", Value: scalar.Min(n(12), n(50).Sub(i))}, count("j", x, store(i.Add(j)))}},
		{149, []scalar.Stmt{scalar.Let{Name: "i", Value: scalar.Group.Mul(n(12))},
			scalar.Let{Name: "x", Value: scalar.Min(n(12), n(50).Sub(i))}, count("j", x, store(n(100).Add(i).Add(j)))}},
		{unknown, []scalar.Stmt{scalar.Let{Name: "i", Value: scalar.Group.Mul(n(13))}, scalar.Let{Name: "x", Value: n(50).Sub(i)},
			count("j", x, store(i.Add(j)))}},
	} {
		for _, size := range []int{int(c.most), int(c.most) + 1} {
			err := scalar.Kernel{Bindings: []scalar.Array{{Name: "b0", Type: scalar.F32, Len: size}, {Name: "b1", Type: scalar.U32, Len: 1}},
				Lanes: 3, Groups: 5, Grid: [3]int{5, 1, 1}, Body: c.body}.Check()
			assert.Equal(t, size > int(c.most), err == nil, "%v in an array of %d: %v", c.body, size, err)
		}
	}
}

// A function's arguments are below bounds, and it reads arrays of a template by functions of that.
func TestFunctionsAreChecked(t *testing.T) {
	i := u("i")
	read := scalar.Let{Name: "x", Value: scalar.Read("at", scalar.F32, i.Add(scalar.U(1)))}
	f := scalar.Function{Name: "f", Parameters: []*scalar.Expr{f("acc"), i}, Body: []scalar.Stmt{read}, Result: f("x").Add(f("acc"))}
	array := scalar.Array{Name: "at", Type: scalar.F32, Len: 8}
	assert.NoError(t, f.Check([]scalar.Array{array}, map[*scalar.Expr]int{i: 7}))
	assert.EqualError(t, f.Check([]scalar.Array{array}, map[*scalar.Expr]int{i: 8}), "at(i + 1u) may be element 8, of an array of 8")
}

// An array of words holds two 16-bit numbers a word.
func TestBits16(t *testing.T) {
	i := u("i")
	x := scalar.Bits16At("b0", i.Add(scalar.U(1)))
	f := scalar.Function{Name: "f", Parameters: []*scalar.Expr{i}, Result: x}
	array := scalar.Array{Name: "b0", Type: scalar.U32, Len: 4}
	assert.NoError(t, f.Check([]scalar.Array{array}, map[*scalar.Expr]int{i: 7}))
	assert.ErrorContains(t, f.Check([]scalar.Array{array}, map[*scalar.Expr]int{i: 8}), "may be element 8, of an array of 8")
	assert.Equal(t, "((b0[(i + 1u) / 2u] >> ((i + 1u) % 2u * 16u)) & 65535u)", x.String())
	assert.True(t, f.Uses("b0"))
	f = scalar.Function{Name: "f", Result: scalar.U(1), Body: []scalar.Stmt{scalar.Assign{To: x, Value: scalar.U(1)}}}
	assert.PanicsWithValue(t, "scalar: WGSL has no store of 16 bits", func() { _ = f.WGSL() })
}
