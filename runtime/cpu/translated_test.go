//go:build linux && cgo

package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/translate"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// translated runs a kernel in WGSL of one workgroup with the words as binding 0, and returns binding 1, of n words. The
// text declares x and y. Every compiler of the machine gives the same.
func translated(t *testing.T, wgsl string, invocations, n int, words ...uint32) []uint32 {
	t.Helper()
	var first []uint32
	for _, compiler := range compilers(t) {
		d := translate.Device{Native: open(t, Options{Threads: 1, Compiler: compiler})}
		in, out := alloc(t, d.Native, int64(4*max(1, len(words)))), alloc(t, d.Native, int64(4*n))
		data := make([]byte, 0, 4*len(words))
		for _, w := range words {
			data = binary.LittleEndian.AppendUint32(data, w)
		}
		require.NoError(t, d.Write(in, 0, data))
		p := &device.Program{Label: "p", Shaders: []device.Shader{{Label: "translated", Source: wgsl, Workgroup: [3]int{invocations, 1, 1},
			WorkgroupMemory: 16 << 10, Bindings: []device.Access{device.ReadOnly, device.ReadWrite}}}}
		p.Commands = []device.Command{{Args: []device.Range{{Buffer: in, Size: in.Size()}, {Buffer: out, Size: out.Size()}},
			Groups: [3]int{1, 1, 1}}}
		require.NoError(t, d.Run(contract.Load(t, d, p)), compiler)
		got := contract.Words(contract.Read(t, d, out, 0, out.Size()))
		if first == nil {
			first = got
		}
		assert.Equal(t, first, got, compiler)
		require.NoError(t, d.Close())
	}
	return first
}

// kernelOf is a kernel of x and y, arrays of two types.
func kernelOf(from, to string, invocations int, module, body string) string {
	return fmt.Sprintf(`@group(0) @binding(0) var<storage, read> x: array<%s>;
@group(0) @binding(1) var<storage, read_write> y: array<%s>;
%s
@compute @workgroup_size(%d)
fn main(@builtin(local_invocation_index) i: u32) {
%s
}
`, from, to, module, invocations, body)
}

// each evaluates expressions of a, b and c for all rows of arguments, in a loop that compilers vectorize. Result r of
// row k is at k·len(expressions)+r.
func each(t *testing.T, typ string, expressions []string, rows [][3]uint32) []uint32 {
	t.Helper()
	var words []uint32
	for _, r := range rows {
		words = append(words, r[:]...)
	}
	n := len(expressions)
	var body string
	for r, e := range expressions {
		body += fmt.Sprintf("for (var k = 0u; k < %du; k += 1u) { let a = x[k * 3u]; let b = x[k * 3u + 1u]; let c = x[k * 3u + 2u]; y[k * %du + %du] = %s; }\n", len(rows), n, r, e)
	}
	return translated(t, kernelOf(typ, "u32", 1, "", body), 1, n*len(rows), words...)
}

func float(bits uint32) float64 { return float64(math.Float32frombits(bits)) }

// Denormal numbers are zero, on all threads: arguments, and results.
func TestDenormalsAreZero(t *testing.T) {
	d, err := Open(Options{Threads: 3})
	require.NoError(t, err)
	defer d.Close()
	const n = 1 << 20
	x, err := d.Alloc("x", 4*n)
	require.NoError(t, err)
	ones := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(ones[4*i:], []uint32{1, math.Float32bits(0x1p-126)}[i%2])
	}
	require.NoError(t, d.Write(x, 0, ones))
	s := shader("scale", 1, "f32 *x = args[0].at; for (u32 i = 64 * group; i < 64 * (group + 1); i++) x[i] *= i % 2 ? 0.5f : 1e30f;")
	require.NoError(t, d.Run(contract.Load(t, d, &device.Program{Label: "scale", Shaders: []device.Shader{s},
		Commands: []device.Command{{Args: []device.Range{{Buffer: x, Size: 4 * n}}, Groups: [3]int{n / 64, 1, 1}}}})))
	assert.Equal(t, make([]uint32, n), contract.Words(contract.Read(t, d, x, 0, 4*n)))
}

