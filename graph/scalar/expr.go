// Package scalar is the code of kernels that compute numbers one by one, as data. Ops emit expressions, fusion inlines
// them into each other and reads which loops they depend on, and a writer for each target language prints the result.
//
// [Expr] is an expression, a tree of constants, variables, elements of arrays, operators and built-in functions. Their
// semantics are WGSL's: integers wrap, and so on. The constructors check types and panic on a mistake of the caller. An
// expression never changes.
package scalar

import (
	"fmt"
	"math"
	"slices"
)

// Type is the type of a value in a kernel's registers.
type Type uint8

const (
	Bool Type = iota
	I32
	U32
	F32
)

// String is the type's name in WGSL.
func (t Type) String() string { return [...]string{"bool", "i32", "u32", "f32"}[t] }

// Kind is the kind of an expression.
type Kind uint8

const (
	Constant   Kind = iota // of Bits
	Variable               // named
	Element                // Args[0] of the array that is named
	Negation               // of Args[0]
	Operation              // Args[0] and Args[1] by the operator that is named
	Call                   // of the built-in function that is named
	Choice                 // Args[0], or Args[1] where Args[2] is true
	Conversion             // of Args[0] to Type
	Cast                   // the bits of Args[0] as Type
	Bits16                 // the 16 bits at Args[0] of the array of words that is named
)

// Expr is an expression.
type Expr struct {
	Kind Kind
	Type Type
	Name string
	Bits uint32
	Args []*Expr
	// Depth is how many loops deep the innermost variable lies that the value depends on.
	Depth int
}

// make completes an expression by its depth.
func (e Expr) make() *Expr {
	for _, a := range e.Args {
		e.Depth = max(e.Depth, a.Depth)
	}
	return &e
}

// U is a constant u32.
func U(n uint32) *Expr {
	return Expr{Kind: Constant, Type: U32, Bits: n}.make()
}

// I is a constant i32.
func I(n int32) *Expr { return Expr{Kind: Constant, Type: I32, Bits: uint32(n)}.make() }

// F is a constant f32, rounded to the nearest. It must be finite: WGSL has no other constants.
func F(x float64) *Expr {
	f := float32(x)
	if f-f != 0 {
		panic(fmt.Sprintf("scalar: the constant %v is not finite", x))
	}
	return Expr{Kind: Constant, Type: F32, Bits: math.Float32bits(f)}.make()
}

// Var is a variable. Its depth is the number of the loops around its declaration, its own included.
func Var(name string, t Type, depth int) *Expr {
	return Expr{Kind: Variable, Type: t, Name: name, Depth: depth}.make()
}

// At is an element of an array of the type.
func At(array string, t Type, index *Expr) *Expr {
	want("an index", index, U32)
	return Expr{Kind: Element, Type: t, Name: array, Args: []*Expr{index}}.make()
}

// Bits16At is the 16 bits at a position of an array of words, which holds two a word, as a u32.
func Bits16At(array string, index *Expr) *Expr {
	want("an index", index, U32)
	return Expr{Kind: Bits16, Type: U32, Name: array, Args: []*Expr{index}}.make()
}

// Read is the call of a function of a template that reads an element of an array.
func Read(function string, t Type, index *Expr) *Expr {
	want("an index", index, U32)
	return Expr{Kind: Call, Type: t, Name: function, Args: []*Expr{index}}.make()
}

// Neg is −x of an f32 or an i32.
func (x *Expr) Neg() *Expr {
	want("a negation", x, F32, I32)
	return Expr{Kind: Negation, Type: x.Type, Args: []*Expr{x}}.make()
}

// operation is x op y, of operands of one of the types.
func operation(op string, x, y *Expr, result Type, types ...Type) *Expr {
	want(op, x, types...)
	want(op, y, x.Type)
	return Expr{Kind: Operation, Type: result, Name: op, Args: []*Expr{x, y}}.make()
}

func arithmetic(op string, x, y *Expr) *Expr { return operation(op, x, y, x.Type, F32, I32, U32) }

// Add is x + y; integers wrap. Sub, Mul and Div are likewise.
func (x *Expr) Add(y *Expr) *Expr { return arithmetic("+", x, y) }
func (x *Expr) Sub(y *Expr) *Expr { return arithmetic("-", x, y) }
func (x *Expr) Mul(y *Expr) *Expr { return arithmetic("*", x, y) }
func (x *Expr) Div(y *Expr) *Expr { return arithmetic("/", x, y) }

// Rem is the remainder of two integers.
func (x *Expr) Rem(y *Expr) *Expr { return operation("%", x, y, x.Type, I32, U32) }

