package translate

import (
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// snippets are statements of a kernel with a binding x of f32 and the parameter i, and the C that they become.
var snippets = []struct{ name, module, body, want string }{
	{"let", "", "let a = 1; let b = 2u; let c = 0.5;", "const i32 a_ = 1;\nconst u32 b_ = 2u;\nconst f32 c_ = 0.5f;"},
	{"declared type", "", "let a: u32 = 1; let b: f32 = 2; var c: i32;", "const u32 a_ = 1u;\nconst f32 b_ = 2;\ni32 c_ = 0;"},
	{"shadowed name", "", "let a = 1u; { let a = a + i; }", "{\nconst u32 a_1 = (a_ + i_);\n}"},
	{"hexadecimal", "", "let a = 0xFFu;", "const u32 a_ = 255u;"},
	{"largest numbers", "", "let a = 4294967295u; let b = -2147483648; let c: u32 = 4294967295;",
		"a_ = 4294967295u;\nconst i32 b_ = (-2147483648);\nconst u32 c_ = 4294967295u;"},
	{"folding", "", "let a = 2 * 3 + 1; let b = 7u / 2u;", "const i32 a_ = 7;\nconst u32 b_ = 3u;"},
	{"typed literal", "", "let a = (i + 4294967295) / 2;", "((i_ + 4294967295u) / 2u)"},
	{"i32 wraps", "", "let a = i32(i); let b = a + a; let c = -a; let d = a * 2;",
		"((i32)((u32)a_ + (u32)a_));\nconst i32 c_ = ((i32)(-(u32)a_));\nconst i32 d_ = ((i32)((u32)a_ * (u32)2));"},
	{"shift", "", "let a = i32(i) << i; let b = i >> 3u; let c = 1 << i;",
		"((i32)((u32)((i32)i_) << (u32)(i_ & 31)));\nconst u32 b_ = (i_ >> (3u & 31));\nconst i32 c_ = ((i32)((u32)1 << (u32)(i_ & 31)));"},
	{"division", "", "let a = i / i; let b = i % 3u; let c = i32(i) / i32(i);",
		"div_u32(i_, i_);\nconst u32 b_ = (i_ % 3u);\nconst i32 c_ = div_i32(((i32)i_), ((i32)i_));"},
	{"float remainder", "", "let a = x[0] % 2.0;", "rem_f32(x_[within(0, x_n)], 2.0f)"},
	{"conversion", "", "let a = i32(x[0]); let b = u32(-1.5); let c = f32(i); let d = bool(i);",
		"i32_of_f32(x_[within(0, x_n)]);\nconst u32 b_ = u32_of_f32((-1.5f));\nconst f32 c_ = ((f32)i_);\nconst bool d_ = ((bool)i_);"},
	{"bitcast", "", "let a = bitcast<u32>(x[0]); let b = bitcast<vec2<f32>>(vec2(i, i));",
		"as_u32((f32)x_[within(0, x_n)]);\nconst v2f32 b_ = ((v2f32)(v2u32){i_, i_});"},
	{"select", "", "let a = select(1.0, x[0], i < 2u);", "select_f32(1.0f, x_[within(0, x_n)], (i_ < 2u))"},
	{"vector", "", "let a = vec2<f32>(1.0, 2); let b = vec3(1, 2.0, 3); let c = vec4(a, a) * 2.0; let d = c.w + c[1];",
		"(v2f32){1.0f, ((f32)2)};\nconst v3f32 b_ = (v3f32){((f32)1), 2.0f, ((f32)3)};\nconst v4f32 c_ = (({ const v2f32 gp_0 = a_; const v2f32 gp_1 = a_; (v4f32){gp_0[0], gp_0[1], gp_1[0], gp_1[1]}; }) * splat_v4f32(2.0f));\nconst f32 d_ = (c_[3] + c_[1]);"},
	{"vector of bool", "", "let a = vec2(i < 1u, true); let b = !a; let c = any(b); let d = b.y; let e = select(vec2(1.0), vec2(2.0), b);", "(v2bool){-(i32)(i_ < 1u), -(i32)true};\nconst v2bool b_ = (~a_);\nconst bool c_ = any_v2(b_);\nconst bool d_ = (b_[1] != 0);"},
	{"array", "", "var a = array<f32, 2>(1.0, 2.0); let b = a; a[i] = b[1];",
		"a2_f32 a_ = (a2_f32){{1.0f, 2.0f}};\nconst a2_f32 b_ = a_;\na_.at[within((i64)i_, 2)] = b_.at[1];"},
	{"index", "", "x[i * 4u + 1u] = x[i - 1u];", "x_[within((((i64)i_ * 4) + 1), x_n)] = x_[within(((i64)i_ - 1), x_n)];"},
	{"index that could leave 64 bits", "", "x[i * i * i] = 1.0;", "x_[within((i64)((i_ * i_) * i_), x_n)]"},
	{"index of a let", "", "let a = i * 4u; x[a + 1u] = 1.0;", "x_[within((((i64)i_ * 4) + 1), x_n)] = 1.0f;"},
	{"index of a var", "", "var a = i; a++; x[a] = 1.0;", "a_ += 1u;\nx_[within((i64)a_, x_n)] = 1.0f;"},
	{"arrayLength", "", "let a = arrayLength(&x);", "const u32 a_ = ((u32)x_n);"},
	{"constant", "const N = 4; const M: u32 = N * 2; const H = 0.5 * 3.0;", "let a = M; let b = H; x[N] = 1.0;",
		"const u32 a_ = 8u;\nconst f32 b_ = ((0.5f * 3.0f));\nx_[within(4, x_n)] = 1.0f;"},
	{"shadowed constant", "const N = 4;", "let a = i % N; let N = i; let b = i % N;",
		"const u32 a_ = (i_ % 4u);\nconst u32 N_ = i_;\nconst u32 b_ = rem_u32(i_, N_);"},
	{"alias", "alias T = vec4<f32>;", "let a = T(1.0);", "const v4f32 a_ = splat_v4f32(1.0f);"},
	{"function", "fn f(a: f32, b: f32) -> f32 { return a + b; }", "x[0] = f(1, 2.0);", "fn_f(x_, x_n, 1, 2.0f)"},
	{"branch", "", "if (i == 0u) { return; } else if (i == 1u) { x[0] = 1.0; } else { x[1] = 1.0; }",
		"if ((i_ == 0u)) {\nreturn;\n} else {\nif ((i_ == 1u)) {"},
	{"loops", "", "for (var k = 0u; k < 4u; k += 2u) { continue; } while (i < 3u) { break; } loop { break; }",
		"for (u32 k_ = 0u; k_ < 4u; k_ += 2u) {\ncontinue;\n}\nfor (; i_ < 3u; ) {\nbreak;\n}\nfor (; ; ) {"},
	{"assignment", "", "var a = 1; a += 2; _ = a; x[0] *= 2.0;",
		"a_ = ((i32)((u32)a_ + (u32)2));\n(void)a_;\nx_[within(0, x_n)] = (x_[within(0, x_n)] * 2.0f);"},
	{"atomics", "var<workgroup> n: atomic<u32>;", "atomicStore(&n, 1); let a = atomicAdd(&n, 2u); let b = atomicLoad(&n);",
		"atomicStore_u32(&(*n_), 1u);\nconst u32 a_ = atomicAdd_u32(&(*n_), 2u);\nconst u32 b_ = (*n_);"},
	{"barrier", "", "let a = x[i]; workgroupBarrier(); x[i] = a;", "f32 a_[4];\n"},
	{"uniform loop", "", "for (var k = 0u; k < 4u; k++) { workgroupBarrier(); }",
		"while (({ const u32 gp_lane = 0; (void)gp_lane; (k_[gp_lane] < 4u); })) {"},
	{"uniform load", "var<workgroup> n: u32;", "let a = workgroupUniformLoad(&n);", "u32 __load1_[4];"},
}

func TestSnippets(t *testing.T) {
	for _, s := range snippets {
		t.Run(s.name, func(t *testing.T) {
			k, err := Translate(s.module+kernelHead+s.body+"}", Options{})
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(k.C, target.C+"\n"))
			assert.Equal(t, [3]int{4, 1, 1}, k.Workgroup)
			assert.Equal(t, []bool{true}, k.Writable)
			assert.Contains(t, k.C, s.want)
		})
	}
}

