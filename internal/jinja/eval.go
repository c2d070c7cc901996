package jinja

import (
	"fmt"
	"strings"
)

var sprintf = fmt.Sprintf

// expression is a part of a template that has a value.
type expression interface {
	eval(f *frame) any
}

type (
	constant struct{ value any }
	name     string
	// buffered is the text of a block, as the input of filters.
	buffered  struct{}
	tupleExpr []expression
	listExpr  []expression
	dictExpr  struct{ keys, values []expression }
	concat    []expression
	not       struct{ of expression }
	sign      struct {
		of       expression
		negative bool
	}
	logical struct {
		left, right expression
		or          bool
	}
	conditional struct{ test, then, otherwise expression }
	operand     struct {
		operator string
		value    expression
	}
	comparison struct {
		first expression
		rest  []operand
	}
	arithmetic struct {
		operator    string
		left, right expression
	}
	attribute struct {
		of   expression
		name string
	}
	item  struct{ of, key expression }
	slice struct {
		of     expression
		bounds [3]expression
	}
	call struct {
		of   expression
		args arguments
	}
	filterExpr struct {
		of     expression
		filter filter
		args   arguments
	}
	testExpr struct {
		of   expression
		name string
		test func(m *machine, v any, a args) bool
		args arguments
	}
	// arguments are the arguments of a call, as they are written.
	arguments struct {
		pos          []expression
		names        []string
		named        []expression
		rest, mapped expression
	}
)

// eval returns the value of an expression, at a cost of one.
func (f *frame) eval(x expression) any {
	f.m.spend(1)
	return x.eval(f)
}

func (f *frame) all(list []expression) []any {
	values := make([]any, len(list))
	for i, x := range list {
		values[i] = f.eval(x)
	}
	return values
}

func (x constant) eval(*frame) any    { return x.value }
func (x buffered) eval(f *frame) any  { return f.buffer }
func (x tupleExpr) eval(f *frame) any { return Tuple(f.all(x)) }
func (x listExpr) eval(f *frame) any  { return &List{f.all(x)} }
func (x not) eval(f *frame) any       { return !truth(f.eval(x.of)) }

func (x name) eval(f *frame) any {
	for g := f; g != nil; g = g.parent {
		if v, ok := g.vars[string(x)]; ok {
			return v
		}
	}
	if g, ok := globals[string(x)]; ok {
		return g
	}
	return undef("'%s' is undefined", string(x))
}

func (x *dictExpr) eval(f *frame) any {
	d := &Dict{}
	for i, k := range x.keys {
		key := f.eval(k)
		d.Set(key, f.eval(x.values[i]))
	}
	return d
}

func (x concat) eval(f *frame) any {
	var b strings.Builder
	for _, v := range f.all(x) {
		s := f.m.str(v)
		f.m.spendText(b.Len() + len(s))
		b.WriteString(s)
	}
	return b.String()
}

func (x *logical) eval(f *frame) any {
	if l := f.eval(x.left); truth(l) == x.or {
		return l
	}
	return f.eval(x.right)
}

func (x *conditional) eval(f *frame) any {
	switch {
	case truth(f.eval(x.test)):
		return f.eval(x.then)
	case x.otherwise == nil:
		return undef("the inline if-expression evaluated to false and no else section was defined")
	}
	return f.eval(x.otherwise)
}

