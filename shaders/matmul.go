package shaders

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/shaders/matmul"
)

// product is the matrix product of a group.
type product struct {
	node           *graph.Node
	batch, m, n, k int
	transA, transB bool
	strideA        int // elements between the matrices of a batch; 0 when all share one
	strideB        int
	grouping       graph.Grouping
}

// flops counts the multiplications and additions.
func (p product) flops() float64 {
	f := 2 * float64(p.batch) * float64(p.m) * float64(p.n) * float64(p.k)
	if p.grouping == graph.GroupedSums { // each k belongs to one matrix
		f /= float64(p.batch)
	}
	return f
}

func (c *context) product() product {
	i := slices.IndexFunc(c.g.Nodes, func(n *graph.Node) bool { _, ok := n.Op.Kernel(n).(graph.Contraction); return ok })
	n := c.g.Nodes[i]
	k := n.Op.Kernel(n).(graph.Contraction)
	a, b, out := n.Inputs[0].Shape, n.Inputs[1].Shape, n.Outputs[0].Shape
	p := product{node: n, batch: out[:len(out)-2].Len(), m: out[len(out)-2], n: out[len(out)-1], transA: k.TransA, transB: k.TransB,
		grouping: k.Groups}
	p.k = a[len(a)-1]
	if k.TransA {
		p.k = a[len(a)-2]
	}
	if a[:len(a)-2].Len() > 1 {
		p.strideA = p.m * p.k
	}
	if b[:len(b)-2].Len() > 1 {
		p.strideB = p.k * p.n
	}
	return p
}

// symmetric reports whether a product is X·Xᵀ or Xᵀ·X, or is marked Symmetric.
func symmetric(n *graph.Node) bool {
	k := n.Op.Kernel(n).(graph.Contraction)
	return k.Symmetric || k.Groups == graph.Ungrouped && n.Inputs[0] == n.Inputs[1] && k.TransA != k.TransB
}

// matmulKernels are the variants of shaders/matmul with the group's epilogue.
func (c *context) matmulKernels() []Kernel {
	p := c.product()
	first, others := c.stored()
	a, b := p.node.Inputs[0], p.node.Inputs[1]
	spec := matmul.Spec{
		Product: matmul.Product{
			Batch: p.batch, M: p.m, N: p.n, K: p.k, TransA: p.transA, TransB: p.transB, TypeA: a.DType, TypeB: b.DType,
			BatchStrideA: p.strideA, BatchStrideB: p.strideB, Shared: c.key(a) == c.key(b), Symmetric: symmetric(p.node),
			Grouping: p.grouping,
		},
		Epilogue: matmul.Epilogue{TypeC: first.DType},
	}
	e := &epilogue{context: c, product: p, first: first, others: others,
		operands: map[matmul.Operand]*graph.Value{matmul.A: a, matmul.B: b, matmul.C: first}}
	if p.grouping != graph.Ungrouped {
		e.operands[matmul.Offsets] = p.node.Inputs[2]
		spec.Groups = p.node.Inputs[2].Shape[0] - 1
	}
	if len(c.g.Nodes) > 1 || len(c.g.Stores) > 1 {
		spec.Declare = func(pass matmul.Pass) matmul.Declarations { return e.of(pass).Declarations }
	}
	var ks []Kernel
	for _, m := range c.variants(spec) {
		if k, ok := e.adopt(m); ok {
			ks = append(ks, k)
		}
	}
	return ks
}

// variants returns the kernels of a product. It writes them once for equal sizes and types, with or without an epilogue.
func (c *context) variants(spec matmul.Spec) []matmul.Kernel {
	key := fmt.Sprintf("%+v %v %t", spec.Product, spec.TypeC, spec.Declare != nil)
	ks, ok := c.products[key]
	if !ok {
		ks = matmul.Variants(spec, c.lim)
		c.products[key] = ks
	}
	return ks
}

// stored are the result that the kernel itself stores, that of 16-bit floats if there is one since it alone has whole
// words, and those that the epilogue stores.
func (c *context) stored() (first *graph.Value, others []*graph.Value) {
	i := max(0, slices.IndexFunc(c.g.Stores, func(v *graph.Value) bool { return v.DType.Float16() }))
	return c.g.Stores[i], slices.Delete(slices.Clone(c.g.Stores), i, i+1)
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
		k.Passes = append(k.Passes, Pass{WGSL: p.Source(), Args: args, Workgroup: p.Workgroup, Groups: groups,
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
