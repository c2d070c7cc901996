package native

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
)

// Kernel returns the C of a kernel with one invocation a workgroup. No index leaves its array. Sums that a loop
// accumulates may be formed in another order, so that they can be vectorized: the order depends on nothing but the
// kernel and the CPU's vectors.
func Kernel(k scalar.Kernel) string {
	w := newPrinter()
	parameters, arguments, head := w.arrays(k.Bindings, nil)
	if k.Grid[0]*k.Grid[1]*k.Grid[2] != k.Groups {
		w.line("if (group >= %du) return;", k.Groups)
	}
	w.body(k.Body)
	return fmt.Sprintf("%s\n%s void workgroup(%s) {\n%s}\nKERNEL {\n%s  for (u32 group = first; group < last; group++) workgroup(%s);\n}\n",
		target.C, inline, strings.Join(append(parameters, "const u32 group"), ", "), w.out.String(), head,
		strings.Join(append(arguments, "group"), ", "))
}

// Function returns the C of a function, which gets the kernel's args before its own parameters. place is the number of
// the argument that is an array.
func Function(f scalar.Function, arrays []scalar.Array, place []int) string {
	w := newPrinter()
	parameters, arguments, head := w.arrays(arrays, place)
	own := []string{"const gp_arg *args"}
	for _, p := range f.Parameters {
		n := w.declare(p.Name)
		n.fix(p.Type)
		parameters, arguments, own = append(parameters, fmt.Sprintf("const %v %s", p.Type, n.c)), append(arguments, n.c),
			append(own, fmt.Sprintf("%v %s", p.Type, n.c))
	}
	w.body(f.Body)
	w.line("return %s;", w.value(f.Result))
	return fmt.Sprintf("%s %v fn_%s(%s) {\n%s}\n%s %v %s(%s) {\n%s  return fn_%s(%s);\n}\n", inline, f.Result.Type, f.Name,
		strings.Join(parameters, ", "), w.out.String(),
		inline, f.Result.Type, f.Name, strings.Join(own, ", "), head, f.Name, strings.Join(arguments, ", "))
}

// inline begins the functions of a kernel. Arrays are parameters of such a function, since compilers know of parameters
// best that restricted pointers do not overlap.
const inline = "static inline __attribute__((always_inline, unused))"

// arrays returns the parameters of a function that uses arrays, the arguments of its call, and what these need before.
func (w *printer) arrays(arrays []scalar.Array, place []int) (parameters, arguments []string, head string) {
	for i, a := range arrays {
		at := i
		if place != nil {
			at = place[i]
		}
		parameters, arguments = append(parameters, fmt.Sprintf("%v *restrict const %s", a.Type, a.Name)), append(arguments, a.Name)
		head += fmt.Sprintf("  %v *const %s = args[%d].at;\n", a.Type, a.Name, at)
		w.used[a.Name]++
	}
	return parameters, arguments, head
}

func newPrinter() *printer {
	return &printer{names: map[string]*known{}, used: map[string]int{}, indent: "  "}
}

// printer writes statements as C.
type printer struct {
	out    strings.Builder
	indent string
	names  map[string]*known // in scope
	used   map[string]int    // how often a name was declared
}

// known is a variable in scope.
type known struct {
	c      string // its name in C
	fixed  bool   // it keeps its value
	offset offset // its value as an index, if it is a sum of products of fixed names
}

// fix marks a variable that keeps its value.
func (n *known) fix(t scalar.Type) {
	n.fixed = true
	if t == scalar.U32 || t == scalar.I32 {
		n.offset = offset{"(i64)" + n.c, 1 << 32}
	}
}

func (w *printer) line(format string, args ...any) {
	fmt.Fprintf(&w.out, w.indent+format+"\n", args...)
}

// declare brings a variable into scope under a name in C that no other has.
func (w *printer) declare(of string) *known {
	n := &known{c: of}
	if times := w.used[of]; times > 0 {
		n.c = fmt.Sprintf("%s_%d", of, times)
	}
	w.used[of]++
	w.names[of] = n
	return n
}

func (w *printer) body(body []scalar.Stmt) {
	for _, s := range body {
		w.statement(s)
	}
}

// block writes statements with a scope of their own.
func (w *printer) block(body []scalar.Stmt) {
	outer, indent := w.names, w.indent
	w.names, w.indent = maps.Clone(outer), indent+"  "
	w.body(body)
	w.names, w.indent = outer, indent
	w.line("}")
}

