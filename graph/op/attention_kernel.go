package op

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// attentionKernels writes the WGSL of attention and its gradient. There are five kinds of kernels:
//
//   - naive: an invocation for each row, with scalars and loops. The loops start at a value that is not constant, so
//     that compilers do not unroll them: software adapters would compile the unrolled loops for ten seconds.
//   - rows: an invocation keeps the vectors of one or more rows, or a slice of one row's vectors, in registers and
//     iterates over the columns, several at a time. All rows of a workgroup belong to one head, so they read the same
//     columns at the same time.
//   - tiles: as rows, with the columns staged in workgroup memory.
//   - keys: a workgroup for each query; its lanes share the keys. It is for decoding, which has few queries and a
//     position.
//   - matrices: for 16-bit floats, on devices with subgroup matrices.
//
// In the forward pass and for the gradient of q a row is a query and the columns are the keys; for the gradients of
// k and v a row is a key and the columns are the queries.
type attentionKernels struct {
	attentionShape
	operands          graph.DType // of q, k and v
	result            graph.DType // of o
	position, lseGrad bool
	segments          string // the array of segment numbers; "" if there are none
	window            int    // keys that a query sees at most; 0: no limit
	caches            int    // of which each sequence reads one, at a position of its own; 0: each reads its own, all at one position
}

func newAttentionKernels(n *graph.Node, result graph.DType) attentionKernels {
	s := mustAttentionSizes(n.Inputs[0].Type, n.Inputs[1].Type, n.Inputs[2].Type)
	return attentionKernels{attentionShape: s, operands: n.Inputs[0].DType, result: result}
}

// setWindow takes the op's window, if it is shorter than what causality leaves to the last query. position must be set
// before.
func (k *attentionKernels) setWindow(window int) {
	if k.position || window < k.queries {
		k.window = window
	}
}

// flops counts the operations of the given number of matrix products over all pairs of a query and a key that it
// attends to. It ignores segments, and assumes a full cache if there is a position.
func (k attentionKernels) flops(products int) float64 {
	window := k.keys // that a query sees at most
	if k.window > 0 {
		window = min(k.window, k.keys)
	}
	pairs := float64(k.queries) * float64(window)
	if k.queries == k.keys {
		pairs -= float64(window) * float64(window-1) / 2 // that the first queries lack
	}
	return 2 * float64(products) * float64(k.batch*k.heads*k.dim) * pairs
}

// Sizes of the kinds naive, rows and tiles. softwareLanes is the vector width of software adapters.
const (
	naiveLanes     = 64
	softwareLanes  = 8
	softwareUnits  = 64 // units of all rows of an invocation, at most
	gpuLanes       = 64
	sharedLanes    = 128   // if several lanes share a row
	maxLanesPerRow = 64    // lanes that share a row
	tileMemory     = 16384 // bytes, WebGPU's guaranteed workgroup memory
)

// forwardDims and gradientDims are the most elements of a row that one lane of a GPU holds. A lane keeps the query and
// the sum (two vectors forward, up to four backward) and the columns of one iteration in at most 255 registers.
const (
	forwardDims  = 32
	gradientDims = 16
)

// lowest replaces -∞: WGSL compilers may assume that infinities do not occur.
const lowest = "-3.0e38f"

func (k attentionKernels) forward(l target.Limits) []graph.Variant {
	if l.Native {
		return k.nativeVariants(l, k.nativeForward, nativeAttentionForward, nativeAttentionPairsForward)
	}
	cs := []graph.Variant{{Name: "naive", Passes: []graph.Pass{k.naiveForward()}}}
	if k.caches > 0 || k.position && !l.Software { // decoding has few queries: the kind rows would have few invocations
		if l.MaxInvocations >= keyLanes {
			cs = append(cs, graph.Variant{Name: "keys", Passes: []graph.Pass{k.keysForward()}})
		}
		return cs
	}
	for _, r := range k.rowKernels(l, forwardDims) {
		cs = append(cs, graph.Variant{Name: r.kind(), Passes: []graph.Pass{r.forward()}})
	}
	return append(cs, k.matrixForward(l)...)
}

