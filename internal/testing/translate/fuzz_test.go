package translate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const kernelHead = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\n@compute @workgroup_size(4) fn main(@builtin(local_invocation_index) i: u32) {\n"

// FuzzTranslate: no text makes the translator panic, or take long.
func FuzzTranslate(f *testing.F) {
	for _, s := range snippets {
		f.Add(s.module + kernelHead + s.body + "}")
	}
	for _, s := range refusals {
		f.Add(s.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, o := range []Options{{}, {Inside: true}} {
			k, err := Translate(text, o)
			assert.True(t, err == nil || k.C == "")
		}
	})
}

// Sources that repeat or nest what they can are refused or translated at once, with a text of moderate size.
func TestLargeSources(t *testing.T) {
	const n = 100000
	doubled := func(first, next, last string) string {
		var s strings.Builder
		s.WriteString(first)
		names := []string{"a", "b"}
		for i := range 64 {
			s.WriteString(strings.NewReplacer("OLD", strings.Repeat(names[0], i+1), "NEW", strings.Repeat(names[0], i+2)).Replace(next))
		}
		return s.String() + strings.ReplaceAll(last, "LAST", strings.Repeat("a", 65))
	}
	body := func(s string) string { return kernelHead + s + "}" }
	for name, text := range map[string]string{
		"parentheses":     body("x[0] = " + strings.Repeat("(", n) + "1.0" + strings.Repeat(")", n) + ";"),
		"signs":           body("x[0] = " + strings.Repeat("-", n) + "1.0;"),
		"sums":            body("x[0] = 1.0" + strings.Repeat(" + x[1]", n) + ";"),
		"indices":         body("x[0] = " + strings.Repeat("x[u32(", 60) + "1.0" + strings.Repeat(")]", 60) + ";"),
		"blocks":          body(strings.Repeat("{", n) + strings.Repeat("}", n)),
		"branches":        body("if (true) {}" + strings.Repeat(" else if (true) {}", n)),
		"loops":           body(strings.Repeat("while (true) {", n) + strings.Repeat("}", n)),
		"types":           "var<workgroup> y: " + strings.Repeat("array<", n) + "f32" + strings.Repeat(", 2>", n) + ";" + body(""),
		"large arrays":    "var<workgroup> y: array<array<array<f32, 65536>, 65536>, 65536>;" + body(""),
		"constants":       doubled("const a = 1;", "const NEW = OLD + OLD;", body("x[LAST] = 1.0;")),
		"float constants": doubled("const a = 1.5;", "const NEW = OLD + OLD;", body("x[0] = LAST;")),
		"addresses":       body(doubled("let a = i;", "let NEW = OLD + OLD;", "x[LAST] = 1.0;")),
		"calls":           doubled("fn a() {}", "fn NEW() { OLD(); OLD(); }", body("LAST();")),
		"barriers":        doubled("fn a() { workgroupBarrier(); }", "fn NEW() { OLD(); OLD(); }", body("LAST();")),
		"vectors":         body("let v = " + strings.Repeat("vec4(vec2(", 60) + "vec4(1.0)" + strings.Repeat("), vec2(1.0))", 60) + ";"),
		"statements":      body(strings.Repeat("x[i] = 1.0; workgroupBarrier(); ", n/10)),
		"recursion":       "fn f() { g(); } fn g() { f(); }" + body("f();"),
		"waiting":         "fn f() { workgroupBarrier(); f(); }" + body("f();"),
	} {
		t.Run(name, func(t *testing.T) {
			k, err := Translate(text, Options{})
			assert.Less(t, len(k.C), 30*len(text)+100000)
			switch name {
			case "indices", "statements", "addresses", "calls":
				require.NoError(t, err)
			default:
				require.ErrorContains(t, err, "line ")
			}
		})
	}
}
