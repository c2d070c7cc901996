package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// textMethods are the methods of str.
var textMethods = map[string]filter{
	"upper":      plain(func(s string) any { return upper(s) }),
	"lower":      plain(func(s string) any { return lower(s) }),
	"capitalize": plain(func(s string) any { return capitalize(s) }),
	"title":      plain(func(s string) any { return title(s) }),
	"swapcase":   plain(func(s string) any { return swapcase(s) }),
	"isupper":    plain(func(s string) any { return isCase(s, isUpper) }),
	"islower":    plain(func(s string) any { return isCase(s, isLower) }),
	"istitle":    plain(func(s string) any { return isTitled(s) }),
	"isalpha":    every(unicode.IsLetter),
	"isspace":    every(isSpace),
	"isdecimal":  every(unicode.IsDigit),
	"isascii": plain(func(s string) any {
		return strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) < 0
	}),
	"isdigit":      asciiOnly("isdigit", unicode.IsDigit),
	"isnumeric":    asciiOnly("isnumeric", unicode.IsDigit),
	"isalnum":      asciiOnly("isalnum", func(r rune) bool { return unicode.IsDigit(r) || unicode.IsLetter(r) }),
	"strip":        strip(true, true),
	"lstrip":       strip(true, false),
	"rstrip":       strip(false, true),
	"startswith":   affix("startswith", strings.HasPrefix),
	"endswith":     affix("endswith", strings.HasSuffix),
	"find":         find("find", strings.Index),
	"rfind":        find("rfind", strings.LastIndex),
	"index":        find("index", strings.Index),
	"rindex":       find("rindex", strings.LastIndex),
	"count":        count,
	"split":        split(false),
	"rsplit":       split(true),
	"splitlines":   splitlines,
	"partition":    partition("partition", strings.Index),
	"rpartition":   partition("rpartition", strings.LastIndex),
	"replace":      replace,
	"removeprefix": remove(strings.TrimPrefix),
	"removesuffix": remove(strings.TrimSuffix),
	"join":         join,
	"format":       func(m *machine, v any, a args) any { return marked(v, m.format(unmarked("format", v), a)) },
	"ljust":        justify('<'),
	"rjust":        justify('>'),
	"center":       justify('c'),
	"zfill":        zfill,
}

// every makes a method that reports whether there is a character and a predicate holds for all characters.
func every(f func(r rune) bool) func(m *machine, v any, a args) any {
	return plain(func(s string) any {
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !f(r) }) < 0
	})
}

// asciiOnly is every for predicates that Go lacks: digits such as ² and numerals such as Ⅷ are refused.
func asciiOnly(name string, f func(r rune) bool) func(m *machine, v any, a args) any {
	return every(func(r rune) bool {
		if !f(r) && unicode.IsNumber(r) || name == "isnumeric" && unicode.Is(unicode.Han, r) {
			fail("str.%s of %q is not supported", name, r)
		}
		return f(r)
	})
}

// unmarked returns a text, which must not be markup: methods of markup escape their arguments.
func unmarked(name string, v any) string {
	if _, ok := v.(markup); ok {
		fail("the method %s of a safe string is not supported", name)
	}
	return text(v)
}

func strip(left, right bool) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		s := text(v)
		m.spendText(len(s))
		in := isSpace
		if set := or(a.bind("strip", 0, "")[0], nil); set != nil {
			chars := textArg("strip", set)
			in = func(r rune) bool { return strings.ContainsRune(chars, r) }
			m.spendText(len(s) * min(len(chars), 64))
		}
		if left {
			s = strings.TrimLeftFunc(s, in)
		}
		if right {
			s = strings.TrimRightFunc(s, in)
		}
		return marked(v, s)
	}
}

// window returns the part of a text that the optional arguments start and end of a method choose, and its place.
func (m *machine) window(v any, start, end any) (string, int, bool) {
	s := text(v)
	m.spendText(len(s))
	if start == (absent{}) && end == (absent{}) {
		return s, 0, true
	}
	r := []rune(s)
	n := int64(len(r))
	if first, _ := toInt(or(start, nil)); first > n {
		return "", 0, false
	}
	w := sliceSpan([3]any{or(start, nil), or(end, nil), nil}, n)
	if w.stop < w.start {
		return "", 0, false
	}
	return string(r[w.start:w.stop]), int(w.start), true
}

func affix(name string, has func(s, part string) bool) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		p := a.bind(name, 1, "", "", "")
		s, _, ok := m.window(v, p[1], p[2])
		parts := []any{p[0]}
		if t, isTuple := p[0].(Tuple); isTuple {
			parts = t
		}
		for _, part := range parts {
			if t := textArg(name, part); ok && has(s, t) {
				return true
			}
		}
		return false
	}
}

func find(name string, search func(s, part string) int) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		p := a.bind(name, 1, "", "", "")
		part := textArg(name, p[0])
		s, begin, ok := m.window(v, p[1], p[2])
		i := -1
		if ok {
			i = search(s, part)
		}
		if i >= 0 {
			return int64(begin + utf8.RuneCountInString(s[:i]))
		}
		if strings.HasSuffix(name, "index") {
			fail("substring not found")
		}
		return int64(-1)
	}
}

func count(m *machine, v any, a args) any {
	p := a.bind("count", 1, "", "", "")
	s, _, ok := m.window(v, p[1], p[2])
	if n := strings.Count(s, textArg("count", p[0])); ok {
		return int64(n)
	}
	return int64(0)
}