func (k attentionKernels) backward(l target.Limits) []graph.Variant {
	if l.Native {
		return k.nativeVariants(l, k.nativeBackward, nativeAttentionBackward, nativeAttentionPairsBackward)
	}
	delta := []graph.Type{graph.T(graph.F32, k.batch, k.heads, k.queries)}
	if k.segments != "" {
		// With segments, the kernel for the gradients of k and v would bind one array more than WebGPU guarantees. So
		// delta's array also holds a copy of the logsumexps.
		delta[0] = graph.T(graph.F32, 2, k.batch, k.heads, k.queries)
	}
	cs := []graph.Variant{{Name: "naive", Scratch: delta, Passes: []graph.Pass{k.delta(), k.naiveQueryGrad(), k.naiveKeyGrad()}}}
	for _, r := range k.rowKernels(l, gradientDims) {
		cs = append(cs, graph.Variant{Name: r.kind(), Scratch: delta, Passes: []graph.Pass{k.delta(), r.queryGrad(), r.keyGrad()}})
	}
	return append(cs, k.matrixBackward(l, delta)...)
}

// rowKernels returns the kernels of the kinds rows and tiles for the device. On software adapters a load costs as much
// as twenty multiplications, so many rows share the loaded columns. On GPUs a lane uses few registers, so that many
// lanes run at once.
func (k attentionKernels) rowKernels(l target.Limits, dims int) []rowKernel {
	if n := k.units(); l.Software {
		if n > softwareUnits {
			return nil
		}
		return []rowKernel{{k, softwareLanes, 1, upTo(min(softwareUnits/n, 8)), upTo(1), 0, true}}
	}
	perRow := k.lanesPerRow(dims)
	lanes := gpuLanes
	if perRow > 1 {
		lanes = sharedLanes / perRow * perRow
	}
	if perRow == 0 || lanes > l.MaxInvocations {
		return nil
	}
	rows := rowKernel{k, lanes, perRow, upTo(1), upTo(min(max(32*perRow/k.units(), 1), 4)), 0, false}
	tiles := rows
	tiles.Tile = k.tile(l, rows.reduceMemory(2)) / rows.ColumnsPerIteration() * rows.ColumnsPerIteration()
	return []rowKernel{rows, tiles}
}

// lanesPerRow returns the smallest number of lanes that can share a row such that all have equally many units and at
// most dims elements. It returns 0 if there is no such number.
func (k attentionKernels) lanesPerRow(dims int) int {
	for n := 1; n <= maxLanesPerRow; n++ {
		if k.units()%n == 0 && k.dim <= dims*n {
			return n
		}
	}
	return 0
}

// width is the number of elements in a unit: 4 if 4 divides the head dimension, else 1.
func (k attentionKernels) width() int {
	if k.dim%4 == 0 {
		return 4
	}
	return 1
}

// units is the number of units in a vector of head-dimension length.
func (k attentionKernels) units() int { return k.dim / k.width() }

// slack bounds the bytes by which WebGPU's count of workgroup memory exceeds the sum of the variables' sizes. WebGPU
// rounds each variable up to 16 bytes; there are at most four words and six arrays.
const slack = 4*12 + 6*12

// tile returns how many columns fit into workgroup memory, as a multiple of 4, if beside bytes are used otherwise.
func (k attentionKernels) tile(l target.Limits, beside int) int {
	return min((min(tileMemory, l.MaxWorkgroupMemory)-k.edgeMemory()-slack-beside)/k.columnBytes(), gpuLanes) &^ 3
}

// columnBytes is the workgroup memory of a column in bytes: two vectors, two scalars and, if any, the segment.
func (k attentionKernels) columnBytes() int {
	if k.segments != "" {
		return 8*k.dim + 12
	}
	return 8*k.dim + 8
}

