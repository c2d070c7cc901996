package cc

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/codecache"
)

// common are the flags that gcc ≥ 11 and clang ≥ 14 accept on every CPU. Compilers must not contract products and sums:
// the source names what is computed by fma, so that the bits of a result do not depend on the other results of a
// kernel. gcc 11 vectorizes at -O2 only with -ftree-vectorize. -O3 takes longer to compile, and the kernels are as
// fast.
var common = []string{"-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
	"-fopenmp-simd", "-fPIC", "-pipe", "-Werror=implicit-function-declaration", "-shared", "-nostdlib",
	"-Wl,--as-needed,--build-id=none,-s,-z,noseparate-code"}

// native returns the flags that select the machine's CPU, most specific first.
func native(cpu string) [][]string {
	switch runtime.GOARCH {
	case "amd64":
		plain := []string{"-march=native"}
		if slices.Contains(strings.Fields(cpu), "avx512f") {
			return [][]string{{"-march=native", "-mprefer-vector-width=512"}, plain, nil}
		}
		return [][]string{plain, nil}
	case "arm64":
		return [][]string{{"-mcpu=native"}, nil}
	}
	return [][]string{nil}
}

// flags are a compiler's arguments before and after the source.
type flags struct{ compile, link []string }

// links returns what a unit is linked with where it needs it. libgcc has what a CPU lacks, such as conversions of
// types. clang may come without it.
func links() [][]string { return [][]string{{"-lm", "-lgcc"}, {"-lm"}} }

// String returns the arguments, in two lines.
func (f *flags) String() string {
	return strings.Join(f.compile, " ") + "\n" + strings.Join(f.link, " ")
}

func parseFlags(s string) *flags {
	compile, link, _ := strings.Cut(s, "\n")
	return &flags{strings.Fields(compile), strings.Fields(link)}
}

const (
	trial       = "float gp_trial(float x) { return 2 * x + 1; }\n"
	trialSymbol = "gp_trial"
)

// chosen returns the first flags with which the compiler makes a library. It tries them once, and keeps the result.
func (c *Compiler) chosen(ctx context.Context) (*flags, error) {
	c.choosing.Lock()
	defer c.choosing.Unlock()
	if c.flags != nil {
		return c.flags, nil
	}
	path := c.file("flags", strings.Join(common, " "))
	if kept := codecache.Use(path); kept != nil {
		c.flags = parseFlags(string(kept))
		return c.flags, nil
	}
	f, err := c.choose(ctx)
	if err != nil {
		return nil, err
	}
	if path != "" {
		_ = codecache.Write(path, []byte(f.String()))
	}
	c.flags = f
	return f, nil
}

func (c *Compiler) choose(ctx context.Context) (*flags, error) {
	var err error
	for _, cpu := range native(c.cpu) {
		for _, link := range links() {
			f := &flags{slices.Concat(common, cpu), link}
			if _, err = c.build(ctx, []Source{{trial, trialSymbol}}, f); err == nil || ctx.Err() != nil {
				return f, err
			}
		}
	}
	return nil, err
}
