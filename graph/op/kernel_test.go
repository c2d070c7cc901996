package op_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/stretchr/testify/require"
)

// The WGSL of each elementwise kernel, interpreted in f32, agrees with the reference, and reads nothing out of bounds:
// not even in the branch that a select drops.
func TestElementwiseKernels(t *testing.T) {
	elementwise := func(c graph.Case) (ok bool) {
		_, err := graph.Build(func(b *graph.Builder) {
			_, ok = c.Op.Kernel(b.Apply(c.Op, declare(b, c)...)[0].Node).(graph.Elementwise)
		})
		require.NoError(t, err)
		return ok
	}
	forCases(t, elementwise, func(t *testing.T, c graph.Case) {
		in := c.Values(5)
		want := evaluate(t, c.Op, in)[0]
		var m *machine
		_, err := graph.Build(func(b *graph.Builder) {
			n := b.Apply(c.Op, declare(b, c)...)[0].Node
			k := c.Op.Kernel(n).(graph.Elementwise)
			m = &machine{t: t, in: in}
			at := make([]graph.Index, len(want.Shape))
			for i, d := range want.Shape {
				at[i] = graph.Var(fmt.Sprintf("c%d", i), d)
			}
			m.result = m.parse(k.Emit(m, at))
		})
		require.NoError(t, err)
		tolerance := c.Tolerance
		if tolerance == 0 {
			tolerance = 2e-6
		}
		r := rand.New(rand.NewPCG(6, 7))
		picks := min(300, len(want.Data))
		expected, got := make([]float64, picks), make([]float64, picks)
		for i := range picks {
			j := i
			if picks < len(want.Data) {
				j = r.IntN(len(want.Data))
			}
			expected[i], got[i] = want.Data[j], m.at(want.Type, j)
		}
		if want.DType.Float() {
			assertClose(t, expected, got, tolerance)
		} else {
			require.Equal(t, expected, got)
		}
	})
}

// machine is an Emitter that interprets what was emitted.
type machine struct {
	t      *testing.T
	in     []*graph.Tensor
	lets   []ast.Expr
	result ast.Expr
	env    map[string]any // bool, float32, int32 or uint32
}

func (m *machine) Input(i int, at []graph.Index) string {
	require.Len(m.t, at, len(m.in[i].Shape), "coordinates of input %d", i)
	return fmt.Sprintf("in%d(%s)", i, graph.Flatten(m.in[i].Shape, at))
}

func (m *machine) Let(typ, expr string) string {
	m.lets = append(m.lets, m.parse(typ+"("+expr+")"))
	return fmt.Sprintf("let%d", len(m.lets)-1)
}

var (
	bitcasts = regexp.MustCompile(`bitcast<(\w+)>`)
	literals = regexp.MustCompile(`\b(\d[\d.]*(?:e[+-]\d+)?)([uif])\b`)
)

// parse turns WGSL into the like Go expression.
func (m *machine) parse(wgsl string) ast.Expr {
	src := bitcasts.ReplaceAllString(wgsl, "bitcast_$1")
	src = strings.ReplaceAll(src, "select(", "choose(") // a keyword of Go
	src = literals.ReplaceAllString(src, `lit_$2("$1")`)
	e, err := parser.ParseExpr(src)
	require.NoError(m.t, err, wgsl)
	return e
}

func (m *machine) at(t graph.Type, flat int) float64 {
	s := t.Shape
	m.env = map[string]any{}
	for i := len(s) - 1; i >= 0; i-- {
		m.env[fmt.Sprintf("c%d", i)] = uint32(flat % s[i])
		flat /= s[i]
	}
	for i, l := range m.lets {
		m.env[fmt.Sprintf("let%d", i)] = m.value(l)
	}
	switch v := m.value(m.result).(type) {
	case float32:
		return float64(v)
	case int32:
		return float64(v)
	case uint32:
		return t.DType.FromBits(v)
	}
	panic("a kernel's result is a number")
}

func (m *machine) value(e ast.Expr) any {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return m.value(e.X)
	case *ast.Ident:
		v, ok := m.env[e.Name]
		require.True(m.t, ok, "undefined: %s", e.Name)
		return v
	case *ast.UnaryExpr:
		switch v := m.value(e.X).(type) {
		case float32:
			return -v
		case int32:
			return -v
		}
	case *ast.BinaryExpr:
		x, y := m.value(e.X), m.value(e.Y)
		require.IsType(m.t, x, y, "operands of %s", e.Op)
		switch x := x.(type) {
		case bool:
			return map[token.Token]bool{token.LAND: x && y.(bool), token.LOR: x || y.(bool)}[e.Op]
		case float32:
			return arithmetic(e.Op, x, y.(float32))
		case int32:
			return arithmetic(e.Op, x, y.(int32))
		case uint32:
			return bitwise(e.Op, x, y.(uint32))
		}
	case *ast.CallExpr:
		return m.call(e)
	}
	panic(fmt.Sprintf("no meaning for %T", e))
}