// Bitwise is x op y of two u32s: &, |, ^, << or >>.
func (x *Expr) Bitwise(op string, y *Expr) *Expr {
	if !slices.Contains([]string{"&", "|", "^", "<<", ">>"}, op) {
		panic("scalar: no bitwise operator " + op)
	}
	return operation(op, x, y, U32, U32)
}

func (x *Expr) And(y *Expr) *Expr   { return x.Bitwise("&", y) }
func (x *Expr) Or(y *Expr) *Expr    { return x.Bitwise("|", y) }
func (x *Expr) Xor(y *Expr) *Expr   { return x.Bitwise("^", y) }
func (x *Expr) Left(n uint32) *Expr { return x.Bitwise("<<", U(n)) }
func (x *Expr) Right(n uint32) *Expr {
	return x.Bitwise(">>", U(n))
}

// Compare is x op y: ==, !=, <, <=, > or >=.
func (x *Expr) Compare(op string, y *Expr) *Expr {
	if !slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, op) {
		panic("scalar: no comparison " + op)
	}
	return operation(op, x, y, Bool, F32, I32, U32)
}

func (x *Expr) Equal(y *Expr) *Expr   { return x.Compare("==", y) }
func (x *Expr) Unequal(y *Expr) *Expr { return x.Compare("!=", y) }
func (x *Expr) Less(y *Expr) *Expr    { return x.Compare("<", y) }
func (x *Expr) AtLeast(y *Expr) *Expr { return x.Compare(">=", y) }
func (x *Expr) More(y *Expr) *Expr    { return x.Compare(">", y) }

// Both and Either are x && y and x || y of two conditions.
func (x *Expr) Both(y *Expr) *Expr   { return operation("&&", x, y, Bool, Bool) }
func (x *Expr) Either(y *Expr) *Expr { return operation("||", x, y, Bool, Bool) }

// Select is yes where the condition holds, else no. Both are computed.
func Select(no, yes, condition *Expr) *Expr {
	want("select", yes, no.Type)
	want("the condition of select", condition, Bool)
	return Expr{Kind: Choice, Type: no.Type, Args: []*Expr{no, yes, condition}}.make()
}

// To converts to another type. A condition becomes 1 or 0.
func (x *Expr) To(t Type) *Expr {
	if t == Bool {
		panic("scalar: a conversion to bool")
	}
	return Expr{Kind: Conversion, Type: t, Args: []*Expr{x}}.make()
}

// As is the bits of x as another type.
func (x *Expr) As(t Type) *Expr {
	want("a bitcast", x, F32, I32, U32)
	return Expr{Kind: Cast, Type: t, Args: []*Expr{x}}.make()
}

// functions are WGSL's built-in functions that kernels use: the number of their arguments, and whether they take
// integers, too.
var functions = map[string]struct {
	arguments int
	integers  bool
}{
	"exp": {1, false}, "log": {1, false}, "sqrt": {1, false}, "inverseSqrt": {1, false}, "sign": {1, false}, "pow": {2, false},
	"fma": {3, false}, "abs": {1, true}, "min": {2, true}, "max": {2, true}, "clamp": {3, true},
}

// Apply is a built-in function of arguments of one type, which is the result's.
func Apply(function string, args ...*Expr) *Expr {
	f, ok := functions[function]
	if !ok || len(args) != f.arguments {
		panic(fmt.Sprintf("scalar: no function %s of %d arguments", function, len(args)))
	}
	types := []Type{F32}
	if f.integers {
		types = append(types, I32, U32)
	}
	for _, a := range args {
		want(function, a, types...)
		want(function, a, args[0].Type)
	}
	return Expr{Kind: Call, Type: args[0].Type, Name: function, Args: args}.make()
}

func Min(x, y *Expr) *Expr { return Apply("min", x, y) }
func Max(x, y *Expr) *Expr { return Apply("max", x, y) }

// Fma is x·y + z, which a device may round once or twice.
func Fma(x, y, z *Expr) *Expr { return Apply("fma", x, y, z) }

// Uses reports whether the expression has a variable of the name.
func (x *Expr) Uses(name string) bool {
	return x.Kind == Variable && x.Name == name || slices.ContainsFunc(x.Args, func(a *Expr) bool { return a.Uses(name) })
}

// want panics if x is of none of the types.
func want(what string, x *Expr, types ...Type) {
	if !slices.Contains(types, x.Type) {
		panic(fmt.Sprintf("scalar: %s: %v is %v, expected %v", what, x, x.Type, types))
	}
}
