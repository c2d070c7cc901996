package translate

import (
	"math"
	"strconv"
	"strings"
)

// integer is the value of a constant expression.
type integer struct {
	typ *typ // i32, u32 or abstract
	n   int64
}

// literal returns the expression that writes x.
func (x integer) literal(line int) *expr {
	suffix := map[kind]string{i32: "i", u32: "u"}[x.typ.kind]
	e := &expr{kind: literal, text: strconv.FormatInt(x.n, 10) + suffix, line: line}
	if x.n < 0 {
		e.text = e.text[1:]
		e = &expr{kind: unary, text: "-", args: []*expr{e}, line: line, deep: 1}
	}
	return e
}

// integerOf parses a literal; ok is false for one that is no integer.
func integerOf(e *expr) (x integer, ok bool) {
	digits, typ, most := e.text, intType, int64(math.MaxInt64)
	hex := strings.HasPrefix(digits, "0x") || strings.HasPrefix(digits, "0X")
	switch {
	case strings.HasSuffix(digits, "u"):
		digits, typ, most = digits[:len(digits)-1], u32Type, math.MaxUint32
	case strings.HasSuffix(digits, "i"):
		digits, typ, most = digits[:len(digits)-1], i32Type, 1<<31 // of −2147483648i
	case !hex && strings.ContainsAny(digits, ".eEfh") || digits == "true" || digits == "false":
		return x, false
	}
	if !hex && len(digits) > 1 && digits[0] == '0' {
		fail(e.line, "the number %s begins with 0", e.text)
	}
	n, err := strconv.ParseInt(digits, 0, 64)
	if err != nil || n > most {
		fail(e.line, "%s is no %s", e.text, typ.wgsl())
	}
	return integer{typ, n}, true
}

// fold evaluates an expression of integer literals and constants. Names that hidden reports are no constants.
func (m *module) fold(e *expr, hidden func(name string) bool) (x integer, ok bool) {
	switch e.kind {
	case literal:
		return integerOf(e)
	case identifier:
		if c, found := m.constants[e.text]; found && (hidden == nil || !hidden(e.text)) {
			x, ok = m.fold(c.value, nil)
			if ok && c.typ != nil && c.typ.integer() && x.typ == intType {
				x.typ = c.typ
			}
		}
		return x, ok && x.typ.integer()
	case unary:
		if x, ok = m.fold(e.args[0], hidden); ok && e.text == "-" && x.typ != u32Type {
			return integer{x.typ, -x.n}, true
		}
	case binary:
		y, both := integer{}, false
		if x, ok = m.fold(e.args[0], hidden); ok {
			y, both = m.fold(e.args[1], hidden)
		}
		if both {
			return apply(e, x, y)
		}
	}
	return x, false
}

// apply computes x op y, unless the types differ or the result does not fit.
func apply(e *expr, x, y integer) (r integer, ok bool) {
	if r.typ = x.typ; x.typ == intType {
		r.typ = y.typ
	} else if y.typ != intType && y.typ != x.typ {
		return r, false
	}
	switch e.text {
	case "+":
		r.n = x.n + y.n
	case "-":
		r.n = x.n - y.n
	case "*":
		r.n = x.n * y.n
	case "/", "%":
		if y.n == 0 {
			fail(e.line, "division by zero")
		}
		if r.n = x.n / y.n; e.text == "%" {
			r.n = x.n % y.n
		}
	default:
		return r, false
	}
	const large = 1 << 31 // products of smaller numbers do not overflow
	if max(x.n, y.n) > 2*large || min(x.n, y.n) < -large {
		return r, false
	}
	switch r.typ {
	case u32Type:
		return r, r.n >= 0 && r.n <= math.MaxUint32
	case i32Type:
		return r, r.n >= math.MinInt32 && r.n <= math.MaxInt32
	}
	return r, true
}

// integer evaluates a constant expression.
func (m *module) integer(e *expr) int {
	x, ok := m.fold(e, nil)
	if !ok {
		fail(e.line, "expected a constant integer")
	}
	return int(x.n)
}
