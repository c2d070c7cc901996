package op

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

// OwnSegments and StageSegments emit the loads of the rows' and of the columns' segments to workgroup memory.
// Sees and Seen are the conditions, besides causality, for a row to attend to a column, where the row is a query or a
// key.
func (m matrixKernel) OwnSegments() string {
	return m.ifSegments("for (var x = lane; x < ROWS; x += LANES) { owns[x] = $%s[b * TK + min(first + x, TK - 1u)]; }\n", m.segments)
}
func (m matrixKernel) StageSegments() string {
	return m.ifSegments("for (var x = lane; x < COLS; x += LANES) { gs[x] = $%s[b * TK + min(t + x, TK - 1u)]; }\n", m.segments)
}
func (m matrixKernel) Sees() string {
	return m.ifWindow(" && t + column + WINDOW > first + row") + m.sameSegment()
}
func (m matrixKernel) Seen() string {
	return m.ifWindow(" && t + column < first + row + WINDOW") + m.sameSegment()
}
func (m matrixKernel) sameSegment() string { return m.ifSegments(" && owns[row] == gs[column]") }

// LSE is the expression of the logsumexp at the index number.
func (m matrixKernel) LSE() string {
	expr, _ := m.keyLSE("number")
	return expr
}

// First and Last declare the column at which a block's loop begins or ends.
func (m matrixKernel) First() string { return m.firstSeen("first", m.Rows(), m.Cols) }
func (m matrixKernel) Last() string  { return m.pastSeen("first", m.Rows()) }

// queryBlock declares a workgroup's block of queries and the first column that it sees, and stages the queries.
func (m matrixKernel) queryBlock() string {
	return fmt.Sprintf(`// Workgroups count [BATCH, HEADS, blocks of queries].
let first = group %% %[1]du * ROWS;
let h = group / %[1]du %% HEADS;
let b = group / %[1]du / HEADS;
let past = min(first + ROWS, TK); // the block sees no key from here on
let mine = lane / SUBGROUP * HEIGHT;
`, m.QueryBlocks()) + m.First() + m.OwnSegments() + m.Stage("rs", "ROWS", "first", "TQ", "(b * TQ + place) * HEADS + h", "bitcast<vec2<f32>>($in0[at])")
}

// stageKeys and stageValues emit the copies of a tile's vectors to workgroup memory.
func (m matrixKernel) stageKeys() string {
	return m.Stage("xs", "COLS", "t", "TK", "(b * TK + place) * KV + h / GROUP", "bitcast<vec2<f32>>($in1[at])")
}
func (m matrixKernel) stageValues() string {
	return m.Stage("ys", "COLS", "t", "TK", "(b * TK + place) * KV + h / GROUP", "bitcast<vec2<f32>>($in2[at])")
}

// sees is the condition for a query to attend to a key.
func (m matrixKernel) sees() string { return "t + column < TK && t + column <= first + row" + m.Sees() }

// eachPair opens the loops over the pairs of a tile's weights and over the weights of a pair, each computed from score.
const eachPair = `workgroupBarrier();
for (var x = lane; x < ROWS * (COLS / 2u); x += LANES) {
  let row = x / (COLS / 2u);
  var pair: array<vec2<f32>, 2>; // of weights
  for (var i = 0u; i < 2u; i++) {
    let column = x % (COLS / 2u) * 2u + i;
    let score = ss[row * SCORES + column] * SCALE;
`

