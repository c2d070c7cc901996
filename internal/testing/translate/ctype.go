package translate

import (
	"fmt"
	"strings"
)

// c returns the name of a type in C. Arrays are structs, so that they can be assigned; declareTypes defines them.
func (t *typ) c() string {
	switch t.kind {
	case boolean:
		return "bool"
	case i32, abstractInt:
		return "i32"
	case u32:
		return "u32"
	case f32, abstractFloat:
		return "f32"
	case vector:
		return fmt.Sprintf("v%d%s", t.n, t.of.c())
	case array:
		return fmt.Sprintf("a%d_%s", t.n, t.of.c())
	case atomic:
		return t.of.c()
	}
	return "void"
}

// maxElements bounds the arrays of functions and workgroups, which lie on a thread's stack.
const maxElements = 1 << 18

// elements returns the number of words that a value takes at most.
func (t *typ) elements() int {
	switch t.kind {
	case vector:
		return 4
	case array:
		return t.n * t.of.elements()
	}
	return 1
}

// bytes returns the size of a value in WGSL. A vec3 of an array is padded to a vec4.
func (t *typ) bytes() int {
	switch t.kind {
	case vector:
		return 4 * t.n
	case array:
		if t.of.kind == vector {
			return t.n * 4 * (t.of.n + t.of.n%2)
		}
		return t.n * t.of.bytes()
	}
	return 4
}

func (t *typ) equal(u *typ) bool {
	return t.kind == u.kind && t.n == u.n && (t.of == nil) == (u.of == nil) && (t.of == nil || t.of.equal(u.of))
}

// scalar returns the type of a vector's components, or the type itself.
func (t *typ) scalar() *typ {
	if t.kind == vector {
		return t.of
	}
	return t
}

func (t *typ) integer() bool  { k := t.scalar().kind; return k == i32 || k == u32 || k == abstractInt }
func (t *typ) float() bool    { k := t.scalar().kind; return k == f32 || k == abstractFloat }
func (t *typ) abstract() bool { return t.kind == abstractInt || t.kind == abstractFloat }

// settled returns the type of a variable that is declared with a value of this type.
func (t *typ) settled() *typ {
	switch t.kind {
	case abstractInt:
		return i32Type
	case abstractFloat:
		return f32Type
	}
	return t
}

// wgsl returns the name of a type in WGSL, for errors.
func (t *typ) wgsl() string {
	switch t.kind {
	case vector:
		return fmt.Sprintf("vec%d<%s>", t.n, t.of.wgsl())
	case array:
		if t.n == 0 {
			return fmt.Sprintf("array<%s>", t.of.wgsl())
		}
		return fmt.Sprintf("array<%s, %d>", t.of.wgsl(), t.n)
	case atomic:
		return fmt.Sprintf("atomic<%s>", t.of.wgsl())
	}
	return t.c()
}

// common returns the type of an arithmetic expression of two types.
func common(line int, x, y *typ) *typ {
	switch {
	case x.kind == vector && y.kind != vector:
		common(line, x.of, y)
		return x
	case y.kind == vector && x.kind != vector:
		common(line, x, y.of)
		return y
	case x.equal(y):
		return x
	case x.kind == abstractInt && !y.abstract() && y.kind != boolean, x.kind == abstractInt && y.kind == abstractFloat,
		x.kind == abstractFloat && y.kind == f32:
		return y
	case y.kind == abstractInt && !x.abstract() && x.kind != boolean, y.kind == abstractInt && x.kind == abstractFloat,
		y.kind == abstractFloat && x.kind == f32:
		return x
	}
	fail(line, "the types %s and %s do not match", x.wgsl(), y.wgsl())
	return nil
}

// fits reports whether a value of type from can be stored as to.
func fits(to, from *typ) bool {
	return to.equal(from) || from.kind == abstractInt && (to.kind == i32 || to.kind == u32 || to.kind == f32) ||
		from.kind == abstractFloat && to.kind == f32
}

// arrayTypes collects the definitions of array types in the order in which they are needed.
type arrayTypes struct {
	seen map[string]bool
	text strings.Builder
}

func (a *arrayTypes) need(t *typ) {
	if t.kind != array || t.n == 0 || a.seen[t.c()] {
		return
	}
	a.need(t.of)
	if a.seen == nil {
		a.seen = map[string]bool{}
	}
	a.seen[t.c()] = true
	fmt.Fprintf(&a.text, "typedef struct { %s at[%d]; } %s;\n", t.of.c(), t.n, t.c())
}
