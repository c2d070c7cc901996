package op

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Sizes of the kernel for few queries. A workgroup handles one query of one head and processes keyStretch keys at a
// time, in two steps. First each lane computes the scores of some of these keys. Then each lane sums one unit of the
// values, weighted by their scores, over every STRANDS-th key.
const (
	keyLanes   = 256
	keyStretch = 1024
)

// keysForward returns the pass of the kind keys, for queries at the end of a cache.
func (k attentionKernels) keysForward() graph.Pass {
	strands := keyLanes / k.units()
	result := "whole / sum"
	if k.result.Float16() {
		result = "narrowed(whole / sum)"
	}
	vectors := []string{"in0", "in1", "in2", "out0"}
	position, lists := k.positionExpr()
	bounds := `if (lane == 0u) { bound = min(i + ` + position + ` + 1u, TK); }
let past = workgroupUniformLoad(&bound); // barriers may not depend on what is read from memory otherwise
`
	if k.window > 0 {
		bounds = `if (lane == 0u) { bound = i + ` + position + ` + 1u; }
let next = workgroupUniformLoad(&bound); // barriers may not depend on what is read from memory otherwise
let start = ` + k.oldest("next") + `;
let past = min(next, TK);
`
	}
	p := graph.Pass{
		Declarations: k.constants() + total(keyLanes) + fmt.Sprintf(`const STRETCH = %du;
const STRANDS = %du;
var<workgroup> bound: u32;
var<workgroup> ps: array<f32, STRETCH>;
var<workgroup> os: array<U, LANES>;
`, keyStretch, strands) + k.narrowing(),
		Body: `// Workgroups count [BATCH, TQ, HEADS].
let h = group % HEADS;
let i = group / HEADS % TQ;
let b = group / HEADS / TQ;
let q = group * UNITS;
let keys = (` + k.cacheExpr() + ` * TK * KV + h / GROUP) * UNITS;
let unit = lane % UNITS;
let strand = lane / UNITS; // one too many may have a few lanes
` + bounds + `var m = LOWEST;
var mine = 0.0;
var o = U();
for (var t = ` + k.Start() + `; t < past; t += STRETCH) {
  var top = m;
  for (var x = lane; x < STRETCH; x += LANES) {
    let key = keys + min(t + x, TK - 1u) * (KV * UNITS);
    var s = 0.0;
    for (var u = 0u; u < UNITS; u++) { s += inner(` + k.read("$in0", "q + u") + `, ` + k.read("$in1", "key + u") + `); }
    s = select(LOWEST, s * SCALE, t + x < past);
    ps[x] = s;
    top = max(top, s);
  }
  let larger = largest(lane, top);
  let keep = exp(m - larger);
  m = larger;
  mine *= keep;
  for (var x = lane; x < STRETCH; x += LANES) {
    ps[x] = exp(ps[x] - larger);
    mine += ps[x];
  }
  workgroupBarrier();
  o *= keep;
  if (strand < STRANDS) {
    for (var x = strand; x < min(STRETCH, past - t); x += STRANDS) { o += ps[x] * ` + k.read("$in2", "keys + (t + x) * (KV * UNITS) + unit") + `; }
  }
  workgroupBarrier();
}
let sum = total(lane, mine);
os[lane] = o;
workgroupBarrier();
if (lane < UNITS) {
  var whole = os[lane];
  for (var x = lane + UNITS; x < STRANDS * UNITS; x += UNITS) { whole += os[x]; }
  $out0[q + lane] = ` + result + `;
}
if (lane == 0u) { $out1[(b * HEADS + h) * TQ + i] = m + log(sum); }
`,
		Uses: slices.Concat(vectors, lists, []string{"out1"}), Workgroup: keyLanes, Groups: k.batch * k.queries * k.heads,
		WorkgroupMemory: 4 + 4*keyLanes + 4*keyStretch + 4*k.width()*keyLanes, Inside: true,
	}
	if k.width() == 4 {
		p.Vec4 = vectors
	}
	return k.withReads(p)
}
