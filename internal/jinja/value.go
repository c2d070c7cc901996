package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// List is a Python list. Templates cannot change it.
type List struct{ Items []any }

// Tuple is a Python tuple.
type Tuple []any

// Dict is a Python dict: keys in the order in which they were set.
type Dict struct {
	keys, values []any
	index        map[string]int
}

// Set sets the value of a key, which is hashable.
func (d *Dict) Set(key, value any) {
	h := hash(key)
	if d.index == nil {
		d.index = map[string]int{}
	}
	if i, ok := d.index[h]; ok {
		d.values[i] = value
		return
	}
	d.index[h] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, value)
}

// Get returns the value of a key.
func (d *Dict) Get(key any) (any, bool) {
	i, ok := d.index[hash(key)]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// Each calls f with each key and its value, in their order.
func (d *Dict) Each(f func(key, value any)) {
	for i, k := range d.keys {
		f(k, d.values[i])
	}
}

type (
	// undefined is Jinja's Undefined: its text is empty, and its attributes are errors.
	undefined struct{ message string }
	// markup is markupsafe.Markup, which the filters escape and safe make.
	markup string
	// span is a Python range.
	span struct{ start, stop, step int64 }
	// view is what the keys, values or items of a dict are: "dict_keys", "dict_values", "dict_items".
	view struct {
		name string
		of   *Dict
	}
	// generator yields each value once.
	generator struct{ next func() (any, bool) }
	// group is what groupby yields.
	group struct{ key, items any }
	// namespace holds attributes that templates set.
	namespace struct{ attrs Dict }
	// function is what templates call.
	function struct {
		call func(m *machine, a args) any
	}
	// object is a value with attributes: a loop, a cycler.
	object struct {
		name string
		attr func(name string) (any, bool)
		call func(m *machine, a args) any // nil: it cannot be called
	}
)

func undef(format string, args ...any) undefined { return undefined{sprintf(format, args...)} }

// use fails if a value is undefined: most operations on such values are errors.
func use(values ...any) {
	for _, v := range values {
		if u, ok := v.(undefined); ok {
			fail("%s", u.message)
		}
	}
}

// hash returns a text that equal keys of dicts share.
func hash(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case string:
		return "s" + v
	case markup:
		return "s" + string(v)
	case bool, int64, *big.Int, float64:
		if f, ok := v.(float64); ok && (f != math.Trunc(f) || math.IsInf(f, 0)) {
			return "f" + strconv.FormatFloat(f, 'g', -1, 64)
		}
		return "n" + toBig(v).String()
	case Tuple:
		var b strings.Builder
		for _, x := range v {
			h := hash(x)
			b.WriteString(strconv.Itoa(len(h)) + ":" + h)
		}
		return "t" + b.String()
	case undefined:
		return "undefined"
	}
	fail("unhashable type: %s", typeName(v))
	return ""
}

func toBig(v any) *big.Int {
	switch v := v.(type) {
	case bool:
		if v {
			return big.NewInt(1)
		}
		return new(big.Int)
	case int64:
		return big.NewInt(v)
	case *big.Int:
		return v
	case float64:
		n, _ := new(big.Float).SetFloat64(v).Int(nil)
		return n
	}
	return nil
}

// typeName is Python's name of a value's type.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string, markup:
		return "str"
	case *List:
		return "list"
	case Tuple, group:
		return "tuple"
	case *Dict:
		return "dict"
	case undefined:
		return "Undefined"
	case span:
		return "range"
	case view:
		return v.name
	case *generator:
		return "generator"
	case *namespace:
		return "Namespace"
	case *object:
		return v.name
	}
	return "function"
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case *big.Int:
		return v.Sign() != 0
	case float64:
		return v != 0
	}
	n, ok := length(v)
	return !ok || n > 0
}

// length is Python's len; false: the value has none.
func length(v any) (int, bool) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), true
	case markup:
		return utf8.RuneCountInString(string(v)), true
	case *List:
		return len(v.Items), true
	case Tuple:
		return len(v), true
	case *Dict:
		return len(v.keys), true
	case view:
		return len(v.of.keys), true
	case span:
		return v.len(), true
	case group:
		return 2, true
	case undefined:
		return 0, true
	}
	return 0, false
}

func (s span) len() int {
	switch {
	case s.step > 0 && s.start < s.stop:
		return int((s.stop-s.start-1)/s.step + 1)
	case s.step < 0 && s.start > s.stop:
		return int((s.start-s.stop-1)/-s.step + 1)
	}
	return 0
}

