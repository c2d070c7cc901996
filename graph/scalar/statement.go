package scalar

import (
	"fmt"
	"slices"
)

// Stmt is a statement: one of the types below.
type Stmt interface{ stmt() }

// Let declares a variable that keeps its value.
type Let struct {
	Name  string
	Value *Expr
}

// Declare declares a variable that is assigned later, with its first value.
type Declare struct {
	Name  string
	Value *Expr
}

// Local declares an array of the function's own. Its elements are zero.
type Local struct{ Array }

// Assign stores a value to a variable or to an element of an array, or the value's low bits to 16 of an array of words.
type Assign struct{ To, Value *Expr }

// For is a loop: a u32 of the name begins with From, Next is its next value, and the loop ends when While is false.
type For struct {
	Name              string
	From, While, Next *Expr
	Body              []Stmt
}

// If has no else.
type If struct {
	Condition *Expr
	Body      []Stmt
}

// Return leaves the function.
type Return struct{}

// Barrier waits for the other invocations of the workgroup, and makes their stores to its memory visible.
type Barrier struct{}

func (Let) stmt()     {}
func (Declare) stmt() {}
func (Local) stmt()   {}
func (Assign) stmt()  {}
func (For) stmt()     {}
func (If) stmt()      {}
func (Return) stmt()  {}
func (Barrier) stmt() {}

// Count is a loop of a variable from one value to below another, by steps. Its body gets the variable.
func Count(name string, depth int, from, below, step *Expr, body ...Stmt) For {
	i := Var(name, U32, depth)
	return For{name, from, i.Less(below), i.Add(step), body}
}

// Array is an array in memory: a binding of a kernel, or one of a workgroup or a function.
type Array struct {
	Name string
	Type Type
	Len  int
}

// Kernel is a whole kernel. Its body has two variables: group, the number of the workgroup below Groups, and lane, the
// number of the invocation in the workgroup.
type Kernel struct {
	Bindings []Array
	Shared   []Array // memory of a workgroup
	Lanes    int     // invocations of a workgroup
	Groups   int     // workgroups
	Grid     [3]int  // of the dispatch: workgroups by dimension, at least Groups together
	Body     []Stmt
}

// The variables of a kernel's body.
var (
	Group = Var("group", U32, 0)
	Lane  = Var("lane", U32, 0)
)

// Sums returns the variables that a loop accumulates, if it does nothing else: its body computes values, and adds to
// variables of f32 or replaces them by the larger or smaller of themselves and a value. The order in which it takes its
// elements then matters for rounding alone.
func (f For) Sums() (sums []Sum) {
	var read []*Expr
	for _, s := range f.Body {
		switch s := s.(type) {
		case Let:
			read = append(read, s.Value)
		case Assign:
			sum, ok := accumulation(s)
			if !ok || slices.ContainsFunc(sums, func(other Sum) bool { return other.Variable == sum.Variable }) {
				return nil
			}
			sums, read = append(sums, sum), append(read, s.Value.Args[1])
		default:
			return nil
		}
	}
	if slices.ContainsFunc(sums, func(s Sum) bool { return slices.ContainsFunc(read, func(x *Expr) bool { return x.Uses(s.Variable) }) }) {
		return nil
	}
	return sums
}

// Sum is a variable that a loop accumulates by an operator: "+", "max" or "min".
type Sum struct{ Variable, Operator string }

func accumulation(s Assign) (sum Sum, ok bool) {
	x := s.Value
	adds := x.Kind == Operation && x.Name == "+" || x.Kind == Call && (x.Name == "max" || x.Name == "min")
	if s.To.Kind != Variable || s.To.Type != F32 || !adds || x.Args[0].Kind != Variable || x.Args[0].Name != s.To.Name {
		return sum, false
	}
	return Sum{s.To.Name, x.Name}, true
}

// Check returns an error for a kernel that reads or assigns a variable or an array that is not declared, declares a
// name twice, assigns a value of another type, or whose index may lie outside its array.
func (k Kernel) Check() error {
	return check(append(append([]Array{}, k.Bindings...), k.Shared...), k.Body, nil, map[*Expr]int{Group: k.Groups, Lane: k.Lanes})
}

// check checks statements and the expression behind them, with arrays and with variables below bounds.
func check(arrays []Array, body []Stmt, last *Expr, below map[*Expr]int) error {
	c := &checker{arrays: map[string]Array{}}
	for _, a := range arrays {
		if _, twice := c.arrays[a.Name]; twice {
			return fmt.Errorf("the array %s is declared twice", a.Name)
		}
		c.arrays[a.Name] = a
	}
	c.scope(nil, func() {
		for x, n := range below {
			c.declare(x.Name, declared{typ: x.Type, fixed: true, span: anything.below(uint64(n))})
		}
		c.body(body)
		if last != nil {
			c.expr(last)
		}
	})
	return c.err
}

// Function is a function of numbers: its parameters are variables of its body, and Result is of them and of what the
// body declares.
type Function struct {
	Name       string
	Parameters []*Expr
	Body       []Stmt
	Result     *Expr
}

// Check checks a function of arrays as check does a kernel. An array that the function reads by a function of a
// template has that function's name. Parameters are below the bounds that are given; below gets a 0, no bound, for the
// others.
func (f Function) Check(arrays []Array, below map[*Expr]int) error {
	for _, p := range f.Parameters {
		if _, bounded := below[p]; !bounded {
			below[p] = 0
		}
	}
	return check(arrays, f.Body, f.Result, below)
}

// Uses reports whether the function reads or assigns an array.
func (f Function) Uses(array string) bool {
	is := func(x *Expr) bool { return (x.Kind == Element || x.Kind == Bits16) && x.Name == array }
	return f.Result.has(is) || has(f.Body, is)
}

// Reads16 reports whether the loop reads single 16-bit numbers.
func (s For) Reads16() bool { return has(s.Body, func(x *Expr) bool { return x.Kind == Bits16 }) }

// has reports whether statements have an expression that satisfies is, at any depth.
func has(body []Stmt, is func(*Expr) bool) bool {
	for _, s := range body {
		var found bool
		switch s := s.(type) {
		case Let:
			found = s.Value.has(is)
		case Declare:
			found = s.Value.has(is)
		case Assign:
			found = s.To.has(is) || s.Value.has(is)
		case For:
			found = s.From.has(is) || s.While.has(is) || s.Next.has(is) || has(s.Body, is)
		case If:
			found = s.Condition.has(is) || has(s.Body, is)
		}
		if found {
			return true
		}
	}
	return false
}

func (x *Expr) has(is func(*Expr) bool) bool {
	return is(x) || slices.ContainsFunc(x.Args, func(a *Expr) bool { return a.has(is) })
}
