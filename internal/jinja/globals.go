package jinja

import (
	"strings"
)

// globals are the functions of Jinja and of transformers. lipsum is refused.
var globals = map[string]*function{
	"range":           {rangeOf},
	"dict":            {dictOf},
	"namespace":       {namespaceOf},
	"cycler":          {cyclerOf},
	"joiner":          {joinerOf},
	"raise_exception": {raise},
	"strftime_now":    {strftime},
	"lipsum":          {func(*machine, args) any { fail("the function lipsum is not supported"); return nil }},
}

func rangeOf(m *machine, a args) any {
	if len(a.pos) == 0 || len(a.pos) > 3 || len(a.names) > 0 {
		fail("range expected 1 to 3 arguments, found %d", len(a.pos))
	}
	n := [3]int64{0, 0, 1}
	if len(a.pos) == 1 {
		n[1] = intArg("range", a.pos[0], 0)
	} else {
		for i, v := range a.pos {
			n[i] = intArg("range", v, 0)
		}
	}
	const most = 1 << 40
	if n[2] == 0 || max(n[0], n[1], n[2]) > most || min(n[0], n[1], n[2]) < -most {
		fail("range: the step is zero, or a number is too large")
	}
	s := span{n[0], n[1], n[2]}
	if s.len() > maxRange {
		fail("range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	return s
}

func dictOf(m *machine, a args) any {
	d := &Dict{}
	if len(a.pos) > 1 {
		fail("dict expected at most 1 argument, found %d", len(a.pos))
	}
	if len(a.pos) == 1 {
		use(a.pos[0])
		if from, ok := a.pos[0].(*Dict); ok {
			for i, k := range from.keys {
				d.Set(k, from.values[i])
			}
		} else {
			for _, pair := range m.items(a.pos[0]) {
				two := m.items(pair)
				if len(two) != 2 {
					fail("dict: found %d values, expected a key and a value", len(two))
				}
				d.Set(two[0], two[1])
			}
		}
	}
	for i, n := range a.names {
		d.Set(n, a.named[i])
	}
	m.spend(len(d.keys))
	return d
}

func namespaceOf(m *machine, a args) any {
	d := dictOf(m, a).(*Dict)
	for _, k := range d.keys {
		if isText(k) {
			checkAttribute(text(k))
		}
	}
	return &namespace{*d}
}

// checkAttribute refuses names of namespaces' attributes, as transformers does.
func checkAttribute(name string) {
	if strings.HasPrefix(name, "_") {
		fail("a namespace cannot hold the attribute '%s', which begins with an underscore", name)
	}
}

func cyclerOf(m *machine, a args) any {
	if len(a.pos) == 0 {
		fail("at least one item has to be provided")
	}
	at := 0
	return &object{name: "Cycler", attr: func(name string) (any, bool) {
		switch name {
		case "current":
			return a.pos[at], true
		case "next", "__next__":
			return &function{func(*machine, args) any {
				v := a.pos[at]
				at = (at + 1) % len(a.pos)
				return v
			}}, true
		case "reset":
			return &function{func(*machine, args) any { at = 0; return nil }}, true
		}
		return nil, false
	}}
}

func joinerOf(m *machine, a args) any {
	sep := or(a.bind("joiner", 0, "sep")[0], ", ")
	used := false
	return &object{name: "Joiner", attr: func(name string) (any, bool) { return nil, false }, call: func(*machine, args) any {
		if !used {
			used = true
			return ""
		}
		return sep
	}}
}

func raise(m *machine, a args) any {
	fail("%s", m.str(a.bind("raise_exception", 1, "message")[0]))
	return nil
}

// directives maps the directives of strftime to layouts of Go's package time.
var directives = map[string]string{"Y": "2006", "y": "06", "m": "01", "-m": "1", "d": "02", "-d": "2", "e": "_2", "H": "15", "I": "03",
	"-I": "3", "M": "04", "-M": "4", "S": "05", "-S": "5", "p": "PM", "A": "Monday", "a": "Mon", "B": "January", "b": "Jan", "h": "Jan",
	"j": "002", "F": "2006-01-02", "T": "15:04:05", "R": "15:04", "D": "01/02/06", "f": "000000"}

func strftime(m *machine, a args) any {
	format := textArg("strftime_now", a.bind("strftime_now", 1, "format")[0])
	var b strings.Builder
	for {
		rest, found := directive(&b, format)
		if !found {
			break
		}
		n := 1
		if strings.HasPrefix(rest, "-") {
			n = 2
		}
		layout, ok := directives[rest[:min(n, len(rest))]]
		if !ok {
			fail("the format %%%s of strftime_now is not supported", rest[:min(n, len(rest))])
		}
		if layout == "000000" {
			b.WriteString(strings.TrimPrefix(m.now.Format(".000000"), "."))
		} else {
			b.WriteString(m.now.Format(layout))
		}
		format = rest[n:]
	}
	return b.String()
}
