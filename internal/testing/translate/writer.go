package translate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// writer writes the C of a module. Its methods panic with a syntaxError.
type writer struct {
	m *module
	Options
	out     *strings.Builder
	arrays  arrayTypes
	scopes  []scope
	names   map[string]int // how often a name was declared
	result  *typ           // of the function
	exit    string         // how a return without a value leaves; empty: return
	context []string       // arguments that every function takes: bindings and workgroup memory
}

// scope is the names of a block.
type scope struct {
	names    map[string]*local
	isolated bool // the scopes around it are hidden, but for the module's and for the inliner's names
}

// local is a name that is in scope.
type local struct {
	c       string // its name in C
	typ     *typ
	fixed   bool    // it does not change while it is in scope
	assigns bool    // it may be assigned to
	address address // its value as an index, if it is a sum of products of fixed names
	lanes   bool    // an array with an element for each invocation
	pointer bool
}

// fix marks a name that keeps its value while it is in scope.
func (l *local) fix() {
	l.fixed = true
	if l.typ.kind == u32 || l.typ.kind == i32 {
		l.address = address{text: "(i64)" + l.c, most: 1 << 32}
	}
}

// text is the expression of the variable, which can be assigned to.
func (l *local) text() string {
	switch {
	case l.lanes:
		return l.c + "[gp_lane]"
	case l.pointer:
		return "(*" + l.c + ")"
	}
	return l.c
}

func newWriter(m *module, o Options) *writer {
	w := &writer{m: m, Options: o, out: new(strings.Builder), names: map[string]int{}}
	w.push()
	for _, v := range m.variables {
		if v.binding < 0 {
			w.sized(v.line, v.typ)
		}
		w.arrays.need(v.typ)
		l := &local{c: v.name + "_", typ: v.typ, pointer: v.binding < 0, assigns: true}
		w.names[v.name]++
		w.scopes[0].names[v.name] = l
		w.context = append(w.context, l.c)
		if v.binding >= 0 {
			if w.element(v).kind == atomic {
				fail(v.line, "atomics in bindings are not supported")
			}
			w.context = append(w.context, l.c+"n")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.constants)) {
		w.constant(m.constants[name])
	}
	return w
}

// constant brings a constant of the module into scope.
func (w *writer) constant(c constant) *local {
	if l := w.scopes[0].names[c.name]; l != nil {
		return l
	}
	each(c.value, func(e *expr) {
		if e.kind == identifier {
			w.constant(w.m.constants[e.text])
		}
	})
	x, t := w.value(c.value)
	if c.typ != nil {
		if !fits(c.typ, t) {
			fail(c.value.line, "%s is %s, its value %s", c.name, c.typ.wgsl(), t.wgsl())
		}
		x, t = w.converted(x, t, c.typ), c.typ
	}
	if len(x) > maxConstant {
		fail(c.value.line, "the constant %s takes %d characters", c.name, len(x))
	}
	l := &local{c: "(" + x + ")", typ: t, fixed: true}
	if n, ok := w.m.fold(c.value, nil); ok && t.integer() {
		l.c = integer{t, n.n}.text()
		l.address = address{text: fmt.Sprint(n.n), most: math.Abs(float64(n.n))}
	}
	w.scopes[0].names[c.name] = l
	return l
}

const maxConstant = 1000 // characters in C

// sized fails for a type that variables cannot have.
func (w *writer) sized(line int, t *typ) {
	if n := t.elements(); n < 1 || n > maxElements || t.kind == void {
		fail(line, "a variable of type %s", t.wgsl())
	}
}

// bindings are the module's bindings in order.
func (w *writer) bindings() []*variable {
	var out []*variable
	for _, v := range w.m.variables {
		if v.binding >= 0 {
			out = append(out, v)
		}
	}
	return out
}

// element is the type of the elements of a binding.
func (w *writer) element(v *variable) *typ {
	if v.typ.kind != array || v.typ.n != 0 {
		fail(v.line, "the binding %s is %s, expected an array without a length", v.name, v.typ.wgsl())
	}
	return v.typ.of
}

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w.out, format+"\n", args...) }

func (w *writer) push() { w.scopes = append(w.scopes, scope{names: map[string]*local{}}) }
func (w *writer) pop()  { w.scopes = w.scopes[:len(w.scopes)-1] }

