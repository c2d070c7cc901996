package native

import (
	"fmt"
	"slices"
	"strings"
)

// writer writes the C of a module. Its methods panic with a syntaxError.
type writer struct {
	m *module
	Options
	out     strings.Builder
	arrays  arrayTypes
	scopes  []map[string]*local
	names   map[string]int // how often a name was declared
	result  *typ           // of the function
	exit    string         // how a return without a value leaves; empty: return
	context []string       // arguments that every function takes: bindings and workgroup memory
}

// local is a name that is in scope.
type local struct {
	c       string // its name in C
	typ     *typ
	fixed   bool   // it does not change while it is in scope
	address string // its value as an index, if it is a sum of products of fixed names
	lanes   bool   // an array with an element for each invocation
	pointer bool
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
	w := &writer{m: m, Options: o, names: map[string]int{}}
	w.push()
	for _, v := range m.variables {
		w.arrays.need(v.typ)
		l := &local{c: v.name + "_", typ: v.typ, pointer: v.binding < 0}
		w.names[v.name]++
		w.scopes[0][v.name] = l
		w.context = append(w.context, l.c)
		if v.binding >= 0 {
			if w.element(v).kind == atomic {
				fail(v.line, "atomics in bindings are not supported")
			}
			w.context = append(w.context, l.c+"n")
		}
	}
	return w
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

func (w *writer) line(format string, args ...any) { fmt.Fprintf(&w.out, format+"\n", args...) }

func (w *writer) push() { w.scopes = append(w.scopes, map[string]*local{}) }
func (w *writer) pop()  { w.scopes = w.scopes[:len(w.scopes)-1] }

func (w *writer) lookup(name string) *local {
	for _, s := range slices.Backward(w.scopes) {
		if l := s[name]; l != nil {
			return l
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
	w.scopes[len(w.scopes)-1][name] = l
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
		l.fixed, l.address = true, "(i64)"+l.c
		parameters = append(parameters, fmt.Sprintf("const %s %s", p.typ.c(), l.c))
	}
	if len(parameters) == 0 {
		parameters = []string{"void"}
	}
	w.result = f.result
	w.arrays.need(f.result)
	var body strings.Builder
	before := w.out
	w.out = body
	w.statements(f.body)
	text := w.out.String()
	w.out = before
	w.line("static inline __attribute__((always_inline)) %s %s(%s) {\n%s}", f.result.c(), name, strings.Join(parameters, ", "), text)
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
		w.line("return;")
		return
	}
	x, t := w.value(s.expr)
	if w.result == nil || !fits(w.result, t) {
		fail(s.line, "the result is %s", t.wgsl())
	}
	w.line("return %s;", x)
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
	return x, to
}

func zero(t *typ) string {
	if t.kind == array || t.kind == vector {
		return fmt.Sprintf("(%s){0}", t.c())
	}
	return "0"
}

func (w *writer) declaration(s *stmt) {
	address := ""
	if s.kind == declareLet && s.expr != nil && w.affine(s.expr) {
		address = w.address(s.expr)
	}
	x, t := w.initial(s)
	l := w.declare(s.text, t)
	if s.kind == declareLet {
		l.fixed = true
		if t.kind == u32 || t.kind == i32 {
			l.address = address
		}
		w.line("const %s %s = %s;", t.c(), l.c, x)
		return
	}
	w.line("%s %s = %s;", t.c(), l.c, x)
}

// assignment writes left = value, or left op= value.
func (w *writer) assignment(s *stmt) string {
	if s.left.kind == identifier && s.left.text == "_" {
		x, _ := w.value(s.expr)
		return "(void)" + x
	}
	left, t := w.value(s.left)
	e := s.expr
	if op := strings.TrimSuffix(s.text, "="); op != "" {
		if t.kind == u32 && (op == "+" || op == "-") { // as OpenMP wants it at the head of a loop
			x, from := w.value(e)
			if !fits(t, from) {
				fail(s.line, "%s is added to %s", from.wgsl(), t.wgsl())
			}
			return left + " " + s.text + " " + x
		}
		e = &expr{kind: binary, text: op, args: []*expr{s.left, s.expr}, line: s.line}
	}
	x, from := w.value(e)
	if !fits(t, from) {
		fail(s.line, "%s is assigned to %s", from.wgsl(), t.wgsl())
	}
	return left + " = " + x
}

// loop writes for and while. The variable of a for loop whose body does not assign it is fixed within.
func (w *writer) loop(s *stmt) {
	w.push()
	initial, condition, next, reduction := "", "", "", ""
	if s.init != nil && s.init.kind == declareVar {
		x, t := w.initial(s.init)
		l := w.declare(s.init.text, t)
		initial = fmt.Sprintf("%s %s = %s", t.c(), l.c, x)
		if !assigns(s.body, s.init.text) {
			l.fixed, l.address = true, "(i64)"+l.c
			reduction = w.reduction(s)
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
	w.line("%sfor (%s; %s; %s) {", reduction, initial, condition, next)
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

// assigns reports whether statements assign a variable of that name, of whatever scope.
func assigns(body []*stmt, name string) bool {
	found := false
	visit(body, func(s *stmt) {
		if s.kind == assign && s.left.kind == identifier && s.left.text == name {
			found = true
		}
	})
	return found
}

// visit calls f for each statement, also within others.
func visit(body []*stmt, f func(*stmt)) {
	for _, s := range body {
		f(s)
		for _, x := range []*stmt{s.init, s.next} {
			if x != nil {
				f(x)
			}
		}
		visit(s.body, f)
		visit(s.rest, f)
	}
}

// walk calls f for each expression of statements.
func walk(body []*stmt, f func(*expr)) {
	visit(body, func(s *stmt) {
		each(s.expr, f)
		each(s.left, f)
	})
}

func each(e *expr, f func(*expr)) {
	if e == nil {
		return
	}
	f(e)
	for _, a := range e.args {
		each(a, f)
	}
}
