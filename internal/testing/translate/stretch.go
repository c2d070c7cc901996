package translate

import (
	"fmt"
	"strings"
)

// stretches writes a kernel with barriers: a stretch of statements between two barriers runs for all invocations before
// the next one. WGSL demands that whether a barrier is reached is the same for all invocations, so loops and conditions
// around barriers follow invocation 0.
func (w *writer) stretches(f *function, barriers map[*function]bool) {
	n := &inliner{m: w.m, waits: barriers}
	body := n.statements(f.body)
	size := w.size(f)
	w.head()
	w.push()
	values := w.builtins(f)
	w.result = voidType
	k := &stretch{writer: w, size: size}
	var load string
	for i, p := range f.parameters {
		l := k.declareLanes(f.line, p.name, p.typ)
		w.line("%s %s[%d];", p.typ.c(), l.c, k.lanes())
		load += fmt.Sprintf("%s[gp_lane] = %s;\n", l.c, values[i])
	}
	w.lane(size)
	w.line("%s}", load)
	k.statements(body, true, true)
	w.pop()
	w.line("next_group:;\n}\n}")
}

type stretch struct {
	*writer
	size   [3]int
	exits  int // labels
	memory int // words of variables with an element for each invocation
}

func (k *stretch) lanes() int { return k.size[0] * k.size[1] * k.size[2] }

// declareLanes brings a variable with an element for each invocation into scope.
func (k *stretch) declareLanes(line int, name string, t *typ) *local {
	l := k.declare(name, t)
	l.lanes = true
	if k.memory += k.lanes() * t.elements(); k.memory > maxElements {
		fail(line, "the variables of a workgroup take more than %d words", maxElements)
	}
	return l
}

// statements writes statements among which there are barriers. last reports that no barrier comes after them, ends
// that no statement does.
func (k *stretch) statements(body []*stmt, last, ends bool) {
	k.push()
	later := len(body) // behind the last statement that waits
	for later > 0 && !waits(body[later-1]) {
		later--
	}
	for i := 0; i < len(body); {
		from := i
		for i < len(body) && !waits(body[i]) && !k.leaves(body[i], last && i >= later) {
			i++
		}
		if i > from {
			k.run(body[from:i], ends)
			continue
		}
		k.uniform(body[i], last && i+1 >= later, ends && i+1 == len(body))
		i++
	}
	k.pop()
}

// leaves reports whether a statement leaves the function, or the loop around it, with invocations to wait for: then it
// does so for all.
func (k *stretch) leaves(s *stmt, last bool) bool {
	found, depth := false, 0
	var look func(body []*stmt)
	look = func(body []*stmt) {
		for _, s := range body {
			switch s.kind {
			case returns:
				found = found || !last
			case breaks, continues:
				found = found || depth == 0
			case loop:
				depth++
				look(s.body)
				depth--
				continue
			}
			look(s.body)
			look(s.rest)
		}
	}
	look([]*stmt{s})
	return found
}

// run writes a stretch without barriers for all invocations. Its variables outlive it. ends reports that no statement
// comes after those around it, so that a return skips the rest of the stretch only.
func (k *stretch) run(body []*stmt, ends bool) {
	before := k.out
	k.out = new(strings.Builder)
	var variables strings.Builder
	k.exits++
	k.writer.exit = fmt.Sprintf("goto exit_%d;", k.exits)
	leaving := false
	for _, s := range body {
		visit([]*stmt{s}, func(s *stmt) {
			if s.kind == returns {
				if leaving = true; !ends {
					fail(s.line, "a return within a statement with barriers, with statements but no barrier behind it, is not supported")
				}
			}
		})
		if s.kind != declareLet && s.kind != declareVar {
			k.statement(s)
			continue
		}
		x, t := k.initial(s)
		l := k.declareLanes(s.line, s.text, t)
		l.assigns = s.kind == declareVar
		fmt.Fprintf(&variables, "%s %s[%d];\n", t.c(), l.c, k.lanes())
		k.line("%s = %s;", l.text(), x)
	}
	k.writer.exit = ""
	text := k.out.String()
	k.out = before
	k.line("%s", variables.String())
	k.lane(k.size)
	k.line("%s", text)
	if leaving {
		k.line("exit_%d:;", k.exits)
	}
	k.line("}")
}

// uniform writes a statement that all invocations carry out alike.
func (k *stretch) uniform(s *stmt, last, ends bool) {
	switch s.kind {
	case evaluate: // a barrier
	case block, isolated:
		k.line("{")
		k.push()
		k.scopes[len(k.scopes)-1].isolated = s.kind == isolated
		k.statements(s.body, last, ends)
		k.pop()
		k.line("}")
	case branch:
		k.line("if (%s) {", k.first(s.expr))
		k.statements(s.body, last, ends)
		if len(s.rest) > 0 {
			k.line("} else {")
			k.statements(s.rest, last, ends)
		}
		k.line("}")
	case loop:
		k.loop(s)
	case returns:
		k.line("goto next_group;")
	case breaks:
		k.line("break;")
	default:
		fail(s.line, "a barrier in this statement is not supported")
	}
}

// first is a condition as invocation 0 finds it.
func (k *stretch) first(e *expr) string {
	return "({ const u32 gp_lane = 0; (void)gp_lane; " + k.condition(e) + "; })"
}

func (k *stretch) loop(s *stmt) {
	k.push()
	k.line("{")
	if s.init != nil {
		k.run([]*stmt{s.init}, false)
	}
	condition := "1"
	if s.expr != nil {
		condition = k.first(s.expr)
	}
	k.line("while (%s) {", condition)
	k.statements(s.body, false, false)
	if s.next != nil {
		k.run([]*stmt{s.next}, false)
	}
	k.line("}\n}")
	k.pop()
}