// forwardBody is the body of the forward pass. A row's probabilities are relative to its largest score, and matrices
// cannot be rescaled row by row when a later tile has a larger one. So the forward pass iterates over the keys twice.
// The first loop finds each row's largest score and sum.
func (m matrixKernel) forwardBody() string {
	eachTile := "for (var t = " + m.Start() + "; t < past; t += COLS) {\nworkgroupBarrier();\n"
	return m.queryBlock() + `for (var x = lane; x < ROWS * PARTS; x += LANES) {
  ms[x] = LOWEST;
  us[x] = 0.0;
}
workgroupBarrier();
` + m.Hold("q", "rs") + eachTile + m.stageKeys() + m.StageSegments() + `workgroupBarrier();
` + m.Scores("ss", "q", "xs") + `workgroupBarrier();
for (var x = lane; x < ROWS * PARTS; x += LANES) {
  let row = x / PARTS;
  var m = ms[x];
  for (var column = x % PARTS; column < COLS; column += PARTS) {
    m = max(m, select(LOWEST, ss[row * SCORES + column] * SCALE, ` + m.sees() + `));
  }
  var sum = us[x] * exp(ms[x] - m);
  for (var column = x % PARTS; column < COLS; column += PARTS) {
    sum += select(0.0, exp(ss[row * SCORES + column] * SCALE - m), ` + m.sees() + `);
  }
  ms[x] = m;
  us[x] = sum;
}
}
workgroupBarrier();
for (var row = lane; row < ROWS; row += LANES) {
  var m = LOWEST;
  for (var x = row * PARTS; x < row * PARTS + PARTS; x++) { m = max(m, ms[x]); }
  var sum = 0.0;
  for (var x = row * PARTS; x < row * PARTS + PARTS; x++) { sum += us[x] * exp(ms[x] - m); }
  tops[row] = m;
  sums[row] = sum;
  if (first + row < TQ) { $out1[(b * HEADS + h) * TQ + first + row] = m + log(sum); }
}
` + m.Sums("o") + eachTile + m.stageKeys() + m.stageValues() + m.StageSegments() + `workgroupBarrier();
` + m.Scores("ss", "q", "xs") + eachPair + `    pair[i].x = select(0.0, exp(score - tops[row]), ` + m.sees() + `);
  }
  ps[row * WEIGHTS + x % (COLS / 2u)] = pack16(pair[0].x, pair[1].x);
}
workgroupBarrier();
` + m.Add("o", "ps", "ys") + "}\n" + m.StoreResult()
}

// queryGradBody is the body of the pass for the gradient of q.
func (m matrixKernel) queryGradBody() string {
	return m.queryBlock() + m.Stage("ws", "ROWS", "first", "TQ", "(b * TQ + place) * HEADS + h", "packed($in5[at])") +
		`for (var row = lane; row < ROWS; row += LANES) {
  let number = (b * HEADS + h) * TQ + min(first + row, TQ - 1u);
  ls[row] = $in4[number];
  es[row] = $tmp0[number];
}
workgroupBarrier();
` + m.Hold("q", "rs") + m.Hold("g", "ws") + m.Sums("dq") + `for (var t = ` + m.Start() + `; t < past; t += COLS) {
workgroupBarrier();
` + m.stageKeys() + m.stageValues() + m.StageSegments() + `workgroupBarrier();
` + m.Scores("ss", "q", "xs") + m.Scores("ts", "g", "ys") + eachPair +
		`    let p = select(0.0, exp(score - ls[row]), ` + m.sees() + `);
    pair[i].x = p * (ts[row * SCORES + column] - es[row]);
  }
  ps[row * WEIGHTS + x % (COLS / 2u)] = pack16(pair[0].x, pair[1].x);
}
workgroupBarrier();
` + m.Add("dq", "ps", "xs") + "}\n" + m.Store("dq", "$out0", "TQ", "(b * TQ + place) * HEADS + h", "sum * SCALE")
}

