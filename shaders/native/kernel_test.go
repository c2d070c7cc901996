package native

import (
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/stretchr/testify/assert"
)

// A kernel of rows: places are exact, a loop of sums is vectorized, and names are distinct.
func TestKernel(t *testing.T) {
	row, col := scalar.Var("row", scalar.U32, 1), scalar.Var("col", scalar.U32, 2)
	acc := scalar.Var("acc", scalar.F32, 1)
	x := scalar.At("b0", scalar.F32, row.Mul(scalar.U(5)).Add(col))
	y := scalar.Var("y", scalar.F32, 2)
	sums := scalar.Count("col", 2, scalar.U(0), scalar.U(5), scalar.U(1), scalar.Let{Name: "y", Value: x},
		scalar.Assign{To: acc, Value: acc.Add(y.Mul(y))})
	store := scalar.Count("col", 2, scalar.U(0), scalar.U(5), scalar.U(1), scalar.Assign{To: x, Value: scalar.F(2).Div(acc)})
	k := scalar.Kernel{Bindings: []scalar.Array{{Name: "b0", Type: scalar.F32, Len: 15}}, Lanes: 1, Groups: 3, Grid: [3]int{3, 1, 1},
		Body: []scalar.Stmt{
			scalar.Let{Name: "row", Value: scalar.Group}, scalar.Declare{Name: "acc", Value: scalar.F(0)}, sums, store}}
	assert.Equal(t, `// C
static inline __attribute__((always_inline, unused)) void workgroup(f32 *restrict const b0, const u32 group) {
  const u32 row = group;
  f32 acc = 0.0f;
#pragma omp simd reduction(+: acc)
  for (u32 col = 0u; col < 5u; col += 1u) {
    const f32 y = b0[(((i64)group * 5) + (i64)col)];
    acc = (acc + (y * y));
  }
  for (u32 col_1 = 0u; col_1 < 5u; col_1 += 1u) {
    b0[(((i64)group * 5) + (i64)col_1)] = (2.0f / acc);
  }
}
KERNEL {
  f32 *const b0 = args[0].at;
  for (u32 group = first; group < last; group++) workgroup(b0, group);
}
`, Kernel(k))
}

// A loop that reads 16-bit numbers adds them in the order in which it would add as many of f32.
func TestSumsOf16BitNumbers(t *testing.T) {
	acc, col := scalar.Var("acc", scalar.F32, 1), scalar.Var("col", scalar.U32, 2)
	kernel := func(x *scalar.Expr) string {
		sum := scalar.Count("col", 2, scalar.U(0), scalar.U(5), scalar.U(1), scalar.Let{Name: "x", Value: x},
			scalar.Assign{To: acc, Value: acc.Add(scalar.Var("x", scalar.U32, 2).As(scalar.F32))})
		return Kernel(scalar.Kernel{Bindings: []scalar.Array{{Name: "b0", Type: scalar.U32, Len: 5}}, Lanes: 1, Groups: 1,
			Grid: [3]int{1, 1, 1}, Body: []scalar.Stmt{scalar.Declare{Name: "acc", Value: scalar.F(0)}, sum}})
	}
	assert.Contains(t, kernel(scalar.At("b0", scalar.U32, col)), "#pragma omp simd reduction(+: acc)\n")
	assert.Contains(t, kernel(scalar.Bits16At("b0", col)), "#pragma omp simd simdlen(VEC) reduction(+: acc)\n")
}

func TestFunction(t *testing.T) {
	acc, j := scalar.Var("acc", scalar.F32, 1), scalar.Var("j", scalar.U32, 1)
	bias := scalar.At("b0", scalar.F32, j)
	f := scalar.Function{Name: "epilogue", Parameters: []*scalar.Expr{acc, j}, Body: []scalar.Stmt{scalar.Let{Name: "r1", Value: bias}},
		Result: acc.Add(scalar.Var("r1", scalar.F32, 1))}
	assert.Equal(t, `static inline __attribute__((always_inline, unused)) f32 fn_epilogue(f32 *restrict const b0, const f32 acc, const u32 j) {
  const f32 r1 = b0[(i64)j];
  return (acc + r1);
}
static inline __attribute__((always_inline, unused)) f32 epilogue(const gp_arg *args, f32 acc, u32 j) {
  f32 *const b0 = args[3].at;
  return fn_epilogue(b0, acc, j);
}
`, Function(f, []scalar.Array{{Name: "b0", Type: scalar.F32, Len: 4}}, []int{3}))
}

