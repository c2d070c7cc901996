// Package translate runs the kernels of GPUs on a CPU, for tests: it turns WGSL into the C of runtime/cpu.
//
// [Translate] takes a whole kernel. Its workgroups become turns of a loop, and so do the invocations of a workgroup. A
// kernel with barriers runs each stretch between two barriers for all invocations before the next, with the variables
// of all invocations in arrays. The C needs the prelude of package native and GCC's vector extensions. [Device] is a
// device that translates what it loads.
package translate

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

//go:embed vectors.h
var vectors string

// Options are promises about a source.
type Options struct {
	// Inside promises that no index leaves its array. Otherwise each is compared with the array's length.
	Inside bool
}

// Kernel is a translated kernel, with what its source declares.
type Kernel struct {
	C         string // begins with target.C
	Workgroup [3]int // invocations by dimension
	Writable  []bool // for each binding, whether it is declared read_write
	Memory    int    // bytes of the variables of a workgroup
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
	for _, v := range m.variables {
		if v.binding < 0 {
			k.Memory += v.typ.bytes()
		}
	}
	k.Workgroup = w.size(entry)
	m.refuseRecursion()
	w.functions(func(f *function) bool { return f != entry })
	if barriers := w.barriers(); barriers[entry] {
		w.stretches(entry, barriers)
	} else {
		w.invocations(entry)
	}
	k.C = w.arrays.text.String() + w.out.String()
	for _, suffix := range []string{"_v2", "_v3", "_v4"} { // of the names of all functions of vectors.h
		if strings.Contains(k.C, suffix) { // they double the time that a small kernel takes to compile
			k.C = vectors + k.C
			break
		}
	}
	k.C = target.C + "\n" + k.C
	return k, nil
}
