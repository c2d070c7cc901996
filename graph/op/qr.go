package op

import (
	_ "embed"
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"gonum.org/v1/gonum/mat"
)

// QROp computes the orthonormal factor Q of the QR decomposition of each matrix of f32 [..., m, n], m ≥ n: A = QR with
// QᵀQ = I and R upper triangular, by Householder reflections (Golub and Van Loan, Matrix Computations, algorithm
// 5.2.1). The diagonal of R is not negative, which makes Q a continuous function of A where A has full rank. The
// columns of Q are orthonormal even if the columns of A are linearly dependent.
type QROp struct{}

func (*QROp) Name() string { return "qr" }

func (*QROp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 1); err != nil {
		return nil, err
	}
	if in[0].DType != graph.F32 || len(in[0].Shape) < 2 {
		return nil, fmt.Errorf("input 0 is %v, expected f32[..., rows, columns]", in[0])
	}
	if rows, cols := matrix(in[0].Shape, false); rows < cols {
		return nil, fmt.Errorf("input 0 is %v, expected at least as many rows as columns", in[0])
	}
	return in, nil
}

// Grad returns no gradient: decompositions are not differentiable here.
func (*QROp) Grad(*graph.Node, []*graph.Value) []*graph.Value { return make([]*graph.Value, 1) }

func (*QROp) Eval(in, out []*graph.Tensor) {
	rows, cols := matrix(in[0].Shape, false)
	for i := range in[0].Shape.Len() / (rows * cols) {
		a, q := dense(in[0], i), dense(out[0], i)
		var qr mat.QR
		qr.Factorize(a)
		var full, r mat.Dense
		qr.QTo(&full)
		qr.RTo(&r)
		q.Copy(&full) // the first columns
		for j := range cols {
			if r.At(j, j) < 0 {
				column := q.ColView(j).(*mat.VecDense)
				column.ScaleVec(-1, column)
			}
		}
	}
}

// dense returns the i-th matrix of the tensor. It shares the tensor's memory.
func dense(t *graph.Tensor, i int) *mat.Dense {
	rows, cols := matrix(t.Shape, false)
	return mat.NewDense(rows, cols, t.Data[i*rows*cols:(i+1)*rows*cols])
}

func (*QROp) Cases() []graph.Case {
	var cs []graph.Case
	for _, s := range []graph.Shape{
		{1, 1}, {5, 1}, {2, 2}, {7, 7}, {9, 4}, {3, 17, 17}, {2, 2, 33, 20}, {64, 64}, {65, 64}, {300, 40}, {2, 130, 130}, {270, 260},
	} {
		cols := s[len(s)-1]
		cs = append(cs, graph.Case{
			Op: new(QROp), Inputs: []graph.Type{{DType: graph.F32, Shape: s}}, NoGrad: true,
			// The columns are far from linearly dependent, and their lengths differ by orders of magnitude.
			Fill: func(_, j int) float64 {
				row, col := j/cols, j%cols
				x := math.Sin(float64(3*j+1) * 0.7)
				if row%s[len(s)-2] == col {
					x -= 2 * math.Sqrt(float64(cols)) * float64(1-2*(col%2))
				}
				return x * math.Pow(10, float64(3*(col%5))-6)
			},
		})
	}
	return cs
}

// QR returns the orthonormal factor Q of each matrix of x, f32 [..., m, n] with m ≥ n, for the QR decomposition in
// which the diagonal of R is not negative. It has no gradient.
func QR(x *graph.Value) *graph.Value { return graph.Apply1(new(QROp), x) }

func (*QROp) Kernel(n *graph.Node) graph.Kernel {
	rows, cols := matrix(n.Inputs[0].Shape, false)
	batch := n.Inputs[0].Shape.Len() / (rows * cols)
	return graph.Template{Variants: func(l target.Limits) []graph.Variant {
		passes := []graph.Pass{qrReflections(rows, cols, batch, l), qrFactor(rows, cols, batch)}
		if l.Native {
			passes = qrNative(rows, cols, batch, l)
		}
		return []graph.Variant{{Name: "householder", Scratch: []graph.Type{n.Inputs[0].Type, graph.T(graph.F32, batch, cols)},
			Passes: passes}}
	}}
}

//go:embed native/householder.c
var nativeHouseholder string

//go:embed native/qr.c
var nativeQR string

// qrNative returns the passes for CPUs: qrReflections and qrFactor with the same sums, in C.
func qrNative(rows, cols, batch int, l target.Limits) []graph.Pass {
	text := nativeDefine("M", rows, "N", cols, "LANES", decompositionLanes(cols, l)) + nativeHouseholder + nativeQR
	blocks := (cols + columnLanes - 1) / columnLanes
	return []graph.Pass{
		{Native: true, Declarations: text, Workgroup: 1, Groups: batch, Uses: []string{"in0", "tmp0", "tmp1"},
			Body: "    f32 *const m = $tmp0 + (u64)group * M * N;\n    memcpy(m, $in0 + (u64)group * M * N, sizeof(f32) * M * N);\n    reflections(m, $tmp1 + (u64)group * N);\n"},
		{Native: true, Declarations: text, Workgroup: 1, Groups: batch * blocks, Uses: []string{"tmp0", "tmp1", "out0"},
			Body: nativeBlock(blocks, cols) + "    factor($out0 + matrix * M * N, $tmp0 + matrix * M * N, $tmp1 + matrix * N, begin, end);\n"},
	}
}

