// Package native translates kernels from WGSL into C, for devices that are the cores of a CPU.
//
// [Translate] takes a whole kernel; its workgroups become turns of a loop, and so do the invocations of a workgroup. A
// kernel with barriers runs each stretch between two barriers for all invocations before the next, with the variables of
// all invocations in arrays. [Functions] takes functions only, for kernels that are written in C and call them. The C
// needs the types and functions of [Prelude] and GCC's vector extensions.
package native

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

//go:embed prelude.h
var scalars string

//go:embed vectors.h
var vectors string

// ofVectors matches the name of every function of vectors.h.
var ofVectors = regexp.MustCompile(`_v[234]`)

// Prelude returns the C that comes before a kernel: types, and WGSL's built-in functions. It omits functions of vectors
// unless the source calls one, since they double the compile time of a small kernel.
func Prelude(source string) string {
	if ofVectors.MatchString(source) {
		return scalars + vectors
	}
	return scalars
}

// Unit returns the translation unit of a kernel in C and the name of its function, which differs from those of other
// kernels. Compilers call the unit's file by the given name, and its first line is that of the source.
func Unit(source, file string) (unit, symbol string) {
	prelude := Prelude(source)
	sum := sha256.Sum256([]byte(prelude + source))
	symbol = "gp_" + hex.EncodeToString(sum[:8])
	return fmt.Sprintf("%s\n#define KERNEL void %s(const gp_arg *args, u32 first, u32 last, const u32 *grid)\n#line 1 %q\n%s",
		prelude, symbol, file, source), symbol
}

// Options are promises about a source.
type Options struct {
	// Inside promises that no index leaves its array. Otherwise each is compared with the array's length.
	Inside bool
	// Unordered promises that sums and extremes that a loop accumulates may be formed in another order, so that they can
	// be vectorized. The order depends on nothing but the text and the CPU's vectors.
	Unordered bool
}

// Kernel is a translated kernel, with what its source declares.
type Kernel struct {
	C         string // begins with target.C
	Workgroup [3]int // invocations by dimension
	Writable  []bool // for each binding, whether it is declared read_write
}

// Translate returns the C of a kernel in WGSL. The entry point is main, the bindings are 0, 1, … of group 0. An error
// names the line.
func Translate(wgsl string, o Options) (k Kernel, err error) {
	m, err := parse(wgsl)
	if err != nil {
		return k, err
	}
	defer recoverSyntax(&err)
	w := newWriter(m, o)
	entry := m.byName["main"]
	if entry == nil || entry.workgroup == nil {
		return k, fmt.Errorf("there is no entry point main")
	}
	for i, v := range w.bindings() {
		if v.binding != i {
			return k, fmt.Errorf("line %d: binding %d, expected bindings 0, 1, … without gaps", v.line, v.binding)
		}
		k.Writable = append(k.Writable, v.writable)
	}
	k.Workgroup = w.size(entry)
	m.refuseRecursion()
	w.functions(func(f *function) bool { return f != entry })
	if barriers := w.barriers(); barriers[entry] {
		w.stretches(entry, barriers)
	} else {
		w.invocations(entry)
	}
	k.C = target.C + "\n" + w.arrays.text.String() + w.out.String()
	return k, nil
}

// Functions returns the C of a module without an entry point, for kernels that are written in C. Each function gets the
// kernel's args before its own parameters. Bindings need not be numbered without gaps.
func Functions(wgsl string, o Options) (c string, err error) {
	m, err := parse(wgsl)
	if err != nil {
		return "", err
	}
	defer recoverSyntax(&err)
	w := newWriter(m, o)
	m.refuseRecursion()
	if barriers := w.barriers(); len(barriers) > 0 {
		return "", fmt.Errorf("there are barriers outside of a kernel")
	}
	w.functions(func(*function) bool { return true })
	var context []string
	for _, v := range w.bindings() {
		t := w.element(v)
		context = append(context, fmt.Sprintf("(%s *)args[%d].at, args[%d].bytes / sizeof(%s)", t.c(), v.binding, v.binding, t.c()))
	}
	for _, f := range m.functions {
		parameters, arguments := []string{"const gp_arg *args"}, slices.Clone(context)
		for i, p := range f.parameters {
			parameters = append(parameters, fmt.Sprintf("%s x%d", p.typ.c(), i))
			arguments = append(arguments, fmt.Sprint("x", i))
		}
		w.line("static inline __attribute__((always_inline, unused)) %s %s(%s) { return fn_%s(%s); }",
			f.result.c(), f.name, strings.Join(parameters, ", "), f.name, strings.Join(arguments, ", "))
	}
	return w.arrays.text.String() + w.out.String(), nil
}
