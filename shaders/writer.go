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

func (w *writer) scratch(i int, d graph.DType) string {
	return fmt.Sprintf("b%d", w.bind(Arg{Scratch: i}, fuse.WGSLType(d)))
}

func (w *writer) load(v *graph.Value, at []graph.Index) string {
	return element(w.binding(v), v.DType, graph.Flatten(v.Shape, at))
}

// element is the expression of an array's element: of 16-bit floats, its bits.
func element(array string, d graph.DType, at graph.Index) string {
	if d.Float16() {
		return graph.Float16At(array, at)
	}
	return fmt.Sprintf("%s[%v]", array, at)
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
	grid := w.c.lim.Fold(groups)
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

// stores writes the stores of values at the given positions, which are those of one word where there are 16-bit floats
// among the values; every value is computed before any is stored.
func (w *writer) stores(vs []*graph.Value, at ...graph.Index) string {
	var stores strings.Builder
	for _, v := range vs {
		xs := make([]string, len(at))
		for i, x := range at {
			xs[i] = w.Value(v, graph.Unflatten(v.Shape, x))
		}
		if v.DType.Float16() {
			fmt.Fprintf(&stores, "  %s[%v] = %s;\n", w.binding(v), at[0].Over(2), word(xs, at))
			continue
		}
		for i, x := range at {
			fmt.Fprintf(&stores, "  %s[%v] = %s;\n", w.binding(v), x, xs[i])
		}
	}
	return stores.String()
}

// word joins the bits of two 16-bit floats. If the second repeats the first, at the end of an odd tensor, its bits are
// zero.
func word(xs []string, at []graph.Index) string {
	if len(xs) == 1 {
		return xs[0]
	}
	high := fmt.Sprintf("(%s << 16u)", xs[1])
	if _, sure := at[1].Mod(2).IsConst(); !sure {
		high = fmt.Sprintf("select(0u, %s, %v == 1u)", high, at[1].Mod(2))
	}
	return xs[0] + " | " + high
}

// elements are the positions that an invocation of a Map kernel computes, its turn of so many, and what it must declare
// first: one, or where 16-bit floats are stored the two of a word, of which the second may repeat the first at the end.
func (c *context) elements() (at []graph.Index, turn string, turns int, declare string) {
	n := c.g.Rows
	if !c.g.StoresFloat16() {
		return []graph.Index{graph.Var("row", n)}, "row", n, ""
	}
	turns = ceil(n, 2)
	first := graph.Var("pair", turns).Times(2)
	switch {
	case n == 1:
		at = []graph.Index{first}
	case n%2 == 0:
		at = []graph.Index{first, first.Plus(graph.Const(1))}
	default:
		at = []graph.Index{first, graph.Var("odd", n)}
		declare = fmt.Sprintf("  let odd = min(pair * 2u + 1u, %du);\n", n-1)
	}
	return at, "pair", turns, declare
}

// mapKernels take one turn an invocation (naive), or several: starting a workgroup costs a software adapter as much
// as hundreds of elements.
func (c *context) mapKernels() []Kernel {
	w := c.newWriter()
	at, turn, turns, declare := c.elements()
	stores := w.stores(c.g.Stores, at...)
	body := declare + w.outer.String() + stores
	one := fmt.Sprintf("  let %s = group * %du + lane;\n  if (%s >= %du) { return; }\n", turn, workgroup, turn, turns) + body
	ks := []Kernel{{Name: "map", Passes: []Pass{w.pass(one, workgroup, ceil(turns, workgroup), 0)}}}
	for _, each := range []int{4, 32} {
		if groups := ceil(turns, workgroup*each); groups > 1 {
			loop := fmt.Sprintf("  for (var %s = group * %du + lane; %s < %du; %s += %du) {\n", turn, workgroup, turn, turns, turn, groups*workgroup)
			ks = append(ks, Kernel{Name: fmt.Sprintf("map%d", each), Passes: []Pass{w.pass(loop+body+"  }\n", workgroup, groups, 0)}})
		}
	}
	return ks
}

func ceil(a, b int) int { return (a + b - 1) / b }
