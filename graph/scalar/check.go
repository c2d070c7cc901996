package scalar

import "fmt"

// checker walks a kernel. It keeps the first mistake.
type checker struct {
	arrays map[string]Array
	scopes []map[string]declared
	inside bool
	err    error
}

// declared is a variable of a scope. A fixed one cannot be assigned.
type declared struct {
	typ   Type
	fixed bool
}

func (c *checker) push() { c.scopes = append(c.scopes, map[string]declared{}) }
func (c *checker) pop()  { c.scopes = c.scopes[:len(c.scopes)-1] }

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checker) declare(name string, t Type, assigned bool) {
	scope := c.scopes[len(c.scopes)-1]
	if _, twice := scope[name]; twice {
		c.fail("the variable %s is declared twice", name)
	}
	scope[name] = declared{t, !assigned}
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

func (c *checker) block(body []Stmt) {
	c.push()
	c.body(body)
	c.pop()
}

func (c *checker) statement(s Stmt) {
	switch s := s.(type) {
	case Let:
		c.expr(s.Value)
		c.declare(s.Name, s.Value.Type, false)
	case Declare:
		c.expr(s.Value)
		c.declare(s.Name, s.Value.Type, true)
	case Local:
		if _, twice := c.arrays[s.Name]; twice {
			c.fail("the array %s is declared twice", s.Name)
		}
		c.arrays[s.Name] = s.Array
	case Assign:
		c.assign(s)
	case For:
		c.expr(s.From)
		c.push()
		c.declare(s.Name, U32, false)
		c.expr(s.While)
		c.expr(s.Next)
		c.block(s.Body)
		c.pop()
	case If:
		c.expr(s.Condition)
		c.block(s.Body)
	}
}

func (c *checker) assign(s Assign) {
	c.expr(s.To)
	c.expr(s.Value)
	if d, _ := c.lookup(s.To.Name); s.To.Kind == Variable && d.fixed || s.To.Kind != Variable && s.To.Kind != Element {
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
	case Element:
		a, ok := c.arrays[x.Name]
		switch {
		case !ok:
			c.fail("the array %s is not declared", x.Name)
		case a.Type != x.Type:
			c.fail("%v is %v, of an array of %v", x, x.Type, a.Type)
		case c.inside && x.Args[0].Bound > uint64(a.Len):
			c.fail("%v may be any element below %d, of an array of %d", x, x.Args[0].Bound, a.Len)
		}
	}
}
