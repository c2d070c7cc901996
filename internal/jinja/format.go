package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// specification is how the operator % and str.format write a value.
type specification struct {
	fill      string
	align     byte // 0: as the type has it
	sign      byte // '+', ' ', or 0
	zero      bool
	width     int
	comma     bool
	precision int // −1: none
	verb      byte
}

// directive writes a format's text up to the next directive, with %% as a percent sign. It returns what follows the
// directive's own percent sign; found is false if there is none.
func directive(b *strings.Builder, format string) (rest string, found bool) {
	for {
		before, rest, found := strings.Cut(format, "%")
		b.WriteString(before)
		if !strings.HasPrefix(rest, "%") {
			return rest, found
		}
		b.WriteByte('%')
		format = rest[1:]
	}
}

// percent is Python's format % value.
func (m *machine) percent(format string, value any) any {
	values, named := []any{value}, (*Dict)(nil)
	switch v := value.(type) {
	case Tuple, group:
		values = tupleOf(v)
	case *Dict:
		named = v
	}
	var b strings.Builder
	used := 0
	next := func() any {
		if used == len(values) {
			fail("not enough arguments for format string")
		}
		used++
		return values[used-1]
	}
	for {
		rest, found := directive(&b, format)
		if !found {
			break
		}
		argument := next
		if strings.HasPrefix(rest, "(") {
			key, after, ok := strings.Cut(rest[1:], ")")
			if named == nil || !ok {
				fail("format requires a mapping")
			}
			v, ok := named.Get(key)
			if !ok {
				fail("format: the mapping has no key %q", key)
			}
			rest, argument = after, func() any { return v }
			used = len(values)
		}
		s, after := percentSpecification(rest)
		format = after
		m.write(&b, s, argument())
	}
	if used < len(values) && named == nil {
		if _, ok := value.(*List); !ok {
			fail("not all arguments converted during string formatting")
		}
	}
	m.spendText(b.Len())
	return b.String()
}

// percentSpecification reads what follows a percent sign.
func percentSpecification(text string) (specification, string) {
	s := specification{fill: " ", align: '>', precision: -1}
	i := 0
	for ; i < len(text) && strings.IndexByte("-+ 0", text[i]) >= 0; i++ {
		switch text[i] {
		case '-':
			s.align = '<'
		case '0':
			s.zero = true
		default:
			if s.sign != '+' {
				s.sign = text[i]
			}
		}
	}
	s.width, i = digits(text, i, 0)
	if i < len(text) && text[i] == '.' {
		s.precision, i = digits(text, i+1, 0)
	}
	if i == len(text) {
		fail("incomplete format")
	}
	s.verb = text[i]
	if strings.IndexByte("sdifr", s.verb) < 0 {
		fail("the format %%%c is not supported", s.verb)
	}
	if s.align == '<' {
		s.zero = false
	}
	return s, text[i+1:]
}

func digits(text string, i, otherwise int) (int, int) {
	begin := i
	for i < len(text) && text[i] >= '0' && text[i] <= '9' {
		i++
	}
	if i == begin {
		return otherwise, i
	}
	n, err := strconv.Atoi(text[begin:i])
	if err != nil || n > maxText {
		fail("format: the width %s is too large", text[begin:i])
	}
	return n, i
}

// write writes a value by the operator %.
func (m *machine) write(b *strings.Builder, s specification, v any) {
	var text string
	switch s.verb {
	case 's', 'r':
		if s.verb == 's' {
			text = m.str(v)
		} else {
			var r strings.Builder
			m.repr(&r, v)
			text = r.String()
		}
		if n := []rune(text); s.precision >= 0 && len(n) > s.precision {
			text = string(n[:s.precision])
		}
		s.zero = false
	default:
		use(v)
		if !isNumber(v) {
			fail("%%%c format: a real number is required, not %s", s.verb, typeName(v))
		}
		text = s.number(v)
	}
	b.WriteString(m.pad(s, text))
}

// number writes a number by the verbs d, i and f.
func (s specification) number(v any) string {
	var text string
	if s.verb == 'f' || s.verb == '%' {
		f := toFloat(v)
		precision := s.precision
		if precision < 0 {
			precision = 6
		}
		if s.verb == '%' {
			f *= 100
		}
		text = strconv.FormatFloat(f, 'f', precision, 64)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			text = floatRepr(f)
		}
		if s.verb == '%' {
			text += "%"
		}
	} else {
		if s.precision >= 0 {
			fail("the precision of an integer's format is not supported")
		}
		if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			fail("cannot convert float %s to integer", floatRepr(f))
		}
		text = toBig(v).String()
	}
	if s.comma {
		text = commas(text)
	}
	if s.sign != 0 && text[0] != '-' {
		text = string(s.sign) + text
	}
	return text
}

// commas separates thousands.
func commas(text string) string {
	whole, rest := text, ""
	if i := strings.IndexAny(text, ".%"); i >= 0 {
		whole, rest = text[:i], text[i:]
	}
	begin := strings.LastIndexByte(whole, '-') + 1
	for i := len(whole) - 3; i > begin; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return whole + rest
}

