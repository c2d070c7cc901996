// Package shaders turns the groups of package fuse into kernels: WGSL, bindings and dispatch sizes.
//
// [Lowering.Lower] returns the kernel variants of a group, the naive one first. A writer collects the bindings and
// statements of a pass. It gets the expressions of elements from a fuse.Walker. Matrix products come from package
// shaders/matmul, with the elementwise nodes after the product as epilogue. Templates come from the op. [Default] picks
// a variant by rules; runtime/tune picks one by timing.
package shaders

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/shaders/matmul"
)

// Kernel computes one group: dispatches in order, or copies.
type Kernel struct {
	Name      string
	Scratch   []int64 // bytes of each scratch array
	Passes    []Pass
	Parts     []Part  // of a Join, which needs no shader
	Tolerance float64 // relative error to expect, where it is larger than f32's
}

// Pass is one dispatch of one shader; binding i is Args[i], all declared read_write.
type Pass struct {
	Source          string // WGSL; or SPIR-V assembly or C, which begin with target.Assembly and target.C
	Args            []Arg
	Workgroup       [3]int
	Groups          [3]int
	WorkgroupMemory int
	Inside          bool // see device.Shader
}

// Arg is a value, or scratch array Scratch when Value is nil.
type Arg struct {
	Value        *graph.Value
	Scratch      int
	Offset, Size int64 // bytes, the part of the scratch array; Size 0 is all of it
	Grouped      int   // rows that groups share, where the value is the groups' offsets; 0 otherwise
}

// Within is the part of a scratch array of size bytes that is bound.
func (a Arg) Within(size int64) (offset, n int64) {
	if a.Size == 0 {
		return 0, size
	}
	return a.Offset, a.Size
}

// Part is a piece of a joined value.
type Part struct {
	From   *graph.Value
	Offset int64 // bytes, in the result
}

// Label names a group in errors, plans and profiles: its scope and its ops.
func Label(g *fuse.Group) string {
	var names []string
	for i := 0; i < len(g.Nodes); {
		name, first := g.Nodes[i].Op.Name(), i
		for i < len(g.Nodes) && g.Nodes[i].Op.Name() == name {
			i++
		}
		if i-first > 1 {
			name += fmt.Sprintf("×%d", i-first)
		}
		names = append(names, name)
	}
	label := strings.Join(names, " ")
	if g.Scope != "" {
		label = g.Scope + ": " + label
	}
	return label
}

// Lowering lowers the groups of a graph for a device. It generates the kernels of equal products once: layers of
// one shape have them.
type Lowering struct {
	r        *fuse.Result
	lim      target.Limits
	products map[string][]matmul.Kernel // by sizes, types and epilogue
}

// NewLowering returns the Lowering of a fused graph.
func NewLowering(r *fuse.Result, lim target.Limits) *Lowering {
	return &Lowering{r, lim, map[string][]matmul.Kernel{}}
}

// Lower returns the kernel variants of a group. Values of equal key share a binding: key must return equal texts for
// overlapping memory.
func (l *Lowering) Lower(g *fuse.Group, key func(*graph.Value) string) []Kernel {
	of := &groupLowering{l, g, key}
	switch g.Kind {
	case fuse.Map:
		if l.lim.Native {
			return []Kernel{of.nativeMap()}
		}
		return of.mapKernels()
	case fuse.Reduce:
		if l.lim.Native {
			return []Kernel{of.nativeReduce()}
		}
		return of.reduceKernels()
	case fuse.MatMul:
		return of.matmulKernels()
	case fuse.Template:
		return of.templateKernels()
	default:
		return []Kernel{joinKernel(g.Nodes[0])}
	}
}

func joinKernel(n *graph.Node) Kernel {
	k := Kernel{Name: "copy"}
	var off int64
	for _, in := range n.Inputs {
		k.Parts = append(k.Parts, Part{in, off})
		off += in.Type.Bytes()
	}
	return k
}

// groupLowering lowers one group.
type groupLowering struct {
	*Lowering
	g   *fuse.Group
	key func(*graph.Value) string
}

const workgroup = 64 // default number of invocations

// Default is the index of the variant to use if none was timed.
func Default(ks []Kernel, g *fuse.Group, lim target.Limits) int {
	last := len(ks) - 1
	switch {
	case g.Kind == fuse.Map && !lim.Software:
		return 0
	case g.Kind == fuse.MatMul: // in order of their estimated cost, behind the naive one
		return min(1, last)
	case g.Kind == fuse.Reduce:
		return reduceDefault(ks, g, lim)
	}
	return last
}
