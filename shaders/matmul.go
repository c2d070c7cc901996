package shaders

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/shaders/matmul"
)

// contraction returns the node of a group that multiplies matrices, and its product. Whether the operands share memory
// is not known.
func contraction(g *fuse.Group) (n *graph.Node, p matmul.Product) {
	i := slices.IndexFunc(g.Nodes, func(n *graph.Node) bool { _, ok := n.Op.Kernel(n).(graph.Contraction); return ok })
	n = g.Nodes[i]
	k := n.Op.Kernel(n).(graph.Contraction)
	a, b, out := n.Inputs[0], n.Inputs[1], n.Outputs[0].Shape
	p = matmul.Product{Batch: out[:len(out)-2].Len(), M: out[len(out)-2], N: out[len(out)-1], K: a.Shape[len(a.Shape)-1], TransA: k.TransA,
		TransB: k.TransB, TypeA: a.DType, TypeB: b.DType, Symmetric: symmetric(n), Grouping: k.Groups}
	if k.TransA {
		p.K = a.Shape[len(a.Shape)-2]
	}
	if a.Shape[:len(a.Shape)-2].Len() > 1 {
		p.BatchStrideA = p.M * p.K
	}
	if b.Shape[:len(b.Shape)-2].Len() > 1 {
		p.BatchStrideB = p.K * p.N
	}
	if p.Grouping != graph.Ungrouped {
		p.Groups = n.Inputs[2].Shape[0] - 1
	}
	return n, p
}

// symmetric reports whether a product is X·Xᵀ or Xᵀ·X, or is marked Symmetric.
func symmetric(n *graph.Node) bool {
	k := n.Op.Kernel(n).(graph.Contraction)
	return k.Symmetric || k.Groups == graph.Ungrouped && n.Inputs[0] == n.Inputs[1] && k.TransA != k.TransB
}

// matmulKernels are the variants of shaders/matmul with the group's epilogue.
func (l *groupLowering) matmulKernels() []Kernel {
	n, p := contraction(l.g)
	first, others := l.stored()
	a, b := n.Inputs[0], n.Inputs[1]
	p.Shared = l.key(a) == l.key(b)
	spec := matmul.Spec{Product: p, Epilogue: matmul.Epilogue{TypeC: first.DType}}
	e := &epilogue{groupLowering: l, node: n, product: p, first: first, others: others,
		operands: map[matmul.Operand]*graph.Value{matmul.A: a, matmul.B: b, matmul.C: first}}
	if p.Grouping != graph.Ungrouped {
		e.operands[matmul.Offsets] = n.Inputs[2]
	}
	if len(l.g.Nodes) > 1 || len(l.g.Stores) > 1 {
		spec.Declare = func(pass matmul.Pass) matmul.Declarations { return e.of(pass).Declarations }
	}
	var ks []Kernel
	for _, m := range l.variants(spec) {
		if k, ok := e.adopt(m); ok {
			ks = append(ks, k)
		}
	}
	return ks
}

// variants returns the kernels of a product. It writes them once for equal sizes and types, with or without an
// epilogue.
func (l *groupLowering) variants(spec matmul.Spec) []matmul.Kernel {
	key := fmt.Sprintf("%+v %v %t", spec.Product, spec.TypeC, spec.Declare != nil)
	ks, ok := l.products[key]
	if !ok {
		ks = matmul.Variants(spec, l.lim)
		l.products[key] = ks
	}
	return ks
}

// stored returns the result that the kernel itself stores and the results that its epilogue stores. The kernel stores
// the result in 16-bit floats if there is one, since it alone has whole words.
func (l *groupLowering) stored() (first *graph.Value, others []*graph.Value) {
	i := max(0, slices.IndexFunc(l.g.Stores, func(v *graph.Value) bool { return v.DType.Float16() }))
	return l.g.Stores[i], slices.Delete(slices.Clone(l.g.Stores), i, i+1)
}

// adopt binds a variant's operands. It fails for a variant that would read one array as two types, or bind too many.
func (e *epilogue) adopt(m matmul.Kernel) (Kernel, bool) {
	k := Kernel{Name: m.Name}
	if m.Scratch > 0 {
		k.Scratch = []int64{int64(m.Scratch)}
	}
	for _, p := range m.Passes {
		args := e.operandArgs(p.Bindings)
		if p.Epilogue != nil {
			d := e.of(p)
			if d.divided {
				return k, false
			}
			args = append(args, d.args...)
			p.Epilogue = func(matmul.Pass) matmul.Declarations { return d.Declarations }
		}
		if len(args) > e.lim.MaxBindings {
			return k, false
		}
		groups := p.Groups
		if e.lim.Native {
			groups = e.lim.Fold(p.Groups[0])
		}
		k.Passes = append(k.Passes, Pass{Source: p.Source(), Args: args, Workgroup: p.Workgroup, Groups: groups,
			WorkgroupMemory: p.WorkgroupMemory, Inside: true})
	}
	return k, true
}

// operandArgs are the arguments of a pass's own bindings.
func (e *epilogue) operandArgs(bindings []matmul.Binding) []Arg {
	var args []Arg
	for _, b := range bindings {
		a := Arg{Value: e.operands[b.Operand]}
		switch b.Operand {
		case matmul.Scratch:
			a = Arg{Offset: int64(b.Offset), Size: int64(b.Size)}
		case matmul.Offsets:
			a.Grouped = e.operands[matmul.A].Shape[0]
		}
		args = append(args, a)
	}
	return args
}