func arithmetic[T float32 | int32 | uint32](o token.Token, x, y T) any {
	switch o {
	case token.ADD:
		return x + y
	case token.SUB:
		return x - y
	case token.MUL:
		return x * y
	case token.QUO:
		return x / y
	case token.LSS:
		return x < y
	case token.LEQ:
		return x <= y
	case token.GTR:
		return x > y
	case token.GEQ:
		return x >= y
	case token.EQL:
		return x == y
	case token.NEQ:
		return x != y
	}
	panic("no operator " + o.String())
}

func bitwise(o token.Token, x, y uint32) any {
	switch o {
	case token.REM:
		return x % y
	case token.AND:
		return x & y
	case token.OR:
		return x | y
	case token.XOR:
		return x ^ y
	case token.SHL:
		return x << y
	case token.SHR:
		return x >> y
	}
	return arithmetic(o, x, y)
}

func (m *machine) call(e *ast.CallExpr) any {
	name := e.Fun.(*ast.Ident).Name
	if len(e.Args) == 1 {
		if s, ok := e.Args[0].(*ast.BasicLit); ok && s.Kind == token.STRING {
			return m.literal(name, s.Value[1:len(s.Value)-1])
		}
	}
	a := make([]any, len(e.Args))
	for i, x := range e.Args {
		a[i] = m.value(x)
	}
	var input int
	if n, _ := fmt.Sscanf(name, "in%d", &input); n == 1 {
		x, i := m.in[input], a[0].(uint32)
		require.Less(m.t, int(i), len(x.Data), "input %d is read out of bounds", input)
		if x.DType.Float16() {
			return x.DType.Bits(x.Data[i])
		}
		return convert(wgslName(x.DType), x.Data[i])
	}
	switch name {
	case "f32", "i32", "u32":
		return convert(name, number(a[0]))
	case "bitcast_u32":
		return math.Float32bits(a[0].(float32))
	case "bitcast_f32":
		return math.Float32frombits(a[0].(uint32))
	case "bitcast_i32":
		return int32(a[0].(uint32))
	case "choose":
		require.IsType(m.t, a[0], a[1], "select")
		if a[2].(bool) {
			return a[1]
		}
		return a[0]
	}
	args := make([]float64, len(a))
	for i, x := range a {
		require.IsType(m.t, a[0], x, name)
		args[i] = number(x)
	}
	return convert(fmt.Sprintf("%T", a[0]), builtin(name, args))
}

func builtin(name string, a []float64) float64 {
	switch name {
	case "exp":
		return math.Exp(a[0])
	case "log":
		return math.Log(a[0])
	case "sqrt":
		return math.Sqrt(a[0])
	case "inverseSqrt":
		return 1 / math.Sqrt(a[0])
	case "pow":
		return math.Pow(a[0], a[1])
	case "abs":
		return math.Abs(a[0])
	case "sign":
		return math.Max(-1, math.Min(1, a[0]*1e300))
	case "min":
		return math.Min(a[0], a[1])
	case "max":
		return math.Max(a[0], a[1])
	case "clamp":
		return math.Min(math.Max(a[0], a[1]), a[2])
	case "fma":
		return a[0]*a[1] + a[2]
	}
	panic("no function " + name)
}

func (m *machine) literal(kind, text string) any {
	switch kind {
	case "lit_u":
		n, err := strconv.ParseUint(text, 10, 32)
		require.NoError(m.t, err)
		return uint32(n)
	case "lit_i":
		n, err := strconv.ParseInt(text, 10, 32)
		require.NoError(m.t, err)
		return int32(n)
	}
	x, err := strconv.ParseFloat(text, 32)
	require.NoError(m.t, err)
	return float32(x)
}

func wgslName(d graph.DType) string {
	if d.Float() {
		return "f32"
	}
	return d.String()
}

func number(x any) float64 {
	switch x := x.(type) {
	case float32:
		return float64(x)
	case int32:
		return float64(x)
	case uint32:
		return float64(x)
	case bool:
		if x {
			return 1
		}
		return 0
	}
	panic(fmt.Sprintf("%T is no number", x))
}

func convert(to string, x float64) any {
	switch to {
	case "f32", "float32":
		return float32(x)
	case "i32", "int32":
		return int32(int64(x))
	case "u32", "uint32":
		return uint32(int64(x))
	}
	panic("no type " + to)
}