// iterate returns the next values of an iterable; ok is false for a value that is not iterable.
func (m *machine) iterate(v any) (next func() (any, bool), ok bool) {
	if g, ok := v.(*generator); ok {
		return g.next, true
	}
	at := func(n int, item func(i int) any) func() (any, bool) {
		i := -1
		return func() (any, bool) {
			if i++; i >= n {
				return nil, false
			}
			m.spend(1)
			return item(i), true
		}
	}
	switch v := v.(type) {
	case string, markup:
		rest := text(v)
		return func() (any, bool) {
			if rest == "" {
				return nil, false
			}
			m.spend(1)
			_, n := utf8.DecodeRuneInString(rest)
			c := rest[:n]
			rest = rest[n:]
			return c, true
		}, true
	case *List:
		return at(len(v.Items), func(i int) any { return v.Items[i] }), true
	case Tuple:
		return at(len(v), func(i int) any { return v[i] }), true
	case group:
		return m.iterate(Tuple{v.key, v.items})
	case *Dict:
		return at(len(v.keys), func(i int) any { return v.keys[i] }), true
	case view:
		return at(len(v.of.keys), v.item), true
	case span:
		return at(v.len(), func(i int) any { return v.start + int64(i)*v.step }), true
	case undefined:
		return at(0, nil), true
	}
	return nil, false
}

func (v view) item(i int) any {
	switch v.name {
	case "dict_keys":
		return v.of.keys[i]
	case "dict_values":
		return v.of.values[i]
	}
	return Tuple{v.of.keys[i], v.of.values[i]}
}

// elements returns the values of an iterable, one at a call.
func (m *machine) elements(v any) func() (any, bool) {
	next, ok := m.iterate(v)
	if !ok {
		fail("'%s' object is not iterable", typeName(v))
	}
	return next
}

// items returns all values of an iterable.
func (m *machine) items(v any) []any {
	next := m.elements(v)
	all := []any{}
	for x, ok := next(); ok; x, ok = next() {
		all = append(all, x)
	}
	return all
}

// text returns the string of a str.
func text(v any) string {
	if s, ok := v.(markup); ok {
		return string(s)
	}
	return v.(string)
}

func isText(v any) bool {
	switch v.(type) {
	case string, markup:
		return true
	}
	return false
}

// str is Python's str.
func (m *machine) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case markup:
		return string(v)
	case undefined:
		return ""
	}
	var b strings.Builder
	m.repr(&b, v)
	return b.String()
}

// repr writes Python's repr.
func (m *machine) repr(b *strings.Builder, v any) {
	m.spend(1)
	if b.Len() > maxText {
		m.spendText(b.Len())
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String())
	case float64:
		b.WriteString(floatRepr(v))
	case string:
		m.spendText(len(v))
		quote(b, v)
	case *List:
		m.sequence(b, "[", v.Items, "]")
	case Tuple:
		end := ")"
		if len(v) == 1 {
			end = ",)"
		}
		m.sequence(b, "(", v, end)
	case group:
		m.sequence(b, "(", []any{v.key, v.items}, ")")
	case *Dict:
		b.WriteString("{")
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			m.repr(b, k)
			b.WriteString(": ")
			m.repr(b, v.values[i])
		}
		b.WriteString("}")
	case view:
		m.sequence(b, v.name+"([", m.items(v), "])")
	case undefined:
		b.WriteString("Undefined")
	case span:
		b.WriteString("range(" + strconv.FormatInt(v.start, 10) + ", " + strconv.FormatInt(v.stop, 10))
		if v.step != 1 {
			b.WriteString(", " + strconv.FormatInt(v.step, 10))
		}
		b.WriteString(")")
	default:
		fail("the text of a %s is not supported", typeName(v))
	}
}

func (m *machine) sequence(b *strings.Builder, begin string, items []any, end string) {
	b.WriteString(begin)
	for i, x := range items {
		if i > 0 {
			b.WriteString(", ")
		}
		m.repr(b, x)
	}
	b.WriteString(end)
}

// floatRepr is the shortest decimal that reads back as f, as Python writes it.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64)[:1]+"inf", "+")
	case f != 0 && (math.Abs(f) < 1e-4 || math.Abs(f) >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote writes a string as Python's repr does.
func quote(b *strings.Builder, s string) {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b.WriteByte(q)
	for _, r := range s {
		i := strings.IndexRune("\n\r\t\\", r)
		switch {
		case i >= 0:
			b.WriteString(`\` + `nrt\`[i:i+1])
		case r == rune(q):
			b.WriteString(`\` + string(q))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			b.WriteString(sprintf(`\x%02x`, r))
		case r < 0x10000:
			b.WriteString(sprintf(`\u%04x`, r))
		default:
			b.WriteString(sprintf(`\U%08x`, r))
		}
	}
	b.WriteByte(q)
}