// pad fills a text up to the width.
func (m *machine) pad(s specification, text string) string {
	n := s.width - utf8.RuneCountInString(text)
	if n <= 0 {
		return text
	}
	m.spendText(len(text) + n*len(s.fill))
	if s.zero {
		begin := 0
		if strings.IndexByte("+- ", text[0]) >= 0 {
			begin = 1
		}
		return text[:begin] + strings.Repeat("0", n) + text[begin:]
	}
	switch s.align {
	case '<':
		return text + strings.Repeat(s.fill, n)
	case '^':
		return strings.Repeat(s.fill, n/2) + text + strings.Repeat(s.fill, n-n/2)
	}
	return strings.Repeat(s.fill, n) + text
}

// format is Python's str.format.
func (m *machine) format(text string, a args) string {
	var b strings.Builder
	auto := 0
	for {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			b.WriteString(text)
			break
		}
		b.WriteString(text[:i])
		if strings.HasPrefix(text[i+1:], text[i:i+1]) {
			b.WriteByte(text[i])
			text = text[i+2:]
			continue
		}
		field, rest, ok := strings.Cut(text[i+1:], "}")
		if text[i] == '}' || !ok {
			fail("single '%c' encountered in format string", text[i])
		}
		text = rest
		b.WriteString(m.field(field, a, &auto))
	}
	m.spendText(b.Len())
	return b.String()
}

// field writes a replacement field of str.format: a name or a number, a conversion and a specification.
func (m *machine) field(field string, a args, auto *int) string {
	field, spec, _ := strings.Cut(field, ":")
	field, conversion, _ := strings.Cut(field, "!")
	if strings.ContainsAny(field, ".[{") || strings.Contains(spec, "{") {
		fail("the replacement field {%s} of str.format is not supported", field)
	}
	var v any
	n, err := strconv.Atoi(field)
	if field == "" {
		n, err = *auto, nil
		if *auto++; n < 0 {
			fail("cannot switch from manual field specification to automatic field numbering")
		}
	} else if err == nil {
		if *auto > 0 {
			fail("cannot switch from automatic field numbering to manual field specification")
		}
		*auto = -maxText
	}
	switch {
	case err == nil && n >= 0 && n < len(a.pos):
		v = a.pos[n]
	case err == nil:
		fail("replacement index %d out of range for positional args tuple", n)
	default:
		v = a.keyword(field)
	}
	switch conversion {
	case "":
	case "s":
		v = m.str(v)
	case "r":
		var b strings.Builder
		m.repr(&b, v)
		v = b.String()
	default:
		fail("the conversion !%s of str.format is not supported", conversion)
	}
	if spec == "" {
		return m.str(v)
	}
	return m.formatted(v, spec)
}

func (a args) keyword(name string) any {
	for i, n := range a.names {
		if n == name {
			return a.named[i]
		}
	}
	fail("str.format has no argument '%s'", name)
	return nil
}

// formatted is Python's format(v, spec) of strings and numbers.
func (m *machine) formatted(v any, text string) string {
	s := specification{fill: " ", precision: -1}
	whole := text
	if r := []rune(text); len(r) > 1 && strings.ContainsRune("<>^", r[1]) {
		s.fill, s.align, text = string(r[0]), byte(r[1]), string(r[2:])
	} else if text != "" && strings.IndexByte("<>^", text[0]) >= 0 {
		s.align, text = text[0], text[1:]
	}
	if text != "" && strings.IndexByte("+- ", text[0]) >= 0 {
		if text[0] != '-' {
			s.sign = text[0]
		}
		text = text[1:]
	}
	if s.align == 0 && strings.HasPrefix(text, "0") {
		s.zero, text = true, text[1:]
	}
	i := 0
	if s.width, i = digits(text, 0, 0); i < len(text) && text[i] == ',' {
		s.comma = true
		i++
	}
	if i < len(text) && text[i] == '.' {
		s.precision, i = digits(text, i+1, -1)
	}
	switch rest := text[i:]; {
	case isText(v) && (rest == "" || rest == "s") && !s.zero && !s.comma && s.sign == 0:
		s.verb = 's'
		if s.align == 0 {
			s.align = '<'
		}
		r := []rune(m.str(v))
		if s.precision >= 0 && len(r) > s.precision {
			r = r[:s.precision]
		}
		return m.pad(s, string(r))
	case isInt(v) && (rest == "" || rest == "d") && s.precision < 0:
		s.verb = 'd'
	case (isInt(v) || typeName(v) == "float") && (rest == "f" || rest == "%"):
		s.verb = rest[0]
	default:
		fail("the format %q of a %s is not supported", whole, typeName(v))
	}
	if s.zero && s.comma {
		fail("the format %q is not supported", whole)
	}
	return m.pad(s, s.number(v))
}
