package shaders

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/shaders/matmul"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// epilogue is the elementwise work behind a matrix product: the value to store for an element of the product, and the
// stores of other values.
type epilogue struct {
	*groupLowering
	node     *graph.Node // the product
	product  matmul.Product
	first    *graph.Value   // that the kernel stores
	others   []*graph.Value // that the epilogue stores
	operands map[matmul.Operand]*graph.Value
}

// declared is the epilogue of one pass: its function, and the arguments behind the pass's own.
type declared struct {
	matmul.Declarations
	args    []Arg
	divided bool // one array would have elements of two types
}

// of writes the epilogue for a pass. What shares memory with a binding of the pass is read through that binding, since
// no two may overlap. A pass may bind rearranged copies of the operands instead.
func (e *epilogue) of(pass matmul.Pass) declared {
	if e.lim.Native {
		return e.native(pass)
	}
	w, d := e.newWriter(), declared{}
	own := map[string]matmul.Array{} // by memory
	readers := map[string]string{}   // functions that read elements of floats, which the kernel may bind in fours
	var held []scalar.Array
	for i, b := range pass.Bindings {
		if b.Operand == matmul.Scratch {
			continue
		}
		v := e.operands[b.Operand]
		key := e.key(v)
		own[key], w.held[key] = pass.Arrays[i], pass.Arrays[i].Name
		a := array(v)
		a.Name = pass.Arrays[i].Name
		if b.Operand != matmul.Offsets {
			readers[key] = "mm_at_" + strings.TrimPrefix(a.Name, "mm_")
			held = append(held, scalar.Array{Name: readers[key], Type: a.Type, Len: v.Shape.Len()})
		}
		held = append(held, a)
	}
	w.Load = func(v *graph.Value, at []graph.Index) *scalar.Expr {
		if f := readers[e.key(v)]; f != "" {
			return scalar.Read(f, v.DType.Scalar(), graph.Flatten(v.Shape, at).Expr())
		}
		return w.load(v, at)
	}
	for _, v := range e.others {
		a, held := own[e.key(v)]
		d.divided = d.divided || held && a.Type != array(v).Type.String()
	}
	f := e.function(w, "mm_epilogue", graph.Var("row", e.g.Rows, fuse.Row), held)
	d.args = w.args
	for _, a := range w.bindings {
		d.Arrays = append(d.Arrays, matmul.Array{Name: a.Name, Type: a.Type.String()})
	}
	d.Text = f.WGSL()
	return d
}

// native is the epilogue in C. It names, for the kernel to fetch ahead, the arguments that have C's shape.
func (e *epilogue) native(pass matmul.Pass) (d declared) {
	w := e.newWriter()
	var held []scalar.Array // of the pass, with their places among its arguments
	var place []int
	for i, b := range pass.Bindings {
		if b.Operand == matmul.Scratch {
			continue
		}
		v := e.operands[b.Operand]
		a := array(v)
		a.Name = fmt.Sprintf("operand_%c_array", "abc_o"[b.Operand])
		w.held[e.key(v)] = a.Name
		held, place = append(held, a), append(place, i)
	}
	// What depends on i alone is known to be the same for all columns, which a vector has.
	p := e.product
	row := graph.Var("b", p.Batch, fuse.Row).Times(p.M).Plus(graph.Var("i", p.M, fuse.Row)).Times(p.N).Plus(graph.Var("j", p.N, fuse.Row))
	f := e.function(w, "epilogue", row, held)
	var arrays []scalar.Array
	var places []int
	var fetched strings.Builder
	for i, a := range w.bindings {
		arrays, places = append(arrays, a), append(places, len(pass.Bindings)+i)
		if v := w.args[i].Value; v.DType == e.first.DType && v.Shape.Len() == e.first.Shape.Len() {
			fmt.Fprintf(&fetched, " FETCH(args[%d])", len(pass.Bindings)+i)
		}
	}
	for i, a := range held {
		if f.Uses(a.Name) {
			arrays, places = append(arrays, a), append(places, place[i])
		}
	}
	d.args = w.args
	d.Text = native.Function(f, arrays, places) + "\n#define EPILOGUE_ARRAYS(FETCH)" + fetched.String()
	return d
}

// function is the epilogue as a function of acc, b, i and j, at a row of the group. held are arrays of the pass.
func (e *epilogue) function(w *writer, name string, row graph.Index, held []scalar.Array) scalar.Function {
	acc := scalar.Var("acc", scalar.F32, fuse.Row)
	b, i, j := variable("b", fuse.Row), variable("i", fuse.Row), variable("j", fuse.Row)
	f := scalar.Function{Name: name, Parameters: []*scalar.Expr{acc, b, i, j}}
	if !e.lim.Native {
		let(&w.outer, "row", fuse.Row, b.Mul(number(e.product.M)).Add(i).Mul(number(e.product.N)).Add(j))
	}
	w.Fixed[e.node.Outputs[0]] = fuse.Fixed{Expr: acc, Flat: row}
	f.Result = w.Value(e.first, graph.Unflatten(e.first.Shape, row))
	stores := w.singleStores(e.others, row)
	f.Body = append(w.outer, stores...)
	if err := f.Check(append(held, w.bindings...), map[*scalar.Expr]int{b: e.product.Batch, i: e.product.M, j: e.product.N}); err != nil {
		panic(fmt.Sprintf("shaders: %s: %v", Label(e.g), err))
	}
	return f
}
