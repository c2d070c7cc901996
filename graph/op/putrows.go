package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// PutRowsOp replaces rows of a cache. Inputs: cache [B,S,…], rows [B,N,…] with N ≤ S, both f32, and position u32[1].
// Result: the cache with the rows from position on replaced by the given ones. Rows that would lie at S or after it are
// dropped. With slots u32[N], the cache is [C,S,…], the rows are [N,R,…] and the positions u32[N]: rows n replace the
// rows of cache slots[n] from positions[n] on, and rows of a slot of C or more are dropped. No two rows may have one
// place. Assigned to the variable that is its input, it stores the new rows only.
type PutRowsOp struct{}

func (*PutRowsOp) Name() string { return "put_rows" }

// PutRows replaces the rows of cache [B,S,…] from position u32[1] on by rows [B,N,…]. It has no gradient.
func PutRows(cache, rows, position *graph.Value) *graph.Value {
	return graph.Apply1(new(PutRowsOp), cache, rows, position)
}

// PutSlotRows replaces rows of the caches [C,S,…] of several sequences by rows [N,R,…]: rows of cache slots[n] from
// positions[n] on, both u32[N]. It has no gradient.
func PutSlotRows(caches, rows, positions, slots *graph.Value) *graph.Value {
	return graph.Apply1(new(PutRowsOp), caches, rows, positions, slots)
}

func (*PutRowsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) != 3 && len(in) != 4 {
		return nil, fmt.Errorf("got %d inputs, expected 3 or 4", len(in))
	}
	cache, rows := in[0].Shape, in[1].Shape
	if in[0].DType != graph.F32 || len(cache) < 2 {
		return nil, fmt.Errorf("the cache is %v, expected f32[batch, positions, …]", in[0])
	}
	if len(rows) < 2 || rows[1] > cache[1] {
		return nil, fmt.Errorf("the rows are %v, expected at most %d of a cache %v", in[1], cache[1], in[0])
	}
	sequences := cache[0]
	if len(in) == 4 {
		sequences = rows[0]
	}
	want := append(graph.Shape{sequences, rows[1]}, cache[2:]...)
	if err := wantType("input 1", in[1], graph.F32, want...); err != nil {
		return nil, err
	}
	if len(in) == 4 {
		return in[:1], wantEach([]string{"the positions", "the slots"}, in[2:], graph.T(graph.U32, sequences))
	}
	return in[:1], wantType("the position", in[2], graph.U32, 1)
}

// putRows names the extents of a PutRowsOp. batch and rows are the first two extents of the rows that are put.
type putRows struct{ batch, positions, rows, width, caches int }

func putRowsSizes(cache, rows graph.Shape) putRows {
	return putRows{rows[0], cache[1], rows[1], cache[2:].Len(), cache[0]}
}

func (o *PutRowsOp) Eval(in, out []*graph.Tensor) {
	s := putRowsSizes(in[0].Shape, in[1].Shape)
	copy(out[0].Data, in[0].Data)
	for b := range s.batch {
		cache, position := b, in[2].Data[0]
		if len(in) == 4 {
			if cache, position = int(in[3].Data[b]), in[2].Data[b]; cache >= s.caches {
				continue
			}
		}
		from := min(int(position), s.positions)
		fresh := in[1].Data[b*s.rows*s.width:][:min(s.rows, s.positions-from)*s.width]
		copy(out[0].Data[(cache*s.positions+from)*s.width:], fresh)
	}
}

func (*PutRowsOp) Grad(n *graph.Node, _ []*graph.Value) []*graph.Value {
	n.Outputs[0].Builder().Fail("put_rows", "it is for decoding and has no gradient")
	return nil
}

func (*PutRowsOp) Kernel(n *graph.Node) graph.Kernel {
	s := putRowsSizes(n.Inputs[0].Shape, n.Inputs[1].Shape)
	slots, whole := len(n.Inputs) == 4, s.whole
	if slots {
		whole = s.wholeOfSlots
	}
	variants := func(l target.Limits) []graph.Variant { return s.variants(l, slots) }
	return graph.Template{Variants: variants, Update: &graph.Update{Stored: n.Inputs[1].Shape.Len(), Expand: whole}}
}

