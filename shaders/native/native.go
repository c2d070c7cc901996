// Package native translates kernels from WGSL into C, for devices that are the cores of a CPU.
//
// [Translate] takes a whole kernel; its workgroups become turns of a loop, and so do the invocations of a workgroup. A
// kernel with barriers runs each stretch between two barriers for all invocations before the next, with the variables of
// all invocations in arrays. [Functions] takes functions only, for kernels that are written in C and call them. The C
// needs the types and functions of [Prelude] and GCC's vector extensions.
package native

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

// Prelude is C that comes before every kernel: types, and WGSL's built-in functions.
//
//go:embed prelude.h
var Prelude string

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
	w.functions(func(f *function) bool { return f != entry })
	if barriers := w.barriers(); barriers[entry] {
		w.stretches(entry, barriers)
	} else {
		w.invocations(entry)
	}
	k.C = target.C + "\n" + w.arrays.text.String() + w.out.String()
	return k, nil
}

// Functions returns the C of a module without an entry point. A kernel that holds the text calls its functions by their names where args is in
// scope. Bindings need not be numbered without gaps.
func Functions(wgsl string, o Options) (c string, err error) {
	m, err := parse(wgsl)
	if err != nil {
		return "", err
	}
	defer recoverSyntax(&err)
	w := newWriter(m, o)
	w.functions(func(*function) bool { return true })
	var context []string
	for _, v := range w.bindings() {
		t := w.element(v)
		context = append(context, fmt.Sprintf("(%s *)args[%d].at, args[%d].bytes / sizeof(%s)", t.c(), v.binding, v.binding, t.c()))
	}
	for _, f := range m.functions {
		var names []string
		for i := range f.parameters {
			names = append(names, fmt.Sprintf("x%d", i))
		}
		w.line("#define %s(%s) fn_%s(%s)", f.name, strings.Join(names, ", "), f.name, strings.Join(append(slices.Clone(context), wrapped(names)...), ", "))
	}
	return w.arrays.text.String() + w.out.String(), nil
}

func wrapped(names []string) []string {
	out := slices.Clone(names)
	for i, n := range out {
		out[i] = "(" + n + ")"
	}
	return out
}
