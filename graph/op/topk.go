package op

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// TopKOp selects the K largest elements of each row: x f32 [N, E] gives values f32 [N, K] and ids u32 [N, K], in
// descending order. Of equal elements that with the lowest id comes first. NaN is larger than any number, as in
// PyTorch. Ids are below E, and the ids of a row are distinct, whatever the elements.
type TopKOp struct {
	K int `json:"k"`
}

func (*TopKOp) Name() string { return "top_k" }

func (o *TopKOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	if in[0].DType != graph.F32 || len(in[0].Shape) != 2 {
		return nil, fmt.Errorf("input 0 is %v, expected f32[rows,columns]", in[0])
	}
	if o.K < 1 || o.K > in[0].Shape[1] {
		return nil, fmt.Errorf("k is %d, expected 1 to %d, the columns of %v", o.K, in[0].Shape[1], in[0])
	}
	n := in[0].Shape[0]
	return []graph.Type{graph.T(graph.F32, n, o.K), graph.T(graph.U32, n, o.K)}, nil
}

// Grad gives each selected element the gradient of its value.
func (o *TopKOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	if d[0] == nil {
		return []*graph.Value{nil}
	}
	x, ids := n.Inputs[0], n.Outputs[1]
	rows, columns := x.Shape[0], x.Shape[1]
	hit := Equal(Iota(x.Builder(), graph.U32, 2, rows, o.K, columns), Reshape(ids, rows, o.K, 1))
	each := Where(hit, Broadcast(Reshape(d[0], rows, o.K, 1), rows, o.K, columns), Scalar(x.Builder(), graph.F32, 0))
	return []*graph.Value{Sum(each, []int{1}, false)}
}

func (o *TopKOp) Eval(in, out []*graph.Tensor) {
	columns := in[0].Shape[1]
	ids := make([]int, columns)
	for row := range in[0].Shape[0] {
		x := in[0].Data[row*columns:][:columns]
		for i := range ids {
			ids[i] = i
		}
		slices.SortStableFunc(ids, func(i, j int) int { return descending(x[i], x[j]) })
		for i, id := range ids[:o.K] {
			out[0].Data[row*o.K+i], out[1].Data[row*o.K+i] = x[id], float64(id)
		}
	}
}

// descending compares numbers of which the larger comes first, and NaN before all.
func descending(x, y float64) int {
	switch {
	case math.IsNaN(x) && math.IsNaN(y) || x == y:
		return 0
	case math.IsNaN(x) || x > y:
		return -1
	}
	return 1
}

// topKKey is the WGSL function of a u32 that orders f32s as TopKOp does. It works on the bits alone, since devices may
// assume that there are no NaNs.
const topKKey = `fn key(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  let size = u & 0x7fffffffu;
  let order = select(u | 0x80000000u, ~u, u > 0x80000000u);
  return select(order, 0xffffffffu, size > 0x7f800000u);
}
`

// Kernel takes the K elements of a row one after the other: an element is the first that no earlier one precedes.
func (o *TopKOp) Kernel(n *graph.Node) graph.Kernel {
	rows, columns := n.Inputs[0].Shape[0], n.Inputs[0].Shape[1]
	const group = 64
	body := fmt.Sprintf(`  let row = group * %du + lane;
  if (row >= %du) { return; }
  var last = 0xffffffffu;
  var lastId = 0u;
  for (var i = 0u; i < %du; i++) {
    var best = 0u;
    var id = 0u;
    var found = false;
    for (var e = 0u; e < %du; e++) {
      let k = key($in0[row * %du + e]);
      let after = i == 0u || k < last || (k == last && e > lastId);
      if (after && (!found || k > best)) {
        best = k;
        id = e;
        found = true;
      }
    }
    last = best;
    lastId = id;
    $out0[row * %du + i] = $in0[row * %du + id];
    $out1[row * %du + i] = id;
  }
`, group, rows, o.K, columns, columns, o.K, columns, o.K)
	pass := graph.Pass{Declarations: topKKey, Body: body, Uses: []string{"in0", "out0", "out1"}, Workgroup: group, Groups: groupsOf(rows),
		Inside: true}
	return graph.Template{Variants: func(l target.Limits) []graph.Variant {
		if l.Native {
			return []graph.Variant{{Name: "native", Passes: []graph.Pass{o.native(rows, columns)}}}
		}
		return []graph.Variant{{Name: "scan", Passes: []graph.Pass{pass}}}
	}}
}

//go:embed native/topk.c
var nativeTopK string

// native is the pass for CPUs.
func (o *TopKOp) native(rows, columns int) graph.Pass {
	share := max(1, nativeElements/(o.K*columns))
	return graph.Pass{Native: true, Declarations: nativeDefine("K", o.K, "COLUMNS", columns) + nativeTopK, Workgroup: 1,
		Groups: (rows + share - 1) / share, Uses: []string{"in0", "out0", "out1"}, Body: nativeRange(share, rows) +
			"    for (u64 row = begin; row < end; row++) top($out0 + row * K, $out1 + row * K, $in0 + row * COLUMNS);\n"}
}

// nativeElements is how many elements a workgroup on a CPU computes, so that it is worth handing to a thread.
const nativeElements = 1 << 13

// nativeRange is C that declares the share of a workgroup, from begin to end, of so many rows.
func nativeRange(share, rows int) string {
	return fmt.Sprintf("    const u64 begin = (u64)group * %[1]d, end = begin + %[1]d < %[2]d ? begin + %[1]d : %[2]d;\n", share, rows)
}

// nativeDefine is C that defines numbers by name.
func nativeDefine(pairs ...any) string {
	var s strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&s, "#define %v %v\n", pairs[i], pairs[i+1])
	}
	return s.String()
}

// Cases have gaps between the elements of a row that central differences do not close, except for those with ties, NaNs
// and infinities.
func (*TopKOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range []struct{ n, e, k int }{{1, 1, 1}, {5, 1, 1}, {3, 4, 4}, {65, 8, 2}, {7, 64, 8}, {33, 3, 2}} {
		cs = append(cs, graph.Case{Op: &TopKOp{c.k}, Inputs: []graph.Type{graph.T(graph.F32, c.n, c.e)}, Tolerance: exact,
			Fill: func(_, j int) float64 { return float64(j*37%101)/8 - 5 - float64(j%c.e)/64 }})
	}
	special := []float64{math.NaN(), 1, math.Inf(1), 1, math.Inf(-1), 0, math.Copysign(0, -1), -1, math.NaN(), math.MaxFloat32, -1e-30}
	return append(cs,
		graph.Case{Op: &TopKOp{5}, Inputs: []graph.Type{graph.T(graph.F32, 9, 7)}, NoGrad: true,
			Fill: func(_, j int) float64 { return float64(j % 3) }},
		graph.Case{Op: &TopKOp{6}, Inputs: []graph.Type{graph.T(graph.F32, 11, 6)}, NoGrad: true,
			Fill: func(_, j int) float64 { return special[j%len(special)] }},
		graph.Case{Op: &TopKOp{2}, Inputs: []graph.Type{graph.T(graph.F32, 3, 8)}, NoGrad: true,
			Fill: func(int, int) float64 { return math.NaN() }})
}

// TopK selects the k largest elements of each row of x f32 [N, E]: values f32 [N, k], through which gradients flow, and
// ids u32 [N, k], in descending order. Of equal elements that with the lowest id comes first, and NaN is the largest.
func TopK(x *graph.Value, k int) (values, ids *graph.Value) {
	out := x.Builder().Apply(&TopKOp{k}, x)
	return out[0], out[1]
}