// wholeOfSlots computes every element of the result, one sequence of rows after the other.
func (s putRows) wholeOfSlots(in []*graph.Value) []*graph.Value {
	b := in[0].Builder()
	all := Reshape(in[0], s.caches, s.positions, s.width)
	cache, place := Iota(b, graph.U32, 0, s.caches, s.positions), Iota(b, graph.U32, 1, s.caches, s.positions)
	for n := range s.batch {
		from := Minimum(Slice(in[2], 0, n, n+1), Scalar(b, graph.U32, float64(s.positions)))
		row := Sub(place, from) // in rows; those before from wrap
		here := And(Less(row, Scalar(b, graph.U32, float64(s.rows))), Equal(cache, Slice(in[3], 0, n, n+1)))
		fresh := Embedding(Reshape(Slice(in[1], 0, n, n+1), s.rows, s.width), row)
		all = Where(Reshape(here, s.caches, s.positions, 1), fresh, all)
	}
	return []*graph.Value{Reshape(all, in[0].Shape...)}
}

// whole computes every element of the result.
func (s putRows) whole(in []*graph.Value) []*graph.Value {
	cache, rows, b := in[0], in[1], in[0].Builder()
	from := Minimum(in[2], Scalar(b, graph.U32, float64(s.positions)))
	row := Sub(Iota(b, graph.U32, 1, s.batch, s.positions), from) // in rows; those before from wrap
	here := Less(row, Scalar(b, graph.U32, float64(s.rows)))
	index := Add(row, Mul(Iota(b, graph.U32, 0, s.batch, s.positions), Scalar(b, graph.U32, float64(s.rows))))
	fresh := Embedding(Reshape(rows, s.batch*s.rows, s.width), index)
	return []*graph.Value{Reshape(Where(Reshape(here, s.batch, s.positions, 1), fresh, Reshape(cache, s.batch, s.positions, s.width)),
		cache.Shape...)}
}

const putRowsLanes = 64

// variants store the rows of each sequence n at a position of a cache.
func (s putRows) variants(l target.Limits, slots bool) []graph.Variant {
	uses, position, cache := []string{"in1", "in2", "out0"}, "$in2[0]", "n"
	if slots {
		uses, position, cache = []string{"in1", "in2", "in3", "out0"}, "$in2[n]", "$in3[n]"
	}
	if l.Native {
		return []graph.Variant{{Name: "native", Passes: []graph.Pass{{Native: true, Workgroup: 1, Groups: s.batch, Uses: uses, Body: fmt.Sprintf(`
  const u32 n = group, cache = %[6]s, position = %[5]s;
  const u32 from = position < %[2]du ? position : %[2]du, count = %[2]du - from < %[1]du ? %[2]du - from : %[1]du;
  if (cache < %[4]du) memcpy($out0 + ((u64)cache * %[2]du + from) * %[3]du, $in1 + (u64)n * %[1]du * %[3]du, (u64)count * %[3]du * sizeof(f32));
`, s.rows, s.positions, s.width, s.caches, position, cache)}}}}
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
let n = x / %[6]du;
let at = min(%[8]s, %[3]du) + x / %[4]du %% %[5]du;
let cache = %[9]s;
if (at < %[3]du && cache < %[7]du) { $out0[(cache * %[3]du + at) * %[4]du + x %% %[4]du] = $in1[x]; }
`, putRowsLanes, total, s.positions, units, s.rows, s.rows*units, s.caches, position, cache)
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
	for _, c := range []struct {
		cache, rows      graph.Shape
		positions, slots []float64
	}{
		{graph.Shape{3, 9, 2, 4}, graph.Shape{4, 1, 2, 4}, []float64{8, 0, 9, 5}, []float64{2, 0, 0, 2}},
		{graph.Shape{2, 7, 3}, graph.Shape{3, 4, 3}, []float64{5, 1, 0}, []float64{1, 0, 2}},
		{graph.Shape{2, 5}, graph.Shape{1, 1}, []float64{1<<32 - 1}, []float64{1}},
	} {
		cs = append(cs, graph.Case{Op: new(PutRowsOp), NoGrad: true, Fill: func(i, j int) float64 {
			switch i {
			case 2:
				return c.positions[j]
			case 3:
				return c.slots[j]
			}
			return scatter(i, j)
		}, Inputs: []graph.Type{graph.T(graph.F32, c.cache...), graph.T(graph.F32, c.rows...), graph.T(graph.U32, c.rows[0]),
			graph.T(graph.U32, c.rows[0])}})
	}
	return cs
}