// constants returns the WGSL declarations of the extents and of the unit type U.
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
`+k.lseOffset()+k.ifWindow("const WINDOW = %du; // of keys that a query sees\n", k.window),
		unit, product, k.batch, k.queries, k.keys, k.heads, k.kvHeads, k.group(), k.dim, k.units(), k.scale(), lowest)
}

// lseOffset declares NUMBERS, the index in tmp0 at which delta's copy of the logsumexps begins.
func (k attentionKernels) lseOffset() string {
	if k.segments == "" {
		return ""
	}
	return fmt.Sprintf("const NUMBERS = %du; // of queries of heads\n", k.batch*k.heads*k.queries)
}

// keyLSE returns the expression with which the gradients of k and v read the logsumexp at an index, and the array that
// it uses besides tmp0.
func (k attentionKernels) keyLSE(at string) (expr string, uses []string) {
	if k.segments != "" {
		return "$tmp0[NUMBERS + " + at + "]", nil
	}
	return "$in4[" + at + "]", []string{"in4"}
}

// skipOtherSegments emits the statement by which a loop of a naive kernel skips a column of another segment. i and j
// are the positions of the row and of the column in the sequence.
func (k attentionKernels) skipOtherSegments(i, j string) string {
	if k.segments == "" {
		return ""
	}
	return fmt.Sprintf("  if ($%[1]s[b * TK + %[2]s] != $%[1]s[b * TK + %[3]s]) { continue; }\n", k.segments, i, j)
}

func (k attentionKernels) ifSegments(format string, args ...any) string {
	if k.segments == "" {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// withSegments returns the arrays that a pass uses, including the array of segments if there is one.
func (k attentionKernels) withSegments(uses ...string) []string {
	if k.segments == "" {
		return uses
	}
	return append(uses, k.segments)
}

// scalarPass returns a pass of a naive kernel, with one invocation for each row.
func (k attentionKernels) scalarPass(body string, rows int, uses ...string) graph.Pass {
	return k.withReads(graph.Pass{
		Declarations: k.constants(), Workgroup: naiveLanes, Groups: (rows + naiveLanes - 1) / naiveLanes, Uses: uses,
		Body: fmt.Sprintf("let n = group * %du + lane;\nif (n >= %du) { return; }\n", naiveLanes, rows) + body,
	})
}

func (k attentionKernels) positionExpr() (expr string, uses []string) {
	switch {
	case k.caches > 0:
		return "$in3[b]", []string{"in3", "in4"}
	case k.position:
		return "$in3[0]", []string{"in3"}
	}
	return "0u", nil
}

// cacheExpr is the expression of the number of the keys that sequence b reads.
func (k attentionKernels) cacheExpr() string {
	if k.caches > 0 {
		return fmt.Sprintf("min($in4[b], %du)", k.caches-1)
	}
	return "b"
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
for (var j = `+k.oldest("i + "+position+" + 1u")+`; j < columns; j++) {
`+k.skipOtherSegments("i", "j")+`  let k = ((`+k.cacheExpr()+` * TK + j) * KV + h / GROUP) * DIM;
  var s = 0.0;
  for (var x = q; x < q + DIM; x++) { s += `+k.read("$in0", "x")+` * `+k.read("$in1", "x - q + k")+`; }
  s *= SCALE;
  let larger = max(m, s);
  let keep = exp(m - larger);
  let p = exp(s - larger);
  for (var x = k; x < k + DIM; x++) { o[x - k] = o[x - k] * keep + p * `+k.read("$in2", "x")+`; }
  sum = sum * keep + p;
  m = larger;
}
`+k.naiveStore()+`$out1[(b * HEADS + h) * TQ + i] = m + log(sum);
`, k.batch*k.queries*k.heads, k.withSegments(append([]string{"in0", "in1", "in2", "out0", "out1"}, uses...)...)...)
	p.Declarations += k.narrowing()
	return p
}