// nativeBlock is C that declares a workgroup's matrix, and its rows or columns from begin to end, of so many.
func nativeBlock(blocks, n int) string {
	return fmt.Sprintf("    const u64 matrix = group / %[1]d, begin = group %% %[1]d * %[2]d, end = begin + %[2]d < %[3]d ? begin + %[2]d : %[3]d;\n", blocks, columnLanes, n)
}

// qrReflections returns the pass that computes the reflections I − β·v·vᵀ. It stores the vector v of reflection k to
// column k of tmp0, from row k on, and β to tmp1. A workgroup handles one matrix, and a lane whole columns, so that a
// sum over a column needs no other lane.
func qrReflections(rows, cols, batch int, l target.Limits) graph.Pass {
	lanes := decompositionLanes(cols, l)
	return graph.Pass{
		Declarations: fmt.Sprintf("const M = %du;\nconst N = %du;\n", rows, cols) + householder(lanes) + fourRows("tmp0"),
		Uses:         []string{"in0", "tmp0", "tmp1"}, Workgroup: lanes, Groups: batch, WorkgroupMemory: 4 * lanes,
		Body: `let base = group * M * N;
for (var i = base + lane; i < base + M * N; i += LANES) { $tmp0[i] = $in0[i]; }
for (var k = 0u; k < N; k++) {
  let column = base + k;
  let beta = reflection(lane, column + k * N, N, M - k).x;
  if (lane == 0u) { $tmp1[group * N + k] = beta; }
  for (var j = k + 1u + lane; j < N; j += LANES) {
    var d = 0.0;
    for (var r = k; r < M; r += 4u) { d += dot(tmp0_four(column, r), tmp0_four(base + j, r)); }
    d *= beta;
    for (var r = k; r < M; r += 4u) { tmp0_put(base + j, r, tmp0_four(base + j, r) - d * tmp0_four(column, r)); }
  }
}
`,
	}
}

// qrFactor returns the pass that applies the reflections, the last one first, to the columns of the identity. A lane
// handles one column. An element of R's diagonal has the opposite sign of the first element of its reflection's vector.
func qrFactor(rows, cols, batch int) graph.Pass {
	blocks := (cols + columnLanes - 1) / columnLanes
	return graph.Pass{
		Declarations: fmt.Sprintf("const M = %du;\nconst N = %du;\nconst LANES = %du;\nconst BLOCKS = %du;\n", rows, cols, columnLanes,
			blocks) + fourRows("tmp0") + fourRows("out0"),
		Uses: []string{"tmp0", "tmp1", "out0"}, Workgroup: columnLanes, Groups: batch * blocks,
		Body: `let j = group % BLOCKS * LANES + lane;
if (j >= N) { return; }
let base = group / BLOCKS * M * N;
let betas = group / BLOCKS * N;
let sign = select(1.0, -1.0, $tmp1[betas + j] > 0.0 && $tmp0[base + j * N + j] > 0.0);
for (var r = 0u; r < M; r++) { $out0[base + r * N + j] = select(0.0, sign, r == j); }
for (var left = min(N, (group % BLOCKS + 1u) * LANES); left > 0u; left--) {
  let k = left - 1u;
  let column = base + k;
  var d = 0.0;
  for (var r = k; r < M; r += 4u) { d += dot(tmp0_four(column, r), out0_four(base + j, r)); }
  d *= $tmp1[betas + k];
  for (var r = k; r < M; r += 4u) { out0_put(base + j, r, out0_four(base + j, r) - d * tmp0_four(column, r)); }
}
`,
	}
}

// fourRows returns the WGSL functions <array>_four and <array>_put, which read and write rows r to r+3 of a column of a
// matrix [M, N]; at is the index of the column's first element. Reads of rows from M on give zeros, and writes to them
// are omitted.
func fourRows(array string) string {
	return fmt.Sprintf(`fn %[1]s_four(at: u32, r: u32) -> vec4<f32> {
  let x = vec4<f32>($%[1]s[at + r * N], $%[1]s[at + min(r + 1u, M - 1u) * N], $%[1]s[at + min(r + 2u, M - 1u) * N], $%[1]s[at + min(r + 3u, M - 1u) * N]);
  return select(vec4<f32>(), x, vec4<u32>(r, r + 1u, r + 2u, r + 3u) < vec4<u32>(M));
}
fn %[1]s_put(at: u32, r: u32, x: vec4<f32>) {
  $%[1]s[at + r * N] = x.x;
  if (r + 1u < M) { $%[1]s[at + (r + 1u) * N] = x.y; }
  if (r + 2u < M) { $%[1]s[at + (r + 2u) * N] = x.z; }
  if (r + 3u < M) { $%[1]s[at + (r + 3u) * N] = x.w; }
}
`, array)
}
