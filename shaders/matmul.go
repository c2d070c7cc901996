package shaders

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
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
func (c *context) matmulKernels() ([]Kernel, error) {
	p := c.product()
	first, others := c.stored()
	e := c.newEpilogue(p, first, others)
	a, b := p.node.Inputs[0], p.node.Inputs[1]
	spec := matmul.Spec{
		Product: matmul.Product{
			Batch: p.batch, M: p.m, N: p.n, K: p.k, TransA: p.transA, TransB: p.transB, TypeA: a.DType, TypeB: b.DType,
			BatchStrideA: p.strideA, BatchStrideB: p.strideB, Shared: c.key(a) == c.key(b), Symmetric: symmetric(p.node),
			Grouping: p.grouping,
		},
		Epilogue: matmul.Epilogue{TypeC: first.DType},
	}
	if len(c.g.Nodes) > 1 || len(c.g.Stores) > 1 {
		spec.Text, spec.Arrays = e.text, e.w.bindings
	}
	operands := map[matmul.Operand]*graph.Value{matmul.A: p.node.Inputs[0], matmul.B: p.node.Inputs[1], matmul.C: first}
	if p.grouping != graph.Ungrouped {
		operands[matmul.Offsets] = p.node.Inputs[2]
		spec.Groups = p.node.Inputs[2].Shape[0] - 1
	}
	if c.lim.Native {
		return c.nativeProducts(spec, e, operands), nil
	}
	var ks []Kernel
	for _, m := range c.variants(spec, e.function.WGSL()) {
		if k, ok := c.adopt(m, operands, e.w.args); ok {
			ks = append(ks, k)
		}
	}
	return ks, nil
}