// naiveStore emits the loop that stores o.
func (k attentionKernels) naiveStore() string {
	if k.result.Float16() {
		return "for (var x = q / 2u; x < q / 2u + DIM / 2u; x++) { $out0[x] = word(o[2u * x - q] / sum, o[2u * x + 1u - q] / sum); }\n"
	}
	return "for (var x = q; x < q + DIM; x++) { $out0[x] = o[x - q] / sum; }\n"
}

// delta returns the pass that computes the negated gradient of each logsumexp: the inner product of o and its gradient,
// minus the gradient that flows into the logsumexp.
func (k attentionKernels) delta() graph.Pass {
	uses := []string{"in3", "in5", "tmp0"}
	less := ""
	if k.lseGrad {
		uses, less = append(uses, "in6"), " - $in6[r]"
	}
	along := ""
	if k.segments != "" {
		uses, along = append(uses, "in4"), "$tmp0[NUMBERS + r] = $in4[r];\n"
	}
	o := "$in3[x]"
	if k.result.Float16() {
		o = "in3_at(x)"
	}
	p := k.scalarPass(`// n counts [BATCH, TQ, HEADS].
let r = (n / HEADS / TQ * HEADS + n % HEADS) * TQ + n / HEADS % TQ;
var sum = 0.0;
for (var x = n * UNITS; x < (n + 1u) * UNITS; x++) { sum += inner(`+o+`, $in5[x]); }
$tmp0[r] = sum`+less+`;
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
for (var j = `+k.oldest("i + 1u")+`; j < columns; j++) {
`+k.skipOtherSegments("i", "j")+`  let k = ((b * TK + j) * KV + h / GROUP) * DIM;
  var s = 0.0;
  var dp = 0.0;
  for (var x = q; x < q + DIM; x++) {
    s += `+k.read("$in0", "x")+` * `+k.read("$in1", "x - q + k")+`;
    dp += $in5[x] * `+k.read("$in2", "x - q + k")+`;
  }
  let ds = exp(s * SCALE - $in4[r]) * (dp - $tmp0[r]) * SCALE;
  for (var x = k; x < k + DIM; x++) { dq[x - k] += ds * `+k.read("$in1", "x")+`; }
}
for (var x = q; x < q + DIM; x++) { $out0[x] = dq[x - q]; }
`, k.batch*k.queries*k.heads, k.withSegments("in0", "in1", "in2", "in4", "in5", "tmp0", "out0")...)
}

func (k attentionKernels) naiveKeyGrad() graph.Pass {
	lse, uses := k.keyLSE("r")
	past := "TQ"
	if k.window > 0 {
		past = "min(j + WINDOW, TQ)"
	}
	return k.scalarPass(`// n counts [BATCH, TK, KV].
let j = n / KV % TK;
let b = n / KV / TK;
let k = n * DIM;
var dk: array<f32, DIM>;
var dv: array<f32, DIM>;
for (var g = 0u; g < GROUP; g++) {
  let h = n % KV * GROUP + g;
  for (var i = j; i < `+past+`; i++) {
`+k.skipOtherSegments("i", "j")+`    let q = ((b * TQ + i) * HEADS + h) * DIM;
    let r = (b * HEADS + h) * TQ + i;
    var s = 0.0;
    var dp = 0.0;
    for (var x = q; x < q + DIM; x++) {
      s += `+k.read("$in0", "x")+` * `+k.read("$in1", "x - q + k")+`;
      dp += $in5[x] * `+k.read("$in2", "x - q + k")+`;
    }
    let p = exp(s * SCALE - `+lse+`);
    let ds = p * (dp - $tmp0[r]) * SCALE;
    for (var x = q; x < q + DIM; x++) {
      dk[x - q] += ds * `+k.read("$in0", "x")+`;
      dv[x - q] += p * $in5[x];
    }
  }
}
for (var x = k; x < k + DIM; x++) {
  $out1[x] = dk[x - k];
  $out2[x] = dv[x - k];
}
`, k.batch*k.keys*k.kvHeads, k.withSegments(slices.Concat([]string{"in0", "in1", "in2"}, uses, []string{"in5", "tmp0", "out1", "out2"})...)...)
}
