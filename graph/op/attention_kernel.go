package op

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// attentionKernels writes the WGSL of attention and its gradient. Each has five kinds of kernels:
//
//   - naive: an invocation per row, scalars, loops. The loops start at a value that is not constant, so that compilers
//     do not unroll them: software adapters would compile the unrolled loops for ten seconds.
//   - rows: an invocation keeps the vectors of one or more rows, or a slice of those of one row, in registers and walks
//     the columns, several at a time. All rows of a workgroup belong to one head, so they read the same columns at the
//     same time.
//   - tiles: the same with the columns staged in workgroup memory.
//   - keys: a workgroup per query, whose lanes share the keys. It is for the few queries of decoding, with a position.
//   - matrices: for 16-bit floats, on devices with subgroup matrices.
//
// In the forward pass and for the gradient of q a row is a query and the columns are the keys; for the gradients of
// k and v a row is a key and the columns are the queries.
type attentionKernels struct {
	attentionShape
	operands          graph.DType // of q, k and v
	result            graph.DType // of o
	position, lseGrad bool
	segments          string // the array of the segments; empty: there are none
}

func newAttentionKernels(n *graph.Node, result graph.DType) attentionKernels {
	s := mustAttentionSizes(n.Inputs[0].Type, n.Inputs[1].Type, n.Inputs[2].Type)
	k := attentionKernels{attentionShape: s, operands: n.Inputs[0].DType, result: result}
	if last := len(n.Inputs) - 1; isSegments(n.Inputs[last].Type) {
		k.segments = fmt.Sprintf("in%d", last)
	}
	return k
}

// flops counts the operations of so many products over the pairs of a query and a key that it sees. It ignores
// segments, and assumes a full cache with a position.
func (k attentionKernels) flops(products int) float64 {
	pairs := float64(k.queries) * float64(k.keys)
	if k.queries == k.keys {
		pairs = float64(k.queries) * float64(k.queries+1) / 2
	}
	return 2 * float64(products) * float64(k.batch*k.heads*k.dim) * pairs
}

// How rows and tiles are shaped. The widths of software adapters are their vectors'.
const (
	naiveLanes    = 64
	softwareLanes = 8
	softwareUnits = 64 // of an invocation's rows
	gpuLanes      = 64
	sharedLanes   = 128   // where several share a row
	maxParts      = 64    // of a row
	tileMemory    = 16384 // bytes, WebGPU's guaranteed workgroup memory
)

// The largest parts of a row that a lane of a GPU has. It keeps the query and the sum, or up to four such vectors, and
// columns that are read together, in at most 255 registers.
const (
	forwardDims  = 32
	gradientDims = 16
)

// lowest stands for -∞, which WGSL lets compilers assume not to occur.
const lowest = "-3.0e38f"

func (k attentionKernels) forward(l target.Limits) []graph.Variant {
	if l.Native {
		return []graph.Variant{{Name: "native", Passes: []graph.Pass{k.nativeForward()}}}
	}
	cs := []graph.Variant{{Name: "naive", Passes: []graph.Pass{k.naiveForward()}}}
	if k.position && !l.Software { // rows of few queries would be few invocations
		if l.MaxInvocations >= keyLanes {
			cs = append(cs, graph.Variant{Name: "keys", Passes: []graph.Pass{k.keysForward()}})
		}
		return cs
	}
	for _, r := range k.rowKernels(l, forwardDims) {
		cs = append(cs, graph.Variant{Name: r.name(), Passes: []graph.Pass{r.forward()}})
	}
	return append(cs, k.matrixForward(l)...)
}

func (k attentionKernels) backward(l target.Limits) []graph.Variant {
	if l.Native {
		return []graph.Variant{{Name: "native", Passes: []graph.Pass{k.nativeBackward()}}}
	}
	delta := []graph.Type{graph.T(graph.F32, k.batch, k.heads, k.queries)}
	if k.segments != "" {
		// With the segments, the gradients of k and v would be bound to one array more than WebGPU guarantees: delta
		// brings along the logsumexps.
		delta[0] = graph.T(graph.F32, 2, k.batch, k.heads, k.queries)
	}
	cs := []graph.Variant{{Name: "naive", Scratch: delta, Passes: []graph.Pass{k.delta(), k.naiveQueryGrad(), k.naiveKeyGrad()}}}
	for _, r := range k.rowKernels(l, gradientDims) {
		cs = append(cs, graph.Variant{Name: r.name(), Scratch: delta, Passes: []graph.Pass{k.delta(), r.queryGrad(), r.keyGrad()}})
	}
	return append(cs, k.matrixBackward(l, delta)...)
}

