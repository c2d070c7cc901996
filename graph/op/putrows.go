package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

func init() { graph.Register(func() graph.Op { return new(PutRowsOp) }) }

// PutRowsOp replaces rows of a cache. Inputs: cache [B,S,…], rows [B,N,…] with N ≤ S, both f32, and position u32[1].
// Result: the cache with the rows from position on replaced by the given ones. Rows that would lie at S or after it are
// dropped. Assigned to the variable that is its input, it stores the new rows only.
type PutRowsOp struct{}

func (*PutRowsOp) Name() string { return "put_rows" }

// PutRows replaces the rows of cache [B,S,…] from position u32[1] on by rows [B,N,…]. It has no gradient.
func PutRows(cache, rows, position *graph.Value) *graph.Value {
	return graph.Apply1(new(PutRowsOp), cache, rows, position)
}

func (*PutRowsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 3); err != nil {
		return nil, err
	}
	cache, rows := in[0].Shape, in[1].Shape
	if in[0].DType != graph.F32 || len(cache) < 2 {
		return nil, fmt.Errorf("the cache is %v, expected f32[batch, positions, …]", in[0])
	}
	if len(rows) < 2 || rows[1] > cache[1] {
		return nil, fmt.Errorf("the rows are %v, expected at most %d of a cache %v", in[1], cache[1], in[0])
	}
	want := append(graph.Shape{cache[0], rows[1]}, cache[2:]...)
	if err := wantType("input 1", in[1], graph.F32, want...); err != nil {
		return nil, err
	}
	return in[:1], wantType("the position", in[2], graph.U32, 1)
}

// putRows names the extents of a PutRowsOp.
type putRows struct{ batch, positions, rows, width int }

func putRowsSizes(cache, rows graph.Shape) putRows {
	return putRows{cache[0], cache[1], rows[1], cache[2:].Len()}
}

func (o *PutRowsOp) Eval(in, out []*graph.Tensor) {
	s := putRowsSizes(in[0].Shape, in[1].Shape)
	copy(out[0].Data, in[0].Data)
	from := min(int(in[2].Data[0]), s.positions)
	for b := range s.batch {
		fresh := in[1].Data[b*s.rows*s.width:][:min(s.rows, s.positions-from)*s.width]
		copy(out[0].Data[(b*s.positions+from)*s.width:], fresh)
	}
}

func (*PutRowsOp) Grad(n *graph.Node, _ []*graph.Value) []*graph.Value {
	n.Outputs[0].Builder().Fail("put_rows", "it is for decoding and has no gradient")
	return nil
}

func (*PutRowsOp) Kernel(n *graph.Node) graph.Kernel {
	s := putRowsSizes(n.Inputs[0].Shape, n.Inputs[1].Shape)
	return graph.Template{Variants: s.variants, Update: &graph.Update{Stored: n.Inputs[1].Shape.Len(), Expand: s.whole}}
}

// whole computes every element of the result.
func (s putRows) whole(in []*graph.Value) []*graph.Value {
	cache, rows, b := in[0], in[1], in[0].Builder()
	from := Minimum(in[2], Scalar(b, graph.U32, float64(s.positions)))
	row := Sub(Iota(b, graph.U32, 1, s.batch, s.positions), from) // in rows; those before from wrap
	here := Less(row, Scalar(b, graph.U32, float64(s.rows)))
	index := Add(row, Mul(Iota(b, graph.U32, 0, s.batch, s.positions), Scalar(b, graph.U32, float64(s.rows))))
	fresh := Embedding(Reshape(rows, s.batch*s.rows, s.width), index)
	return []*graph.Value{Reshape(Where(Reshape(here, s.batch, s.positions, 1), fresh, Reshape(cache, s.batch, s.positions, s.width)), cache.Shape...)}
}

const putRowsLanes = 64

func (s putRows) variants(l target.Limits) []graph.Variant {
	uses := []string{"in1", "in2", "out0"}
	if l.Native {
		return []graph.Variant{{Name: "native", Passes: []graph.Pass{{Native: true, Workgroup: 1, Groups: s.batch, Uses: uses, Body: fmt.Sprintf(`
  const u32 from = in2[0] < %[2]du ? in2[0] : %[2]du, count = %[2]du - from < %[1]du ? %[2]du - from : %[1]du;
  memcpy(out0 + ((u64)group * %[2]du + from) * %[3]du, in1 + (u64)group * %[1]du * %[3]du, (u64)count * %[3]du * sizeof(f32));
`, s.rows, s.positions, s.width)}}}}
	}
	p := graph.Pass{Workgroup: putRowsLanes, Uses: uses, Inside: true}
	units := s.width
	if units%4 == 0 {
		units, p.Vec4 = units/4, []string{"in1", "out0"}
	}
	total := s.batch * s.rows * units
	p.Groups = (total + putRowsLanes - 1) / putRowsLanes
	p.Body = fmt.Sprintf(`// x counts [batch, rows, units of a row].
let x = group * %du + lane;
if (x >= %du) { return; }
let at = min(in2[0], %[3]du) + x / %[4]du %% %[5]du;
if (at < %[3]du) { out0[(x / %[6]du * %[3]du + at) * %[4]du + x %% %[4]du] = in1[x]; }
`, putRowsLanes, total, s.positions, units, s.rows, s.rows*units)
	return []graph.Variant{{Name: "naive", Passes: []graph.Pass{p}}}
}

func (*PutRowsOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range []struct {
		cache, rows graph.Shape
		position    float64
	}{
		{graph.Shape{1, 1}, graph.Shape{1, 1}, 0}, {graph.Shape{1, 9, 2, 4}, graph.Shape{1, 1, 2, 4}, 8},
		{graph.Shape{2, 7, 3}, graph.Shape{2, 4, 3}, 2}, {graph.Shape{2, 7, 8}, graph.Shape{2, 4, 8}, 5},
		{graph.Shape{3, 5, 2}, graph.Shape{3, 5, 2}, 0}, {graph.Shape{1, 5, 6}, graph.Shape{1, 2, 6}, 1<<32 - 1},
	} {
		cs = append(cs, graph.Case{Op: new(PutRowsOp), NoGrad: true, Fill: func(i, j int) float64 {
			if i == 2 {
				return c.position
			}
			return scatter(i, j)
		}, Inputs: []graph.Type{graph.T(graph.F32, c.cache...), graph.T(graph.F32, c.rows...), graph.T(graph.U32, 1)}})
	}
	return cs
}
