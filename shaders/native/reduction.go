package native

import (
	"fmt"
	"slices"
	"strings"
)

// reduction is the OpenMP directive for a loop that only accumulates sums and extremes in scalars; empty for other
// loops, and where the order matters.
func (w *writer) reduction(s *stmt) string {
	if !w.Unordered {
		return ""
	}
	clauses := map[string][]string{}
	for _, x := range s.body {
		if x.kind == declareLet {
			continue
		}
		operator, name := accumulation(x)
		l := w.lookup(name)
		if operator == "" || l == nil || l.fixed || l.typ.kind != f32 && l.typ.kind != i32 && l.typ.kind != u32 {
			return ""
		}
		uses := 0
		walk(s.body, func(e *expr) {
			if e.kind == identifier && e.text == name {
				uses++
			}
		})
		if uses != 2 || slices.Contains(clauses[operator], l.c) {
			return ""
		}
		clauses[operator] = append(clauses[operator], l.c)
	}
	if len(clauses) == 0 {
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

// accumulation is the operator and the variable of a statement like x = x + …, x += …, or x = max(x, …).
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
