package native

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Names of the file scope get the kernel's symbol, whatever defines them, and macros end with the kernel.
func TestBeside(t *testing.T) {
	source := `// not(this)
#define N 4
#define DEFINE(name, n) \
  FN f32 name(f32 x) { f32 inner = x; return inner * n + more_##n(x); }
typedef f32 lanes __attribute__((vector_size(16)));
typedef struct { u32 field; } pair;
static const u32 table[2] = {1, 2}; /* nor(this) */
FN f32 more_2u(f32 parameter) { return parameter * N; }
DEFINE(twice, 2u)
#undef N
KERNEL { lanes local = {twice(1)}; }
`
	_, symbol := Unit(source, "kernel.c")
	var want strings.Builder
	for _, name := range []string{"lanes", "pair", "table", "more_2u", "twice"} {
		want.WriteString("#define " + name + " " + name + "_" + symbol + "\n")
	}
	want.WriteString("#define KERNEL void " + symbol + "(const gp_arg *args, u32 first, u32 last, const u32 *grid)\n#line 1 \"kernel.c\"\n" + source)
	for _, name := range []string{"lanes", "pair", "table", "more_2u", "twice", "N", "DEFINE", "KERNEL"} {
		want.WriteString("\n#undef " + name)
	}
	assert.Equal(t, want.String()+"\n", Beside(source, "kernel.c"))
}

// Some sources would change those behind them.
func TestAlone(t *testing.T) {
	for _, source := range []string{"#define VEC 4\nKERNEL {}", "  # undef SELECT\nKERNEL {}", "#pragma GCC optimize (\"O1\")\nKERNEL {}"} {
		assert.Empty(t, Beside(source, "kernel.c"), source)
	}
	assert.NotEmpty(t, Beside("KERNEL {\n#pragma GCC unroll 4\nfor (;;) {}\n}", "kernel.c"))
}