// rowKernels are the shapes of rows and tiles that suit the device. On software adapters a load costs twenty
// multiplications, so columns are shared by many rows; GPUs want few registers and many lanes.
func (k attentionKernels) rowKernels(l target.Limits, dims int) []rowKernel {
	if n := k.units(); l.Software {
		if n > softwareUnits {
			return nil
		}
		return []rowKernel{{k, softwareLanes, 1, upTo(min(softwareUnits/n, 8)), upTo(1), 0, true}}
	}
	parts := k.parts(dims)
	lanes := gpuLanes
	if parts > 1 {
		lanes = sharedLanes / parts * parts
	}
	if parts == 0 || lanes > l.MaxInvocations {
		return nil
	}
	rows := rowKernel{k, lanes, parts, upTo(1), upTo(min(max(32*parts/k.units(), 1), 4)), 0, false}
	tiles := rows
	tiles.Tile = k.tile(l, rows.sharesMemory(2)) / rows.Abreast() * rows.Abreast()
	return []rowKernel{rows, tiles}
}

// parts is how many lanes share a row: the fewest that have as many units each, and at most dims elements; 0: there is
// no such number.
func (k attentionKernels) parts(dims int) int {
	for parts := 1; parts <= maxParts; parts++ {
		if k.units()%parts == 0 && k.dim <= dims*parts {
			return parts
		}
	}
	return 0
}

// width is the elements of a unit: four where they divide the head dimension.
func (k attentionKernels) width() int {
	if k.dim%4 == 0 {
		return 4
	}
	return 1
}

// units is the number of units of a vector.
func (k attentionKernels) units() int { return k.dim / k.width() }

// slack is what WebGPU may count beyond the variables of a workgroup, each of which it rounds up to 16 bytes: four
// words and six arrays.
const slack = 4*12 + 6*12

// tile is how many columns fit into workgroup memory beside what else is there, a multiple of 4.
func (k attentionKernels) tile(l target.Limits, beside int) int {
	return min((min(tileMemory, l.MaxWorkgroupMemory)-k.edgeMemory()-slack-beside)/k.columnBytes(), gpuLanes) &^ 3
}

// columnBytes is a column's pair of vectors, pair of numbers, and segment.
func (k attentionKernels) columnBytes() int {
	if k.segments != "" {
		return 8*k.dim + 12
	}
	return 8*k.dim + 8
}

// constants are the extents and the unit type U.
func (k attentionKernels) constants() string {
	unit, product := "f32", "a * b"
	if k.width() == 4 {
		unit, product = "vec4<f32>", "dot(a, b)"
	}
	return fmt.Sprintf(`alias U = %s;
fn inner(a: U, b: U) -> f32 { return %s; }
const BATCH = %du;
const TQ = %du;
const TK = %du;
const HEADS = %du;
const KV = %du;
const GROUP = %du; // query heads of a key head
const DIM = %du;
const UNITS = %du; // of a vector
const SCALE = %.9gf;
const LOWEST = %s;
`+k.numbers(), unit, product, k.batch, k.queries, k.keys, k.heads, k.kvHeads, k.group(), k.dim, k.units(), k.scale(), lowest)
}

// numbers is where the logsumexps begin that delta brings along.
func (k attentionKernels) numbers() string {
	if k.segments == "" {
		return ""
	}
	return fmt.Sprintf("const NUMBERS = %du; // of queries of heads\n", k.batch*k.heads*k.queries)
}

// keyLSE names the array in which the gradients of k and v find the logsumexp at a place.
func (k attentionKernels) keyLSE(at string) (expr string, uses []string) {
	if k.segments != "" {
		return "tmp0[NUMBERS + " + at + "]", nil
	}
	return "in4[" + at + "]", []string{"in4"}
}

// unlessTogether skips a column of another segment, in a loop of a naive kernel; i and j are places of the sequence.
func (k attentionKernels) unlessTogether(i, j string) string {
	if k.segments == "" {
		return ""
	}
	return fmt.Sprintf("  if (%[1]s[b * TK + %[2]s] != %[1]s[b * TK + %[3]s]) { continue; }\n", k.segments, i, j)
}

