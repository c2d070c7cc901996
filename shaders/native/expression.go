package native

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// value writes an expression in C, and returns its type.
func (w *writer) value(e *expr) (string, *typ) {
	switch e.kind {
	case literal:
		return literalText(e)
	case identifier:
		return w.identifier(e)
	case unary:
		return w.unary(e)
	case binary:
		return w.binary(e)
	case call:
		return w.call(e)
	case construct:
		return w.construct(e)
	case bitcast:
		x, t := w.value(e.args[0])
		return fmt.Sprintf("as_%s(%s)", e.to.c(), w.converted(x, t, t.settled())), e.to
	case index, member:
		return w.place(e)
	}
	panic("native: unknown expression")
}

func literalText(e *expr) (string, *typ) {
	s := e.text
	if s == "true" || s == "false" {
		return s, boolType
	}
	hex := strings.HasPrefix(s, "0x") || strings.HasPrefix(s, "0X")
	switch {
	case strings.HasSuffix(s, "u"):
		return s, u32Type
	case strings.HasSuffix(s, "i"):
		return strings.TrimSuffix(s, "i"), i32Type
	case hex:
		return s, intType
	case !strings.ContainsAny(s, ".eEf"):
		return s, intType
	}
	t := realType
	if strings.HasSuffix(s, "f") {
		s, t = s[:len(s)-1], f32Type
	}
	x, err := strconv.ParseFloat(s, 32)
	if err != nil || math.IsInf(x, 0) {
		fail(e.line, "%s is no f32", e.text)
	}
	s = strconv.FormatFloat(x, 'g', -1, 32)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s + "f", t
}

func (w *writer) identifier(e *expr) (string, *typ) {
	if l := w.lookup(e.text); l != nil {
		return l.text(), l.typ
	}
	if c, ok := w.m.constants[e.text]; ok {
		s, t := w.value(c)
		return "(" + s + ")", t
	}
	fail(e.line, "no definition of %s in scope", e.text)
	return "", nil
}

func (w *writer) unary(e *expr) (string, *typ) {
	x, t := w.value(e.args[0])
	switch {
	case e.text == "-" && t.kind == i32:
		return "(i32)(0u - (u32)" + x + ")", t
	case e.text == "-" && (t.float() || t.kind == abstractInt), e.text == "!" && t.kind == boolean, e.text == "~" && t.integer():
		return "(" + e.text + x + ")", t
	case e.text == "!" && t.kind == vector && t.of.kind == boolean:
		return "(~" + x + ")", t
	}
	fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
	return "", nil
}

func (w *writer) binary(e *expr) (string, *typ) {
	x, tx := w.value(e.args[0])
	y, ty := w.value(e.args[1])
	switch e.text {
	case "&&", "||":
		if tx.kind != boolean || ty.kind != boolean {
			fail(e.line, "%s is not defined for %s and %s", e.text, tx.wgsl(), ty.wgsl())
		}
		return fmt.Sprintf("(%s %s %s)", x, e.text, y), boolType
	case "<<", ">>":
		if !tx.integer() || !ty.integer() {
			fail(e.line, "%s is not defined for %s and %s", e.text, tx.wgsl(), ty.wgsl())
		}
		if tx.kind == i32 && e.text == "<<" {
			return fmt.Sprintf("(i32)((u32)%s << (%s & 31u))", x, y), tx
		}
		return fmt.Sprintf("(%s %s (%s & 31u))", x, e.text, y), tx
	}
	t := common(e.line, tx, ty)
	x, y = w.spread(x, tx, t), w.spread(y, ty, t)
	switch e.text {
	case "==", "!=", "<", ">", "<=", ">=":
		if t.kind == vector {
			return fmt.Sprintf("(%s %s %s)", x, e.text, y), &typ{vector, t.n, boolType}
		}
		return fmt.Sprintf("(%s %s %s)", x, e.text, y), boolType
	case "&", "|", "^":
		if t.float() {
			fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
		}
		return fmt.Sprintf("(%s %s %s)", x, e.text, y), t
	}
	if t.scalar().kind == boolean {
		fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
	}
	if e.text == "/" || e.text == "%" {
		return w.division(e, x, y, t), t
	}
	if t.kind == i32 {
		return fmt.Sprintf("(i32)((u32)%s %s (u32)%s)", x, e.text, y), t
	}
	return fmt.Sprintf("(%s %s %s)", x, e.text, y), t
}

// division writes x / y and x % y. WGSL defines both for a divisor of zero.
func (w *writer) division(e *expr, x, y string, t *typ) string {
	if t.float() {
		if e.text == "%" {
			return fmt.Sprintf("rem_f32(%s, %s)", x, y)
		}
		return fmt.Sprintf("(%s / %s)", x, y)
	}
	if n, ok := w.constant(e.args[1]); ok && n > 0 && t.kind != vector {
		return fmt.Sprintf("(%s %s %s)", x, e.text, y)
	}
	name := map[string]string{"/": "div", "%": "rem"}[e.text]
	return fmt.Sprintf("%s_%s(%s, %s)", name, t.settled().c(), x, y)
}

// constant evaluates an expression of literals and constants.
func (w *writer) constant(e *expr) (n int, ok bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(syntaxError); !is {
				panic(r)
			}
			n, ok = 0, false
		}
	}()
	if e.kind == identifier && w.lookup(e.text) != nil {
		return 0, false
	}
	return w.m.integer(e), true
}

// spread makes a vector of a scalar where the other operand is a vector.
func (w *writer) spread(x string, from, to *typ) string {
	if to.kind == vector && from.kind != vector {
		return fmt.Sprintf("splat_%s(%s)", to.c(), x)
	}
	return x
}

