package op

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
)

// EmbeddingOp is table[ids]: inputs f32 [V, D] and u32 [...], result [..., D]. An id past the table reads its last row.
type EmbeddingOp struct{}

func (*EmbeddingOp) Name() string { return "embedding" }

func (*EmbeddingOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	if err := wantFloat(0, in[0]); err != nil {
		return nil, err
	}
	if len(in[0].Shape) != 2 || in[1].DType != graph.U32 {
		return nil, fmt.Errorf("inputs are %v and %v, expected a table [vocabulary, width] and u32 ids", in[0], in[1])
	}
	return []graph.Type{{DType: in[0].DType, Shape: append(in[1].Shape.Clone(), in[0].Shape[1])}}, nil
}

// Grad sums the rows that each id received.
func (*EmbeddingOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	ids := n.Inputs[1]
	flat := Reshape(d[0], ids.Shape.Len(), n.Inputs[0].Shape[1])
	return []*graph.Value{graph.Apply1(&EmbeddingGradOp{n.Inputs[0].Shape[0]}, Reshape(ids, ids.Shape.Len()), flat), nil}
}

func (*EmbeddingOp) Kernel(n *graph.Node) graph.Kernel {
	rows := n.Inputs[0].Shape[0]
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		last := len(at) - 1
		return e.Input(0, []graph.Index{row(e, e.Input(1, at[:last]), rows), at[last]})
	}}
}

// row is the number of a row that was read from memory, or of the last row where that is beyond it.
func row(e graph.Emitter, number *scalar.Expr, rows int) graph.Index {
	return graph.IndexOf(e.Let(scalar.Min(number, scalar.U(uint32(rows-1)))), rows)
}

func (*EmbeddingOp) Eval(in, out []*graph.Tensor) {
	rows, width := in[0].Shape[0], in[0].Shape[1]
	for i, id := range in[1].Data {
		row := min(int(id), rows-1)
		copy(out[0].Data[i*width:(i+1)*width], in[0].Data[row*width:])
	}
}

func (*EmbeddingOp) Cases() []graph.Case {
	ids := func(rows int) func(i, j int) float64 {
		return func(i, j int) float64 {
			if i == 1 {
				return float64(j * 7 % rows)
			}
			return float64(j%17)/8 - 1
		}
	}
	return []graph.Case{
		{Op: new(EmbeddingOp), Inputs: []graph.Type{graph.T(graph.F32, 4, 3), graph.T(graph.U32)}, Fill: ids(4)},
		{Op: new(EmbeddingOp), Inputs: []graph.Type{graph.T(graph.F32, 1, 1), graph.T(graph.U32, 5)}, Fill: ids(1)},
		{Op: new(EmbeddingOp), Inputs: []graph.Type{graph.T(graph.F32, 11, 6), graph.T(graph.U32, 3, 9)}, Fill: ids(11)},
		{Op: new(EmbeddingOp), Inputs: []graph.Type{graph.T(graph.F32, 11, 6), graph.T(graph.U32, 4)}, NoGrad: true,
			Fill: func(i, j int) float64 { return float64(j * 5) }}, // ids past the table
	}
}

// Embedding is table[ids].
func Embedding(table, ids *graph.Value) *graph.Value {
	return graph.Apply1(new(EmbeddingOp), table, ids)
}

// EmbeddingGradOp sums rows by id: inputs u32 [N] and f32 [N, D], result [Rows, D]; rows of no id are zero. The sum
// over equal ids runs in their order, so that its bits are always the same.
type EmbeddingGradOp struct {
	Rows int `json:"rows"`
}

func (*EmbeddingGradOp) Name() string { return "embedding_grad" }

func (o *EmbeddingGradOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	if len(in[0].Shape) != 1 || in[0].DType != graph.U32 || len(in[1].Shape) != 2 || in[1].Shape[0] != in[0].Shape[0] ||
		!in[1].DType.Float() {
		return nil, fmt.Errorf("inputs are %v and %v, expected u32 ids [n] and rows [n, width]", in[0], in[1])
	}
	if o.Rows < 1 {
		return nil, fmt.Errorf("rows is %d, expected at least 1", o.Rows)
	}
	return []graph.Type{{DType: in[1].DType, Shape: graph.Shape{o.Rows, in[1].Shape[1]}}}, nil
}

