package translate

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
		return w.bitcast(e)
	case index, member:
		return w.place(e)
	}
	panic("translate: unknown expression")
}

func literalText(e *expr) (string, *typ) {
	s := e.text
	if s == "true" || s == "false" {
		return s, boolType
	}
	if n, ok := integerOf(e); ok {
		return n.text(), n.typ
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
	fail(e.line, "no definition of %s in scope", e.text)
	return "", nil
}

func (w *writer) unary(e *expr) (string, *typ) {
	if n, ok := w.folded(e); ok {
		return n.text(), n.typ
	}
	x, t := w.value(e.args[0])
	switch {
	case e.text == "-" && t.scalar().kind == i32:
		return unsigned(t, "", "-", x), t
	case e.text == "-" && t.float(), e.text == "!" && t.kind == boolean, e.text == "~" && t.integer():
		return "(" + e.text + x + ")", t
	case e.text == "!" && t.kind == vector && t.of.kind == boolean:
		return "(~" + x + ")", t
	}
	fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
	return "", nil
}

func (w *writer) binary(e *expr) (string, *typ) {
	if n, ok := w.folded(e); ok {
		return n.text(), n.typ
	}
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
		if tx = tx.settled(); tx.kind == vector != (ty.kind == vector) || tx.n != ty.n {
			fail(e.line, "%s is not defined for %s and %s", e.text, tx.wgsl(), ty.wgsl())
		}
		if y = "(" + y + " & 31)"; tx.scalar().kind == i32 && e.text == "<<" {
			return unsigned(tx, x, "<<", y), tx
		}
		return fmt.Sprintf("(%s %s %s)", x, e.text, y), tx
	}
	t := common(e.line, tx, ty)
	x, y = w.spread(x, tx, t), w.spread(y, ty, t)
	if t.kind == array || t.kind == atomic || t.kind == void {
		fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
	}
	if t.scalar().kind == boolean && !slices.Contains([]string{"==", "!=", "&", "|"}, e.text) {
		fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
	}
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
	if e.text == "/" || e.text == "%" {
		return w.division(e, x, y, t), t
	}
	if t.scalar().kind == i32 || t.kind == abstractInt {
		return unsigned(t, x, e.text, y), t
	}
	return fmt.Sprintf("(%s %s %s)", x, e.text, y), t
}

// unsigned writes an operation of i32, which wraps: in C only unsigned integers do.
func unsigned(t *typ, x, operator, y string) string {
	u := (&typ{t.kind, t.n, u32Type}).c()
	if t.kind != vector {
		u = "u32"
	}
	if x == "" {
		return fmt.Sprintf("((%s)(%s(%s)%s))", t.c(), operator, u, y)
	}
	return fmt.Sprintf("((%s)((%s)%s %s (%s)%s))", t.c(), u, x, operator, u, y)
}

// bitcast writes bitcast<T>(…) of values of one size.
func (w *writer) bitcast(e *expr) (string, *typ) {
	if len(e.args) != 1 {
		fail(e.line, "bitcast has %d arguments, expected 1", len(e.args))
	}
	x, t := w.value(e.args[0])
	numbers := func(t *typ) bool { return t.integer() || t.float() }
	if t = t.settled(); !numbers(t) || !numbers(e.to) || t.n != e.to.n {
		fail(e.line, "a bitcast of %s to %s", t.wgsl(), e.to.wgsl())
	}
	if t.kind == vector {
		return fmt.Sprintf("((%s)%s)", e.to.c(), x), e.to
	}
	return fmt.Sprintf("as_%s((%s)%s)", e.to.c(), t.c(), x), e.to
}

// division writes x / y and x % y. WGSL defines both for a divisor of zero.
func (w *writer) division(e *expr, x, y string, t *typ) string {
	if t.float() {
		if e.text == "%" {
			return fmt.Sprintf("rem_%s(%s, %s)", t.settled().c(), x, y)
		}
		return fmt.Sprintf("(%s / %s)", x, y)
	}
	if n, ok := w.folded(e.args[1]); ok && n.n > 0 && t.kind != vector {
		return fmt.Sprintf("(%s %s %s)", x, e.text, y)
	}
	name := map[string]string{"/": "div", "%": "rem"}[e.text]
	return fmt.Sprintf("%s_%s(%s, %s)", name, t.settled().c(), x, y)
}