// keyGradBody is the body of the pass for the gradients of k and v.
func (m matrixKernel) keyGradBody() string {
	return fmt.Sprintf(`// Workgroups count [BATCH, KV, blocks of keys].
let first = group %% %[1]du * ROWS;
let kv = group / %[1]du %% KV;
let b = group / %[1]du / KV;
let mine = lane / SUBGROUP * HEIGHT;
`, m.KeyBlocks()) + m.Last() + m.OwnSegments() +
		m.Stage("rs", "ROWS", "first", "TK", "(b * TK + place) * KV + kv", "bitcast<vec2<f32>>($in1[at])") +
		m.Stage("ws", "ROWS", "first", "TK", "(b * TK + place) * KV + kv", "bitcast<vec2<f32>>($in2[at])") + `workgroupBarrier();
` + m.Hold("k", "rs") + m.Hold("v", "ws") + m.Sums("dk") + m.Sums("dv") + `for (var h = kv * GROUP; h < kv * GROUP + GROUP; h++) {
for (var t = first; t < ` + m.End() + `; t += COLS) {
workgroupBarrier();
` + m.Stage("xs", "COLS", "t", "TQ", "(b * TQ + place) * HEADS + h", "bitcast<vec2<f32>>($in0[at])") +
		m.Stage("ys", "COLS", "t", "TQ", "(b * TQ + place) * HEADS + h", "packed($in5[at])") +
		`for (var column = lane; column < COLS; column += LANES) {
  let number = (b * HEADS + h) * TQ + min(t + column, TQ - 1u);
  ls[column] = ` + m.LSE() + `;
  es[column] = $tmp0[number];
}
` + m.StageSegments() + `workgroupBarrier();
` + m.Scores("ss", "k", "xs") + m.Scores("ts", "v", "ys") + eachPair +
		`    let p = select(0.0, exp(score - ls[column]), t + column < TQ && t + column >= first + row` + m.Seen() + `);
    pair[i] = vec2<f32>(p, p * (ts[row * SCORES + column] - es[column]));
  }
  ps[row * WEIGHTS + x % (COLS / 2u)] = pack16(pair[0].x, pair[1].x);
  ds[row * WEIGHTS + x % (COLS / 2u)] = pack16(pair[0].y, pair[1].y);
}
workgroupBarrier();
` + m.Add("dk", "ds", "xs") + m.Add("dv", "ps", "ys") + "}\n}\n" +
		m.Store("dk", "$out1", "TK", "(b * TK + place) * KV + kv", "sum * SCALE") +
		m.Store("dv", "$out2", "TK", "(b * TK + place) * KV + kv", "sum")
}

// pass returns the kernel with the given body. vectors are the arrays that are bound as vec4, and scalars
// the other arrays.
func (m matrixKernel) pass(body string, groups, memory int, arrays string, vectors []string, scalars ...string) graph.Pass {
	constants := fmt.Sprintf(`const QUADS = %du; // of a vector
const LANES = %du;
const SUBGROUP = %du;
const HEIGHT = %du; // of a matrix of results
const WIDTH = %du;
const ROWS = %du;
const COLS = %du;
const PARTS = %du; // lanes that share a row
const STRIDE = %du;
const SCORES = %du;
const WEIGHTS = %du;
fn packed(x: vec4<f32>) -> vec2<f32> { return vec2<f32>(pack16(x.x, x.y), pack16(x.z, x.w)); }
`, m.dim/4, m.Lanes(), m.Subgroup, m.Size.M, m.Size.N, m.Rows(), m.Cols, m.LanesPerRow(), m.vectorStride(), m.scoreStride(),
		m.weightStride())
	return graph.Pass{
		Declarations: m.constants() + m.pack16() + constants + arrays + m.edgeArrays() +
			m.ifSegments("var<workgroup> owns: array<u32, %d>;\nvar<workgroup> gs: array<u32, %d>;\n", m.Rows(), m.Cols),
		Body: body, Uses: slices.Concat(vectors, scalars), Vec4: vectors,
		Workgroup: m.Lanes(), Groups: groups, WorkgroupMemory: memory, Inside: true, Cooperative: &m.Size,
	}
}

