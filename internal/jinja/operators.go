package jinja

import (
	"math"
	"math/big"
	"strings"
)

// arithmetic is Python's operators on numbers, strings, lists and tuples.
func (m *machine) arithmetic(operator string, a, b any) any {
	use(a)
	if operator == "%" && isText(a) {
		return m.percent(text(a), b)
	}
	use(b)
	if isNumber(a) && isNumber(b) {
		return numbers(operator, a, b)
	}
	switch operator {
	case "+":
		if v, ok := m.joined(a, b); ok {
			return v
		}
	case "*":
		if n, ok := toInt(b); ok {
			if v, ok := m.repeated(a, n); ok {
				return v
			}
		} else if n, ok := toInt(a); ok {
			if v, ok := m.repeated(b, n); ok {
				return v
			}
		}
	}
	fail("unsupported operand type(s) for %s: '%s' and '%s'", operator, typeName(a), typeName(b))
	return nil
}

// joined is a + b of sequences of one type.
func (m *machine) joined(a, b any) (any, bool) {
	if isText(a) && isText(b) {
		m.spendText(len(text(a)) + len(text(b)))
		x, safeA := a.(markup)
		y, safeB := b.(markup)
		if !safeA && !safeB {
			return text(a) + text(b), true
		}
		if !safeA {
			x = markup(escape(text(a)))
		}
		if !safeB {
			y = markup(escape(text(b)))
		}
		return x + y, true
	}
	if l, ok := a.(*List); ok {
		r, ok := b.(*List)
		if !ok {
			return nil, false
		}
		m.spend(len(l.Items) + len(r.Items))
		return &List{append(append([]any{}, l.Items...), r.Items...)}, true
	}
	x, y := tupleOf(a), tupleOf(b)
	if x == nil || y == nil {
		return nil, false
	}
	m.spend(len(x) + len(y))
	return Tuple(append(x, y...)), true
}

func (m *machine) repeated(v any, n int64) (any, bool) {
	n = min(max(n, 0), maxText+1)
	switch v := v.(type) {
	case string:
		m.spendText(len(v) * int(n))
		return strings.Repeat(v, int(n)), true
	case *List:
		return &List{m.repeatedItems(v.Items, int(n))}, true
	case Tuple:
		return Tuple(m.repeatedItems(v, int(n))), true
	}
	return nil, false
}

func (m *machine) repeatedItems(items []any, n int) []any {
	m.spend(len(items) * n)
	out := make([]any, 0, len(items)*n)
	for range n {
		if len(items) == 0 {
			break
		}
		out = append(out, items...)
	}
	return out
}

// numbers is an operator of two numbers.
func numbers(operator string, a, b any) any {
	if operator != "*" && operator != "+" && operator != "-" && operator != "**" && !truth(b) {
		fail("division by zero")
	}
	_, floatA := a.(float64)
	_, floatB := b.(float64)
	if floatA || floatB {
		return floats(operator, toFloat(a), toFloat(b))
	}
	x, y, z := toBig(a), toBig(b), new(big.Int)
	switch operator {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "/":
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if f == 0 && y.Sign() < 0 {
			return math.Copysign(0, -1) // as in Python
		}
		if math.IsInf(f, 0) {
			fail("integer division result too large for a float")
		}
		return f
	case "//", "%":
		remainder := new(big.Int)
		z.QuoRem(x, y, remainder)
		if remainder.Sign() != 0 && remainder.Sign() != y.Sign() {
			z.Sub(z, big.NewInt(1))
			remainder.Add(remainder, y)
		}
		if operator == "%" {
			z = remainder
		}
	case "**":
		return powerOf(x, y)
	}
	return small(z)
}

// maxBits bounds the integers that templates compute.
const maxBits = 1 << 12

// small returns an integer in its usual form.
func small(z *big.Int) any {
	if z.IsInt64() {
		return z.Int64()
	}
	if z.BitLen() > maxBits {
		fail("integers of more than %d bits are not supported", maxBits)
	}
	return z
}

func powerOf(x, y *big.Int) any {
	n := new(big.Int).Abs(y)
	if x.BitLen() > 1 && (!n.IsInt64() || n.Int64() > maxBits || int64(x.BitLen()-1)*n.Int64() > maxBits) {
		fail("integers of more than %d bits are not supported", maxBits)
	}
	if x.BitLen() <= 1 {
		n.And(n, big.NewInt(1)).Or(n, new(big.Int).Lsh(big.NewInt(int64(min(y.BitLen(), 1))), 1)) // of −1, 0 and 1 only parity counts
	}
	z := new(big.Int).Exp(x, n, nil)
	if y.Sign() >= 0 {
		return small(z)
	}
	if z.Sign() == 0 {
		fail("0.0 cannot be raised to a negative power")
	}
	if z.BitLen() > 53 {
		fail("the power %v ** %v is not supported", x, y)
	}
	f, _ := new(big.Float).SetInt(z).Float64()
	return 1 / f
}

func floats(operator string, x, y float64) any {
	switch operator {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	case "**":
		switch {
		case y == 0:
			return 1.0
		case y == 1:
			return x
		case y == 2:
			return x * x
		case y == 0.5 && x >= 0:
			return math.Sqrt(x)
		}
		fail("the power %v ** %v of floats is not supported", x, y)
	}
	remainder := math.Mod(x, y)
	quotient := (x - remainder) / y
	if remainder == 0 {
		remainder = math.Copysign(0, y)
	} else if (y < 0) != (remainder < 0) {
		remainder += y
		quotient--
	}
	if operator == "%" {
		return remainder
	}
	if quotient == 0 {
		return math.Copysign(0, x/y)
	}
	whole := math.Floor(quotient)
	if quotient-whole > 0.5 {
		whole++
	}
	return whole
}

var escaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// escape is markupsafe.escape.
func escape(s string) string { return escaper.Replace(s) }