func (w *printer) statement(s scalar.Stmt) {
	switch s := s.(type) {
	case scalar.Let:
		x, offset := w.value(s.Value), w.affine(s.Value)
		n := w.declare(s.Name)
		n.fixed, n.offset = true, offset
		w.line("const %v %s = %s;", s.Value.Type, n.c, x)
	case scalar.Declare:
		x := w.value(s.Value)
		w.line("%v %s = %s;", s.Value.Type, w.declare(s.Name).c, x)
	case scalar.Local:
		w.line("%v %s[%d] = {0};", s.Type, w.declare(s.Name).c, s.Len)
	case scalar.Assign:
		if s.To.Kind == scalar.Bits16 {
			// gcc vectorizes no loop with stores to types that may alias. What reads these 16 bits has such a type.
			w.line("((u16 *)%s)[%s] = (u16)%s;", w.array(s.To.Name), w.index(s.To.Args[0]).text, w.value(s.Value))
			return
		}
		w.line("%s = %s;", w.value(s.To), w.value(s.Value))
	case scalar.For:
		w.loop(s)
	case scalar.If:
		w.line("if (%s) {", w.condition(s.Condition))
		w.block(s.Body)
	case scalar.Return:
		w.line("return;")
	default:
		panic(fmt.Sprintf("native: a kernel for CPUs has no %T", s))
	}
}

func (w *printer) loop(s scalar.For) {
	from := w.value(s.From)
	outer := w.names
	w.names = maps.Clone(outer)
	n := w.declare(s.Name)
	next := n.c + " = " + w.value(s.Next)
	if x := s.Next; x.Kind == scalar.Operation && x.Name == "+" && x.Args[0].Kind == scalar.Variable && x.Args[0].Name == s.Name {
		next = n.c + " += " + w.value(x.Args[1]) // as OpenMP wants it
	}
	condition := w.condition(s.While) // as OpenMP wants it
	n.fix(scalar.U32)
	w.simd(s.Sums(), s.Reads16())
	w.line("for (u32 %s = %s; %s; %s) {", n.c, from, condition, next)
	w.block(s.Body)
	w.names = outer
}

// simd writes the directive by which a loop may accumulate its sums in any order. A loop that reads single 16-bit
// numbers has as many sums side by side as others, not as many as fit a vector of 16-bit numbers.
func (w *printer) simd(sums []scalar.Sum, reads16 bool) {
	if len(sums) == 0 {
		return
	}
	directive := "#pragma omp simd"
	if reads16 {
		directive += " simdlen(VEC)"
	}
	for _, operator := range []string{"+", "max", "min"} {
		var of []string
		for _, s := range sums {
			if s.Operator == operator {
				of = append(of, w.names[s.Variable].c)
			}
		}
		if len(of) > 0 {
			directive += fmt.Sprintf(" reduction(%s: %s)", operator, strings.Join(of, ", "))
		}
	}
	fmt.Fprintln(&w.out, directive)
}

// condition is a condition in C, without parentheses around it.
func (w *printer) condition(x *scalar.Expr) string {
	if x.Kind == scalar.Operation {
		return fmt.Sprintf("%s %s %s", w.value(x.Args[0]), x.Name, w.value(x.Args[1]))
	}
	return w.value(x)
}

// value is an expression in C.
func (w *printer) value(x *scalar.Expr) string {
	a := x.Args
	switch x.Kind {
	case scalar.Constant:
		return digits(x)
	case scalar.Variable:
		if n := w.names[x.Name]; n != nil {
			return n.c
		}
		return x.Name // group
	case scalar.Element, scalar.Bits16:
		if x.Kind == scalar.Bits16 {
			return fmt.Sprintf("((u32)((const bits16 *)%s)[%s])", w.array(x.Name), w.index(a[0]).text)
		}
		return fmt.Sprintf("%s[%s]", w.array(x.Name), w.index(a[0]).text)
	case scalar.Negation:
		if x.Type == scalar.I32 {
			return fmt.Sprintf("((i32)(-(u32)%s))", w.value(a[0]))
		}
		return "(-" + w.value(a[0]) + ")"
	case scalar.Operation:
		return w.operation(x)
	case scalar.Choice:
		return fmt.Sprintf("select_%v(%s, %s, %s)", x.Type, w.value(a[0]), w.value(a[1]), w.value(a[2]))
	case scalar.Conversion:
		switch {
		case a[0].Type == x.Type:
			return w.value(a[0])
		case a[0].Type == scalar.F32:
			return fmt.Sprintf("%v_of_f32(%s)", x.Type, w.value(a[0]))
		}
		return fmt.Sprintf("((%v)%s)", x.Type, w.value(a[0]))
	case scalar.Cast:
		return fmt.Sprintf("as_%v((%v)%s)", x.Type, a[0].Type, w.value(a[0]))
	}
	args := make([]string, len(a))
	for i, arg := range a {
		args[i] = w.value(arg)
	}
	return fmt.Sprintf("%s_%v(%s)", x.Name, x.Type, strings.Join(args, ", "))
}