// The built-in functions are as accurate as WGSL demands, or better, over all kinds of arguments.
func TestFunctionsOfFloats(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	edges := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 0.05, -0.05, 0.0999, 0.1001, 1e-3,
		1e-10, -1e-20, 2e-38, -2e-38,
		10, -10, 50, 87.3, 88.72, 88.73, 89, -87.4, -103.9, -104.1, 127.5, -149, 1e5, -1e5, 8388609, 1e10, 1e30, -1e38, math.MaxFloat32,
		-math.MaxFloat32, inf, -inf, nan, 0.70710677, 1.0000001}
	var rows [][3]uint32
	for i, a := range edges {
		for _, k := range []int{0, 1, 5, 17} {
			b, c := edges[(i*7+k)%len(edges)], edges[(i*3+2*k)%len(edges)]
			rows = append(rows, [3]uint32{math.Float32bits(a), math.Float32bits(b), math.Float32bits(c)})
		}
	}
	one := func(f func(float64) float64) func(a, b, c float64) float64 {
		return func(a, _, _ float64) float64 { return f(a) }
	}
	two := func(f func(a, b float64) float64) func(a, b, c float64) float64 {
		return func(a, b, _ float64) float64 { return f(a, b) }
	}
	// If an argument is NaN, WGSL allows either result of min and max: gpupipe's is the second argument.
	least := func(a, b float64) float64 {
		if a < b {
			return a
		}
		return b
	}
	largest := func(a, b float64) float64 {
		if a > b {
			return a
		}
		return b
	}
	sign := func(a float64) float64 {
		switch {
		case a > 0:
			return 1
		case a < 0:
			return -1
		}
		return 0
	}
	exact, close := 0.0, 4e-7
	functions := []struct {
		text      string
		want      func(a, b, c float64) float64
		tolerance float64 // relative
	}{
		{"exp(a)", one(math.Exp), close}, {"log(a)", one(math.Log), close}, {"log2(a)", one(math.Log2), close},
		{"exp2(a)", one(math.Exp2), 2e-5},
		{"sqrt(a)", one(math.Sqrt), close}, {"inverseSqrt(a)", one(func(a float64) float64 { return 1 / math.Sqrt(a) }), close},
		{"tanh(a)", one(math.Tanh), 2e-6}, {"floor(a)", one(math.Floor), exact}, {"ceil(a)", one(math.Ceil), exact},
		{"trunc(a)", one(math.Trunc), exact},
		{"round(a)", one(math.RoundToEven), exact}, {"abs(a)", one(math.Abs), exact}, {"sign(a)", one(sign), exact},
		{"-a", one(func(a float64) float64 { return -a }), exact},
		{"min(a, b)", two(least), exact}, {"max(a, b)", two(largest), exact},
		{"clamp(a, -1.0, 2.0)", one(func(a float64) float64 { return least(largest(a, -1), 2) }), exact},
		{"a / b", two(func(a, b float64) float64 { return a / b }), close}, {"a * b", two(func(a, b float64) float64 { return a * b }),
			close},
		{"step(a, b)", two(func(a, b float64) float64 {
			if b >= a {
				return 1
			}
			return 0
		}), exact},
		{"select(a, b, c > 1.0)", func(a, b, c float64) float64 {
			if c > 1 {
				return b
			}
			return a
		}, exact},
		{"pow(abs(a), b)", func(a, b, _ float64) float64 { return math.Pow(math.Abs(a), b) }, close},
	}
	var texts []string
	for _, f := range functions {
		texts = append(texts, "bitcast<u32>("+f.text+")")
	}
	got := each(t, "f32", texts, rows)
	for r, f := range functions {
		for k, row := range rows {
			a, b, c := float(row[0]), float(row[1]), float(row[2])
			want, is := f.want(a, b, c), float(got[k*len(functions)+r])
			rounded := float64(float32(want))
			const tiny = 0x1p-126 // smaller results are denormal: zero
			ok := is == rounded || math.IsNaN(want) && math.IsNaN(is) || math.Abs(is-want) <= f.tolerance*math.Abs(want)+tiny
			assert.True(t, ok, "%s of %g, %g, %g is %g, expected %g", f.text, a, b, c, is, want)
		}
	}
}

