package op_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/stretchr/testify/require"
)

// The code of each elementwise kernel, interpreted in f32, agrees with the reference, and reads nothing out of bounds:
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
				at[i] = graph.Var(fmt.Sprintf("c%d", i), d, 1)
			}
			m.result = k.Emit(m, at)
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
	lets   []*scalar.Expr
	result *scalar.Expr
	env    map[string]any // bool, float32, int32 or uint32
}

func (m *machine) Input(i int, at []graph.Index) *scalar.Expr {
	require.Len(m.t, at, len(m.in[i].Shape), "coordinates of input %d", i)
	return scalar.At(fmt.Sprint("in", i), m.in[i].DType.Scalar(), graph.Flatten(m.in[i].Shape, at).Expr())
}

func (m *machine) Let(x *scalar.Expr) *scalar.Expr {
	m.lets = append(m.lets, x)
	return scalar.Var(fmt.Sprint("let", len(m.lets)-1), x.Type, x.Depth)
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

func (m *machine) value(x *scalar.Expr) any {
	a := make([]any, len(x.Args))
	for i, arg := range x.Args {
		a[i] = m.value(arg)
	}
	v := m.apply(x, a)
	require.Equal(m.t, goName(x.Type), fmt.Sprintf("%T", v), "%v", x)
	return v
}

func (m *machine) apply(x *scalar.Expr, a []any) any {
	switch x.Kind {
	case scalar.Constant:
		return bitsAs(x.Type, x.Bits)
	case scalar.Variable:
		v, ok := m.env[x.Name]
		require.True(m.t, ok, "undefined: %s", x.Name)
		return v
	case scalar.Element:
		return m.element(x, a[0].(uint32))
	case scalar.Negation:
		if v, ok := a[0].(int32); ok {
			return -v
		}
		return -a[0].(float32)
	case scalar.Operation:
		switch v := a[0].(type) {
		case bool:
			return map[string]bool{"&&": v && a[1].(bool), "||": v || a[1].(bool)}[x.Name]
		case float32:
			return arithmetic(x.Name, v, a[1].(float32))
		case int32:
			return arithmetic(x.Name, v, a[1].(int32))
		}
		return bitwise(x.Name, a[0].(uint32), a[1].(uint32))
	case scalar.Choice:
		if a[2].(bool) {
			return a[1]
		}
		return a[0]
	case scalar.Conversion:
		return convert(goName(x.Type), number(a[0]))
	case scalar.Cast:
		return bitsAs(x.Type, bitsOf(a[0]))
	}
	args := make([]float64, len(a))
	for i, v := range a {
		args[i] = number(v)
	}
	return convert(goName(x.Type), builtin(x.Name, args))
}

func (m *machine) element(x *scalar.Expr, at uint32) any {
	var input int
	_, err := fmt.Sscanf(x.Name, "in%d", &input)
	require.NoError(m.t, err)
	in := m.in[input]
	require.Less(m.t, int(at), len(in.Data), "input %d is read out of bounds", input)
	if in.DType.Float16() {
		return in.DType.Bits(in.Data[at])
	}
	return convert(goName(x.Type), in.Data[at])
}

func bitsAs(t scalar.Type, bits uint32) any {
	switch t {
	case scalar.F32:
		return math.Float32frombits(bits)
	case scalar.I32:
		return int32(bits)
	}
	return bits
}

func bitsOf(x any) uint32 {
	switch x := x.(type) {
	case float32:
		return math.Float32bits(x)
	case int32:
		return uint32(x)
	}
	return x.(uint32)
}

func arithmetic[T float32 | int32 | uint32](o string, x, y T) any {
	switch o {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	case "<":
		return x < y
	case "<=":
		return x <= y
	case ">":
		return x > y
	case ">=":
		return x >= y
	case "==":
		return x == y
	case "!=":
		return x != y
	}
	panic("no operator " + o)
}

func bitwise(o string, x, y uint32) any {
	switch o {
	case "%":
		return x % y
	case "&":
		return x & y
	case "|":
		return x | y
	case "^":
		return x ^ y
	case "<<":
		return x << y
	case ">>":
		return x >> y
	}
	return arithmetic(o, x, y)
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

// goName is the type in Go of a value.
func goName(t scalar.Type) string {
	return map[scalar.Type]string{scalar.Bool: "bool", scalar.F32: "float32", scalar.I32: "int32", scalar.U32: "uint32"}[t]
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
	case "float32":
		return float32(x)
	case "int32":
		return int32(int64(x))
	case "uint32":
		return uint32(int64(x))
	}
	panic("no type " + to)
}
