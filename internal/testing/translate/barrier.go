package translate

import "fmt"

// isBarrier reports whether an expression is a call that waits for the other invocations of the workgroup.
func isBarrier(e *expr) bool {
	return e.kind == call && (e.text == "workgroupBarrier" || e.text == "storageBarrier" || e.text == "workgroupUniformLoad")
}

// barriers are the functions with barriers, in them or in what they call.
func (w *writer) barriers() map[*function]bool {
	found := map[*function]bool{}
	for changed := true; changed; {
		changed = false
		for _, f := range w.m.functions {
			walk(f.body, func(e *expr) {
				if !found[f] && (isBarrier(e) || e.kind == call && found[w.m.byName[e.text]]) {
					found[f], changed = true, true
				}
			})
		}
	}
	return found
}

// inlined begins the names of the inliner's variables. WGSL has none of these.
const inlined = "__"

// maxInlined bounds the calls that are replaced, since functions that call each other twice would double them each
// time.
const maxInlined = 1000

// inliner replaces calls of functions with barriers by their bodies, so that all barriers are statements of the entry
// point.
type inliner struct {
	m     *module
	waits map[*function]bool
	calls int
}

func (n *inliner) statements(body []*stmt) []*stmt {
	var out []*stmt
	for _, s := range body {
		c := *s
		var before []*stmt
		if s.kind == evaluate && isBarrier(s.expr) && s.expr.text != "workgroupUniformLoad" {
			out = append(out, s)
			continue
		}
		if s.left != nil {
			n.refuse(s.left, "the left side of an assignment")
		}
		for _, x := range []*stmt{s.init, s.next} {
			if x != nil {
				n.refuse(x.expr, "the head of a loop")
				n.refuse(x.left, "the head of a loop")
			}
		}
		if s.kind == loop || s.kind == branch {
			n.refuse(s.expr, "a condition")
		} else {
			c.expr, before = n.expression(s.expr)
		}
		c.body, c.rest = n.statements(s.body), n.statements(s.rest)
		out = append(out, before...)
		if s.kind == evaluate && c.expr.kind != call { // the call became statements
			continue
		}
		out = append(out, &c)
	}
	return out
}

// refuse fails where an expression waits that is not computed once, before the statement.
func (n *inliner) refuse(e *expr, place string) {
	each(e, func(e *expr) {
		if isBarrier(e) || e.kind == call && n.waits[n.m.byName[e.text]] {
			fail(e.line, "a barrier in %s is not supported", place)
		}
	})
}

// expression returns e without calls that wait, and the statements that come before it.
func (n *inliner) expression(e *expr) (*expr, []*stmt) {
	if e == nil {
		return nil, nil
	}
	if e.kind == binary && (e.text == "&&" || e.text == "||") {
		n.refuse(e, "an operand of "+e.text)
	}
	c := *e
	c.args = nil
	var before []*stmt
	for _, a := range e.args {
		x, s := n.expression(a)
		c.args, before = append(c.args, x), append(before, s...)
	}
	f := n.m.byName[e.text]
	switch {
	case e.kind == call && e.text == "workgroupUniformLoad" && f == nil:
		return n.load(&c, before)
	case e.kind == call && f != nil && n.waits[f]:
		return n.call(&c, f, before)
	}
	return &c, before
}

// load is a barrier, the value that the pointer leads to, and a barrier.
func (n *inliner) load(e *expr, before []*stmt) (*expr, []*stmt) {
	if len(e.args) != 1 || e.args[0].kind != unary || e.args[0].text != "&" {
		fail(e.line, "workgroupUniformLoad needs a pointer")
	}
	name := n.name("load", e)
	wait := &stmt{kind: evaluate, expr: &expr{kind: call, text: "workgroupBarrier", line: e.line}, line: e.line}
	value := &stmt{kind: declareLet, text: name, expr: e.args[0].args[0], line: e.line}
	return &expr{kind: identifier, text: name, line: e.line}, append(before, wait, value, wait)
}

// name returns a name that no other variable has.
func (n *inliner) name(kind string, e *expr) string {
	if n.calls++; n.calls > maxInlined {
		fail(e.line, "more than %d calls of functions with barriers", maxInlined)
	}
	return fmt.Sprint(inlined, kind, n.calls)
}

// call is the body of f with its parameters as variables. Its one return comes last.
func (n *inliner) call(e *expr, f *function, before []*stmt) (*expr, []*stmt) {
	if len(e.args) != len(f.parameters) {
		fail(e.line, "%s has %d arguments, expected %d", e.text, len(e.args), len(f.parameters))
	}
	result := n.name("call", e)
	inner := &stmt{kind: isolated, line: e.line}
	for i, p := range f.parameters {
		argument := fmt.Sprintf("%s_%s", result, p.name) // computed where the caller's names are in scope
		before = append(before, &stmt{kind: declareLet, text: argument, typ: p.typ, expr: e.args[i], line: e.line})
		inner.body = append(inner.body, &stmt{kind: declareLet, text: p.name, typ: p.typ,
			expr: &expr{kind: identifier, text: argument, line: e.line}, line: e.line})
	}
	body := n.statements(f.body)
	last := len(body) - 1
	visit(body, func(s *stmt) {
		if s.kind == returns && (last < 0 || s != body[last]) {
			fail(s.line, "%s has barriers and returns before its end", f.name)
		}
	})
	if f.result == voidType {
		inner.body = append(inner.body, body...)
		return &expr{kind: literal, text: "0", line: e.line}, append(before, inner)
	}
	if last < 0 || body[last].kind != returns {
		fail(f.line, "%s does not end with a return", f.name)
	}
	give := &stmt{kind: assign, text: "=", left: &expr{kind: identifier, text: result, line: e.line}, expr: body[last].expr, line: e.line}
	inner.body = append(append(inner.body, body[:last]...), give)
	before = append(before, &stmt{kind: declareVar, text: result, typ: f.result, line: e.line}, inner)
	return &expr{kind: identifier, text: result, line: e.line}, before
}

// waits reports whether a statement has a barrier.
func waits(s *stmt) bool {
	found := false
	walk([]*stmt{s}, func(e *expr) { found = found || isBarrier(e) })
	return found
}
