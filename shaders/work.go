package shaders

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
)

// Flops counts the multiplications and additions of a group's matrix product, or of a template that declares them. It
// is 0 for other kernels, which memory bandwidth limits.
func Flops(g *fuse.Group) float64 {
	switch g.Kind {
	case fuse.MatMul:
		_, p := contraction(g)
		flops := 2 * float64(p.Batch) * float64(p.M) * float64(p.N) * float64(p.K)
		if p.Grouping == graph.GroupedSums { // each k belongs to one matrix
			flops /= float64(p.Batch)
		}
		return flops
	case fuse.Template:
		return g.Nodes[0].Op.Kernel(g.Nodes[0]).(graph.Template).Flops
	}
	return 0
}

// Bytes counts the bytes that a kernel must read and write at least: each array once, or the part of it that is read,
// and scratch memory once each way.
func Bytes(r *fuse.Result, g *fuse.Group, k Kernel) int64 {
	var n int64
	for i, v := range g.Stores {
		if u := fuse.Update(g); u != nil && i == 0 {
			v = &graph.Value{Type: graph.T(v.DType, u.Stored)}
		}
		n += v.Type.Bytes()
	}
	for v, elements := range reads(r, g) {
		n += graph.Type{DType: v.DType, Shape: graph.Shape{min(elements, v.Shape.Len())}}.Bytes()
	}
	for _, s := range k.Scratch {
		n += 2 * s
	}
	return n
}

// reads bounds how many elements a kernel reads of each of its arrays: an elementwise op reads one element of each
// input for each result, other ops read all of an input.
func reads(r *fuse.Result, g *fuse.Group) map[*graph.Value]int {
	n := map[*graph.Value]int{}
	seen := map[*graph.Node]bool{}
	var visit func(node *graph.Node)
	visit = func(node *graph.Node) {
		if seen[node] {
			return
		}
		seen[node] = true
		for _, in := range node.Inputs {
			base := r.Alias.Base(in)
			if slices.Contains(g.Loads, base) {
				most := in.Shape.Len()
				if _, ok := node.Op.Kernel(node).(graph.Elementwise); ok {
					most = min(most, node.Outputs[0].Shape.Len())
				}
				n[base] += most
			} else {
				visit(in.Node)
			}
		}
	}
	for _, node := range g.Nodes {
		visit(node)
	}
	return n
}
