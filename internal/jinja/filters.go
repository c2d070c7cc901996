package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filters are Jinja's, with transformers' tojson. Those that are missing are refused: attr, filesizeformat,
// forceescape, pprint, random, striptags, truncate, urlencode, urlize, wordcount, wordwrap and xmlattr.
var filters = map[string]filter{
	"abs": absolute, "batch": batch, "capitalize": onText(capitalize), "center": center, "count": lengthOf, "d": defaulted,
	"default": defaulted, "dictsort": dictsort, "e": escaped, "escape": escaped, "first": first, "float": toFloatFilter,
	"format": format, "groupby": groupby, "indent": indent, "int": toIntFilter, "items": itemsFilter, "join": joinFilter,
	"last": last, "length": lengthOf, "list": list, "lower": onText(lower), "map": mapped, "max": extreme(">"),
	"min": extreme("<"), "reject": choose(false, false), "rejectattr": choose(true, false), "replace": replaceFilter,
	"reverse": reverse, "round": round, "safe": safe, "select": choose(false, true), "selectattr": choose(true, true),
	"slice": sliceFilter, "sort": sorted, "string": toString, "sum": sum, "title": onText(jinjaTitle), "tojson": tojson,
	"trim": trim, "unique": unique, "upper": onText(upper),
}

// filter computes a value from another one and arguments. The methods of values have this type, too.
type filter = func(m *machine, v any, a args) any

func onText(f func(s string) string) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		a.bind("the filter", 0)
		s := m.str(v)
		m.spendText(len(s))
		return marked(v, f(s))
	}
}

// jinjaTitle is Jinja's filter title, which differs from Python's method.
func jinjaTitle(s string) string {
	var b strings.Builder
	word := func(w string) {
		_, n := utf8.DecodeRuneInString(w)
		b.WriteString(upper(w[:n]) + lower(w[n:]))
	}
	between := func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }
	for s != "" {
		end := strings.IndexFunc(s, between)
		if end < 0 {
			end = len(s)
		}
		word(s[:end])
		s = s[end:]
		rest := strings.TrimLeftFunc(s, between)
		word(s[:len(s)-len(rest)])
		s = rest
	}
	return b.String()
}

func absolute(m *machine, v any, a args) any {
	use(v)
	if f, ok := v.(float64); ok {
		return math.Abs(f)
	}
	if !isNumber(v) {
		fail("bad operand type for abs(): '%s'", typeName(v))
	}
	if toBig(v).Sign() < 0 {
		return m.arithmetic("-", int64(0), v)
	}
	return m.arithmetic("+", int64(0), v)
}

func lengthOf(m *machine, v any, a args) any {
	a.bind("length", 0)
	n, ok := length(v)
	if !ok {
		fail("object of type '%s' has no len()", typeName(v))
	}
	return int64(n)
}

func defaulted(m *machine, v any, a args) any {
	p := a.bind("default", 0, "default_value", "boolean")
	if _, ok := v.(undefined); ok || truth(or(p[1], false)) && !truth(v) {
		return or(p[0], "")
	}
	return v
}

func escaped(m *machine, v any, a args) any {
	if s, ok := v.(markup); ok {
		return s
	}
	s := m.str(v)
	m.spendText(len(s) * 5)
	return markup(escape(s))
}

func safe(m *machine, v any, a args) any { return markup(m.str(v)) }

func toString(m *machine, v any, a args) any {
	a.bind("string", 0)
	if isText(v) {
		return v
	}
	return m.str(v)
}

func trim(m *machine, v any, a args) any {
	p := a.bind("trim", 0, "chars")
	if !isText(v) {
		v = m.str(v)
	}
	return strip(true, true)(m, v, args{pos: []any{or(p[0], nil)}})
}

func center(m *machine, v any, a args) any {
	p := a.bind("center", 0, "width")
	if !isText(v) {
		v = m.str(v)
	}
	return justify('c')(m, v, args{pos: []any{or(p[0], int64(80))}})
}

func format(m *machine, v any, a args) any {
	if len(a.pos) > 0 && len(a.names) > 0 {
		fail("format: can't handle positional and keyword arguments at the same time")
	}
	if _, ok := v.(markup); ok {
		fail("the filter format of a safe string is not supported")
	}
	if len(a.names) == 0 {
		return m.percent(m.str(v), Tuple(a.pos))
	}
	d := &Dict{}
	for i, n := range a.names {
		d.Set(n, a.named[i])
	}
	return m.percent(m.str(v), d)
}

func indent(m *machine, v any, a args) any {
	p := a.bind("indent", 0, "width", "first", "blank")
	s := textArg("indent", v)
	m.spend(len(s)/8 + 1)
	by, ok := or(p[0], int64(4)).(string)
	if !ok {
		by = strings.Repeat(" ", max(width("indent", or(p[0], int64(4))), 0))
	}
	parts := m.items(splitlines(m, s+"\n", args{}))
	var b strings.Builder
	if truth(or(p[1], false)) {
		b.WriteString(by)
	}
	for i, part := range parts {
		if i > 0 {
			b.WriteString("\n")
			if part != "" || truth(or(p[2], false)) {
				m.spendText(len(by))
				b.WriteString(by)
			}
		}
		b.WriteString(part.(string))
		if b.Len() > maxText {
			m.spendText(b.Len())
		}
	}
	return marked(v, b.String())
}

