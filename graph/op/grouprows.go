package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// GroupRowsOp sorts pairs of a token and an expert by expert. Input ids u32 [N, k] holds the k experts of each token,
// and R = N·k is the number of pairs; pair p is choice p % k of token p / k. Results are order u32 [R], the pair in
// each sorted row; place u32 [N, k], the sorted row of each pair; and offsets u32 [Experts+1]: the rows of expert e are
// offsets[e] to offsets[e+1]. Pairs of one expert keep their order. An id past the experts counts as the last.
type GroupRowsOp struct {
	Experts int `json:"experts"`
}

func (*GroupRowsOp) Name() string { return "group_rows" }

func (o *GroupRowsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	if in[0].DType != graph.U32 || len(in[0].Shape) != 2 {
		return nil, fmt.Errorf("input 0 is %v, expected u32[tokens,choices]", in[0])
	}
	if o.Experts < 1 || o.Experts > maxExperts {
		return nil, fmt.Errorf("experts is %d, expected 1 to %d", o.Experts, maxExperts)
	}
	return []graph.Type{graph.T(graph.U32, in[0].Shape.Len()), in[0], graph.T(graph.U32, o.Experts+1)}, nil
}

// maxExperts bounds the work of kernels that go through all experts.
const maxExperts = 4096

func (*GroupRowsOp) Grad(*graph.Node, []*graph.Value) []*graph.Value { return []*graph.Value{nil} }

func (o *GroupRowsOp) Eval(in, out []*graph.Tensor) {
	order, place, offsets := out[0].Data, out[1].Data, out[2].Data
	row := 0
	for e := range o.Experts {
		offsets[e] = float64(row)
		for pair, id := range in[0].Data {
			if min(int(id), o.Experts-1) == e {
				order[row], place[pair] = float64(pair), float64(row)
				row++
			}
		}
	}
	offsets[o.Experts] = float64(row)
}

func (o *GroupRowsOp) Kernel(n *graph.Node) graph.Kernel {
	pairs := n.Inputs[0].Shape.Len()
	return graph.Template{Variants: func(l target.Limits) []graph.Variant {
		if l.Native {
			return []graph.Variant{o.native(pairs)}
		}
		return []graph.Variant{o.sort(pairs)}
	}}
}

// native is a counting sort by one thread: its work is small beside the products that follow.
func (o *GroupRowsOp) native(pairs int) graph.Variant {
	body := fmt.Sprintf(`  const u64 pairs = %[1]du, experts = %[2]du;
  memset($out2, 0, 4 * (experts + 1));
  for (u64 p = 0; p < pairs; p++) $out2[($in0[p] < experts ? $in0[p] : experts - 1) + 1]++;
  for (u64 e = 0; e < experts; e++) $out2[e + 1] += $out2[e];
  for (u64 p = pairs; p-- > 0;) {
    const u64 e = $in0[p] < experts ? $in0[p] : experts - 1;
    const u32 row = --$out2[e + 1];
    $out0[row] = (u32)p, $out1[p] = row;
  }
  for (u64 e = 0; e < experts; e++) $out2[e] = $out2[e + 1];
  $out2[experts] = (u32)pairs;
`, pairs, o.Experts)
	return graph.Variant{Name: "native", Passes: []graph.Pass{{Native: true, Body: body, Uses: []string{"in0", "out0", "out1", "out2"},
		Workgroup: 1, Groups: 1}}}
}

// sortChunk is the number of pairs whose ranks among themselves are counted by comparing each with all earlier ones.
const sortChunk = 256