func (w *writer) converted(x string, from, to *typ) string {
	if from.equal(to) {
		return x
	}
	return fmt.Sprintf("((%s)%s)", to.c(), x)
}

// construct writes T(…): a conversion, a vector or an array.
func (w *writer) construct(e *expr) (string, *typ) {
	to := e.to
	args, types := make([]string, len(e.args)), make([]*typ, len(e.args))
	for i, a := range e.args {
		args[i], types[i] = w.value(a)
	}
	switch {
	case to.kind == vector:
		return w.vector(e, to, args, types)
	case to.kind == array:
		if len(args) != 0 && len(args) != to.n {
			fail(e.line, "%d values for %s", len(args), to.wgsl())
		}
		w.arrays.need(to)
		if len(args) == 0 {
			return fmt.Sprintf("(%s){0}", to.c()), to
		}
		return fmt.Sprintf("(%s){{%s}}", to.c(), strings.Join(args, ", ")), to
	case len(args) == 0:
		return fmt.Sprintf("((%s)0)", to.c()), to
	case len(args) != 1 || types[0].kind == vector || types[0].kind == array:
		fail(e.line, "%s of %d values", to.wgsl(), len(args))
	}
	return convert(args[0], types[0].settled(), to), to
}

// convert writes a conversion of scalars. That of a float to an integer is saturated, and NaN becomes zero.
func convert(x string, from, to *typ) string {
	switch {
	case from.kind == to.kind:
		return x
	case from.kind == f32 && to.integer():
		return fmt.Sprintf("%s_of_f32(%s)", to.c(), x)
	}
	return fmt.Sprintf("((%s)%s)", to.c(), x)
}

func (w *writer) vector(e *expr, to *typ, args []string, types []*typ) (string, *typ) {
	if to.of == nil {
		if len(args) == 0 {
			fail(e.line, "vec%d() has no type", to.n)
		}
		to = &typ{vector, to.n, types[0].scalar().settled()}
	}
	switch {
	case len(args) == 0:
		return fmt.Sprintf("(%s){0}", to.c()), to
	case len(args) == 1 && types[0].kind != vector:
		return fmt.Sprintf("splat_%s(%s)", to.c(), convert(args[0], types[0].settled(), to.of)), to
	case len(args) == 1 && types[0].n == to.n:
		if types[0].equal(to) {
			return args[0], to
		}
		return fmt.Sprintf("__builtin_convertvector(%s, %s)", args[0], to.c()), to
	}
	var parts []string
	for i, a := range args {
		if types[i].kind != vector {
			parts = append(parts, convert(a, types[i].settled(), to.of))
			continue
		}
		for c := range types[i].n {
			parts = append(parts, fmt.Sprintf("%s[%d]", a, c))
		}
	}
	if len(parts) != to.n {
		fail(e.line, "%d components for %s", len(parts), to.wgsl())
	}
	return fmt.Sprintf("(%s){%s}", to.c(), strings.Join(parts, ", ")), to
}

// place writes an element or a component, which can be assigned to where its base can.
func (w *writer) place(e *expr) (string, *typ) {
	base, t := w.value(e.args[0])
	if e.kind == member {
		at := strings.Index("xyzw", e.text)
		if at < 0 {
			at = strings.Index("rgba", e.text)
		}
		if t.kind != vector || len(e.text) != 1 || at < 0 || at >= t.n {
			fail(e.line, "%s has no member %s", t.wgsl(), e.text)
		}
		return fmt.Sprintf("%s[%d]", base, at), t.of
	}
	if t.kind != array && t.kind != vector {
		fail(e.line, "%s has no elements", t.wgsl())
	}
	_, it := w.value(e.args[1])
	if !it.integer() || it.kind == vector {
		fail(e.line, "an index is %s, expected an integer", it.wgsl())
	}
	at := w.address(e.args[1])
	if t.kind == array && t.n == 0 {
		if !w.Inside {
			at = fmt.Sprintf("within(%s, %sn)", at, base)
		}
		return fmt.Sprintf("%s[%s]", base, at), t.of
	}
	if n, ok := w.constant(e.args[1]); ok {
		if n < 0 || n >= t.n {
			fail(e.line, "index %d of %s", n, t.wgsl())
		}
	} else if !w.Inside {
		at = fmt.Sprintf("within(%s, %d)", at, t.n)
	}
	if t.kind == vector {
		return fmt.Sprintf("%s[%s]", base, at), t.of
	}
	return fmt.Sprintf("%s.at[%s]", base, at), t.of
}

// address writes an index as a signed 64-bit integer. What the kernel computes modulo 2³² is computed exactly, so the
// C compiler knows that neighboring indices are neighbors in memory.
func (w *writer) address(e *expr) string {
	switch e.kind {
	case literal:
		return strings.TrimRight(e.text, "ui")
	case identifier:
		if l := w.lookup(e.text); l != nil {
			if l.address != "" {
				return l.address
			}
		} else if c, ok := w.m.constants[e.text]; ok {
			return w.address(c)
		}
	case binary:
		if slices.Contains([]string{"+", "-", "*"}, e.text) {
			return fmt.Sprintf("(%s %s %s)", w.address(e.args[0]), e.text, w.address(e.args[1]))
		}
	}
	x, _ := w.value(e)
	return "(i64)" + x
}

// affine reports whether an expression is made of +, -, * of literals, constants, and names that do not change while
// the result is in scope.
func (w *writer) affine(e *expr) bool {
	switch e.kind {
	case literal:
		return true
	case identifier:
		l := w.lookup(e.text)
		return l == nil || l.fixed
	case binary:
		return slices.Contains([]string{"+", "-", "*"}, e.text) && w.affine(e.args[0]) && w.affine(e.args[1])
	}
	return false
}
