package jinja

import "strings"

// frame is a scope of variables. What a template writes goes to the text of the frame.
type frame struct {
	m      *machine
	parent *frame
	vars   map[string]any
	out    *strings.Builder
	buffer any // the text of a block, for the filters behind it
}

func (f *frame) inner() *frame {
	f.m.spend(1)
	return &frame{m: f.m, parent: f, out: f.out}
}

func (f *frame) set(name string, v any) {
	if f.vars == nil {
		f.vars = map[string]any{}
	}
	f.vars[name] = v
}

func (f *frame) write(s string) {
	f.m.spendText(len(s))
	if f.out.Len()+len(s) > maxText {
		fail("the template writes more than %d bytes", maxText)
	}
	f.out.WriteString(s)
}

// jump is the tag break or continue; none: the statements go on.
type jump string

const none = jump("")

// statement is a tag with its body, or text.
type statement interface {
	exec(f *frame) jump
}

type (
	data   string
	output struct{ value expression }
	// printTag is the tag print.
	printTag []output
	arm      struct {
		test expression
		body []statement
	}
	ifTag struct {
		arms      []arm
		otherwise []statement
	}
	forTag struct {
		target          target
		over, test      expression
		recursive       bool
		body, otherwise []statement
	}
	setTag struct {
		target target
		value  expression
	}
	setBlock struct {
		target target
		filter expression // nil: none
		body   []statement
	}
	macroTag struct {
		name     string
		params   []string
		defaults []expression // of the last parameters
		body     []statement
		uses     map[string]bool // the names that the body reads
	}
	callTag struct {
		macroTag
		call *call
	}
	filterTag struct {
		filter expression
		body   []statement
	}
	withTag struct {
		targets []target
		values  []expression
		body    []statement
	}
	// scopeTag is the tag generation.
	scopeTag struct{ body []statement }
)

func (f *frame) run(body []statement) jump {
	for _, s := range body {
		f.m.spend(1)
		if j := s.exec(f); j != none {
			return j
		}
	}
	return none
}

// capture returns what statements write in a scope of their own.
func (f *frame) capture(body []statement) string {
	var b strings.Builder
	inner := f.inner()
	inner.out = &b
	if inner.run(body) != none {
		fail("break or continue outside of its loop")
	}
	return b.String()
}

func (s data) exec(f *frame) jump {
	f.write(string(s))
	return none
}

func (s output) exec(f *frame) jump {
	f.write(f.m.str(f.eval(s.value)))
	return none
}

func (s printTag) exec(f *frame) jump {
	for _, o := range s {
		o.exec(f)
	}
	return none
}

func (s jump) exec(*frame) jump { return s }

func (s *ifTag) exec(f *frame) jump {
	for _, a := range s.arms {
		if truth(f.eval(a.test)) {
			return f.run(a.body)
		}
	}
	return f.run(s.otherwise)
}

func (s *setTag) exec(f *frame) jump {
	s.target.assign(f, f.eval(s.value))
	return none
}

func (s *setBlock) exec(f *frame) jump {
	var v any = f.capture(s.body)
	if s.filter != nil {
		g := f.inner()
		g.buffer = v
		v = g.eval(s.filter)
	}
	s.target.assign(f, v)
	return none
}

func (s *filterTag) exec(f *frame) jump {
	g := f.inner()
	g.buffer = f.capture(s.body)
	f.write(f.m.str(g.eval(s.filter)))
	return none
}

func (s *withTag) exec(f *frame) jump {
	inner := f.inner()
	for i, t := range s.targets {
		t.assign(inner, f.eval(s.values[i]))
	}
	return inner.run(s.body)
}

func (s *scopeTag) exec(f *frame) jump {
	f.write(f.capture(s.body))
	return none
}

func (s *macroTag) exec(f *frame) jump {
	f.set(s.name, s.bind(f))
	return none
}

func (s *callTag) exec(f *frame) jump {
	of := f.eval(s.call.of)
	a := s.call.args.eval(f)
	a.set("caller", s.bind(f))
	f.write(f.m.str(f.m.call(of, a)))
	return none
}

// bind makes a function of a macro, which sees the variables of the scope that it stands in.
func (s *macroTag) bind(f *frame) *function {
	return &function{func(m *machine, a args) any {
		inner := f.inner()
		rest := Tuple{}
		for i, v := range a.pos {
			if i < len(s.params) {
				inner.set(s.params[i], v)
			} else {
				rest = append(rest, v)
			}
		}
		named := &Dict{}
		for i, n := range a.names {
			if !s.parameter(inner, n, a.named[i]) {
				named.Set(n, a.named[i])
			}
		}
		inner.special(s, rest, named)
		for i, p := range s.params {
			if _, ok := inner.vars[p]; ok {
				continue
			}
			inner.set(p, undef("parameter '%s' was not provided", p))
			if d := i - (len(s.params) - len(s.defaults)); d >= 0 {
				inner.set(p, inner.eval(s.defaults[d]))
			}
		}
		var b strings.Builder
		inner.out = &b
		if inner.run(s.body) != none {
			fail("break or continue outside of its loop")
		}
		return b.String()
	}}
}

// parameter sets a parameter by its name; false: there is none.
func (s *macroTag) parameter(f *frame, name string, value any) bool {
	for _, p := range s.params {
		if p != name {
			continue
		}
		if _, ok := f.vars[p]; ok {
			fail("macro '%s' got two values for the argument '%s'", s.name, p)
		}
		f.set(p, value)
		return true
	}
	return false
}

// special sets the variables caller, varargs and kwargs of a macro that uses them; else it takes no such arguments.
func (f *frame) special(s *macroTag, rest Tuple, named *Dict) {
	if c, ok := named.Get("caller"); ok {
		if !s.uses["caller"] {
			fail("macro '%s' was invoked with a call block, which it does not use", s.name)
		}
		f.set("caller", c)
		others := &Dict{}
		for i, k := range named.keys {
			if k != "caller" {
				others.Set(k, named.values[i])
			}
		}
		named = others
	} else if s.uses["caller"] {
		f.set("caller", undef("No caller defined"))
	}
	if s.uses["kwargs"] {
		f.set("kwargs", named)
	} else if len(named.keys) > 0 {
		fail("macro '%s' takes no keyword argument '%s'", s.name, f.m.str(named.keys[0]))
	}
	if s.uses["varargs"] {
		f.set("varargs", rest)
	} else if len(rest) > 0 {
		fail("macro '%s' takes not more than %d argument(s)", s.name, len(s.params))
	}
}

// target is what an assignment sets.
type target interface {
	assign(f *frame, v any)
}

type (
	nameTarget  string
	attrTarget  struct{ of, name string }
	tupleTarget []target
)

func (t nameTarget) assign(f *frame, v any) { f.set(string(t), v) }

func (t attrTarget) assign(f *frame, v any) {
	n, ok := f.eval(name(t.of)).(*namespace)
	if !ok {
		fail("cannot assign attribute on non-namespace object")
	}
	checkAttribute(t.name)
	n.attrs.Set(t.name, v)
}

func (t tupleTarget) assign(f *frame, v any) {
	use(v)
	all := f.m.items(v)
	if len(all) != len(t) {
		fail("found %d values to unpack, expected %d", len(all), len(t))
	}
	for i, x := range t {
		x.assign(f, all[i])
	}
}
