package jinja

import "strings"

// method is a method of a value.
type method struct {
	of  any
	run filter
}

func (f *method) call(m *machine, a args) any { return f.run(m, f.of, a) }

// attr returns an attribute of a value that is no item; false: there is none.
func (m *machine) attr(v any, name string) (any, bool) {
	var table map[string]filter
	var all string // the attributes that Python has
	switch v := v.(type) {
	case string, markup:
		table, all = textMethods, pythonText
	case *List:
		table, all = listMethods, "append clear copy count extend index insert pop remove reverse sort"
	case *Dict:
		table, all = dictMethods, "clear copy fromkeys get items keys pop popitem setdefault update values"
	case Tuple:
		table = listMethods
		if name == "copy" {
			return nil, false
		}
	case *namespace:
		return v.attrs.Get(name)
	case *object:
		return v.attr(name)
	case group:
		switch name {
		case "grouper":
			return v.key, true
		case "list":
			return v.items, true
		}
	case int64, bool:
		all = "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes"
	case float64:
		all = "as_integer_ratio conjugate fromhex hex imag is_integer real"
	case span:
		all = "count index start step stop"
	}
	if f, ok := table[name]; ok {
		return &method{v, f}, true
	}
	for n := range strings.FieldsSeq(all) {
		if n == name {
			fail("the attribute '%s' of a %s is not supported", name, typeName(v))
		}
	}
	return nil, false
}

const pythonText = "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii " +
	"isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip maketrans partition " +
	"removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title " +
	"translate upper zfill"

var dictMethods = map[string]filter{
	"get": func(m *machine, v any, a args) any {
		p := a.bind("get", 1, "", "")
		if x, ok := v.(*Dict).Get(p[0]); ok {
			return x
		}
		return or(p[1], nil)
	},
	"items":  dictView("dict_items"),
	"keys":   dictView("dict_keys"),
	"values": dictView("dict_values"),
	"copy":   func(m *machine, v any, a args) any { a.bind("copy", 0); return v },
}

func dictView(name string) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		a.bind(name, 0)
		return view{name, v.(*Dict)}
	}
}

var listMethods = map[string]filter{
	"copy": func(m *machine, v any, a args) any { a.bind("copy", 0); return v },
	"count": func(m *machine, v any, a args) any {
		x, n := a.bind("count", 1, "")[0], int64(0)
		for _, y := range m.items(v) {
			if m.equal(x, y) {
				n++
			}
		}
		return n
	},
	"index": func(m *machine, v any, a args) any {
		x := a.bind("index", 1, "")[0]
		for i, y := range m.items(v) {
			if m.equal(x, y) {
				return int64(i)
			}
		}
		fail("the value is not in the list")
		return nil
	},
}

// plain makes a method of a function of the text alone. It keeps markup.
func plain(f func(s string) any) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		a.bind("the method", 0)
		m.spendText(len(text(v)))
		return marked(v, f(text(v)))
	}
}

// marked makes markup of a text that was made of markup.
func marked(v, made any) any {
	s, ok := made.(string)
	if _, safe := v.(markup); safe && ok {
		return markup(s)
	}
	return made
}