// refusals are sources with what the translator refuses, in line 3.
var refusals = []struct{ name, text, want string }{
	{"character", "\n\n$", `line 3: expected global item, found '$'`},
	{"item", "\n\nstruct S {}", `line 3: expected global item, found "struct"`},
	{"end", "\n\nfn f(", `line 3: expected a name, found ""`},
	{"space", "\n\nvar<private> a: f32;", "line 3: variables of private memory are not supported"},
	{"group", "\n\n@group(1) @binding(0) var<storage> a: array<f32>;", "line 3: a must lie in group 0"},
	{"no binding", "\n\n@group(0) var<storage> a: array<f32>;", "line 3: a has no binding"},
	{"gap", "\n\n@group(0) @binding(1) var<storage> a: array<f32>; @compute @workgroup_size(1) fn main() {}",
		"line 3: binding 1, expected bindings 0, 1, … without gaps"},
	{"binding's type", "\n\n@group(0) @binding(0) var<storage> a: f32; @compute @workgroup_size(1) fn main() {}",
		"line 3: the binding a is f32, expected an array without a length"},
	{"name", "\nconst a = 1;\nfn a() {}", "line 3: a is defined twice, first in line 2"},
	{"constant", "\n\nconst a = b;", "line 3: no definition of the constant b above"},
	{"division by zero", "\n\nconst a = 1 / 0;", "line 3: division by zero"},
	{"array", "\n\nvar<workgroup> a: array<f32, 0>;", "line 3: an array of 0 elements"},
	{"workgroup", "\n\n@compute @workgroup_size(0) fn main() {}", "line 3: a workgroup of 0 invocations"},
	{"large workgroup", "\n\n@compute @workgroup_size(256, 256) fn main() {}", "line 3: a workgroup of 65536 invocations"},
	{"no size", "\n\n@compute fn main() {}", "line 3: the entry point main has no workgroup size"},
	{"built-in value", "\n\n@compute @workgroup_size(1) fn main(@builtin(position) a: u32) {}",
		`line 3: the parameter a of the entry point has the built-in value "position"`},
	{"no entry point", "", "there is no entry point main"},
	{"octal", kernelHead + "let a = 010;}", "line 3: the number 010 begins with 0"},
	{"large literal", kernelHead + "let a = 4294967296u;}", "line 3: 4294967296u is no u32"},
	{"large float", kernelHead + "let a = 1e39;}", "line 3: 1e39 is no f32"},
	{"half", kernelHead + "let a = 1h;}", "line 3: 1h is no f32"},
	{"undefined", kernelHead + "x[0] = y;}", "line 3: no definition of y in scope"},
	{"undefined function", kernelHead + "x[0] = f();}", "line 3: no definition of f in scope"},
	{"types", kernelHead + "let a = i + 1.0;}", "line 3: the types u32 and f32 do not match"},
	{"operator", kernelHead + "let a = -i;}", "line 3: - is not defined for u32"},
	{"index", kernelHead + "let a = x[0.5];}", "line 3: an index is f32, expected an integer"},
	{"constant index", kernelHead + "var a: array<f32, 2>; a[2] = 1.0;}", "line 3: index 2 of array<f32, 2>"},
	{"component", kernelHead + "let a = vec2(1.0).z;}", "line 3: vec2<f32> has no member z"},
	{"components", kernelHead + "let a = vec3(1.0, 2.0);}", "line 3: 2 components for vec3<f32>"},
	{"elements", kernelHead + "let a = array<f32, 2>(1.0);}", "line 3: 1 values for array<f32, 2>"},
	{"value", kernelHead + "let a: u32 = 1.0;}", "line 3: a is u32, its value f32"},
	{"assignment", kernelHead + "var a = 1u; a = 1.0;}", "line 3: f32 is assigned to u32"},
	{"let", kernelHead + "let a = 1u; a = 2u;}", "line 3: an assignment to what is no variable"},
	{"condition", kernelHead + "if (1) {}}", "line 3: a condition is i32, expected bool"},
	{"arguments", kernelHead + "let a = exp();}", "line 3: exp has 0 arguments, expected 1"},
	{"all", kernelHead + "let a = all();}", "line 3: all has 0 arguments, expected 1"},
	{"bitcast", kernelHead + "let a = bitcast<f32>();}", "line 3: bitcast has 0 arguments, expected 1"},
	{"built-in function", kernelHead + "let a = exp(i);}", "line 3: exp is not defined for u32"},
	{"statement", kernelHead + "i;}", `line 3: expected a statement, found "i"`},
	{"for", kernelHead + "for (let a = 1; ; ) {}}", "line 3: a for loop begins with a declaration by var or an assignment"},
	{"result", kernelHead + "return 1;}", "line 3: the result is i32, expected void"},
	{"barrier in a condition", "fn f() -> bool { workgroupBarrier(); return true; }\n" + kernelHead + "if (f()) {}}",
		"line 4: a barrier in a condition is not supported"},
	{"continue around a barrier", kernelHead + "for (var k = 0u; k < 2u; k++) { if (k == 1u) { continue; } workgroupBarrier(); } }",
		"line 3: a barrier in this statement is not supported"},
	{"atomic", kernelHead + "atomicAdd(&x[0], 1.0);}", "line 3: atomicAdd of f32"},
	{"recursion", "\n\nfn f() { f(); } @compute @workgroup_size(1) fn main() {}", "line 3: f calls itself"},
}

func TestRefusals(t *testing.T) {
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			_, err := Translate(r.text, Options{})
			require.EqualError(t, err, r.want)
		})
	}
}
