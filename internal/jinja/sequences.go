package jinja

import (
	"math/big"
	"slices"
	"strings"
)

func newInt(s string) (*big.Int, bool) { return new(big.Int).SetString(strings.TrimPrefix(s, "+"), 10) }

// getter returns a function that takes an attribute, such as "a.b" or 0, of values; nil: the values themselves.
func (m *machine) getter(attribute any) func(v any) any {
	var path []any
	switch a := attribute.(type) {
	case nil:
	case string, markup:
		for part := range strings.SplitSeq(text(a), ".") {
			if part != "" && strings.Trim(part, "0123456789") == "" {
				n, _ := parseInt(part, 10)
				path = append(path, n)
			} else {
				path = append(path, part)
			}
		}
	default:
		path = []any{a}
	}
	return func(v any) any {
		for _, part := range path {
			v = m.getitem(v, part)
		}
		return v
	}
}

// getterOr is getter with a value in place of attributes that are undefined; nil: they stay so.
func (m *machine) getterOr(attribute, otherwise any) func(v any) any {
	get := m.getter(attribute)
	return func(v any) any {
		x := get(v)
		if _, ok := x.(undefined); ok && otherwise != nil {
			return otherwise
		}
		return x
	}
}

// sortKey returns a getter of the values that sort, unique and their like compare.
func (m *machine) sortKey(attribute any, caseSensitive bool) func(v any) any {
	return m.folded(m.getter(attribute), caseSensitive)
}

// folded is a getter in lower case, unless case counts.
func (m *machine) folded(get func(v any) any, caseSensitive bool) func(v any) any {
	return func(v any) any {
		v = get(v)
		if !caseSensitive && isText(v) {
			m.spendText(len(text(v)))
			return lower(text(v))
		}
		return v
	}
}

func list(m *machine, v any, a args) any {
	a.bind("list", 0)
	return &List{m.items(v)}
}

func first(m *machine, v any, a args) any {
	next := m.elements(v)
	if x, ok := next(); ok {
		return x
	}
	return undef("No first item, sequence was empty.")
}

func last(m *machine, v any, a args) any {
	if _, ok := v.(*generator); ok {
		fail("'generator' object is not reversible")
	}
	if all := m.items(v); len(all) > 0 {
		return all[len(all)-1]
	}
	use(v)
	return undef("No last item, sequence was empty.")
}

func reverse(m *machine, v any, a args) any {
	if isText(v) {
		return m.slice(v, [3]any{nil, nil, int64(-1)})
	}
	_, wasGenerator := v.(*generator)
	use(v)
	all := m.items(v)
	slices.Reverse(all)
	if wasGenerator {
		return &List{all}
	}
	return m.generate(all)
}

// generate returns a generator of values.
func (m *machine) generate(all []any) *generator {
	next, _ := m.iterate(&List{all})
	return &generator{next}
}

// stable sorts values by keys, and keeps the order of equal ones, also in reverse.
func (m *machine) stable(all []any, key func(v any) any, reversed bool) []any {
	type keyed struct{ key, value any }
	rows := make([]keyed, len(all))
	for i, v := range all {
		rows[i] = keyed{key(v), v}
	}
	slices.SortStableFunc(rows, func(a, b keyed) int {
		if reversed {
			a, b = b, a
		}
		if m.less(a.key, b.key) {
			return -1
		}
		if m.less(b.key, a.key) {
			return 1
		}
		return 0
	})
	out := make([]any, len(all))
	for i, r := range rows {
		out[i] = r.value
	}
	return out
}

func sorted(m *machine, v any, a args) any {
	p := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	attribute, sensitive := or(p[2], nil), truth(or(p[1], false))
	key := m.sortKey(attribute, sensitive)
	if s, ok := attribute.(string); ok && strings.Contains(s, ",") {
		parts := strings.Split(s, ",")
		key = func(v any) any {
			var t Tuple
			for _, part := range parts {
				t = append(t, m.sortKey(part, sensitive)(v))
			}
			return t
		}
	}
	return &List{m.stable(m.items(v), key, truth(or(p[0], false)))}
}

func dictsort(m *machine, v any, a args) any {
	p := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	use(v)
	d, ok := v.(*Dict)
	if !ok {
		fail("'%s' object has no attribute 'items'", typeName(v))
	}
	place := int64(slices.Index([]string{"key", "value"}, textArg("dictsort", or(p[1], "key"))))
	if place < 0 {
		fail(`you can only sort by either "key" or "value"`)
	}
	return &List{m.stable(m.items(view{"dict_items", d}), m.sortKey(place, truth(or(p[0], false))), truth(or(p[2], false)))}
}

func groupby(m *machine, v any, a args) any {
	p := a.bind("groupby", 1, "attribute", "default", "case_sensitive")
	exact := m.getterOr(p[0], or(p[1], nil))
	key := m.folded(exact, truth(or(p[2], false)))
	groups := []any{}
	var members []any
	flush := func() {
		if len(members) > 0 {
			groups = append(groups, group{exact(members[0]), &List{members}})
		}
	}
	for _, x := range m.stable(m.items(v), key, false) {
		if len(members) > 0 && !m.equal(key(members[0]), key(x)) {
			flush()
			members = nil
		}
		members = append(members, x)
	}
	flush()
	return &List{groups}
}