// Integers wrap, shifts take five bits of their second operand, divisions by zero are defined, conversions saturate.
func TestFunctionsOfIntegers(t *testing.T) {
	edges := []uint32{0, 1, 2, 3, 7, 31, 32, 33, 100, math.MaxInt32, 1 << 31, 1<<31 + 1, math.MaxUint32, math.MaxUint32 - 1, 0xdeadbeef}
	var rows [][3]uint32
	for _, a := range edges {
		for i, b := range edges {
			rows = append(rows, [3]uint32{a, b, edges[(i+4)%len(edges)]})
		}
	}
	type function struct {
		text string
		want func(a, b uint32) uint32
	}
	signed := func(f func(a, b int32) int32) func(a, b uint32) uint32 {
		return func(a, b uint32) uint32 { return uint32(f(int32(a), int32(b))) }
	}
	truth := func(is bool) uint32 {
		if is {
			return 1
		}
		return 0
	}
	for typ, functions := range map[string][]function{
		"u32": {
			{"a + b", func(a, b uint32) uint32 { return a + b }}, {"a - b", func(a, b uint32) uint32 { return a - b }},
			{"a * b", func(a, b uint32) uint32 { return a * b }},
			{"a << b", func(a, b uint32) uint32 { return a << (b & 31) }}, {"a >> b", func(a, b uint32) uint32 { return a >> (b & 31) }},
			{"a / b", func(a, b uint32) uint32 {
				if b == 0 {
					return a
				}
				return a / b
			}},
			{"a % b", func(a, b uint32) uint32 {
				if b == 0 {
					return 0
				}
				return a % b
			}},
			{"(a & b) | (~a ^ b)", func(a, b uint32) uint32 { return a&b | (^a ^ b) }},
			{"max(a, b) - min(a, b)", func(a, b uint32) uint32 { return max(a, b) - min(a, b) }},
			{"u32(a < b)", func(a, b uint32) uint32 { return truth(a < b) }}, {"bitcast<u32>(f32(a))",
				func(a, _ uint32) uint32 { return math.Float32bits(float32(a)) }},
			{"(vec2(a, b) / vec2(b, a)).y", func(a, b uint32) uint32 {
				if a == 0 {
					return b
				}
				return b / a
			}},
			{"(vec2(a, b) << vec2(b, a)).x", func(a, b uint32) uint32 { return a << (b & 31) }},
		},
		"i32": {
			{"bitcast<u32>(a + b)", signed(func(a, b int32) int32 { return a + b })},
			{"bitcast<u32>(a - b)", signed(func(a, b int32) int32 { return a - b })},
			{"bitcast<u32>(a * b)", signed(func(a, b int32) int32 { return a * b })},
			{"u32(-a)", signed(func(a, _ int32) int32 { return -a })},
			{"u32(a << u32(b))", signed(func(a, b int32) int32 { return a << (b & 31) })},
			{"u32(a >> u32(b))", signed(func(a, b int32) int32 { return a >> (b & 31) })},
			{"u32(a / b)", signed(func(a, b int32) int32 {
				if b == 0 {
					return a
				}
				return a / b // MIN / −1 wraps, in Go as in WGSL
			})},
			{"u32(a % b)", signed(func(a, b int32) int32 {
				if b == 0 {
					return 0
				}
				return a % b
			})},
			{"u32(abs(a))", signed(func(a, _ int32) int32 { return max(a, -a) })},
			{"u32(sign(a))", signed(func(a, _ int32) int32 { return int32(truth(a > 0)) - int32(truth(a < 0)) })},
			{"u32(min(a, b))", signed(func(a, b int32) int32 { return min(a, b) })},
			{"u32(clamp(a, -5, 5))", signed(func(a, _ int32) int32 { return min(max(a, -5), 5) })},
			{"u32((vec2(a, b) * vec2(b, a) + vec2(a)).y)", signed(func(a, b int32) int32 { return a*b + a })},
			{"u32((-vec2(a, b)).x)", signed(func(a, _ int32) int32 { return -a })},
			{"u32(dot(vec2(a, b), vec2(b, b)))", signed(func(a, b int32) int32 { return a*b + b*b })},
		},
	} {
		var texts []string
		for _, f := range functions {
			texts = append(texts, f.text)
		}
		got := each(t, typ, texts, rows)
		for r, f := range functions {
			for k, row := range rows {
				assert.Equal(t, f.want(row[0], row[1]), got[k*len(functions)+r], "%s of %#x, %#x", f.text, row[0], row[1])
			}
		}
	}
}