func (w *writer) lookup(name string) *local {
	for _, s := range slices.Backward(w.scopes) {
		if l := s.names[name]; l != nil {
			return l
		}
		if s.isolated && !strings.HasPrefix(name, inlined) {
			return w.scopes[0].names[name]
		}
	}
	return nil
}

// declare brings a name into scope, with a name in C that no other variable has.
func (w *writer) declare(name string, t *typ) *local {
	l := &local{c: name + "_", typ: t}
	if n := w.names[name]; n > 0 {
		l.c = fmt.Sprintf("%s_%d", name, n)
	}
	w.names[name]++
	w.arrays.need(t)
	w.scopes[len(w.scopes)-1].names[name] = l
	return l
}

// functions writes the functions for which take reports true, those that others call first. Functions with barriers are
// not among them, since they are written where they are called.
func (w *writer) functions(take func(*function) bool) {
	barriers := w.barriers()
	written := map[*function]bool{}
	var write func(f *function)
	write = func(f *function) {
		if written[f] || !take(f) || barriers[f] {
			return
		}
		written[f] = true
		walk(f.body, func(e *expr) {
			if g := w.m.byName[e.text]; e.kind == call && g != nil {
				write(g)
			}
		})
		w.function(f, "fn_"+f.name)
	}
	for _, f := range w.m.functions {
		write(f)
	}
}

// refuseRecursion fails if a function calls itself, or others that do.
func (m *module) refuseRecursion() {
	const open, closed = 1, 2
	state := map[*function]int{}
	var visit func(f *function)
	visit = func(f *function) {
		state[f] = open
		walk(f.body, func(e *expr) {
			g := m.byName[e.text]
			if e.kind != call || g == nil || state[g] == closed {
				return
			}
			if state[g] == open {
				fail(e.line, "%s calls itself", g.name)
			}
			visit(g)
		})
		state[f] = closed
	}
	for _, f := range m.functions {
		if state[f] == 0 {
			visit(f)
		}
	}
}

// parameters are the declarations of the context.
func (w *writer) parameters() []string {
	var out []string
	for _, v := range w.m.variables {
		if v.binding < 0 {
			out = append(out, fmt.Sprintf("%s *const %s_", v.typ.c(), v.name))
		} else {
			out = append(out, fmt.Sprintf("%s *restrict const %s_, const u64 %s_n", w.element(v).c(), v.name, v.name))
		}
	}
	return out
}

// function writes a function under a name in C.
func (w *writer) function(f *function, name string) {
	w.push()
	parameters := w.parameters()
	for _, p := range f.parameters {
		l := w.declare(p.name, p.typ)
		w.sized(f.line, p.typ)
		l.fix()
		parameters = append(parameters, fmt.Sprintf("const %s %s", p.typ.c(), l.c))
	}
	if len(parameters) == 0 {
		parameters = []string{"void"}
	}
	w.result = f.result
	w.arrays.need(f.result)
	w.line("static inline __attribute__((always_inline)) %s %s(%s) {", f.result.c(), name, strings.Join(parameters, ", "))
	w.statements(f.body)
	w.line("}")
	w.pop()
}

// statements writes a block's statements in a scope of their own.
func (w *writer) statements(body []*stmt) {
	w.push()
	for _, s := range body {
		w.statement(s)
	}
	w.pop()
}

func (w *writer) statement(s *stmt) {
	switch s.kind {
	case declareLet, declareVar:
		w.declaration(s)
	case assign:
		w.line("%s;", w.assignment(s))
	case evaluate:
		x, _ := w.call(s.expr)
		w.line("%s;", x)
	case branch:
		w.line("if (%s) {", w.condition(s.expr))
		w.statements(s.body)
		if len(s.rest) > 0 {
			w.line("} else {")
			w.statements(s.rest)
		}
		w.line("}")
	case loop:
		w.loop(s)
	case block:
		w.line("{")
		w.statements(s.body)
		w.line("}")
	case returns:
		w.returns(s)
	case isolated: // has barriers
		panic("translate: a function with barriers in a statement without")
	case breaks:
		w.line("break;")
	case continues:
		w.line("continue;")
	}
}

func (w *writer) returns(s *stmt) {
	if s.expr == nil && w.exit != "" {
		w.line("%s", w.exit)
		return
	}
	if s.expr == nil {
		if w.result != voidType {
			fail(s.line, "a return without a result, expected %s", w.result.wgsl())
		}
		w.line("return;")
		return
	}
	x, t := w.value(s.expr)
	if !fits(w.result, t) {
		fail(s.line, "the result is %s, expected %s", t.wgsl(), w.result.wgsl())
	}
	w.line("return %s;", w.converted(x, t, w.result))
}