// variants returns the kernels of a product. It writes them once for equal sizes, types and epilogues.
func (c *context) variants(spec matmul.Spec, epilogue string) []matmul.Kernel {
	sizes := spec
	sizes.Text, sizes.Native = nil, nil
	key := fmt.Sprintf("%+v %t\n%s", sizes, spec.Text != nil, epilogue)
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

// epilogue is the elementwise work behind a matrix product, as a function of acc, b, i and j.
type epilogue struct {
	w        *writer
	function scalar.Function
}

// text is the function's body and its result.
func (e *epilogue) text(_, _, _, _ string) (stmts, expr string) {
	return scalar.WGSL(e.function.Body), e.function.Result.String()
}

func (c *context) newEpilogue(p product, first *graph.Value, others []*graph.Value) *epilogue {
	w := c.newWriter()
	// What shares memory with the result is read through that binding, and what shares it with an operand through one
	// that depends on the pass, since a pass may bind rearranged copies of the operands.
	shared := map[string]string{c.key(first): readC, c.key(p.node.Inputs[1]): readB, c.key(p.node.Inputs[0]): readA}
	w.Load = func(v *graph.Value, at []graph.Index) *scalar.Expr {
		f, ok := shared[c.key(v)]
		switch {
		case ok && c.lim.Native:
			return element(f+arraySuffix, v.DType, graph.Flatten(v.Shape, at))
		case ok:
			return scalar.Read(f, v.DType.Scalar(), graph.Flatten(v.Shape, at).Expr())
		}
		return w.load(v, at)
	}
	acc, b, i, j := scalar.Var("acc", scalar.F32, fuse.Row), variable("b", fuse.Row, p.batch), variable("i", fuse.Row, p.m),
		variable("j", fuse.Row, p.n)
	e := &epilogue{w, scalar.Function{Name: "epilogue", Parameters: []*scalar.Expr{acc, b, i, j}}}
	row := graph.Var("row", c.g.Rows, fuse.Row)
	if c.lim.Native { // what depends on i alone is then known to be the same for all columns, which a vector has
		row = graph.Var("b", p.batch, fuse.Row).Times(p.m).Plus(graph.Var("i", p.m, fuse.Row)).Times(p.n).Plus(graph.Var("j", p.n,
			fuse.Row))
	} else {
		let(&w.outer, "row", fuse.Row, b.Mul(number(p.m)).Add(i).Mul(number(p.n)).Add(j))
	}
	w.Fixed[p.node.Outputs[0]] = fuse.Fixed{Expr: acc, Flat: row}
	e.function.Result = w.Value(first, graph.Unflatten(first.Shape, row))
	stores := w.stores(others, row)
	e.function.Body = append(w.outer, stores...)
	return e
}

// readA, readB and readC are the functions by which an epilogue reads elements of the operands, and of what the result
// replaces.
const readA, readB, readC = "operand_a", "operand_b", "mm_at_c"

// arraySuffix follows these names where the epilogue indexes the array itself.
const arraySuffix = "_array"

// bound is a binding of a pass: what the code calls it, and what it holds.
type bound struct {
	matmul.Array
	Arg
}

// readOperands defines readA and readB where the code uses them: by the pass's own binding of that memory, or by one
// more.
func (c *context) readOperands(code string, own []matmul.Binding, operands map[matmul.Operand]*graph.Value, bindings []bound) (string,
	[]bound) {
	for _, o := range []struct {
		operand matmul.Operand
		read    string
	}{{matmul.A, readA}, {matmul.B, readB}} {
		if !strings.Contains(code, o.read+"(") {
			continue
		}
		if i := c.holding(own, operands, operands[o.operand]); i >= 0 {
			code = rename(code, o.read, "mm_at_"+"abc"[i:i+1])
			continue
		}
		name, t := o.read+arraySuffix, operands[o.operand].DType
		at := scalar.Var("at", scalar.U32, 0)
		read := scalar.Function{Name: o.read, Parameters: []*scalar.Expr{at}, Result: element(name, t, graph.IndexOf(at, 1<<32))}
		code += read.WGSL()
		bindings = append(bindings, bound{matmul.Array{Name: name, Type: t.Scalar().String()}, Arg{Value: operands[o.operand]}})
	}
	return code, bindings
}

// holding returns the index of the pass's own binding of the memory that holds a value; −1: there is none.
func (c *context) holding(own []matmul.Binding, operands map[matmul.Operand]*graph.Value, v *graph.Value) int {
	return slices.IndexFunc(own, func(b matmul.Binding) bool {
		return b.Operand != matmul.Scratch && c.key(operands[b.Operand]) == c.key(v)
	})
}

// adopt binds a variant's operands. It fails for a variant that would read one array as two types, or bind too many.
func (c *context) adopt(m matmul.Kernel, operands map[matmul.Operand]*graph.Value, extra []Arg) (Kernel, bool) {
	k := Kernel{Name: m.Name}
	if m.Scratch > 0 {
		k.Scratch = []int64{int64(m.Scratch)}
	}
	for _, p := range m.Passes {
		text, args, ok := c.bindPass(p, operands, extra)
		if !ok || len(args) > c.lim.MaxBindings {
			return k, false
		}
		k.Passes = append(k.Passes, Pass{WGSL: text, Args: args, Workgroup: p.Workgroup, Groups: p.Groups,
			WorkgroupMemory: p.WorkgroupMemory, Inside: true})
	}
	return k, true
}

// bindPass is the text of a pass and its arguments. Bindings of the same memory become one, since no two may overlap: it
// fails if they differ in type, and in assembly.
func (c *context) bindPass(p matmul.Pass, operands map[matmul.Operand]*graph.Value, extra []Arg) (text string, args []Arg, ok bool) {
	args = c.operandArgs(p.Bindings, operands)
	if p.Epilogue {
		args = append(args, extra...)
	}
	if strings.HasPrefix(p.Code, target.Assembly) {
		kept, _ := c.merge(args)
		return p.Code, args, len(kept) == len(args)
	}
	var bindings []bound
	for i, a := range p.Arrays {
		bindings = append(bindings, bound{a, args[i]})
	}
	code := p.Code
	if p.Epilogue {
		code, bindings = c.readOperands(code, p.Bindings, operands, bindings)
	}
	args = nil
	for _, b := range bindings {
		args = append(args, b.Arg)
	}
	args, place := c.merge(args)
	var arrays []matmul.Array
	for i, b := range bindings {
		if place[i] == len(arrays) {
			arrays = append(arrays, b.Array)
			continue
		}
		first := arrays[place[i]]
		if first.Type != b.Type {
			return "", nil, false
		}
		code = rename(code, b.Name, first.Name)
	}
	return matmul.Source(p.Directives, arrays, code), args, true
}

// operandArgs are the arguments of a pass's own bindings.
func (c *context) operandArgs(bindings []matmul.Binding, operands map[matmul.Operand]*graph.Value) []Arg {
	var args []Arg
	for _, b := range bindings {
		a := Arg{Value: operands[b.Operand]}
		switch b.Operand {
		case matmul.Scratch:
			a = Arg{Offset: int64(b.Offset), Size: int64(b.Size)}
		case matmul.Offsets:
			a.Grouped = operands[matmul.A].Shape[0]
		}
		args = append(args, a)
	}
	return args
}

// merge returns the arguments without those that hold the memory of an earlier one, since no two may overlap, and the
// place of each among them.
func (c *context) merge(args []Arg) (kept []Arg, place []int) {
	first := map[string]int{} // by memory
	for _, a := range args {
		if a.Value != nil {
			key := c.key(a.Value)
			if earlier, ok := first[key]; ok {
				place = append(place, earlier)
				continue
			}
			first[key] = len(kept)
		}
		place = append(place, len(kept))
		kept = append(kept, a)
	}
	return kept, place
}
