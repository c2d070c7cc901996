package graph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/scalar"
)

// Index is a u32 coordinate of a kernel, kept symbolic as a sum of coefficient × atom + constant so that views cancel:
// flattening what was unflattened gives back the same terms.
type Index struct {
	terms []term // by key, coefficients positive
	konst int
	bound int // exclusive upper bound of the value
}

type term struct {
	coef int
	atom *atom
}

// atom is an expression, or the quotient or remainder of an Index by a constant.
type atom struct {
	key   string       // equal for equal atoms; terms are in its order
	expr  *scalar.Expr // nil for a quotient or remainder
	bound int          // exclusive
	div   *Index       // of x/n and x%n
	mod   bool
	n     int
}

// Const is the index n.
func Const(n int) Index { return Index{konst: n, bound: n + 1} }

// Var is a variable below bound, of a loop of the depth (see scalar.Expr).
func Var(name string, bound, depth int) Index {
	return IndexOf(scalar.Var(name, scalar.U32, depth), bound)
}

// IndexOf is a u32 whose value is below bound.
func IndexOf(x *scalar.Expr, bound int) Index {
	if bound == 1 {
		return Const(0)
	}
	return Index{terms: []term{{1, &atom{key: x.String(), expr: x, bound: bound}}}, bound: bound}
}

// Bound is the exclusive upper bound of the value.
func (x Index) Bound() int { return x.bound }

// Equal reports whether two indices are the same in form, and so in value.
func (x Index) Equal(y Index) bool { return x.String() == y.String() }

// Depth is the depth of the innermost loop that the value depends on: see scalar.Expr.
func (x Index) Depth() int {
	depth := 0
	for _, t := range x.terms {
		if t.atom.div != nil {
			depth = max(depth, t.atom.div.Depth())
		} else {
			depth = max(depth, t.atom.expr.Depth)
		}
	}
	return depth
}

// uses reports whether a variable is part of the index.
func (x Index) uses(name string) bool {
	return slices.ContainsFunc(x.terms, func(t term) bool {
		return t.atom.div != nil && t.atom.div.uses(name) || t.atom.expr != nil && t.atom.expr.Uses(name)
	})
}

// Divides reports whether the index has a quotient or a remainder of the variable: neighboring values of the variable
// need not be neighboring indices then.
func (x Index) Divides(name string) bool {
	return slices.ContainsFunc(x.terms, func(t term) bool { return t.atom.div != nil && t.atom.div.uses(name) })
}

// Plus adds.
func (x Index) Plus(y Index) Index {
	sum := Index{terms: slices.Clone(x.terms), konst: x.konst + y.konst, bound: x.bound + y.bound - 1}
	for _, t := range y.terms {
		sum.terms = addTerm(sum.terms, t)
	}
	return sum.rejoin()
}

func addTerm(ts []term, t term) []term {
	i, found := slices.BinarySearchFunc(ts, t, func(a, b term) int { return strings.Compare(a.atom.key, b.atom.key) })
	if found {
		ts[i].coef += t.coef
		return ts
	}
	return slices.Insert(ts, i, t)
}

// rejoin replaces n·(y/n) + y%n by y.
func (x Index) rejoin() Index {
	for i, m := range x.terms {
		if m.atom.div == nil || !m.atom.mod {
			continue
		}
		base, by := m.atom.div.quotient()
		for j, d := range x.terms {
			if d.atom.div == nil || d.atom.mod || d.atom.n != m.atom.n*by || d.coef != m.coef*m.atom.n || !d.atom.div.Equal(base) {
				continue
			}
			rest := Index{konst: x.konst, bound: x.bound}
			for k, t := range x.terms {
				if k != i && k != j {
					rest.terms = append(rest.terms, t)
				}
			}
			y := m.atom.div.Times(m.coef) // base/by, whose terms stand for both
			for _, t := range y.terms {
				rest.terms = addTerm(rest.terms, t)
			}
			rest.konst += y.konst
			return rest.rejoin()
		}
	}
	return x
}

// quotient is (y, n) when x is y/n, else (x, 1).
func (x Index) quotient() (Index, int) {
	if x.single() && x.terms[0].atom.div != nil && !x.terms[0].atom.mod {
		return *x.terms[0].atom.div, x.terms[0].atom.n
	}
	return x, 1
}

// Times multiplies by n ≥ 0.
func (x Index) Times(n int) Index {
	if n == 0 {
		return Const(0)
	}
	p := Index{konst: x.konst * n, bound: (x.bound-1)*n + 1}
	for _, t := range x.terms {
		p.terms = append(p.terms, term{t.coef * n, t.atom})
	}
	return p
}

