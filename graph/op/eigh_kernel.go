package op

import (
	_ "embed"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// Kernel returns a kernel that tridiagonalizes by Householder reflections and then diagonalizes by implicit QL with
// shifts, as LAPACK's ssteqr and EISPACK's imtql2 do (Golub and Van Loan, Matrix Computations, algorithms 8.3.1 and
// 8.3.3). It moves a tenth of the data that Jacobi's method would.
func (*EighOp) Kernel(node *graph.Node) graph.Kernel {
	s := node.Inputs[0].Shape
	k := eighKernel{n: s[len(s)-1]}
	k.batch = s.Len() / (k.n * k.n)
	k.blocks = (k.n + columnLanes - 1) / columnLanes
	return graph.Template{Variants: func(l target.Limits) []graph.Variant {
		passes := []graph.Pass{k.tridiagonal(l), k.basis(), k.diagonal(), k.sorted()}
		if l.Native {
			passes = k.native(l)
		}
		return []graph.Variant{{
			Name: "householder_ql",
			Scratch: []graph.Type{
				graph.T(graph.F32, k.batch, k.n, k.n),        // tmp0: the matrix; then the vectors of the reflections
				graph.T(graph.F32, k.batch, 5, k.n),          // tmp1: diagonal, off-diagonal, β, w, the unit
				graph.T(graph.F32, k.batch, k.n, k.n),        // tmp2: eigenvectors, one after the other
				graph.T(graph.F32, k.batch*k.blocks, 4, k.n), // tmp3: diagonal and off-diagonal of each workgroup, now and next
			},
			Passes: passes,
		}}
	}}
}

// eighKernel writes the passes. The first has one workgroup for each matrix. The others have one lane for each row, or
// column, which are independent of each other, so each workgroup computes the scalars that all rows need again.
type eighKernel struct{ n, batch, blocks int }

func (k eighKernel) constants() string {
	return fmt.Sprintf("const N = %du;\nconst BLOCKS = %du;\n", k.n, k.blocks)
}

func (k eighKernel) pass(body string, uses ...string) graph.Pass {
	return graph.Pass{
		Declarations: k.constants() + fmt.Sprintf("const LANES = %du;\n", columnLanes),
		Body:         body, Uses: uses, Workgroup: columnLanes, Groups: k.batch * k.blocks,
	}
}

//go:embed native/eigh.c
var nativeEigh string

// native returns the passes for CPUs: the others with the same sums, in C.
func (k eighKernel) native(l target.Limits) []graph.Pass {
	text := nativeDefine("N", k.n, "LANES", decompositionLanes(k.n, l), "ROWS", columnLanes) + nativeHouseholder + nativeEigh
	pass := func(call string, uses ...string) graph.Pass {
		return graph.Pass{Native: true, Declarations: text, Workgroup: 1, Groups: k.batch * k.blocks, Uses: uses,
			Body: nativeBlock(k.blocks, k.n) + "    " + call + ";\n"}
	}
	first := graph.Pass{Native: true, Declarations: text, Workgroup: 1, Groups: k.batch, Uses: []string{"in0", "tmp0", "tmp1"},
		Body: "    tridiagonal($tmp0 + (u64)group * N * N, $tmp1 + (u64)group * 5 * N, $in0 + (u64)group * N * N);\n"}
	const z, numbers = "$tmp2 + matrix * N * N", "$tmp1 + matrix * 5 * N"
	return []graph.Pass{
		first,
		pass("basis("+z+", $tmp0 + matrix * N * N, "+numbers+" + 2 * N, begin, end)", "tmp0", "tmp1", "tmp2"),
		pass("diagonal($tmp3 + (u64)group * 4 * N, "+z+", "+numbers+", begin, end)", "tmp1", "tmp2", "tmp3"),
		pass(fmt.Sprintf("sorted($out0 + matrix * N, $out1 + matrix * N * N, $tmp3 + matrix * %d * 4 * N, %s, $tmp1[matrix * 5 * N + 4 * N], begin, end)", k.blocks, z),
			"tmp1", "tmp2", "tmp3", "out0", "out1"),
	}
}

// tridiagonal returns the pass that divides the matrix by its largest element and reduces it to tridiagonal form.
// Reflection k stores its vector v to column k of tmp0, from row k+1 on, and subtracts v·wᵀ + w·vᵀ from the remaining
// symmetric matrix.
func (k eighKernel) tridiagonal(l target.Limits) graph.Pass {
	lanes := decompositionLanes(k.n, l)
	return graph.Pass{
		Declarations: k.constants() + householder(lanes), Uses: []string{"in0", "tmp0", "tmp1"},
		Workgroup: lanes, Groups: k.batch, WorkgroupMemory: 4 * lanes,
		Body: `let base = group * N * N;
let diagonal = group * 5u * N;
let off = diagonal + N;
let betas = off + N;
let w = betas + N;
var top = 0.0;
for (var i = lane; i < N * N; i += LANES) {
  let x = $in0[base + i];
  let read = i % N <= i / N;
  // By the bits of the exponent: compilers may assume that no float is NaN.
  let finite = (bitcast<u32>(x) & 2139095040u) != 2139095040u;
  top = max(top, select(0.0, select(3.4e38, abs(x), finite), read));
}
let unit = largest(lane, top);
let usable = unit > 1e-37 && unit < 3.3e38;
for (var i = lane; i < N * N; i += LANES) {
  let row = max(i / N, i % N);
  let col = min(i / N, i % N);
  $tmp0[base + i] = select(0.0, $in0[base + row * N + col] / unit, usable);
}
if (lane == 0u) { $tmp1[diagonal + 4u * N] = select(0.0, unit, usable); }
storageBarrier();
for (var k = 0u; k + 1u < N; k++) {
  let count = N - 1u - k;
  let v = base + (k + 1u) * N + k;
  let r = reflection(lane, v, N, count);
  let beta = r.x;
  if (lane == 0u) {
    $tmp1[off + k] = r.y;
    $tmp1[betas + k] = beta;
  }
  // w = β·A·v − (β/2·vᵀ(β·A·v))·v
  var vp = 0.0;
  for (var j = k + 1u + lane; j < N; j += LANES) {
    var p = 0.0;
    for (var i = 0u; i < count; i++) { p += $tmp0[v + i * N] * $tmp0[base + (k + 1u + i) * N + j]; }
    p *= beta;
    $tmp1[w + j] = p;
    vp += p * $tmp0[base + j * N + k];
  }
  let half = 0.5 * beta * total(lane, vp);
  for (var j = k + 1u + lane; j < N; j += LANES) { $tmp1[w + j] -= half * $tmp0[base + j * N + k]; }
  storageBarrier();
  for (var j = k + 1u + lane; j < N; j += LANES) {
    let vj = $tmp0[base + j * N + k];
    let wj = $tmp1[w + j];
    for (var i = 0u; i < count; i++) {
      $tmp0[base + (k + 1u + i) * N + j] -= $tmp0[v + i * N] * wj + $tmp1[w + k + 1u + i] * vj;
    }
  }
  storageBarrier();
}
for (var k = lane; k < N; k += LANES) { $tmp1[diagonal + k] = $tmp0[base + k * N + k]; }
`,
	}
}

// basis returns the pass that multiplies the reflections, the first one first, row by row. Element (r, c) of the
// product is tmp2[c, r].
func (k eighKernel) basis() graph.Pass {
	return k.pass(`let row = group % BLOCKS * LANES + lane;
if (row >= N) { return; }
let base = group / BLOCKS * N * N;
let betas = (group / BLOCKS * 5u + 2u) * N;
for (var c = 0u; c < N; c++) { $tmp2[base + c * N + row] = select(0.0, 1.0, c == row); }
for (var k = 0u; k + 2u <= N; k++) {
  var d = 0.0;
  for (var c = k + 1u; c < N; c++) { d += $tmp2[base + c * N + row] * $tmp0[base + c * N + k]; }
  d *= $tmp1[betas + k];
  for (var c = k + 1u; c < N; c++) { $tmp2[base + c * N + row] -= d * $tmp0[base + c * N + k]; }
}
`, "tmp0", "tmp1", "tmp2")
}

// diagonal returns the pass that turns the tridiagonal matrix into a diagonal one by rotations. Each lane applies the
// rotations to its row of eigenvectors in tmp2. A sweep reads the diagonal and off-diagonal and writes their next
// values to other memory, so lanes need not be at the same rotation. An off-diagonal element counts as zero if it is
// too small to change its neighbors, or the matrix, in f32. The pass gives up on an eigenvalue after 30 sweeps; no
// matrix is known to need as many.
func (k eighKernel) diagonal() graph.Pass {
	p := k.pass(`let row = min(group % BLOCKS * LANES + lane, N - 1u); // the last row may be several lanes'
let mine = group % BLOCKS * LANES + lane < N;
let base = group / BLOCKS * N * N;
let d = group * 4u * N;
let e = d + N;
let next = 2u * N;
for (var i = lane; i < N; i += LANES) {
  $tmp3[d + i] = $tmp1[group / BLOCKS * 5u * N + i];
  $tmp3[e + i] = $tmp1[(group / BLOCKS * 5u + 1u) * N + i];
}
storageBarrier();
for (var l = 0u; l + 1u < N; l++) {
  for (var sweep = 0u; sweep < 30u; sweep++) {
    if (lane == 0u) {
      var i = l;
      while (i + 1u < N) {
        let x = abs($tmp3[e + i]);
        if (x <= 1e-8 || x <= 6e-8 * (abs($tmp3[d + i]) + abs($tmp3[d + i + 1u]))) { break; }
        i++;
      }
      end = i;
    }
    let m = workgroupUniformLoad(&end);
    if (m == l) { break; }
    let ahead = $tmp3[d + l + 1u] - $tmp3[d + l];
    let el = $tmp3[e + l];
    let q = ahead / (2.0 * el);
    let shift = el / (q + select(1.0, -1.0, q < 0.0) * root(q, 1.0));
    var g = $tmp3[d + m] - $tmp3[d + l] + shift;
    var s = 1.0;
    var c = 1.0;
    var p = 0.0;
    var i = m;
    var upper = 0.0;
    if (mine) { upper = $tmp2[base + m * N + row]; }
    while (i > l) {
      let x = $tmp3[e + i - 1u];
      let f = s * x;
      let b = c * x;
      let r = root(f, g);
      if (lane == 0u) { $tmp3[e + next + i] = r; }
      let di = $tmp3[d + i] - p;
      if (r < 1e-18) { // the matrix falls apart here
        if (lane == 0u) { $tmp3[d + next + i] = di; }
        break;
      }
      s = f / r;
      c = g / r;
      // What division and root lack of a rotation must not add up over thousands of them.
      let fit = 1.5 - 0.5 * (s * s + c * c);
      s *= fit;
      c *= fit;
      let t = ($tmp3[d + i - 1u] - di) * s + 2.0 * c * b;
      p = s * t;
      g = c * t - b;
      if (lane == 0u) { $tmp3[d + next + i] = di + p; }
      if (mine) {
        let lower = $tmp2[base + (i - 1u) * N + row];
        $tmp2[base + i * N + row] = s * lower + c * upper;
        upper = c * lower - s * upper;
      }
      i--;
    }
    if (mine) { $tmp2[base + i * N + row] = upper; }
    if (lane == 0u && i == l) {
      $tmp3[d + next + l] = $tmp3[d + l] - p;
      $tmp3[e + next + l] = g;
    }
    storageBarrier();
    for (var j = i + lane; j <= m; j += LANES) {
      $tmp3[d + j] = $tmp3[d + next + j];
      $tmp3[e + j] = select($tmp3[e + next + j], 0.0, j == m);
    }
    storageBarrier();
  }
}
`, "tmp1", "tmp2", "tmp3")
	p.Declarations += `var<workgroup> end: u32;
fn root(x: f32, y: f32) -> f32 { return sqrt(x * x + y * y); }
`
	p.WorkgroupMemory = 4
	return p
}

// sorted returns the pass that writes eigenvalues and eigenvectors in descending order of the eigenvalues.
func (k eighKernel) sorted() graph.Pass {
	return k.pass(`let i = group % BLOCKS * LANES + lane;
if (i >= N) { return; }
let b = group / BLOCKS;
let d = b * BLOCKS * 4u * N;
let mine = $tmp3[d + i];
var rank = 0u;
for (var j = 0u; j < N; j++) {
  let other = $tmp3[d + j];
  rank += u32(other > mine || (other == mine && j < i));
}
let at = b * N * N + i * N;
var most = 0.0;
var squares = 0.0;
for (var r = 0u; r < N; r++) {
  let x = $tmp2[at + r];
  most = select(most, x, abs(x) > abs(most));
  squares += x * x;
}
let scale = select(1.0, -1.0, most < 0.0) / sqrt(squares); // rotations by small angles have made it a little longer
$out0[b * N + rank] = mine * $tmp1[(b * 5u + 4u) * N];
for (var r = 0u; r < N; r++) { $out1[b * N * N + r * N + rank] = scale * $tmp2[at + r]; }
`, "tmp1", "tmp2", "tmp3", "out0", "out1")
}
