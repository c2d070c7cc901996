package native

import "fmt"

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
	var load string
	for i, p := range f.parameters {
		l := w.declareLanes(p.name, p.typ, size)
		load += fmt.Sprintf("%s[gp_lane] = %s;\n", l.c, values[i])
	}
	w.lane(size)
	w.line("%s}", load)
	k := &stretch{writer: w, size: size}
	k.statements(body, true)
	w.pop()
	w.line("next_group:;\n}\n}")
}

// declareLanes declares a variable with an element for each invocation.
func (w *writer) declareLanes(name string, t *typ, size [3]int) *local {
	l := w.declare(name, t)
	l.lanes = true
	w.line("%s %s[%d];", t.c(), l.c, size[0]*size[1]*size[2])
	return l
}

type stretch struct {
	*writer
	size  [3]int
	exits int // labels
}

// statements writes statements among which there are barriers; last reports that no barrier comes after them.
func (k *stretch) statements(body []*stmt, last bool) {
	k.push()
	for len(body) > 0 {
		n := 0
		for n < len(body) && !waits(body[n]) && !k.leaves(body[n], last && !k.waitsLater(body[n:])) {
			n++
		}
		if n > 0 {
			k.run(body[:n])
			body = body[n:]
			continue
		}
		k.uniform(body[0], last && !k.waitsLater(body[1:]))
		body = body[1:]
	}
	k.pop()
}

func (k *stretch) waitsLater(body []*stmt) bool {
	for _, s := range body {
		if waits(s) {
			return true
		}
	}
	return false
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

// run writes a stretch without barriers for all invocations. Its variables outlive it.
func (k *stretch) run(body []*stmt) {
	for _, s := range body {
		if s.kind == declareLet || s.kind == declareVar {
			_, t := k.initial(s)
			k.declareLanes(s.text, t, k.size)
		}
	}
	k.exits++
	k.lane(k.size)
	leaving := false
	for _, s := range body {
		visit([]*stmt{s}, func(s *stmt) { leaving = leaving || s.kind == returns })
		if s.kind == declareLet || s.kind == declareVar {
			x, _ := k.initial(s)
			k.line("%s = %s;", k.lookup(s.text).text(), x)
			continue
		}
		k.writer.exit = fmt.Sprintf("goto exit_%d;", k.exits)
		k.statement(s)
		k.writer.exit = ""
	}
	if leaving {
		k.line("exit_%d:;", k.exits)
	}
	k.line("}")
}

// uniform writes a statement that all invocations carry out alike.
func (k *stretch) uniform(s *stmt, last bool) {
	switch s.kind {
	case evaluate: // a barrier
	case block:
		k.line("{")
		k.statements(s.body, last)
		k.line("}")
	case branch:
		k.line("if (%s) {", k.first(s.expr))
		k.statements(s.body, last)
		if len(s.rest) > 0 {
			k.line("} else {")
			k.statements(s.rest, last)
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
		k.run([]*stmt{s.init})
	}
	condition := "1"
	if s.expr != nil {
		condition = k.first(s.expr)
	}
	k.line("while (%s) {", condition)
	k.statements(s.body, false)
	if s.next != nil {
		k.run([]*stmt{s.next})
	}
	k.line("}\n}")
	k.pop()
}