func (k attentionKernels) ifSegments(format string, args ...any) string {
	if k.segments == "" {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// withSegments are the arrays that a pass uses, the segments included.
func (k attentionKernels) withSegments(uses ...string) []string {
	if k.segments == "" {
		return uses
	}
	return append(uses, k.segments)
}

// scalarPass is a pass of the naive kernels: an invocation a row.
func (k attentionKernels) scalarPass(body string, rows int, uses ...string) graph.Pass {
	return k.unpacked(graph.Pass{
		Declarations: k.constants(), Workgroup: naiveLanes, Groups: (rows + naiveLanes - 1) / naiveLanes, Uses: uses,
		Body: fmt.Sprintf("let n = group * %du + lane;\nif (n >= %du) { return; }\n", naiveLanes, rows) + body,
	})
}

func (k attentionKernels) positionExpr() (expr string, uses []string) {
	if k.position {
		return "in3[0]", []string{"in3"}
	}
	return "0u", nil
}

func (k attentionKernels) naiveForward() graph.Pass {
	position, uses := k.positionExpr()
	p := k.scalarPass(`// n counts [BATCH, TQ, HEADS].
let h = n % HEADS;
let i = n / HEADS % TQ;
let b = n / HEADS / TQ;
let q = n * DIM;
let columns = min(i + `+position+` + 1u, TK);
var o: array<f32, DIM>;
var m = LOWEST;
var sum = 0.0;
for (var j = 0u; j < columns; j++) {
`+k.unlessTogether("i", "j")+`  let k = ((b * TK + j) * KV + h / GROUP) * DIM;
  var s = 0.0;
  for (var x = q; x < q + DIM; x++) { s += in0[x] * in1[x - q + k]; }
  s *= SCALE;
  let larger = max(m, s);
  let keep = exp(m - larger);
  let p = exp(s - larger);
  for (var x = k; x < k + DIM; x++) { o[x - k] = o[x - k] * keep + p * in2[x]; }
  sum = sum * keep + p;
  m = larger;
}
`+k.naiveStore()+`out1[(b * HEADS + h) * TQ + i] = m + log(sum);
`, k.batch*k.queries*k.heads, k.withSegments(append([]string{"in0", "in1", "in2", "out0", "out1"}, uses...)...)...)
	p.Declarations += k.narrowing()
	return p
}

// naiveStore writes o.
func (k attentionKernels) naiveStore() string {
	if k.result.Float16() {
		return "for (var x = q / 2u; x < q / 2u + DIM / 2u; x++) { out0[x] = word(o[2u * x - q] / sum, o[2u * x + 1u - q] / sum); }\n"
	}
	return "for (var x = q; x < q + DIM; x++) { out0[x] = o[x - q] / sum; }\n"
}

// delta is the gradient of each logsumexp, negated: the inner product of o and its gradient, less what flows in.
func (k attentionKernels) delta() graph.Pass {
	uses := []string{"in3", "in5", "tmp0"}
	less := ""
	if k.lseGrad {
		uses, less = append(uses, "in6"), " - in6[r]"
	}
	along := ""
	if k.segments != "" {
		uses, along = append(uses, "in4"), "tmp0[NUMBERS + r] = in4[r];\n"
	}
	o := "in3[x]"
	if k.result.Float16() {
		o = "in3_at(x)"
	}
	p := k.scalarPass(`// n counts [BATCH, TQ, HEADS].
let r = (n / HEADS / TQ * HEADS + n % HEADS) * TQ + n / HEADS % TQ;
var sum = 0.0;
for (var x = n * UNITS; x < (n + 1u) * UNITS; x++) { sum += inner(`+o+`, in5[x]); }
tmp0[r] = sum`+less+`;
`+along, k.batch*k.queries*k.heads, uses...)
	if k.width() == 4 {
		p.Vec4 = []string{"in3", "in5"}
	}
	if k.result.Float16() {
		p.Declarations += readFloat16("in3", true)
	}
	return p
}

func (k attentionKernels) naiveQueryGrad() graph.Pass {
	return k.scalarPass(`// n counts [BATCH, TQ, HEADS].
let h = n % HEADS;
let i = n / HEADS % TQ;
let b = n / HEADS / TQ;
let q = n * DIM;
let r = (b * HEADS + h) * TQ + i;
let columns = min(i + 1u, TK);
var dq: array<f32, DIM>;
for (var j = 0u; j < columns; j++) {
`+k.unlessTogether("i", "j")+`  let k = ((b * TK + j) * KV + h / GROUP) * DIM;
  var s = 0.0;
  var dp = 0.0;
  for (var x = q; x < q + DIM; x++) {
    s += in0[x] * in1[x - q + k];
    dp += in5[x] * in2[x - q + k];
  }
  let ds = exp(s * SCALE - in4[r]) * (dp - tmp0[r]) * SCALE;
  for (var x = k; x < k + DIM; x++) { dq[x - k] += ds * in1[x]; }
}
for (var x = q; x < q + DIM; x++) { out0[x] = dq[x - q]; }
`, k.batch*k.queries*k.heads, k.withSegments("in0", "in1", "in2", "in4", "in5", "tmp0", "out0")...)
}

func (k attentionKernels) naiveKeyGrad() graph.Pass {
	lse, uses := k.keyLSE("r")
	return k.scalarPass(`// n counts [BATCH, TK, KV].
let j = n / KV % TK;
let b = n / KV / TK;
let k = n * DIM;
var dk: array<f32, DIM>;
var dv: array<f32, DIM>;
for (var g = 0u; g < GROUP; g++) {
  let h = n % KV * GROUP + g;
  for (var i = j; i < TQ; i++) {
`+k.unlessTogether("i", "j")+`    let q = ((b * TQ + i) * HEADS + h) * DIM;
    let r = (b * HEADS + h) * TQ + i;
    var s = 0.0;
    var dp = 0.0;
    for (var x = q; x < q + DIM; x++) {
      s += in0[x] * in1[x - q + k];
      dp += in5[x] * in2[x - q + k];
    }
    let p = exp(s * SCALE - `+lse+`);
    let ds = p * (dp - tmp0[r]) * SCALE;
    for (var x = q; x < q + DIM; x++) {
      dk[x - q] += ds * in0[x];
      dv[x - q] += p * in5[x];
    }
  }
}
for (var x = k; x < k + DIM; x++) {
  out1[x] = dk[x - k];
  out2[x] = dv[x - k];
}
`, k.batch*k.keys*k.kvHeads, k.withSegments(slices.Concat([]string{"in0", "in1", "in2"}, uses, []string{"in5", "tmp0", "out1", "out2"})...)...)
}
