package scalar

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// String is the expression in WGSL. It needs no parentheses as an index or an argument.
func (x *Expr) String() string {
	switch x.Kind {
	case Constant:
		return x.constant()
	case Variable:
		return x.Name
	case Element:
		return fmt.Sprintf("%s[%v]", x.Name, x.Args[0])
	case Bits16:
		i := x.Args[0]
		return fmt.Sprintf("((%s[%v] >> (%v %% 2u * 16u)) & 65535u)", x.Name, i.Div(U(2)), i.operand())
	case Negation:
		return "-" + x.Args[0].operand()
	case Operation:
		return x.side(0) + " " + x.Name + " " + x.side(1)
	case Choice:
		return fmt.Sprintf("select(%v, %v, %v)", x.Args[0], x.Args[1], x.Args[2])
	case Conversion:
		return fmt.Sprintf("%v(%v)", x.Type, x.Args[0])
	case Cast:
		return fmt.Sprintf("bitcast<%v>(%v)", x.Type, x.Args[0])
	}
	args := make([]string, len(x.Args))
	for i, a := range x.Args {
		args[i] = a.String()
	}
	return x.Name + "(" + strings.Join(args, ", ") + ")"
}

// constant is the literal. That of a negative number has parentheses, since it may follow an operator.
func (x *Expr) constant() string {
	var s string
	switch x.Type {
	case U32:
		return strconv.FormatUint(uint64(x.Bits), 10) + "u"
	case I32:
		if int32(x.Bits) == math.MinInt32 {
			return "i32(-2147483648)" // the digits of -2147483648i exceed i32
		}
		s = strconv.FormatInt(int64(int32(x.Bits)), 10) + "i"
	default:
		f, digits := float64(math.Float32frombits(x.Bits)), 32
		if math.Abs(f) == math.MaxFloat32 {
			digits = 64 // the shortest text, 3.4028235e+38f, exceeds f32, so browsers refuse it
		}
		s = strconv.FormatFloat(f, 'g', -1, digits) + "f"
	}
	if s[0] == '-' {
		return "(" + s + ")"
	}
	return s
}

// operand is the expression in parentheses if it has an operator.
func (x *Expr) operand() string {
	if x.Kind == Operation || x.Kind == Negation {
		return "(" + x.String() + ")"
	}
	return x.String()
}

// side is an operand of an operation, with parentheses unless WGSL reads it the same way without. Operations of one
// level associate to the left.
func (x *Expr) side(i int) string {
	a := x.Args[i]
	if a.Kind != Operation {
		return a.operand()
	}
	if level := levels[x.Name]; slices.Contains(takes[level], levels[a.Name]) || i == 0 && level == levels[a.Name] && level != shift &&
		level != comparison {
		return a.String()
	}
	return a.operand()
}

// level is how tightly operators bind. WGSL mixes few of them without parentheses.
type level uint8

const (
	product level = iota
	sum
	shift
	comparison
	bitAnd
	bitXor
	bitOr
	both
	either
)

var levels = map[string]level{
	"*": product, "/": product, "%": product, "+": sum, "-": sum, "<<": shift, ">>": shift, "&": bitAnd, "^": bitXor, "|": bitOr,
	"==": comparison, "!=": comparison, "<": comparison, "<=": comparison, ">": comparison, ">=": comparison, "&&": both, "||": either,
}

// takes lists the levels that operands of a level may have without parentheses.
var takes = map[level][]level{sum: {product}, comparison: {product, sum, shift}, both: {product, sum, comparison},
	either: {product, sum, comparison}}

// WGSL is the kernel as a module.
func (k Kernel) WGSL() string {
	w := &wgsl{}
	for i, a := range k.Bindings {
		w.WriteString(a.WGSL(i))
	}
	for _, a := range k.Shared {
		w.line("var<workgroup> %s: array<%v, %d>;", a.Name, a.Type, a.Len)
	}
	w.WriteString(Main(k.Lanes, k.Groups, k.Grid))
	w.indent = "  "
	w.body(k.Body)
	w.indent = ""
	w.line("}")
	return w.String()
}

// Main opens the entry point of a kernel: group is the flat index of the workgroup, lane the flat index of the
// invocation in it.
func Main(lanes, groups int, grid [3]int) string {
	w := &wgsl{}
	w.line("@compute @workgroup_size(%d) fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {",
		lanes)
	w.indent = "  "
	if grid[1] == 1 {
		w.line("let group = wid.x;")
		return w.String()
	}
	w.line("let group = wid.y * %du + wid.x;", grid[0])
	if grid[0]*grid[1] != groups {
		w.line("if (group >= %du) { return; }", groups)
	}
	return w.String()
}

// WGSL declares an array as the binding of the number.
func (a Array) WGSL(binding int) string {
	return fmt.Sprintf("@group(0) @binding(%d) var<storage, read_write> %s: array<%v>;\n", binding, a.Name, a.Type)
}

// WGSL is the definition of the function.
func (f Function) WGSL() string {
	var parameters []string
	for _, p := range f.Parameters {
		parameters = append(parameters, fmt.Sprintf("%s: %v", p.Name, p.Type))
	}
	w := &wgsl{}
	w.line("fn %s(%s) -> %v {", f.Name, strings.Join(parameters, ", "), f.Result.Type)
	w.indent = "  "
	w.body(f.Body)
	w.line("return %v;", f.Result)
	w.indent = ""
	w.line("}")
	return w.String()
}

// wgsl writes statements.
type wgsl struct {
	strings.Builder
	indent string
}

func (w *wgsl) line(format string, args ...any) { fmt.Fprintf(w, w.indent+format+"\n", args...) }

func (w *wgsl) body(body []Stmt) {
	for _, s := range body {
		w.statement(s)
	}
}

// block writes the statements between braces.
func (w *wgsl) block(head string, body []Stmt) {
	before := w.indent
	w.line("%s {", head)
	w.indent += "  "
	w.body(body)
	w.indent = before
	w.line("}")
}

func (w *wgsl) statement(s Stmt) {
	switch s := s.(type) {
	case Let:
		w.line("let %s: %v = %v;", s.Name, s.Value.Type, s.Value)
	case Declare:
		w.line("var %s: %v = %v;", s.Name, s.Value.Type, s.Value)
	case Local:
		w.line("var %s: array<%v, %d>;", s.Name, s.Type, s.Len)
	case Assign:
		if s.To.Kind == Bits16 {
			panic("scalar: WGSL has no store of 16 bits")
		}
		w.line("%v = %v;", s.To, s.Value)
	case For:
		w.block(fmt.Sprintf("for (var %s = %v; %v; %s = %v)", s.Name, s.From, s.While, s.Name, s.Next), s.Body)
	case If:
		w.block(fmt.Sprintf("if (%v)", s.Condition), s.Body)
	case Return:
		w.line("return;")
	case Barrier:
		w.line("workgroupBarrier();")
	}
}