func unique(m *machine, v any, a args) any {
	p := a.bind("unique", 0, "case_sensitive", "attribute")
	key := m.sortKey(or(p[1], nil), truth(or(p[0], false)))
	seen := map[string]bool{}
	var out []any
	for _, x := range m.items(v) {
		h := hash(key(x))
		if !seen[h] {
			out = append(out, x)
		}
		seen[h] = true
	}
	return m.generate(out)
}

func extreme(operator string) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		p := a.bind("min", 0, "case_sensitive", "attribute")
		key := m.sortKey(or(p[1], nil), truth(or(p[0], false)))
		all := m.items(v)
		if len(all) == 0 {
			return undef("No aggregated item, sequence was empty.")
		}
		best := all[0]
		for _, x := range all[1:] {
			if m.order(operator, key(x), key(best)) {
				best = x
			}
		}
		return best
	}
}

func sum(m *machine, v any, a args) any {
	p := a.bind("sum", 0, "attribute", "start")
	get, total := m.getter(or(p[0], nil)), or(p[1], int64(0))
	all := m.items(v)
	if isText(total) {
		fail("sum() can't sum strings [use ''.join(seq) instead]")
	}
	for _, x := range all {
		total = m.arithmetic("+", total, get(x))
	}
	return total
}

func batch(m *machine, v any, a args) any {
	p := a.bind("batch", 1, "linecount", "fill_with")
	n, fill := int(intArg("batch", p[0], 0)), or(p[1], nil)
	if n < 1 {
		fail("batch: expected a positive number, found %d", n)
	}
	var out []any
	for part := range slices.Chunk(m.items(v), n) {
		part = slices.Clone(part)
		if fill != nil {
			m.spend(n)
			for len(part) < n {
				part = append(part, fill)
			}
		}
		out = append(out, &List{part})
	}
	return m.generate(out)
}

func sliceFilter(m *machine, v any, a args) any {
	p := a.bind("slice", 1, "slices", "fill_with")
	n, fill := int(intArg("slice", p[0], 0)), or(p[1], nil)
	if n < 1 {
		fail("slice: expected a positive number, found %d", n)
	}
	m.spend(n)
	all := m.items(v)
	var out []any
	each, extra := len(all)/n, len(all)%n
	for i, begin := 0, 0; i < n; i++ {
		end := begin + each
		if i < extra {
			end++
		}
		part := slices.Clone(all[begin:end])
		if fill != nil && i >= extra {
			part = append(part, fill)
		}
		out, begin = append(out, &List{part}), end
	}
	return m.generate(out)
}

func itemsFilter(m *machine, v any, a args) any {
	a.bind("items", 0)
	switch v := v.(type) {
	case undefined:
		return m.generate(nil)
	case *Dict:
		return m.generate(m.items(view{"dict_items", v}))
	}
	fail("can only get item pairs from a mapping, found %s", typeName(v))
	return nil
}

// mapped is the filter map. It computes each value when it is used.
func mapped(m *machine, v any, a args) any {
	f := m.mapper(a)
	if !truth(v) {
		return m.generate(nil)
	}
	next := m.elements(v)
	return &generator{func() (any, bool) {
		x, ok := next()
		if ok {
			x = f(x)
		}
		return x, ok
	}}
}

func (m *machine) mapper(a args) func(v any) any {
	if len(a.pos) == 0 {
		p := a.bind("map", 1, "attribute", "default")
		return m.getterOr(p[0], or(p[1], nil))
	}
	name := textArg("map", a.pos[0])
	filter, ok := m.filters[name]
	if !ok {
		fail("the filter %q is not supported", name)
	}
	a.pos = a.pos[1:]
	return func(v any) any { return filter(m, v, a) }
}

// choose is select, reject, selectattr and rejectattr.
func choose(attribute, wanted bool) func(m *machine, v any, a args) any {
	return func(m *machine, v any, a args) any {
		get := m.getter(nil)
		if attribute {
			if len(a.pos) == 0 {
				fail("missing parameter for attribute name")
			}
			get = m.getter(a.pos[0])
			a.pos = a.pos[1:]
		}
		holds := func(m *machine, v any, a args) bool { return truth(v) }
		if len(a.pos) > 0 {
			name := textArg("select", a.pos[0])
			test, ok := tests[name]
			if !ok {
				fail("the test %q is not supported", name)
			}
			holds, a.pos = test, a.pos[1:]
		}
		if !truth(v) {
			return m.generate(nil)
		}
		next := m.elements(v)
		return &generator{func() (any, bool) {
			for x, ok := next(); ok; x, ok = next() {
				if holds(m, get(x), a) == wanted {
					return x, true
				}
			}
			return nil, false
		}}
	}
}