func (x *comparison) eval(f *frame) any {
	left := f.eval(x.first)
	for _, o := range x.rest {
		right := f.eval(o.value)
		if !f.m.compare(o.operator, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (m *machine) compare(operator string, a, b any) bool {
	switch operator {
	case "==":
		return m.equal(a, b)
	case "!=":
		return !m.equal(a, b)
	case "in":
		return m.contains(b, a)
	case "not in":
		return !m.contains(b, a)
	}
	return m.order(operator, a, b)
}

func (x *arithmetic) eval(f *frame) any {
	l := f.eval(x.left)
	return f.m.arithmetic(x.operator, l, f.eval(x.right))
}

func (x *sign) eval(f *frame) any {
	v := f.eval(x.of)
	use(v)
	if !isNumber(v) {
		fail("bad operand type for unary sign: '%s'", typeName(v))
	}
	if x.negative {
		if z, ok := v.(float64); ok {
			return -z
		}
		return f.m.arithmetic("-", int64(0), v)
	}
	return f.m.arithmetic("+", int64(0), v)
}

func (x *attribute) eval(f *frame) any { return f.m.getattr(f.eval(x.of), x.name) }

func (x *item) eval(f *frame) any {
	of := f.eval(x.of)
	return f.m.getitem(of, f.eval(x.key))
}

// getattr is x.name: a method or attribute, else an item.
func (m *machine) getattr(v any, name string) any {
	use(v)
	if a, ok := m.attr(v, name); ok {
		return a
	}
	if d, ok := v.(*Dict); ok {
		if x, ok := d.Get(name); ok {
			return x
		}
	}
	return missing(v, name)
}

// getitem is x[key]: an item, else a method or attribute.
func (m *machine) getitem(v, key any) any {
	use(v)
	if x, ok := m.item(v, key); ok {
		return x
	}
	if s, ok := key.(string); ok {
		if a, ok := m.attr(v, s); ok {
			return a
		}
	}
	return missing(v, key)
}

func missing(v, key any) undefined {
	if s, ok := key.(string); ok {
		if strings.HasPrefix(s, "_") {
			fail("access to attribute '%s' of '%s' object is unsafe", s, typeName(v))
		}
		return undef("'%s' object has no attribute '%s'", typeName(v), s)
	}
	if isNumber(key) {
		return undef("'%s' object has no element %v", typeName(v), key)
	}
	return undef("'%s' object has no element of type '%s'", typeName(v), typeName(key))
}

// item returns v[key]; false: there is none.
func (m *machine) item(v, key any) (any, bool) {
	switch v := v.(type) {
	case *Dict:
		switch key.(type) {
		case *List, *Dict:
			return nil, false // unhashable
		}
		return v.Get(key)
	case string, markup:
		m.spendText(len(text(v)))
		r := []rune(text(v))
		i, ok := index(key, len(r))
		if !ok {
			return nil, false
		}
		return string(r[i]), true
	case *List:
		i, ok := index(key, len(v.Items))
		if !ok {
			return nil, false
		}
		return v.Items[i], true
	case Tuple, group:
		t := tupleOf(v)
		i, ok := index(key, len(t))
		if !ok {
			return nil, false
		}
		return t[i], true
	case span:
		i, ok := index(key, v.len())
		return v.start + int64(i)*v.step, ok
	}
	return nil, false
}

// index returns the place of an index, which may count from the end.
func index(key any, n int) (int, bool) {
	i, ok := toInt(key)
	if i < 0 {
		i += int64(n)
	}
	return int(i), ok && i >= 0 && i < int64(n)
}

// toInt returns an int or a bool.
func toInt(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		return toBig(v).Int64(), true
	}
	return 0, false
}

func (x *slice) eval(f *frame) any {
	of := f.eval(x.of)
	var bounds [3]any
	for i, b := range x.bounds {
		if b != nil {
			bounds[i] = f.eval(b)
		}
	}
	return f.m.slice(of, bounds)
}

func (m *machine) slice(v any, bounds [3]any) any {
	use(v)
	use(bounds[:]...)
	if g, ok := v.(group); ok {
		v = Tuple{g.key, g.items}
	}
	n, _ := length(v)
	switch v.(type) {
	case string, markup, *List, Tuple, span:
	default:
		fail("'%s' object cannot be sliced", typeName(v))
	}
	s := sliceSpan(bounds, int64(n))
	m.spend(s.len() + 1)
	switch v := v.(type) {
	case *List:
		return &List{pick(v.Items, s)}
	case Tuple:
		return Tuple(pick(v, s))
	case span:
		return span{v.start + s.start*v.step, v.start + s.stop*v.step, v.step * s.step}
	}
	m.spendText(len(text(v)))
	cut := string(pick([]rune(text(v)), s))
	if _, ok := v.(markup); ok {
		return markup(cut)
	}
	return cut
}

func pick[T any](list []T, s span) []T {
	out := make([]T, s.len())
	for i := range out {
		out[i] = list[s.start+int64(i)*s.step]
	}
	return out
}

// sliceSpan is Python's slice.indices.
func sliceSpan(bounds [3]any, n int64) span {
	value := func(i int, otherwise int64) int64 {
		if bounds[i] == nil {
			return otherwise
		}
		v, ok := toInt(bounds[i])
		if !ok {
			fail("slice indices must be integers or None, found %s", typeName(bounds[i]))
		}
		return v
	}
	step := value(2, 1)
	if step == 0 {
		fail("slice step cannot be zero")
	}
	low, high := int64(0), n
	if step < 0 {
		low, high = -1, n-1
	}
	clamp := func(i int, otherwise int64) int64 {
		if bounds[i] == nil {
			return otherwise
		}
		v := value(i, 0)
		if v < 0 {
			v += n
		}
		return min(max(v, low), high)
	}
	if step < 0 {
		return span{clamp(0, high), clamp(1, low), max(step, -n-1)}
	}
	return span{clamp(0, low), clamp(1, high), min(step, n+1)}
}

// args evaluates the arguments of a call.
func (a arguments) eval(f *frame) (out args) {
	out.pos = f.all(a.pos)
	for i, n := range a.names {
		out.set(n, f.eval(a.named[i]))
	}
	if a.rest != nil {
		out.pos = append(out.pos, f.m.items(f.eval(a.rest))...)
	}
	if a.mapped != nil {
		d, ok := f.eval(a.mapped).(*Dict)
		if !ok {
			fail("the argument behind ** is no mapping")
		}
		for i, k := range d.keys {
			out.set(f.m.str(k), d.values[i])
		}
	}
	return out
}

func (x *call) eval(f *frame) any {
	of := f.eval(x.of)
	return f.m.call(of, x.args.eval(f))
}

func (m *machine) call(v any, a args) any {
	use(v)
	defer m.enter()()
	switch v := v.(type) {
	case *function:
		return v.call(m, a)
	case *method:
		return v.call(m, a)
	case *object:
		if v.call != nil {
			return v.call(m, a)
		}
	}
	fail("'%s' object is not callable", typeName(v))
	return nil
}

func (x *filterExpr) eval(f *frame) any {
	v := f.eval(x.of)
	return x.filter(f.m, v, x.args.eval(f))
}

func (x *testExpr) eval(f *frame) any {
	v := f.eval(x.of)
	return x.test(f.m, v, x.args.eval(f))
}