// split separates the part that n divides (returned divided) from the rest.
func (x Index) split(n int) (whole, rest Index) {
	whole, rest = Index{konst: x.konst / n}, Index{konst: x.konst % n}
	whole.bound, rest.bound = whole.konst+1, rest.konst+1
	for _, t := range x.terms {
		if t.coef%n == 0 {
			whole.terms = append(whole.terms, term{t.coef / n, t.atom})
			whole.bound += (t.atom.bound - 1) * (t.coef / n)
		} else {
			rest.terms = append(rest.terms, t)
			rest.bound += (t.atom.bound - 1) * t.coef
		}
	}
	whole.bound = min(whole.bound, (x.bound-1)/n+1)
	rest.bound = min(rest.bound, x.bound)
	return whole, rest
}

// factor writes x as a·y + z with z < a, where a > 1 is a proper divisor of n. Without one, a is 1.
func (x Index) factor(n int) (a int, y, z Index) {
	for _, t := range x.terms {
		a = gcd(t.coef, n)
		if y, z = x.split(a); 1 < a && a < n && z.bound <= a {
			return a, y, z
		}
	}
	return 1, x, Const(0)
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// Over is the quotient by n.
func (x Index) Over(n int) Index {
	if n == 1 {
		return x
	}
	whole, rest := x.split(n)
	if rest.bound <= n {
		return whole
	}
	if y, a := rest.quotient(); a > 1 { // (y/a)/n = y/(a·n)
		return whole.Plus(y.Over(a * n))
	}
	if a, y, _ := rest.factor(n); a > 1 { // (a·y + z)/(a·m) = y/m, where z < a
		return whole.Plus(y.Over(n / a))
	}
	q := &atom{key: "(" + rest.String() + ")/" + u32(n), bound: (rest.bound-1)/n + 1, div: &rest, n: n}
	return whole.Plus(Index{terms: []term{{1, q}}, bound: q.bound})
}

// Mod is the remainder by n.
func (x Index) Mod(n int) Index {
	if n == 1 {
		return Const(0)
	}
	_, rest := x.split(n)
	if rest.bound <= n {
		return rest
	}
	if a, y, z := rest.factor(n); a > 1 { // (a·y + z)%(a·m) = a·(y%m) + z
		return y.Mod(n / a).Times(a).Plus(z)
	}
	m := &atom{key: "(" + rest.String() + ")%" + u32(n), bound: n, div: &rest, n: n, mod: true}
	return Index{terms: []term{{1, m}}, bound: n}
}

func (x Index) single() bool { return len(x.terms) == 1 && x.terms[0].coef == 1 && x.konst == 0 }

func u32(n int) string { return fmt.Sprintf("%du", n) }

// Expr is the index as code.
func (x Index) Expr() *scalar.Expr {
	var sum *scalar.Expr
	add := func(e *scalar.Expr) {
		if sum == nil {
			sum = e
		} else {
			sum = sum.Add(e)
		}
	}
	for _, t := range x.terms {
		e := t.atom.code()
		if t.coef != 1 {
			e = e.Mul(scalar.U(uint32(t.coef)))
		}
		add(e)
	}
	if x.konst != 0 || sum == nil {
		add(scalar.U(uint32(x.konst)))
	}
	return sum
}

// code is an atom as code.
func (a *atom) code() *scalar.Expr {
	switch n := scalar.U(uint32(a.n)); {
	case a.div == nil:
		return a.expr
	case a.mod:
		return a.div.Expr().Rem(n)
	default:
		return a.div.Expr().Div(n)
	}
}

// String is equal for equal indices.
func (x Index) String() string {
	var parts []string
	for _, t := range x.terms {
		key := t.atom.key
		if t.coef != 1 {
			if t.atom.div != nil {
				key = "(" + key + ")"
			}
			key += "*" + u32(t.coef)
		}
		parts = append(parts, key)
	}
	if x.konst != 0 || len(parts) == 0 {
		parts = append(parts, u32(x.konst))
	}
	return strings.Join(parts, " + ")
}

// Flatten is the row-major position of coordinates in a shape.
func Flatten(s Shape, at []Index) Index {
	flat := Const(0)
	stride := 1
	for i := len(s) - 1; i >= 0; i-- {
		flat = flat.Plus(at[i].Times(stride))
		stride *= s[i]
	}
	return flat
}

// Unflatten is the inverse of Flatten.
func Unflatten(s Shape, flat Index) []Index {
	at := make([]Index, len(s))
	for i := len(s) - 1; i >= 0; i-- {
		if i == 0 {
			at[i] = flat
		} else {
			at[i] = flat.Mod(s[i])
			flat = flat.Over(s[i])
		}
		if s[i] == 1 {
			at[i] = Const(0)
		}
	}
	return at
}

// IsConst returns the value of an index without variables.
func (x Index) IsConst() (int, bool) { return x.konst, len(x.terms) == 0 }

// Minus returns x − y where that is a constant of at least zero.
func (x Index) Minus(y Index) (int, bool) {
	d := x.konst - y.konst
	x.konst, y.konst = 0, 0
	return d, d >= 0 && x.Equal(y)
}
