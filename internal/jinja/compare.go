package jinja

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"strings"
)

// equal is Python's ==.
func (m *machine) equal(a, b any) bool {
	m.spend(1)
	if c, ok := compareNumbers(a, b); ok {
		return c == 0
	}
	if isText(a) && isText(b) {
		return text(a) == text(b)
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *List:
		l, ok := b.(*List)
		return ok && (a == l || m.equalItems(a.Items, l.Items))
	case Tuple, group:
		x, y := tupleOf(a), tupleOf(b)
		return y != nil && m.equalItems(x, y)
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || len(a.keys) != len(d.keys) {
			return false
		}
		for i, k := range a.keys {
			if v, ok := d.Get(k); !ok || !m.equal(a.values[i], v) {
				return false
			}
		}
		return true
	case span:
		s, ok := b.(span)
		return ok && m.equalItems(m.items(a), m.items(s))
	case *namespace, *generator, *function, *object, *method:
		return a == b
	case view:
		fail("comparing a %s is not supported", a.name)
	}
	return false
}

// tupleOf returns the elements of a tuple; nil: v is none.
func tupleOf(v any) []any {
	switch v := v.(type) {
	case Tuple:
		return append([]any{}, v...)
	case group:
		return []any{v.key, v.items}
	}
	return nil
}

func (m *machine) equalItems(a, b []any) bool {
	return slices.EqualFunc(a, b, m.equal)
}

// compareNumbers orders two numbers; false: one of them is none. The order with NaN is 2.
func compareNumbers(a, b any) (int, bool) {
	if !isNumber(a) || !isNumber(b) {
		return 0, false
	}
	x, xFloat := a.(float64)
	y, yFloat := b.(float64)
	switch {
	case xFloat && math.IsNaN(x) || yFloat && math.IsNaN(y):
		return 2, true
	case xFloat && math.IsInf(x, 0) || yFloat && math.IsInf(y, 0) || xFloat && yFloat:
		return cmp.Compare(toFloat(a), toFloat(b)), true
	case xFloat || yFloat:
		return toBigFloat(a).Cmp(toBigFloat(b)), true
	}
	return toBig(a).Cmp(toBig(b)), true
}

func toBigFloat(v any) *big.Float {
	if f, ok := v.(float64); ok {
		return big.NewFloat(f)
	}
	return new(big.Float).SetInt(toBig(v))
}

func toFloat(v any) float64 {
	if f, ok := v.(float64); ok {
		return f
	}
	f, _ := new(big.Float).SetInt(toBig(v)).Float64()
	return f
}

func isNumber(v any) bool {
	switch v.(type) {
	case bool, int64, *big.Int, float64:
		return true
	}
	return false
}

// less is Python's <.
func (m *machine) less(a, b any) bool { return m.order("<", a, b) }

// order compares by one of < <= > >=.
func (m *machine) order(operator string, a, b any) bool {
	m.spend(1)
	use(a, b)
	c, ok := compareNumbers(a, b)
	x, y := tupleOf(a), tupleOf(b)
	l, isList := a.(*List)
	r, both := b.(*List)
	if isList && both {
		x, y = l.Items, r.Items
	}
	switch {
	case ok && c == 2:
		return false
	case ok:
	case isText(a) && isText(b):
		c = strings.Compare(text(a), text(b)) // UTF-8 keeps the order of characters
	case x != nil && y != nil && isList == both:
		for i := range min(len(x), len(y)) {
			if !m.equal(x[i], y[i]) {
				return m.order(operator, x[i], y[i])
			}
		}
		c = cmp.Compare(len(x), len(y))
	default:
		fail("'%s' not supported between instances of '%s' and '%s'", operator, typeName(a), typeName(b))
	}
	switch operator {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// contains is Python's item in container.
func (m *machine) contains(container, item any) bool {
	switch c := container.(type) {
	case string, markup:
		use(item)
		if !isText(item) {
			fail("'in <string>' requires string as left operand, not %s", typeName(item))
		}
		m.spendText(len(text(c)))
		return strings.Contains(text(c), text(item))
	case *Dict:
		_, ok := c.Get(item)
		return ok
	case view:
		if c.name == "dict_keys" {
			_, ok := c.of.Get(item)
			return ok
		}
	}
	next, ok := m.iterate(container)
	if !ok {
		fail("argument of type '%s' is not iterable", typeName(container))
	}
	for x, ok := next(); ok; x, ok = next() {
		if m.equal(x, item) {
			return true
		}
	}
	return false
}
