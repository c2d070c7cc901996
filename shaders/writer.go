package shaders

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
)

// writer collects the text of one pass: its bindings, and the statements of the row and of the loop over columns.
type writer struct {
	c            *context
	args         []Arg
	types        []string       // element type of each binding
	names        map[string]int // by storage key
	declarations strings.Builder
	outer, inner *strings.Builder
	lets         int
	*fuse.Walker
}

func (c *context) newWriter() *writer {
	w := &writer{c: c, names: map[string]int{}, outer: new(strings.Builder), inner: new(strings.Builder)}
	w.Walker = &fuse.Walker{Group: c.g, Inlined: c.r.Inlined, Fixed: map[*graph.Value]fuse.Fixed{}, Load: w.load, Let: w.let}
	return w
}

// binding returns the name of the storage array that holds v.
func (w *writer) binding(v *graph.Value) string {
	key := w.c.key(v)
	i, ok := w.names[key]
	if !ok {
		i = w.bind(Arg{Value: v}, fuse.WGSLType(v.DType))
		w.names[key] = i
	}
	return fmt.Sprintf("b%d", i)
}

func (w *writer) bind(a Arg, typ string) int {
	w.args, w.types = append(w.args, a), append(w.types, typ)
	return len(w.args) - 1
}

func (w *writer) scratch(i int) string { return fmt.Sprintf("b%d", w.bind(Arg{Scratch: i}, "f32")) }

func (w *writer) load(v *graph.Value, at []graph.Index) string {
	return fmt.Sprintf("%s[%v]", w.binding(v), graph.Flatten(v.Shape, at))
}

func (w *writer) let(inner bool, typ, expr string) string {
	w.lets++
	to, name := w.outer, fmt.Sprintf("r%d", w.lets)
	if inner {
		to, name = w.inner, fmt.Sprintf("c%d", w.lets)
	}
	fmt.Fprintf(to, "  let %s: %s = %s;\n", name, typ, expr)
	return name
}

// pass assembles the module around the body.
func (w *writer) pass(body string, invocations, groups, memory int) Pass {
	var s strings.Builder
	for i, t := range w.types {
		fmt.Fprintf(&s, "@group(0) @binding(%d) var<storage, read_write> b%d: array<%s>;\n", i, i, t)
	}
	s.WriteString(w.declarations.String())
	grid := w.c.lim.fold(groups)
	s.WriteString(mainHead(invocations, groups, grid))
	s.WriteString(body)
	s.WriteString("}\n")
	return Pass{WGSL: s.String(), Args: w.args, Workgroup: [3]int{invocations, 1, 1}, Groups: grid, WorkgroupMemory: memory}
}

// mainHead opens the entry point; group is the flat index of the workgroup, lane that of the invocation in it.
func mainHead(invocations, groups int, grid [3]int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "@compute @workgroup_size(%d) fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lane: u32) {\n", invocations)
	if grid[1] == 1 {
		s.WriteString("  let group = wid.x;\n")
	} else {
		fmt.Fprintf(&s, "  let group = wid.y * %du + wid.x;\n", grid[0])
		if grid[0]*grid[1] != groups {
			fmt.Fprintf(&s, "  if (group >= %du) { return; }\n", groups)
		}
	}
	return s.String()
}

// storeRows writes the stores of all values that have one element a row; every value is computed before any is stored.
func (w *writer) storeRows(vs []*graph.Value, row graph.Index) string {
	var stores strings.Builder
	for _, v := range vs {
		x := w.Value(v, graph.Unflatten(v.Shape, row))
		fmt.Fprintf(&stores, "  %s[%v] = %s;\n", w.binding(v), row, x)
	}
	return stores.String()
}

// mapKernels compute one element an invocation (naive), or several: starting a workgroup costs a software device as much
// as hundreds of elements.
func (c *context) mapKernels() []Kernel {
	w := c.newWriter()
	row := graph.Var("row", c.g.Rows)
	stores := w.storeRows(c.g.Stores, row)
	body := w.outer.String() + stores
	one := fmt.Sprintf("  let row = group * %du + lane;\n  if (row >= %du) { return; }\n", workgroup, c.g.Rows) + body
	ks := []Kernel{{Name: "map", Passes: []Pass{w.pass(one, workgroup, ceil(c.g.Rows, workgroup), 0)}}}
	for _, each := range []int{4, 32} {
		if groups := ceil(c.g.Rows, workgroup*each); groups > 1 {
			loop := fmt.Sprintf("  for (var row = group * %du + lane; row < %du; row += %du) {\n", workgroup, c.g.Rows, groups*workgroup)
			ks = append(ks, Kernel{Name: fmt.Sprintf("map%d", each), Passes: []Pass{w.pass(loop+body+"  }\n", workgroup, groups, 0)}})
		}
	}
	return ks
}

func ceil(a, b int) int { return (a + b - 1) / b }
