package jinja

import "math/big"

// tests are Jinja's. Those that are missing are refused: escaped, filter and test.
var tests = map[string]func(m *machine, v any, a args) bool{
	"defined":   is(func(v any) bool { return !isUndefined(v) }),
	"undefined": is(isUndefined),
	"none":      is(func(v any) bool { return v == nil }),
	"boolean":   is(isBool),
	"true":      is(func(v any) bool { return v == true }),
	"false":     is(func(v any) bool { return v == false }),
	"integer":   is(func(v any) bool { return isNumber(v) && typeName(v) == "int" }),
	"float":     is(func(v any) bool { return typeName(v) == "float" }),
	"number":    is(isNumber),
	"string":    is(isText),
	"mapping":   is(func(v any) bool { _, ok := v.(*Dict); return ok }),
	"sequence":  is(isSequence),
	"iterable": func(m *machine, v any, a args) bool {
		a.bind("iterable", 0)
		_, ok := m.iterate(v)
		return ok
	},
	"callable": is(isCallable),
	"lower":    func(m *machine, v any, a args) bool { return isCase(m.str(v), isLower) },
	"upper":    func(m *machine, v any, a args) bool { return isCase(m.str(v), isUpper) },
	"odd":      func(m *machine, v any, a args) bool { return m.equal(m.arithmetic("%", v, int64(2)), int64(1)) },
	"even":     func(m *machine, v any, a args) bool { return m.equal(m.arithmetic("%", v, int64(2)), int64(0)) },
	"divisibleby": func(m *machine, v any, a args) bool {
		return m.equal(m.arithmetic("%", v, a.bind("divisibleby", 1, "num")[0]), int64(0))
	},
	"in":          func(m *machine, v any, a args) bool { return m.contains(a.bind("in", 1, "seq")[0], v) },
	"sameas":      sameAs,
	"eq":          compares("=="),
	"==":          compares("=="),
	"equalto":     compares("=="),
	"ne":          compares("!="),
	"!=":          compares("!="),
	"gt":          compares(">"),
	">":           compares(">"),
	"greaterthan": compares(">"),
	"ge":          compares(">="),
	">=":          compares(">="),
	"lt":          compares("<"),
	"<":           compares("<"),
	"lessthan":    compares("<"),
	"le":          compares("<="),
	"<=":          compares("<="),
}

func is(f func(v any) bool) func(m *machine, v any, a args) bool {
	return func(m *machine, v any, a args) bool {
		a.bind("the test", 0)
		return f(v)
	}
}

func compares(operator string) func(m *machine, v any, a args) bool {
	return func(m *machine, v any, a args) bool {
		return m.compare(operator, v, a.bind("the test", 1, "")[0])
	}
}

func isUndefined(v any) bool { _, ok := v.(undefined); return ok }

func isBool(v any) bool { _, ok := v.(bool); return ok }

func isSequence(v any) bool {
	switch v.(type) {
	case view:
		return false
	}
	_, ok := length(v)
	return ok
}

func isCallable(v any) bool {
	switch v := v.(type) {
	case *function, *method, undefined:
		return true
	case *object:
		return v.call != nil
	}
	return false
}

// sameAs compares what can be told apart by value alone.
func sameAs(m *machine, v any, a args) bool {
	o := a.bind("sameas", 1, "other")[0]
	if typeName(v) != typeName(o) {
		return false
	}
	switch v.(type) {
	case nil, bool:
		return v == o
	case int64, float64, *big.Int, string, markup, Tuple:
		fail("the test sameas of a %s is not supported", typeName(v))
	}
	switch v.(type) {
	case *List, *Dict, *namespace:
		return v == o
	}
	fail("the test sameas of a %s is not supported", typeName(v))
	return false
}
