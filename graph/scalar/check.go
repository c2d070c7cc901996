package scalar

import (
	"fmt"
	"slices"
)

// checker walks a kernel. It keeps the first mistake.
type checker struct {
	arrays map[string]Array
	scopes []map[string]declared
	facts  []*Expr // that hold: Args[0] is below Args[1]
	err    error
}

// declared is a variable of a scope. A fixed one cannot be assigned.
type declared struct {
	typ   Type
	fixed bool
	span  span  // of a fixed one
	value *Expr // of one that Let declares
}

// scope runs check in a scope of its own, where further facts hold.
func (c *checker) scope(facts []*Expr, check func()) {
	known := c.facts
	c.scopes, c.facts = append(c.scopes, map[string]declared{}), slices.Concat(known, facts)
	check()
	c.scopes, c.facts = c.scopes[:len(c.scopes)-1], known
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checker) declare(name string, d declared) {
	if _, twice := c.lookup(name); twice {
		c.fail("the variable %s is declared twice", name)
	}
	c.scopes[len(c.scopes)-1][name] = d
}

func (c *checker) lookup(name string) (declared, bool) {
	for i := len(c.scopes) - 1; i >= 0; i-- {
		if d, ok := c.scopes[i][name]; ok {
			return d, true
		}
	}
	return declared{}, false
}

func (c *checker) body(body []Stmt) {
	for _, s := range body {
		c.statement(s)
	}
}

func (c *checker) statement(s Stmt) {
	switch s := s.(type) {
	case Let:
		c.expr(s.Value)
		c.declare(s.Name, declared{s.Value.Type, true, c.span(s.Value), s.Value})
	case Declare:
		c.expr(s.Value)
		c.declare(s.Name, declared{typ: s.Value.Type})
	case Local:
		if _, twice := c.arrays[s.Name]; twice {
			c.fail("the array %s is declared twice", s.Name)
		}
		c.arrays[s.Name] = s.Array
	case Assign:
		c.assign(s)
	case For:
		c.expr(s.From)
		c.scope(nil, func() {
			c.declare(s.Name, declared{typ: U32, fixed: true, span: c.loopSpan(s)})
			c.expr(s.While)
			c.scope(c.assume(s.While, true), func() {
				c.expr(s.Next)
				c.body(s.Body)
			})
		})
	case If:
		c.expr(s.Condition)
		c.scope(c.assume(s.Condition, true), func() { c.body(s.Body) })
		if slices.Contains(s.Body, Stmt(Return{})) {
			c.facts = slices.Concat(c.facts, c.assume(s.Condition, false))
		}
	}
}

// loopSpan is the span of a loop's variable without its condition: from 0 to the first value where the loop makes the
// variable smaller, else anything.
func (c *checker) loopSpan(s For) span {
	from := c.span(s.From)
	if x := s.Next; x.Kind == Operation && (x.Name == ">>" || x.Name == "/") && x.Args[0].Kind == Variable && x.Args[0].Name == s.Name {
		return span{0, from.most}
	}
	return anything
}

func (c *checker) assign(s Assign) {
	c.expr(s.To)
	c.expr(s.Value)
	assignable := s.To.Kind == Element || s.To.Kind == Bits16
	if s.To.Kind == Variable {
		d, _ := c.lookup(s.To.Name)
		assignable = !d.fixed
	}
	if !assignable {
		c.fail("%v is assigned to, expected a variable or an element", s.To)
	}
	if s.To.Type != s.Value.Type {
		c.fail("%v is %v, the value %v is %v", s.To, s.To.Type, s.Value, s.Value.Type)
	}
}

func (c *checker) expr(x *Expr) {
	for _, a := range x.Args {
		c.expr(a)
	}
	switch x.Kind {
	case Variable:
		if d, ok := c.lookup(x.Name); !ok {
			c.fail("the variable %s is not declared", x.Name)
		} else if d.typ != x.Type {
			c.fail("the variable %s is %v, declared %v", x.Name, x.Type, d.typ)
		}
	case Element, Bits16, Call:
		a, ok := c.arrays[x.Name]
		if x.Kind == Bits16 {
			a.Len *= 2
		}
		switch {
		case !ok && x.Kind == Call: // a built-in function
		case !ok:
			c.fail("the array %s is not declared", x.Name)
		case a.Type != x.Type:
			c.fail("%v is %v, of an array of %v", x, x.Type, a.Type)
		case c.span(x.Args[0]).most >= uint64(a.Len):
			c.fail("%v may be element %d, of an array of %d", x, c.span(x.Args[0]).most, a.Len)
		}
	}
}