// sort is a counting sort in three passes. The first counts the pairs of each expert in each chunk; the second makes of
// the counts the row where each chunk's pairs of an expert begin; the third adds each pair's rank within its chunk.
func (o *GroupRowsOp) sort(pairs int) graph.Variant {
	chunks := (pairs + sortChunk - 1) / sortChunk
	count := fmt.Sprintf(`  let at = group * %[1]du + lane;
  if (at >= %[2]du) { return; }
  let e = at / %[3]du;
  let chunk = at %% %[3]du;
  let end = min((chunk + 1u) * %[4]du, %[5]du);
  var n = 0u;
  for (var p = chunk * %[4]du; p < end; p++) { n += select(0u, 1u, min($in0[p], %[6]du) == e); }
  $tmp0[at] = n;
`, embeddingGroup, o.Experts*chunks, chunks, sortChunk, pairs, o.Experts-1)
	const lanes = 64
	scan := fmt.Sprintf(`  for (var e = lane; e < %[1]du; e += %[2]du) {
    var n = 0u;
    for (var c = 0u; c < %[3]du; c++) { n += $tmp0[e * %[3]du + c]; }
    totals[e] = n;
  }
  workgroupBarrier();
  if (lane == 0u) {
    var row = 0u;
    for (var e = 0u; e < %[1]du; e++) {
      let n = totals[e];
      totals[e] = row;
      $out2[e] = row;
      row += n;
    }
    $out2[%[1]du] = row;
  }
  workgroupBarrier();
  for (var e = lane; e < %[1]du; e += %[2]du) {
    var row = totals[e];
    for (var c = 0u; c < %[3]du; c++) {
      $tmp1[e * %[3]du + c] = row;
      row += $tmp0[e * %[3]du + c];
    }
  }
`, o.Experts, lanes, chunks)
	place := fmt.Sprintf(`  let p = group * %[1]du + lane;
  if (p >= %[2]du) { return; }
  let chunk = p / %[3]du;
  let e = min($in0[p], %[4]du);
  var row = $tmp1[e * %[5]du + chunk];
  for (var q = chunk * %[3]du; q < p; q++) { row += select(0u, 1u, min($in0[q], %[4]du) == e); }
  row = min(row, %[6]du);
  $out0[row] = p;
  $out1[p] = row;
`, embeddingGroup, pairs, sortChunk, o.Experts-1, chunks, pairs-1)
	counts := graph.T(graph.U32, o.Experts*chunks)
	return graph.Variant{Name: "sort", Scratch: []graph.Type{counts, counts}, Passes: []graph.Pass{
		{Body: count, Uses: []string{"in0", "tmp0"}, Workgroup: embeddingGroup, Groups: groupsOf(o.Experts * chunks), Inside: true},
		{Declarations: fmt.Sprintf("var<workgroup> totals: array<u32, %d>;\n", o.Experts), Body: scan,
			Uses: []string{"tmp0", "tmp1", "out2"}, Workgroup: lanes, Groups: 1, WorkgroupMemory: 4 * o.Experts, Inside: true},
		{Body: place, Uses: []string{"in0", "tmp1", "out0", "out1"}, Workgroup: embeddingGroup, Groups: groupsOf(pairs), Inside: true},
	}}
}

func (*GroupRowsOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, c := range []struct {
		n, k, experts int
		id            func(j int) int
	}{
		{1, 1, 1, func(int) int { return 0 }}, {5, 2, 8, func(j int) int { return j * 3 % 8 }},
		{300, 3, 7, func(j int) int { return j * j % 7 }},
		{70, 8, 64, func(j int) int { return j * 11 % 64 }}, {257, 1, 3, func(int) int { return 1 }}, // one hot expert and two idle ones
		{9, 2, 2, func(j int) int { return j % 5 }}, // ids past the experts
	} {
		cs = append(cs, graph.Case{Op: &GroupRowsOp{c.experts}, Inputs: []graph.Type{graph.T(graph.U32, c.n, c.k)}, NoGrad: true,
			Fill: func(_, j int) float64 { return float64(c.id(j)) }})
	}
	return cs
}

// GroupRows sorts the N·k pairs of a token and one of its experts by expert. Ids are u32 [N, k]. Order u32 [N·k] is the
// pair, token·k + choice, in each sorted row; place u32 [N, k] the row of each pair; offsets u32 [experts+1] where the
// rows of each expert begin. Pairs of one expert keep their order.
func GroupRows(ids *graph.Value, experts int) (order, place, offsets *graph.Value) {
	out := ids.Builder().Apply(&GroupRowsOp{experts}, ids)
	return out[0], out[1], out[2]
}