func split(right bool) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		p := a.bind("split", 0, "sep", "maxsplit")
		n := int(intArg("split", p[1], -1))
		s := text(v)
		m.spend(len(s)/8 + 1)
		var parts []string
		switch sep := or(p[0], nil); {
		case sep == nil:
			parts = splitSpace(s, n, right)
		case textArg("split", sep) == "":
			fail("empty separator")
		case right:
			parts = splitRight(s, text(sep), n)
		case n < 0:
			parts = strings.Split(s, text(sep))
		default:
			parts = strings.SplitN(s, text(sep), n+1)
		}
		m.spend(len(parts))
		out := make([]any, len(parts))
		for i, part := range parts {
			out[i] = marked(v, part)
		}
		return &List{out}
	}
}

// splitSpace splits at space, at most n times unless n is negative.
func splitSpace(s string, n int, right bool) []string {
	if n < 0 {
		return strings.FieldsFunc(s, isSpace)
	}
	parts := []string{}
	for s = trimSpace(s, right); s != ""; s = trimSpace(s, right) {
		cut := strings.IndexFunc(s, isSpace)
		if right {
			cut = strings.LastIndexFunc(s, isSpace)
		}
		if cut < 0 || len(parts) == n {
			// The rest keeps the space at its other end.
			return ordered(append(parts, s), right)
		}
		if right {
			_, size := utf8.DecodeRuneInString(s[cut:])
			parts, s = append(parts, s[cut+size:]), s[:cut]
		} else {
			parts, s = append(parts, s[:cut]), s[cut:]
		}
	}
	return ordered(parts, right)
}

func trimSpace(s string, right bool) string {
	if right {
		return strings.TrimRightFunc(s, isSpace)
	}
	return strings.TrimLeftFunc(s, isSpace)
}

func ordered(parts []string, reversed bool) []string {
	if reversed {
		slices.Reverse(parts)
	}
	return parts
}

func splitRight(s, sep string, n int) []string {
	var parts []string
	for n < 0 || len(parts) < n {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts, s = append(parts, s[i+len(sep):]), s[:i]
	}
	return ordered(append(parts, s), true)
}

func splitlines(m *machine, v any, a args) any {
	keep := truth(or(a.bind("splitlines", 0, "keepends")[0], false))
	m.spend(len(text(v))/8 + 1)
	out := []any{}
	for _, l := range lines(text(v)) {
		m.spend(1)
		if !keep {
			l = strings.TrimSuffix(strings.TrimRightFunc(l, isLineEnd), "\r")
		}
		out = append(out, marked(v, l))
	}
	return &List{out}
}

func isLineEnd(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

// lines cuts a text behind each line break.
func lines(s string) (all []string) {
	for s != "" {
		i := strings.IndexFunc(s, isLineEnd)
		if i < 0 {
			return append(all, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		all, s = append(all, s[:i+n]), s[i+n:]
	}
	return all
}

func partition(name string, search func(s, sep string) int) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		s, sep := unmarked(name, v), textArg(name, a.bind(name, 1, "")[0])
		if sep == "" {
			fail("empty separator")
		}
		m.spendText(len(s))
		switch i := search(s, sep); {
		case i >= 0:
			return Tuple{s[:i], sep, s[i+len(sep):]}
		case name == "partition":
			return Tuple{s, "", ""}
		}
		return Tuple{"", "", s}
	}
}

func replace(m *machine, v any, a args) any {
	p := a.bind("replace", 2, "", "", "count")
	return m.replaced(unmarked("replace", v), textArg("replace", p[0]), textArg("replace", p[1]), int(intArg("replace", p[2], -1)))
}

func (m *machine) replaced(s, old, with string, n int) string {
	m.spendText(len(s))
	found := strings.Count(s, old)
	if n >= 0 {
		found = min(found, n)
	}
	m.spendText(max(len(s)+found*(len(with)-len(old)), 0))
	return strings.Replace(s, old, with, n)
}

func remove(trim func(s, part string) string) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		m.spendText(len(text(v)))
		return marked(v, trim(text(v), textArg("remove", a.bind("remove", 1, "")[0])))
	}
}

func join(m *machine, v any, a args) any {
	sep := unmarked("join", v)
	var b strings.Builder
	for i, x := range m.items(a.bind("join", 1, "")[0]) {
		if i > 0 {
			b.WriteString(sep)
		}
		use(x)
		if !isText(x) {
			fail("sequence item %d: expected str instance, %s found", i, typeName(x))
		}
		m.spend(len(text(x))/64 + len(sep)/64 + 1)
		b.WriteString(text(x))
		if b.Len() > maxText {
			m.spendText(b.Len())
		}
	}
	return b.String()
}

func justify(align byte) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		p := a.bind("justify", 1, "", "")
		s := specification{fill: textArg("fill", or(p[1], " ")), align: align, width: width("justify", p[0])}
		if utf8.RuneCountInString(s.fill) != 1 {
			fail("the fill character must be exactly one character long")
		}
		t := text(v)
		if align != 'c' {
			return marked(v, m.pad(s, t))
		}
		// Python puts the odd character to the left if the width is odd, too.
		n := max(s.width-utf8.RuneCountInString(t), 0)
		left := n/2 + n&s.width&1
		m.spendText(len(t) + n*len(s.fill))
		return marked(v, strings.Repeat(s.fill, left)+t+strings.Repeat(s.fill, n-left))
	}
}

// width is an argument that is a number of characters.
func width(function string, v any) int {
	n := intArg(function, v, 0)
	if n > maxText {
		fail("%s: the width %d is too large", function, n)
	}
	return int(n)
}

func zfill(m *machine, v any, a args) any {
	t := text(v)
	n := width("zfill", a.bind("zfill", 1, "")[0]) - utf8.RuneCountInString(t)
	if n <= 0 {
		return v
	}
	m.spendText(len(t) + n)
	begin := 0
	if t != "" && (t[0] == '+' || t[0] == '-') {
		begin = 1
	}
	return marked(v, t[:begin]+strings.Repeat("0", n)+t[begin:])
}