func (w *writer) condition(e *expr) string {
	x, t := w.value(e)
	if t.kind != boolean {
		fail(e.line, "a condition is %s, expected bool", t.wgsl())
	}
	return x
}

// initial is the value of a declaration, and the type that it declares.
func (w *writer) initial(s *stmt) (string, *typ) {
	if s.expr == nil {
		w.sized(s.line, s.typ)
		w.arrays.need(s.typ)
		return zero(s.typ), s.typ
	}
	x, t := w.value(s.expr)
	to := t.settled()
	if s.typ != nil {
		if to = s.typ; !fits(to, t) {
			fail(s.line, "%s is %s, its value %s", s.text, to.wgsl(), t.wgsl())
		}
	}
	w.sized(s.line, to)
	return w.converted(x, t, to), to
}

func zero(t *typ) string {
	if t.kind == array || t.kind == vector {
		return fmt.Sprintf("(%s){0}", t.c())
	}
	return "0"
}

func (w *writer) declaration(s *stmt) {
	var at address
	if s.kind == declareLet && w.affine(s.expr) {
		at = w.address(s.expr)
	}
	x, t := w.initial(s)
	l := w.declare(s.text, t)
	if s.kind == declareLet {
		l.fixed = true
		if t.kind == u32 || t.kind == i32 {
			l.address = at
		}
		w.line("const %s %s = %s;", t.c(), l.c, x)
		return
	}
	l.assigns = true
	w.line("%s %s = %s;", t.c(), l.c, x)
}

// assignment writes left = value, or left op= value.
func (w *writer) assignment(s *stmt) string {
	if s.left.kind == identifier && s.left.text == "_" {
		x, _ := w.value(s.expr)
		return "(void)" + x
	}
	left, t := w.target(s.left)
	e := s.expr
	if op := strings.TrimSuffix(s.text, "="); op != "" {
		if t.kind == u32 && (op == "+" || op == "-") { // as OpenMP wants it at the head of a loop
			x, from := w.value(e)
			if !fits(t, from) {
				fail(s.line, "%s is added to %s", from.wgsl(), t.wgsl())
			}
			return left + " " + s.text + " " + w.converted(x, from, t)
		}
		e = &expr{kind: binary, text: op, args: []*expr{s.left, s.expr}, line: s.line}
	}
	x, from := w.value(e)
	if !fits(t, from) {
		fail(s.line, "%s is assigned to %s", from.wgsl(), t.wgsl())
	}
	return left + " = " + w.converted(x, from, t)
}

// target writes the target of an assignment.
func (w *writer) target(e *expr) (string, *typ) {
	root := e
	for root.kind == index || root.kind == member {
		root = root.args[0]
	}
	l := w.lookup(root.text)
	if root.kind != identifier || l == nil || !l.assigns {
		fail(e.line, "an assignment to what is no variable")
	}
	if e.kind != identifier {
		if _, t := w.value(e.args[0]); t.kind == vector && t.of.kind == boolean {
			fail(e.line, "an assignment to a component of %s is not supported", t.wgsl())
		}
	}
	return w.value(e)
}

// loop writes for and while. The variable of a for loop whose body does not assign it is fixed within.
func (w *writer) loop(s *stmt) {
	w.push()
	initial, condition, next := "", "", ""
	if s.init != nil && s.init.kind == declareVar {
		x, t := w.initial(s.init)
		l := w.declare(s.init.text, t)
		l.assigns = true
		initial = fmt.Sprintf("%s %s = %s", t.c(), l.c, x)
		if !assigns(s.body, s.init.text) {
			l.fix()
		}
	} else if s.init != nil {
		initial = w.assignment(s.init)
	}
	if s.expr != nil {
		condition = trim(w.condition(s.expr))
	}
	if s.next != nil {
		next = w.assignment(s.next)
	}
	w.line("for (%s; %s; %s) {", initial, condition, next)
	w.statements(s.body)
	w.line("}")
	w.pop()
}

// trim removes the parentheses around an expression.
func trim(x string) string {
	if !strings.HasPrefix(x, "(") {
		return x
	}
	depth := 0
	for i, r := range x {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 && i < len(x)-1 {
			return x
		}
	}
	return x[1 : len(x)-1]
}