// Grad gathers: each row's gradient is the gradient of the sum it went into.
func (*EmbeddingGradOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	return []*graph.Value{nil, Embedding(d[0], n.Inputs[0])}
}

func (o *EmbeddingGradOp) Eval(in, out []*graph.Tensor) {
	width := in[1].Shape[1]
	for i, id := range in[0].Data {
		row := min(int(id), o.Rows-1)
		for c := range width {
			out[0].Data[row*width+c] += in[1].Data[i*width+c]
		}
	}
}

func (o *EmbeddingGradOp) Kernel(n *graph.Node) graph.Kernel {
	count, width := n.Inputs[1].Shape[0], n.Inputs[1].Shape[1]
	return graph.Template{Variants: func(l target.Limits) []graph.Variant {
		if l.Native {
			return []graph.Variant{o.native(count, width)}
		}
		return []graph.Variant{o.scan(count, width), o.chains(count, width, l.Software)}
	}}
}

const embeddingGroup = 64

// scan has each element of the table compare each id.
func (o *EmbeddingGradOp) scan(count, width int) graph.Variant {
	body := fmt.Sprintf(`  let at = group * %du + lane;
  if (at >= %du) { return; }
  let row = at / %du;
  let c = at %% %du;
  var sum = 0.0;
  for (var i = 0u; i < %du; i++) { if (min($in0[i], %du) == row) { sum += $in1[i * %du + c]; } }
  $out0[at] = sum;
`, embeddingGroup, o.Rows*width, width, width, count, o.Rows-1, width)
	return graph.Variant{Name: "scan", Passes: []graph.Pass{{Body: body, Uses: []string{"in0", "in1", "out0"},
		Workgroup: embeddingGroup, Groups: groupsOf(o.Rows * width)}}}
}

// native returns the variant for CPUs, which adds the rows in their order. A workgroup has some columns of the table.
func (o *EmbeddingGradOp) native(count, width int) graph.Variant {
	columns := max(16, (width/16+15)/16*16)
	body := fmt.Sprintf(`  const u64 from = group * %[1]du, n = from + %[1]du < %[2]du ? %[1]du : %[2]du - from;
  for (u64 row = 0; row < %[3]du; row++) memset($out0 + row * %[2]du + from, 0, 4 * n);
  for (u64 i = 0; i < %[4]du; i++) {
    const u64 id = $in0[i] < %[5]du ? $in0[i] : %[5]du;
    for (u64 c = from; c < from + n; c++) $out0[id * %[2]du + c] += $in1[i * %[2]du + c];
  }
`, columns, width, o.Rows, count, o.Rows-1)
	return graph.Variant{Name: "native", Passes: []graph.Pass{{Native: true, Body: body, Uses: []string{"in0", "in1", "out0"},
		Workgroup: 1, Groups: (width + columns - 1) / columns}}}
}

