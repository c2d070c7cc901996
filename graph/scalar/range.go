package scalar

import (
	"math"
	"slices"
)

// span is the values that a u32 may have, both ends included.
type span struct{ least, most uint64 }

// anything is the span of a u32 that nothing is known of.
var anything = span{0, math.MaxUint32}

// below is the span without the values from a bound on.
func (s span) below(bound uint64) span {
	if bound > 0 && s.most >= bound {
		s.most = bound - 1
	}
	return s
}

func (s span) join(t span) span { return span{min(s.least, t.least), max(s.most, t.most)} }

// sound is s, or anything where it has values that no u32 has: integers wrap.
func (s span) sound() span {
	if s.most > math.MaxUint32 || s.least > s.most {
		return anything
	}
	return s
}

// span is what the declarations and conditions in force say of an expression. Nothing that the expression says of
// itself counts.
func (c *checker) span(x *Expr) span {
	if x.Type != U32 {
		return anything
	}
	s := c.derived(x)
	for _, f := range c.facts {
		if x.same(f.Args[0]) {
			s = s.below(c.span(f.Args[1]).most)
		}
	}
	return s
}

func (c *checker) derived(x *Expr) span {
	switch x.Kind {
	case Constant:
		return span{uint64(x.Bits), uint64(x.Bits)}
	case Variable:
		if d, ok := c.lookup(x.Name); ok && d.fixed {
			return d.span
		}
	case Choice:
		return c.span(x.Args[0]).join(c.span(x.Args[1]))
	case Conversion:
		switch x.Args[0].Type {
		case U32:
			return c.span(x.Args[0])
		case Bool:
			return span{0, 1}
		}
	case Operation:
		if x.Name == "+" {
			return c.sum(x.terms(nil)).sound()
		}
		return operate(x.Name, c.span(x.Args[0]), c.span(x.Args[1])).sound()
	case Call:
		switch x.Name {
		case "min":
			a, b := c.span(x.Args[0]), c.span(x.Args[1])
			return span{min(a.least, b.least), min(a.most, b.most)}
		case "max":
			a, b := c.span(x.Args[0]), c.span(x.Args[1])
			return span{max(a.least, b.least), max(a.most, b.most)}
		case "clamp":
			a, low, high := c.span(x.Args[0]), c.span(x.Args[1]), c.span(x.Args[2])
			return span{min(max(a.least, low.least), high.least), min(max(a.most, low.most), high.most)}
		}
	}
	return anything
}

// terms are the terms of a sum.
func (x *Expr) terms(to []*Expr) []*Expr {
	if x.Kind != Operation || x.Name != "+" {
		return append(to, x)
	}
	return x.Args[1].terms(x.Args[0].terms(to))
}

// sum is the span of a sum, before it wraps. The sum of terms x and y is below n if y is known to be below n − x.
func (c *checker) sum(terms []*Expr) (s span) {
	for i, y := range terms {
		for j, x := range terms {
			if n, ok := c.boundOfSum(x, y); ok && i != j {
				rest := slices.Delete(slices.Clone(terms), max(i, j), max(i, j)+1)
				s = c.sum(slices.Delete(rest, min(i, j), min(i, j)+1))
				return span{s.least, s.most + n - 1}
			}
		}
	}
	for _, x := range terms {
		t := c.span(x)
		s = span{s.least + t.least, s.most + t.most}
	}
	return s
}

// boundOfSum returns the n of a fact that y is below n − x, or below the smaller of n − x and another number.
func (c *checker) boundOfSum(x, y *Expr) (n uint64, ok bool) {
	for _, f := range c.facts {
		if !y.same(f.Args[0]) {
			continue
		}
		below := f.Args[1]
		if d, fixed := c.lookup(below.Name); below.Kind == Variable && fixed && d.value != nil {
			below = d.value
		}
		bounds := []*Expr{below}
		if below.Kind == Call && below.Name == "min" {
			bounds = below.Args
		}
		for _, b := range bounds {
			if b.Kind != Operation || b.Name != "-" || b.Args[0].Kind != Constant || !b.Args[1].same(x) {
				continue
			}
			if n = uint64(b.Args[0].Bits); c.span(x).most <= n {
				return n, true
			}
		}
	}
	return 0, false
}

// operate is the span of an operation of two spans, before it wraps.
func operate(op string, a, b span) span {
	switch op {
	case "-":
		if a.least >= b.most {
			return span{a.least - b.most, a.most - b.least}
		}
	case "*":
		if b.most == 0 || a.most <= math.MaxUint32/b.most {
			return span{a.least * b.least, a.most * b.most}
		}
	case "/":
		if b.least > 0 {
			return span{a.least / b.most, a.most / b.least}
		}
	case "%":
		if b.least > 0 {
			if a.most < b.least {
				return a
			}
			return span{0, min(a.most, b.most-1)}
		}
	case "<<":
		if b.most < 32 {
			return span{a.least << b.least, a.most << b.most}
		}
	case ">>":
		if b.most < 32 {
			return span{a.least >> b.most, a.most >> b.least}
		}
	case "&":
		return span{0, min(a.most, b.most)}
	}
	return anything
}

// same reports whether two expressions are equal in form.
func (x *Expr) same(y *Expr) bool {
	if x == y {
		return true
	}
	return x.Kind == y.Kind && x.Type == y.Type && x.Name == y.Name && x.Bits == y.Bits && slices.EqualFunc(x.Args, y.Args, (*Expr).same)
}

// assume returns the facts that hold where a condition does, or where it does not. A
// condition on a variable that may be assigned gives no fact.
func (c *checker) assume(condition *Expr, holds bool) []*Expr {
	if condition.Kind != Operation || !c.lasting(condition) {
		return nil
	}
	switch op := condition.Name; {
	case holds && op == "<", !holds && op == ">=":
		return []*Expr{condition}
	case holds && op == "&&", !holds && op == "||":
		return append(c.assume(condition.Args[0], holds), c.assume(condition.Args[1], holds)...)
	}
	return nil
}

// lasting reports whether an expression keeps its value.
func (c *checker) lasting(x *Expr) bool {
	d, declared := c.lookup(x.Name)
	return x.Kind != Element && x.Kind != Bits16 && !(x.Kind == Variable && !(declared && d.fixed)) && !slices.ContainsFunc(x.Args,
		func(a *Expr) bool { return !c.lasting(a) })
}
