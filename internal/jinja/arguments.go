package jinja

import "slices"

// args are the arguments of a call.
type args struct {
	pos   []any
	names []string
	named []any
}

func (a *args) set(name string, v any) {
	if slices.Contains(a.names, name) {
		fail("found two values of the argument '%s'", name)
	}
	a.names, a.named = append(a.names, name), append(a.named, v)
}

// absent is the value of an argument that is not given.
type absent struct{}

// bind returns the values of parameters. The first required ones must be given.
func (a args) bind(function string, required int, params ...string) []any {
	out := make([]any, len(params))
	for i := range out {
		out[i] = absent{}
	}
	if len(a.pos) > len(params) {
		fail("%s takes at most %d arguments, found %d", function, len(params), len(a.pos))
	}
	copy(out, a.pos)
	for i, n := range a.names {
		k := slices.Index(params, n)
		if k < 0 || n == "" {
			fail("%s has no argument '%s'", function, n)
		}
		if out[k] != (absent{}) && k < len(a.pos) {
			fail("%s got two values of the argument '%s'", function, n)
		}
		out[k] = a.named[i]
	}
	for i := range required {
		if out[i] == (absent{}) {
			fail("%s lacks the argument '%s'", function, params[i])
		}
	}
	return out
}

// or returns v, or the default of an argument that is not given.
func or(v, otherwise any) any {
	if v == (absent{}) {
		return otherwise
	}
	return v
}

func intArg(function string, v any, otherwise int64) int64 {
	v = or(v, otherwise)
	use(v)
	n, ok := toInt(v)
	if !ok {
		fail("%s: expected an integer, found %s", function, typeName(v))
	}
	return n
}

func textArg(function string, v any) string {
	use(v)
	if !isText(v) {
		fail("%s: expected a string, found %s", function, typeName(v))
	}
	return text(v)
}