func replaceFilter(m *machine, v any, a args) any {
	p := a.bind("replace", 2, "old", "new", "count")
	n := or(p[2], nil)
	if n == nil {
		n = int64(-1)
	}
	return m.replaced(m.str(v), m.str(p[0]), m.str(p[1]), int(intArg("replace", n, -1)))
}

func joinFilter(m *machine, v any, a args) any {
	p := a.bind("join", 0, "d", "attribute")
	sep := m.str(or(p[0], ""))
	get := m.getter(or(p[1], nil))
	var b strings.Builder
	for i, x := range m.items(v) {
		if i > 0 {
			b.WriteString(sep)
		}
		s := m.str(get(x))
		m.spend((len(s)+len(sep))/64 + 1)
		b.WriteString(s)
		if b.Len() > maxText {
			m.spendText(b.Len())
		}
	}
	return b.String()
}

func toIntFilter(m *machine, v any, a args) any {
	p := a.bind("int", 0, "default", "base")
	base, otherwise := intArg("int", p[1], 10), or(p[0], int64(0))
	use(v)
	switch x := v.(type) {
	case string, markup:
		if n, ok := parseInt(text(x), base); ok {
			return n
		}
		f, ok := parseFloat(text(x))
		if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			return otherwise
		}
		return small(toBig(f))
	case float64:
		if math.IsInf(x, 0) {
			fail("cannot convert float infinity to integer")
		}
		if math.IsNaN(x) {
			return otherwise
		}
		return small(toBig(x))
	}
	if isNumber(v) {
		return small(toBig(v))
	}
	return otherwise
}

func toFloatFilter(m *machine, v any, a args) any {
	otherwise := or(a.bind("float", 0, "default")[0], 0.0)
	use(v)
	if isText(v) {
		if f, ok := parseFloat(text(v)); ok {
			return f
		}
		return otherwise
	}
	if isNumber(v) {
		return toFloat(v)
	}
	return otherwise
}

// parseInt is Python's int of a text.
func parseInt(s string, base int64) (any, bool) {
	s = strings.TrimFunc(s, isSpace)
	if base != 10 {
		fail("int: only the base 10 is supported, found %d", base)
	}
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || !plainDigits(digits) {
		return nil, false
	}
	if len(digits) > maxBits/4 {
		fail("int: a number of %d digits is not supported", len(digits))
	}
	n, ok := newInt(strings.ReplaceAll(s, "_", ""))
	if !ok {
		return nil, false
	}
	return small(n), true
}

// plainDigits reports whether a text is digits, with single underscores between them.
func plainDigits(s string) bool {
	last := byte('_')
	for i := range len(s) {
		switch {
		case s[i] == '_' && last == '_':
			return false
		case s[i] >= utf8.RuneSelf:
			fail("numbers with digits other than 0 to 9 are not supported: %q", s)
		case s[i] != '_' && (s[i] < '0' || s[i] > '9'):
			return false
		}
		last = s[i]
	}
	return last != '_'
}

// parseFloat is Python's float of a text.
func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	switch strings.ToLower(strings.TrimLeft(s, "+-")) {
	case "inf", "infinity", "nan":
	default:
		for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return strings.ContainsRune("+-.eE", r) }) {
			if !plainDigits(part) {
				return 0, false
			}
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil && math.IsInf(f, 0) {
		return f, true
	}
	return f, err == nil
}

func round(m *machine, v any, a args) any {
	p := a.bind("round", 0, "precision", "method")
	digits, method := intArg("round", p[0], 0), textArg("round", or(p[1], "common"))
	use(v)
	if !isNumber(v) {
		fail("type %s doesn't define __round__ method", typeName(v))
	}
	if !slices.Contains([]string{"common", "ceil", "floor"}, method) {
		fail("method must be common, ceil or floor")
	}
	if digits < 0 || digits > 300 {
		fail("round: the precision %d is not supported", digits)
	}
	f, isFloat := v.(float64)
	if method != "common" {
		if digits > 15 {
			fail("round: the precision %d is not supported", digits)
		}
		scale := math.Pow10(int(digits))
		whole := math.Floor(toFloat(v) * scale)
		if method == "ceil" {
			whole = math.Ceil(toFloat(v) * scale)
		}
		if math.IsNaN(whole) || math.IsInf(whole, 0) {
			fail("round: cannot convert float %s to integer", floatRepr(whole))
		}
		return (whole + 0) / scale // adding zero removes the sign of a zero
	}
	if !isFloat {
		return small(toBig(v))
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return f
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
	return rounded
}
