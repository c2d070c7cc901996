package translate

// assigns reports whether statements assign a variable of that name, of whatever scope.
func assigns(body []*stmt, name string) bool {
	found := false
	visit(body, func(s *stmt) {
		if s.kind == assign && s.left.kind == identifier && s.left.text == name {
			found = true
		}
	})
	return found
}

// visit calls f for each statement, also within others.
func visit(body []*stmt, f func(*stmt)) {
	for _, s := range body {
		f(s)
		for _, x := range []*stmt{s.init, s.next} {
			if x != nil {
				f(x)
			}
		}
		visit(s.body, f)
		visit(s.rest, f)
	}
}

// walk calls f for each expression of statements.
func walk(body []*stmt, f func(*expr)) {
	visit(body, func(s *stmt) {
		each(s.expr, f)
		each(s.left, f)
	})
}

func each(e *expr, f func(*expr)) {
	if e == nil {
		return
	}
	f(e)
	for _, a := range e.args {
		each(a, f)
	}
}