// pack16 returns the WGSL function that rounds two numbers to a word of 16-bit floats. Infinities and NaN are kept.
// Numbers above the range of f16 become infinities, so that an overflow of a gradient is noticed; WGSL leaves their
// conversion to the device. The rounding mode is the device's, whose single instruction is within the kernel's
// tolerance.
func (m matrixKernel) pack16() string {
	if m.operands == graph.F16 {
		return `fn pack16(x: f32, y: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  let large = select(0u, 0x7c00u, a >= 0x477ff000u) | select(0u, 0x7c000000u, b >= 0x477ff000u); // from 65520 on
  return bitcast<f32>(pack2x16float(vec2<f32>(x, y)) | large);
}
`
	}
	return narrowing("half", m.operands) + "fn pack16(x: f32, y: f32) -> f32 { return bitcast<f32>(half(x) | (half(y) << 16u)); }\n"
}

// narrowing returns the named WGSL function, which converts an f32 to the bits of a 16-bit float as a cast does.
func narrowing(name string, d graph.DType) string {
	var lets strings.Builder
	count := 0
	bits := d.Narrow(scalar.Var("x", scalar.F32, 0), func(x *scalar.Expr) *scalar.Expr {
		count++
		fmt.Fprintf(&lets, "  let x%d: %v = %v;\n", count, x.Type, x)
		return scalar.Var(fmt.Sprintf("x%d", count), x.Type, 0)
	})
	return fmt.Sprintf("fn %s(x: f32) -> u32 {\n%s  return %v;\n}\n", name, lets.String(), bits)
}

// workgroupArrays declares workgroup arrays of f32 of one length.
func workgroupArrays(n int, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "var<workgroup> %s: array<f32, %d>;\n", name, n)
	}
	return b.String()
}

// vectorArrays declares the arrays xs and ys for the columns' vectors, and the named arrays for the rows' vectors.
func (m matrixKernel) vectorArrays(rows ...string) string {
	return workgroupArrays(m.Rows()*m.vectorStride(), rows...) + workgroupArrays(m.Cols*m.vectorStride(), "xs", "ys")
}

func (m matrixKernel) scoreArrays(names ...string) string {
	return workgroupArrays(m.Rows()*m.scoreStride(), names...)
}

func (m matrixKernel) weightArrays(names ...string) string {
	return workgroupArrays(m.Rows()*m.weightStride(), names...)
}

func (m matrixKernel) forward() graph.Pass {
	arrays := m.vectorArrays("rs") + m.scoreArrays("ss") + m.weightArrays("ps") +
		workgroupArrays(m.Rows()*m.LanesPerRow(), "ms", "us") + workgroupArrays(m.Rows(), "tops", "sums")
	p := m.pass(m.forwardBody(), m.QueryBlocks()*m.heads*m.batch, m.forwardMemory(), arrays, []string{"in0", "in1", "in2"},
		m.withSegments("out0", "out1")...)
	p.Declarations += m.narrowing()
	return p
}

func (m matrixKernel) queryGrad() graph.Pass {
	arrays := m.vectorArrays("rs", "ws") + m.scoreArrays("ss", "ts") + m.weightArrays("ps") + workgroupArrays(m.Rows(), "ls", "es")
	return m.pass(m.queryGradBody(), m.QueryBlocks()*m.heads*m.batch, m.queryGradMemory(), arrays,
		[]string{"in0", "in1", "in2", "in5"}, m.withSegments("in4", "tmp0", "out0")...)
}

func (m matrixKernel) keyGrad() graph.Pass {
	arrays := m.vectorArrays("rs", "ws") + m.scoreArrays("ss", "ts") + m.weightArrays("ps", "ds") +
		workgroupArrays(m.Cols, "ls", "es")
	_, uses := m.keyLSE("")
	return m.pass(m.keyGradBody(), m.KeyBlocks()*m.kvHeads*m.batch, m.keyGradMemory(), arrays,
		[]string{"in0", "in1", "in2", "in5"}, m.withSegments(append(uses, "tmp0", "out1", "out2")...)...)
}