// folded evaluates an expression of integer literals and constants.
func (w *writer) folded(e *expr) (integer, bool) {
	return w.m.fold(e, func(name string) bool { return w.lookup(name) != w.scopes[0].names[name] })
}

// text returns the number in C.
func (x integer) text() string {
	switch {
	case x.typ.kind == u32:
		return fmt.Sprintf("%du", x.n)
	case x.n < 0:
		return fmt.Sprintf("(%d)", x.n)
	}
	return fmt.Sprint(x.n)
}

// spread makes an operand of the common type: a vector of a scalar, a number of a literal without suffix.
func (w *writer) spread(x string, from, to *typ) string {
	if to.kind == vector && from.kind != vector {
		return fmt.Sprintf("splat_%s(%s)", to.c(), part(x, from.settled(), to.of))
	}
	return w.converted(x, from, to)
}

// converted makes a number of a literal without suffix.
func (w *writer) converted(x string, from, to *typ) string {
	if from.kind == abstractInt && to.kind == u32 {
		if strings.Trim(x, "0123456789") == "" {
			return x + "u"
		}
		return "((u32)" + x + ")"
	}
	return x
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
		return component(base, fmt.Sprint(at), t), t.of
	}
	if t.kind != array && t.kind != vector {
		fail(e.line, "%s has no elements", t.wgsl())
	}
	at := w.address(e.args[1])
	if !at.typ.integer() || at.typ.kind == vector {
		fail(e.line, "an index is %s, expected an integer", at.typ.wgsl())
	}
	if t.kind == array && t.n == 0 {
		if !w.Inside {
			at.text = fmt.Sprintf("within(%s, %sn)", at.text, base)
		}
		return fmt.Sprintf("%s[%s]", base, at.text), t.of
	}
	if n, ok := w.folded(e.args[1]); ok {
		if n.n < 0 || n.n >= int64(t.n) {
			fail(e.line, "index %d of %s", n.n, t.wgsl())
		}
	} else if !w.Inside {
		at.text = fmt.Sprintf("within(%s, %d)", at.text, t.n)
	}
	if t.kind == vector {
		return component(base, at.text, t), t.of
	}
	return fmt.Sprintf("%s.at[%s]", base, at.text), t.of
}

// component reads a component of a vector, or stands for it where it is assigned to.
func component(v, at string, t *typ) string {
	if t.of.kind == boolean {
		return fmt.Sprintf("(%s[%s] != 0)", v, at)
	}
	return fmt.Sprintf("%s[%s]", v, at)
}

// address is an index as a signed 64-bit integer.
type address struct {
	text string
	most float64 // bound of its magnitude
	typ  *typ    // of the expression
}

// address writes an index. What the kernel computes modulo 2³² is computed exactly, so the C compiler knows that
// neighboring indices are neighbors in memory.
func (w *writer) address(e *expr) address {
	if n, ok := w.folded(e); ok {
		return address{fmt.Sprint(n.n), math.Abs(float64(n.n)), n.typ}
	}
	switch l := w.lookup(e.text); {
	case e.kind == identifier && l != nil && l.address.text != "":
		return address{l.address.text, l.address.most, l.typ}
	case e.kind == binary && slices.Contains([]string{"+", "-", "*"}, e.text):
		if a, ok := w.sum(e); ok {
			return a
		}
	}
	x, t := w.value(e)
	return address{"(i64)" + x, 1 << 32, t}
}

// sum is an address that is computed from two others, if it fits 64 bits.
func (w *writer) sum(e *expr) (a address, ok bool) {
	x, y := w.address(e.args[0]), w.address(e.args[1])
	a = address{fmt.Sprintf("(%s %s %s)", x.text, e.text, y.text), x.most + y.most, common(e.line, x.typ, y.typ)}
	if e.text == "*" {
		a.most = x.most * y.most
	}
	const longest = 1000 // characters: values that name each other would double it each time
	return a, a.most < 1<<62 && len(a.text) < longest && a.typ.integer() && a.typ.kind != vector
}

// affine reports whether an expression is made of +, -, * of literals, constants, and names that keep their value
// while the result is in scope.
func (w *writer) affine(e *expr) bool {
	switch e.kind {
	case literal:
		return true
	case identifier:
		l := w.lookup(e.text)
		return l != nil && l.fixed
	case binary:
		return slices.Contains([]string{"+", "-", "*"}, e.text) && w.affine(e.args[0]) && w.affine(e.args[1])
	}
	return false
}
