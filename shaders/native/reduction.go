package native

import (
	"fmt"
	"slices"
	"strings"
)

// reduction is the OpenMP directive for a loop that only accumulates sums and extremes of floats in variables; empty for
// other loops, and where the order matters. Sums of integers need none.
func (w *writer) reduction(s *stmt) string {
	if !w.Unordered {
		return ""
	}
	clauses, sums := map[string][]string{}, map[string]bool{}
	for _, x := range s.body {
		if x.kind == declareLet {
			continue
		}
		operator, name := accumulation(x)
		l := w.lookup(name)
		if operator == "" || l == nil || l.fixed || l.lanes || l.pointer || l.typ.kind != f32 || sums[name] {
			return ""
		}
		sums[name] = true
		clauses[operator] = append(clauses[operator], l.c)
	}
	if len(sums) == 0 || !w.counts(s, sums) {
		return ""
	}
	uses := map[string]int{}
	pure := true
	walk(s.body, func(e *expr) {
		if e.kind == identifier {
			uses[e.text]++
		}
		pure = pure && (e.kind != call || w.m.pure(e.text, map[string]bool{}))
	})
	for name := range sums {
		if uses[name] != 2 {
			return ""
		}
	}
	if !pure {
		return ""
	}
	var out strings.Builder
	out.WriteString("#pragma omp simd")
	for _, operator := range []string{"+", "max", "min"} {
		if names := clauses[operator]; len(names) > 0 {
			fmt.Fprintf(&out, " reduction(%s: %s)", operator, strings.Join(names, ", "))
		}
	}
	return out.String() + "\n"
}

// counts reports whether a for loop counts up to a bound, as OpenMP demands: var i = …; i < bound; i += step.
func (w *writer) counts(s *stmt, sums map[string]bool) bool {
	name := s.init.text
	fixed := func(e *expr) bool {
		is := true
		each(e, func(e *expr) {
			is = is && e.kind != call && e.kind != index && (e.kind != identifier || e.text != name && !sums[e.text])
		})
		return is
	}
	bound := func(e *expr) bool {
		return fixed(e) || e.kind == call && e.text == "min" && w.m.byName["min"] == nil && fixed(&expr{kind: binary, args: e.args})
	}
	counter := func(e *expr) bool { return e.kind == identifier && e.text == name }
	return s.expr != nil && s.expr.kind == binary && s.expr.text == "<" && counter(s.expr.args[0]) && bound(s.expr.args[1]) &&
		s.next != nil && s.next.text == "+=" && counter(s.next.left) && fixed(s.next.expr)
}

// pure reports whether a function changes no memory but its own variables. seen are functions that need no second look.
func (m *module) pure(name string, seen map[string]bool) bool {
	f := m.byName[name]
	if f == nil || seen[name] {
		return !strings.HasPrefix(name, "atomic")
	}
	seen[name] = true
	pure := true
	visit(f.body, func(s *stmt) {
		if s.kind == assign {
			pure = pure && s.left.kind == identifier && !slices.ContainsFunc(m.variables, func(v *variable) bool { return v.name == s.left.text })
		}
	})
	walk(f.body, func(e *expr) { pure = pure && (e.kind != call || m.pure(e.text, seen)) })
	return pure
}

// accumulation is the operator and the variable of a statement x = x + …, or x = max(x, …).
func accumulation(s *stmt) (operator, name string) {
	if s.kind != assign || s.left.kind != identifier {
		return "", ""
	}
	name = s.left.text
	e := s.expr
	switch {
	case s.text == "=" && e.kind == binary && e.text == "+" && e.args[0].text == name && e.args[0].kind == identifier:
		return "+", name
	case s.text == "=" && e.kind == call && (e.text == "max" || e.text == "min") && len(e.args) == 2 && e.args[0].text == name && e.args[0].kind == identifier:
		return e.text, name
	}
	return "", ""
}
