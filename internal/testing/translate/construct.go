package translate

import (
	"fmt"
	"strings"
)

// construct writes T(…): a conversion, a vector or an array.
func (w *writer) construct(e *expr) (string, *typ) {
	to := e.to
	args, types := make([]string, len(e.args)), make([]*typ, len(e.args))
	for i, a := range e.args {
		args[i], types[i] = w.value(a)
	}
	switch to.kind {
	case vector:
		return w.vector(e, to, args, types)
	case array:
		return w.array(e, args, types)
	case boolean, i32, u32, f32:
	default:
		fail(e.line, "there are no values of %s", to.wgsl())
	}
	if len(args) == 0 {
		return fmt.Sprintf("((%s)0)", to.c()), to
	}
	if len(args) != 1 || !types[0].number() {
		fail(e.line, "%s of %d values", to.wgsl(), len(args))
	}
	return convert(args[0], types[0].settled(), to), to
}

// number reports whether t is a scalar.
func (t *typ) number() bool {
	return t.kind != vector && (t.integer() || t.float() || t.kind == boolean)
}

func (w *writer) array(e *expr, args []string, types []*typ) (string, *typ) {
	to := e.to
	w.sized(e.line, to)
	w.arrays.need(to)
	if len(args) == 0 {
		return fmt.Sprintf("(%s){0}", to.c()), to
	}
	if len(args) != to.n {
		fail(e.line, "%d values for %s", len(args), to.wgsl())
	}
	for i, t := range types {
		if !fits(to.of, t) {
			fail(e.line, "element %d of %s is %s", i, to.wgsl(), t.wgsl())
		}
		args[i] = w.converted(args[i], t, to.of)
	}
	return fmt.Sprintf("(%s){{%s}}", to.c(), strings.Join(args, ", ")), to
}

// convert writes a conversion of scalars. That of a float to an integer is saturated, and NaN becomes zero.
func convert(x string, from, to *typ) string {
	switch {
	case from.kind == to.kind:
		return x
	case from.kind == f32 && to.integer():
		return fmt.Sprintf("%s_of_f32(%s)", to.c(), x)
	}
	return fmt.Sprintf("((%s)%s)", to.c(), x)
}

// part writes a scalar as the component of a vector. A component of bool is 0 or −1.
func part(x string, from, to *typ) string {
	if to.kind == boolean {
		return fmt.Sprintf("-(i32)%s", convert(x, from, boolType))
	}
	return convert(x, from, to)
}

// vector writes vecN<T>(…), of one scalar for all components, one vector to be converted, or all components.
func (w *writer) vector(e *expr, to *typ, args []string, types []*typ) (string, *typ) {
	components := 0
	var of *typ // that the components have in common
	for _, t := range types {
		s := t.scalar()
		if !s.number() {
			fail(e.line, "a component of %s is %s", to.wgsl(), t.wgsl())
		}
		if components += max(1, t.n); to.of == nil {
			if of == nil {
				of = s
			}
			of = common(e.line, of, s)
		}
	}
	if to.of == nil {
		if of == nil {
			fail(e.line, "vec%d() has no type", to.n)
		}
		to = &typ{vector, to.n, of.settled()}
	}
	if !to.of.number() {
		fail(e.line, "there are no values of %s", to.wgsl())
	}
	switch {
	case len(args) == 0:
		return fmt.Sprintf("(%s){0}", to.c()), to
	case len(args) == 1 && types[0].kind != vector:
		return fmt.Sprintf("splat_%s(%s)", to.c(), part(args[0], types[0].settled(), to.of)), to
	case components != to.n:
		fail(e.line, "%d components for %s", components, to.wgsl())
	case len(args) == 1 && types[0].equal(to):
		return args[0], to
	}
	var before string
	var parts []string
	for i, a := range args {
		if types[i].kind != vector {
			parts = append(parts, part(a, types[i].settled(), to.of))
			continue
		}
		before += fmt.Sprintf("const %s gp_%d = %s; ", types[i].c(), i, a)
		for c := range types[i].n {
			parts = append(parts, part(component(fmt.Sprint("gp_", i), fmt.Sprint(c), types[i]), types[i].of, to.of))
		}
	}
	made := fmt.Sprintf("(%s){%s}", to.c(), strings.Join(parts, ", "))
	if before == "" {
		return made, to
	}
	return "({ " + before + made + "; })", to
}
