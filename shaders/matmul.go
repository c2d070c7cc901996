package shaders

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// product is the matrix product of a group.
type product struct {
	node           *graph.Node
	batch, m, n, k int
	transA, transB bool
	strideA        int // elements between the matrices of a batch; 0 when all share one
	strideB        int
}

func (c *context) product() product {
	i := slices.IndexFunc(c.g.Nodes, func(n *graph.Node) bool { _, ok := n.Op.Kernel(n).(graph.Contraction); return ok })
	n := c.g.Nodes[i]
	k := n.Op.Kernel(n).(graph.Contraction)
	a, b, out := n.Inputs[0].Shape, n.Inputs[1].Shape, n.Outputs[0].Shape
	p := product{node: n, batch: out[:len(out)-2].Len(), m: out[len(out)-2], n: out[len(out)-1], transA: k.TransA, transB: k.TransB}
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

// matmulKernels are the candidates for a matrix product with its epilogue.
func (c *context) matmulKernels() []Kernel {
	p := c.product()
	w := c.newWriter()
	a, b := w.binding(p.node.Inputs[0]), w.binding(p.node.Inputs[1])
	at := func(name string, stride int, trans bool, row, col string, rows, cols int) string {
		if trans {
			row, col, cols = col, row, rows
		}
		return fmt.Sprintf("%s[bi * %du + %s * %du + %s]", name, stride, row, cols, col)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "  let row = group * %du + lane;\n  if (row >= %du) { return; }\n", workgroup, c.g.Rows)
	fmt.Fprintf(&s, "  let bi = row / %du;\n  let i = row / %du %% %du;\n  let j = row %% %du;\n  var acc = 0.0;\n", p.m*p.n, p.n, p.m, p.n)
	fmt.Fprintf(&s, "  for (var k = 0u; k < %du; k++) { acc += %s * %s; }\n", p.k,
		at(a, p.strideA, p.transA, "i", "k", p.m, p.k), at(b, p.strideB, p.transB, "k", "j", p.k, p.n))
	row := graph.Var("row", c.g.Rows)
	w.Fixed[p.node.Outputs[0]] = fuseFixed("acc", row)
	stores := w.storeRows(c.g.Stores, row)
	return []Kernel{{Name: "naive", Passes: []Pass{w.pass(s.String()+w.outer.String()+stores, workgroup, ceil(c.g.Rows, workgroup), 0)}}}
}
