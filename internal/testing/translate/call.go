package translate

import (
	"fmt"
	"slices"
	"strings"
)

// builtins are the functions of WGSL that the prelude defines for f32 and for vectors of it, by their number of
// arguments.
var builtins = map[string]int{
	"exp": 1, "exp2": 1, "log": 1, "log2": 1, "sqrt": 1, "inverseSqrt": 1, "tanh": 1, "sin": 1, "cos": 1, "tan": 1, "floor": 1, "ceil": 1,
	"round": 1, "trunc": 1, "fract": 1, "sign": 1, "abs": 1, "min": 2, "max": 2, "pow": 2, "step": 2, "clamp": 3, "fma": 3, "mix": 3,
}

// ofIntegers are those that the prelude defines for i32 and u32 too.
var ofIntegers = map[string]bool{"abs": true, "min": true, "max": true, "clamp": true, "sign": true}

// call writes the call of a function, of the source's own or built in.
func (w *writer) call(e *expr) (string, *typ) {
	if f := w.m.byName[e.text]; f != nil {
		return w.own(e, f)
	}
	if strings.HasPrefix(e.text, "atomic") {
		return w.atomic(e)
	}
	switch e.text {
	case "select":
		return w.selection(e)
	case "dot":
		args, t := w.common(e, 2)
		if t.kind != vector || t.of.kind == boolean {
			fail(e.line, "dot is not defined for %s", t.wgsl())
		}
		return fmt.Sprintf("dot_%s(%s)", t.c(), strings.Join(args, ", ")), t.of
	case "arrayLength":
		if len(e.args) == 1 && e.args[0].kind == unary && e.args[0].text == "&" {
			if base, t := w.value(e.args[0].args[0]); t.kind == array && t.n == 0 {
				return "((u32)" + base + "n)", u32Type
			}
		}
		fail(e.line, "arrayLength of what is no binding")
	case "all", "any":
		if len(e.args) != 1 {
			fail(e.line, "%s has %d arguments, expected 1", e.text, len(e.args))
		}
		x, t := w.value(e.args[0])
		if t.scalar().kind != boolean {
			fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
		}
		if t.kind != vector {
			return x, boolType
		}
		return fmt.Sprintf("%s_v%d(%s)", e.text, t.n, x), boolType
	}
	n, ok := builtins[e.text]
	if !ok {
		fail(e.line, "no definition of %s in scope", e.text)
	}
	args, t := w.common(e, n)
	if !t.float() && !(t.integer() && ofIntegers[e.text]) {
		fail(e.line, "%s is not defined for %s", e.text, t.wgsl())
	}
	return fmt.Sprintf("%s_%s(%s)", e.text, t.c(), strings.Join(args, ", ")), t
}

// common writes n arguments of one type.
func (w *writer) common(e *expr, n int) ([]string, *typ) {
	if len(e.args) != n {
		fail(e.line, "%s has %d arguments, expected %d", e.text, len(e.args), n)
	}
	args, types := make([]string, n), make([]*typ, n)
	var t *typ
	for i, a := range e.args {
		args[i], types[i] = w.value(a)
		if t == nil {
			t = types[i]
		}
		t = common(e.line, t, types[i])
	}
	t = t.settled()
	for i := range args {
		args[i] = w.spread(args[i], types[i], t)
	}
	return args, t
}

func (w *writer) own(e *expr, f *function) (string, *typ) {
	if len(e.args) != len(f.parameters) {
		fail(e.line, "%s has %d arguments, expected %d", e.text, len(e.args), len(f.parameters))
	}
	args := append([]string(nil), w.context...)
	for i, a := range e.args {
		x, t := w.value(a)
		if !fits(f.parameters[i].typ, t) {
			fail(a.line, "argument %d of %s is %s, expected %s", i+1, e.text, t.wgsl(), f.parameters[i].typ.wgsl())
		}
		args = append(args, w.converted(x, t, f.parameters[i].typ))
	}
	return fmt.Sprintf("fn_%s(%s)", e.text, strings.Join(args, ", ")), f.result
}

// selection writes select(if false, if true, condition).
func (w *writer) selection(e *expr) (string, *typ) {
	if len(e.args) != 3 {
		fail(e.line, "select has %d arguments, expected 3", len(e.args))
	}
	no, tn := w.value(e.args[0])
	yes, ty := w.value(e.args[1])
	condition, tc := w.value(e.args[2])
	t := common(e.line, tn, ty).settled()
	if !t.scalar().number() {
		fail(e.line, "select is not defined for %s", t.wgsl())
	}
	no, yes = w.spread(no, tn, t), w.spread(yes, ty, t)
	switch {
	case t.kind == vector && tc.kind == vector && tc.n == t.n && tc.of.kind == boolean:
		return fmt.Sprintf("select_%s(%s, %s, %s)", t.c(), no, yes, condition), t
	case tc.kind != boolean:
		fail(e.line, "the condition of select is %s, expected bool", tc.wgsl())
	case t.kind == vector:
		return fmt.Sprintf("(%s ? %s : %s)", condition, yes, no), t
	}
	return fmt.Sprintf("select_%s(%s, %s, %s)", t.c(), no, yes, condition), t
}

// atomics are the functions of atomics that have a value beside the pointer.
var atomics = []string{"atomicStore", "atomicAdd", "atomicSub", "atomicMin", "atomicMax", "atomicAnd", "atomicOr", "atomicXor",
	"atomicExchange"}

// atomic writes a function of atomics in workgroup memory. The invocations of a workgroup run on one thread, so these
// are plain reads and writes.
func (w *writer) atomic(e *expr) (string, *typ) {
	n := 2
	if e.text == "atomicLoad" {
		n = 1
	} else if !slices.Contains(atomics, e.text) {
		fail(e.line, "%s is not supported", e.text)
	}
	if len(e.args) != n {
		fail(e.line, "%s has %d arguments, expected %d", e.text, len(e.args), n)
	}
	if e.args[0].kind != unary || e.args[0].text != "&" {
		fail(e.line, "%s needs a pointer", e.text)
	}
	place, t := w.value(e.args[0].args[0])
	if t.kind != atomic || t.of.kind != i32 && t.of.kind != u32 {
		fail(e.line, "%s of %s", e.text, t.wgsl())
	}
	if n == 1 {
		return place, t.of
	}
	x, from := w.value(e.args[1])
	if !fits(t.of, from) {
		fail(e.line, "%s of %s and %s", e.text, t.wgsl(), from.wgsl())
	}
	result := t.of
	if e.text == "atomicStore" {
		result = voidType
	}
	return fmt.Sprintf("%s_%s(&%s, %s)", e.text, t.of.c(), place, w.converted(x, from, t.of)), result
}