func TestConversionsSaturate(t *testing.T) {
	var rows [][3]uint32
	for _, x := range []float64{0, -0.5, 0.9, -1, 1e9, 2147483520, 2147483648, -2147483648, -2147483904, 4294967040, 4294967296, 1e30,
		-1e30, math.Inf(1), math.Inf(-1), math.NaN()} {
		rows = append(rows, [3]uint32{math.Float32bits(float32(x))})
	}
	got := each(t, "f32", []string{"u32(a)", "bitcast<u32>(i32(a))", "vec2<u32>(vec2(a, b)).x", "bitcast<u32>(vec3<i32>(vec3(a)).z)",
		"u32(bool(a))"}, rows)
	for k, row := range rows {
		x := float(row[0])
		u, i, b := uint32(0), int32(0), uint32(1)
		if x == x {
			u = uint32(min(max(math.Trunc(x), 0), math.MaxUint32))
			i = int32(min(max(math.Trunc(x), math.MinInt32), math.MaxInt32))
		}
		if x == 0 {
			b = 0
		}
		assert.Equal(t, []uint32{u, uint32(i), u, uint32(i), b}, got[k*5:k*5+5], "%g", x)
	}
}

// Kernels of several statements, with the words that they compute from 1, 2, 3 and 4.
func TestTranslatedKernels(t *testing.T) {
	tier.Rest(t)
	for _, c := range []struct {
		name         string
		invocations  int
		module, body string
		want         []uint32
	}{
		{"arrays by value", 1, "fn f(a: array<u32, 2>) -> array<u32, 2> { var b = a; b[0] = 9u; return b; }",
			"var a = array<u32, 2>(x[0], x[1]); let b = f(a); var c = a; c[1] = 7u; y[0] = a[0]; y[1] = a[1]; y[2] = b[0]; y[3] = c[1];",
			[]uint32{1, 2, 9, 7}},
		{"shadowed names", 1, "const N = 5u;", "let a = x[0]; { let a = a + 10u; y[0] = a; } y[1] = a; let N = N + 1u; y[2] = N; for (var a = a; a < 3u; a++) { y[3] = a; }", []uint32{11, 1, 6, 2}},
		{"vectors", 1, "fn f(v: vec4<u32>) -> vec4<u32> { return v + vec4(1u); }",
			"var v = vec4(x[0], x[1], x[2], x[3]); v.y = 20u; v[i + 2u] = 30u; let w = f(v); y[0] = w.x; y[1] = w.y; y[2] = f(w).z; y[3] = w[x[2]];", []uint32{2, 21, 32, 5}},
		{"vectors of parts", 1, "", "let v = vec4(vec2(x[0], x[1]), vec2(x[3], x[2])); y[0] = v.x; y[1] = v.y; y[2] = v.z; y[3] = v.w;",
			[]uint32{1, 2, 4, 3}},
		{"vectors of bool", 1, "", "let v = vec4(x[0], x[1], x[2], x[3]) > vec4(2u); let w = select(vec4(1u), vec4(2u), !v); y[0] = w.x * 1000u + w.z; y[1] = u32(any(v)) + 2u * u32(all(v)); y[2] = u32(v.w) + u32(v[1]); let m = vec4<u32>(v); let b = vec2(true, x[0] == 7u); y[3] = m.z + m.x + u32(any(!b)) + u32(!b.x);", []uint32{2001, 1, 1, 2}},
		{"indices clamped", 1, "", "var a = array<u32, 2>(5u, 6u); y[0] = x[x[3] * 100u]; y[1] = x[i - 1u]; y[2] = a[x[2]]; let k = -i32(x[1]); y[k] = a[k];", []uint32{4, 4, 6, 6}},
		{"workgroup indices clamped", 4, "var<workgroup> s: array<u32, 4>;", "s[i] = x[i]; workgroupBarrier(); y[i] = s[i * 1000u];",
			[]uint32{1, 4, 4, 4}},
		{"reversed", 4, "var<workgroup> s: array<u32, 4>;", "s[i] = x[i]; workgroupBarrier(); y[i] = s[3u - i];", []uint32{4, 3, 2, 1}},
		{"tree", 4, "var<workgroup> s: array<u32, 4>;",
			"s[i] = x[i]; workgroupBarrier(); for (var n = 2u; n > 0u; n /= 2u) { if (i < n) { s[i] += s[i + n]; } workgroupBarrier(); } y[i] = s[0];", []uint32{10, 10, 10, 10}},
		{"functions with barriers", 4, "var<workgroup> s: array<u32, 4>; fn next(v: u32, i: u32) -> u32 { workgroupBarrier(); s[i] = v; workgroupBarrier(); return s[(i + 1u) % 4u]; }", "let s = 5u; let v = next(x[i], i); y[i] = next(v, i) + s;", []uint32{8, 9, 6, 7}},
		{"uniform load", 4, "var<workgroup> n: u32;",
			"if (i == 2u) { n = x[3]; } let m = workgroupUniformLoad(&n); if (m == 4u) { y[i] = m + i; }", []uint32{4, 5, 6, 7}},
		{"early return", 4, "", "y[i] = 1u; if (x[0] == 1u) { return; } workgroupBarrier(); y[i] = 2u;", []uint32{1, 1, 1, 1}},
		{"no early return", 4, "", "y[i] = 1u; if (x[0] == 2u) { return; } workgroupBarrier(); y[i] = 2u;", []uint32{2, 2, 2, 2}},
		{"return behind the last barrier", 4, "", "y[i] = 1u; workgroupBarrier(); if (i < 2u) { return; } y[i] = 2u;",
			[]uint32{1, 1, 2, 2}},
		{"shadowed names around barriers", 4, "", "var a = i; workgroupBarrier(); { let a = a + 10u; workgroupBarrier(); y[i] = a; } y[i] += a * 100u;", []uint32{10, 111, 212, 313}},
		{"break around a barrier", 4, "", "var k = 0u; loop { workgroupBarrier(); k++; if (k == 3u) { break; } } y[i] = k;",
			[]uint32{3, 3, 3, 3}},
		{"atomics", 4, "var<workgroup> n: atomic<u32>; var<workgroup> m: atomic<i32>;",
			"let a = atomicAdd(&n, x[i]); y[i] = a; let b = atomicMax(&m, i32(i)); workgroupBarrier(); if (i == 3u) { y[3] = atomicLoad(&n) * 100u + u32(atomicExchange(&m, 0)) * 10u + u32(b); }", []uint32{0, 1, 3, 1032}},
		{"side effects once", 4, "var<workgroup> n: atomic<u32>; fn f() -> u32 { return atomicAdd(&n, 1u); }",
			"let v = vec4(vec2(f()), vec2(f(), 0u)); workgroupBarrier(); y[i] = atomicLoad(&n);", []uint32{8, 8, 8, 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, translated(t, kernelOf("u32", "u32", c.invocations, c.module, c.body), c.invocations, 4, 1, 2, 3, 4))
		})
	}
}

// An array whose buffer holds no element is not accessed.
func TestEmptyArrays(t *testing.T) {
	got := translated(t, kernelOf("vec4<u32>", "u32", 1, "", "y[0] = x[i].x + 1u;"), 1, 1, 5)
	assert.Equal(t, []uint32{0}, got)
}