// A store of 16 bits has a type that gcc vectorizes.
func TestStoreOf16Bits(t *testing.T) {
	x, j := scalar.Var("x", scalar.U32, 1), scalar.Var("j", scalar.U32, 1)
	f := scalar.Function{Name: "f", Parameters: []*scalar.Expr{x, j}, Result: x,
		Body: []scalar.Stmt{scalar.Assign{To: scalar.Bits16At("b0", j), Value: x}}}
	array := []scalar.Array{{Name: "b0", Type: scalar.U32, Len: 4}}
	assert.NoError(t, f.Check(array, map[*scalar.Expr]int{j: 8}))
	assert.ErrorContains(t, f.Check(array, map[*scalar.Expr]int{j: 9}), "may be element 8, of an array of 8")
	assert.Contains(t, Function(f, array, []int{1}), "  ((u16 *)b0)[(i64)j] = (u16)x;\n")
}

// C has neither wrapping integers nor a division by zero.
func TestOperations(t *testing.T) {
	i, u, x := scalar.Var("i", scalar.I32, 1), scalar.Var("u", scalar.U32, 1), scalar.Var("x", scalar.F32, 1)
	for want, e := range map[string]*scalar.Expr{
		"((i32)((u32)i + (u32)(-5)))":          i.Add(scalar.I(-5)),
		"((i32)(-(u32)i))":                     i.Neg(),
		"(i / 3)":                              i.Div(scalar.I(3)),
		"div_i32(i, (-3))":                     i.Div(scalar.I(-3)),
		"rem_u32(u, u)":                        u.Rem(u),
		"(u % 4u)":                             u.Rem(scalar.U(4)),
		"(u << (u & 31))":                      u.Bitwise("<<", u),
		"i32_of_f32(clamp_f32(x, 0.0f, 1.0f))": scalar.Apply("clamp", x, scalar.F(0), scalar.F(1)).To(scalar.I32),
		"((u32)(u == 0u))":                     u.Equal(scalar.U(0)).To(scalar.U32),
		"as_f32((u32)(u << (16u & 31)))":       u.Left(16).As(scalar.F32),
		"select_f32((-x), 1e+20f, (u < 3u))":   scalar.Select(x.Neg(), scalar.F(1e20), u.Less(scalar.U(3))),
		"((x < 1.0f) && (u == 0u))":            x.Less(scalar.F(1)).Both(u.Equal(scalar.U(0))),
		"fma_f32(x, x, exp_f32((-2.0f)))":      scalar.Fma(x, x, scalar.Apply("exp", scalar.F(-2))),
		"b0[((i64)u - 3)]":                     scalar.At("b0", scalar.F32, u.Sub(scalar.U(3))),
		"((u32)((const bits16 *)b0)[(i64)u])":  scalar.Bits16At("b0", u),
		"b0[(i64)min_u32((u + 1u), 7u)]":       scalar.At("b0", scalar.F32, scalar.Min(u.Add(scalar.U(1)), scalar.U(7))),
	} {
		assert.Equal(t, want, newPrinter().value(e))
	}
}

func TestUnit(t *testing.T) {
	unit, symbol := Unit("// C\nKERNEL {}", "k.c")
	assert.Contains(t, unit, "#define KERNEL void "+symbol+"(")
	assert.True(t, strings.HasSuffix(unit, "\n#line 1 \"k.c\"\n// C\nKERNEL {}"))
	_, other := Unit("// C\nKERNEL { }", "k.c")
	assert.NotEqual(t, symbol, other)
}