// array is the name in C of an array.
func (w *printer) array(name string) string {
	if n := w.names[name]; n != nil {
		return n.c
	}
	return name
}

// digits is a constant. Integers of i32 have no suffix.
func digits(x *scalar.Expr) string {
	var s string
	switch x.Type {
	case scalar.U32:
		return fmt.Sprintf("%du", x.Bits)
	case scalar.I32:
		s = fmt.Sprint(int32(x.Bits))
	default:
		s = strconv.FormatFloat(float64(math.Float32frombits(x.Bits)), 'g', -1, 32)
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		s += "f"
	}
	if s[0] == '-' {
		return "(" + s + ")"
	}
	return s
}

// operation is x op y. Integers of i32 wrap, which in C only unsigned ones do.
func (w *printer) operation(x *scalar.Expr) string {
	a, b, t := w.value(x.Args[0]), w.value(x.Args[1]), x.Args[0].Type
	switch x.Name {
	case "<<", ">>":
		return fmt.Sprintf("(%s %s (%s & 31))", a, x.Name, b)
	case "/", "%":
		if y := x.Args[1]; t != scalar.F32 && !(y.Kind == scalar.Constant && int32(y.Bits) > 0) {
			return fmt.Sprintf("%s_%v(%s, %s)", map[string]string{"/": "div", "%": "rem"}[x.Name], t, a, b)
		}
	case "+", "-", "*":
		if t == scalar.I32 {
			return fmt.Sprintf("((i32)((u32)%s %s (u32)%s))", a, x.Name, b)
		}
	}
	return fmt.Sprintf("(%s %s %s)", a, x.Name, b)
}

// offset is an index as a signed 64-bit integer. What a kernel computes modulo 2³² is computed exactly, so the C
// compiler knows that neighboring indices are neighbors in memory.
type offset struct {
	text string
	most float64 // bound of its magnitude
}

// index is a u32 as an index.
func (w *printer) index(x *scalar.Expr) offset {
	if x.Kind == scalar.Constant {
		return offset{fmt.Sprint(x.Bits), float64(x.Bits)}
	}
	if n := w.names[x.Name]; x.Kind == scalar.Variable && n != nil && n.offset.text != "" {
		return n.offset
	}
	if sum, ok := w.sum(x); ok {
		return sum
	}
	return offset{"(i64)" + w.value(x), 1 << 32}
}

// sum is an index that is computed from two others, if it fits 64 bits.
func (w *printer) sum(x *scalar.Expr) (o offset, ok bool) {
	if x.Kind != scalar.Operation || !slices.Contains([]string{"+", "-", "*"}, x.Name) {
		return o, false
	}
	a, b := w.index(x.Args[0]), w.index(x.Args[1])
	o = offset{fmt.Sprintf("(%s %s %s)", a.text, x.Name, b.text), a.most + b.most}
	if x.Name == "*" {
		o.most = a.most * b.most
	}
	const longest = 1000 // characters: values that name each other would double it each time
	return o, o.most < 1<<62 && len(o.text) < longest
}

// affine is the index that a value is, if it is made of sums and products of constants and of names that keep their
// value, which are in scope where it is.
func (w *printer) affine(x *scalar.Expr) offset {
	if x.Type != scalar.U32 || !w.fixed(x) {
		return offset{}
	}
	return w.index(x)
}

func (w *printer) fixed(x *scalar.Expr) bool {
	switch x.Kind {
	case scalar.Constant:
		return true
	case scalar.Variable:
		n := w.names[x.Name]
		return n == nil || n.fixed
	case scalar.Operation:
		return slices.Contains([]string{"+", "-", "*"}, x.Name) && w.fixed(x.Args[0]) && w.fixed(x.Args[1])
	}
	return false
}
