// Package native writes kernels in C, for devices that are the cores of a CPU.
//
// [Kernel] and [Function] print code of package scalar. [Translate] takes a whole kernel in WGSL; its workgroups become
// turns of a loop, and so do the invocations of a workgroup. A kernel with barriers runs each stretch between two
// barriers for all invocations before the next, with the variables of all invocations in arrays. The C needs the types
// and functions of [Prelude] and GCC's vector extensions.
package native

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

//go:embed prelude.h
var scalars string

//go:embed vectors.h
var vectors string

// Prelude returns the C that comes before a kernel: types, and WGSL's built-in functions. It omits functions of vectors
// unless the source calls one, since they double the compile time of a small kernel.
func Prelude(source string) string {
	for _, suffix := range []string{"_v2", "_v3", "_v4"} { // of the names of all functions of vectors.h
		if strings.Contains(source, suffix) {
			return scalars + vectors
		}
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
}

// Translation is a translated kernel, with what its source declares.
type Translation struct {
	C         string // begins with target.C
	Workgroup [3]int // invocations by dimension
	Writable  []bool // for each binding, whether it is declared read_write
}

// Translate returns the C of a kernel in WGSL. The entry point is main, the bindings are 0, 1, … of group 0. An error
// names the line.
func Translate(wgsl string, o Options) (k Translation, err error) {
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