// chains returns the variant that links equal ids to chains and then sums each chain from its first id. Its work grows
// with the number of tokens, not with the vocabulary.
func (o *EmbeddingGradOp) chains(count, width int, software bool) graph.Variant {
	zero := fmt.Sprintf(`  for (var at = group * %du + lane; at < %du; at += %du) { $out0[at] = 0.0; }
`, embeddingGroup, o.Rows*width, groupsOf((o.Rows*width+15)/16)*embeddingGroup)
	// tmp0 holds the next position of the same id, count at the end; tmp1 reports whether a position is its id's first.
	chain := fmt.Sprintf(`  let i = group * %[1]du + lane;
  if (i >= %[2]du) { return; }
  let id = min($in0[i], %[3]du);
  var next = %[2]du;
  for (var j = i + 1u; j < %[2]du; j++) { if (min($in0[j], %[3]du) == id) { next = j; break; } }
  var first = 1u;
  for (var j = i; j > 0u; j--) { if (min($in0[j - 1u], %[3]du) == id) { first = 0u; break; } }
  $tmp0[i] = next;
  $tmp1[i] = first;
`, embeddingGroup, count, o.Rows-1)
	sum := fmt.Sprintf(`  let at = group * %[1]du + lane;
  if (at >= %[2]du) { return; }
  let i = at / %[3]du;
  let c = at %% %[3]du;
  if ($tmp1[i] == 0u) { return; }
  var sum = 0.0;
%[4]s  $out0[min($in0[i], %[5]du) * %[3]du + c] = sum;
`, embeddingGroup, count*width, width, walk(count, width, software), o.Rows-1)
	return graph.Variant{
		Name:    "chains",
		Scratch: []graph.Type{graph.T(graph.U32, count), graph.T(graph.U32, count)},
		Passes: []graph.Pass{
			{Body: zero, Uses: []string{"out0"}, Workgroup: embeddingGroup, Groups: groupsOf((o.Rows*width + 15) / 16)},
			{Body: chain, Uses: []string{"in0", "tmp0", "tmp1"}, Workgroup: embeddingGroup, Groups: groupsOf(count)},
			{Body: sum, Uses: []string{"in0", "in1", "tmp0", "tmp1", "out0"}, Workgroup: embeddingGroup, Groups: groupsOf(count * width)},
		},
	}
}

// walk emits the sum over a chain from position i on. It loads several rows at once, since a chain may have thousands
// of positions and a GPU's memory latency is long. Loads beyond the end of the chain are clamped and not added.
func walk(count, width int, software bool) string {
	if software {
		return fmt.Sprintf("  for (var j = i; j < %du; j = $tmp0[j]) { sum += $in1[j * %du + c]; }\n", count, width)
	}
	const unroll = 4
	var next, rows, adds strings.Builder
	for q := range unroll {
		if q > 0 {
			fmt.Fprintf(&next, "    let j%d = $tmp0[min(j%d, %du)];\n", q, q-1, count-1)
		}
		fmt.Fprintf(&rows, "    let x%d = $in1[min(j%d, %du) * %du + c];\n", q, q, count-1, width)
		fmt.Fprintf(&adds, "    sum += select(0.0, x%d, j%d < %du);\n", q, q, count)
	}
	return fmt.Sprintf("  for (var j0 = i; j0 < %du;) {\n%s%s%s    j0 = $tmp0[min(j%d, %du)];\n  }\n", count, &next, &rows, &adds, unroll-1,
		count-1)
}

func groupsOf(invocations int) int { return (invocations + embeddingGroup - 1) / embeddingGroup }

func (*EmbeddingGradOp) Cases() []graph.Case {
	fill := func(spread int) func(i, j int) float64 {
		return func(i, j int) float64 {
			if i == 0 {
				return float64(j * j % spread)
			}
			return float64(j%23)/11 - 1
		}
	}
	return []graph.Case{
		{Op: &EmbeddingGradOp{1}, Inputs: []graph.Type{graph.T(graph.U32, 1), graph.T(graph.F32, 1, 1)}, Fill: fill(1)},
		{Op: &EmbeddingGradOp{13}, Inputs: []graph.Type{graph.T(graph.U32, 40), graph.T(graph.F32, 40, 7)}, Fill: fill(13)},
		{Op: &EmbeddingGradOp{256}, Inputs: []graph.Type{graph.T(graph.U32, 300), graph.T(graph.F32, 300, 16)}, Fill: fill(97)},
		{Op: &EmbeddingGradOp{5}, Inputs: []graph.Type{graph.T(graph.U32, 30), graph.T(graph.F32, 30, 3)}, Fill: fill(9)}, // past the table
	}
}

func embeddings() []graph.Op {
	return []graph.Op{new(EmbeddingOp), new(EmbeddingGradOp)}
}
