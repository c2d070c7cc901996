package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
)

// embeddingGradKernels writes the WGSL of EmbeddingGradOp. The naive kernel looks at every id for every element of the
// table. The other, links, makes a list of the positions of each id, then sums along it: no atomics, and the order is
// that of the positions.
type embeddingGradKernels struct{ rows, ids, width int }

const embeddingLanes = 64

func (k embeddingGradKernels) candidates(graph.TemplateLimits) []graph.Candidate {
	return []graph.Candidate{
		{Name: "naive", Passes: []graph.Pass{k.naive()}},
		{Name: "links", Scratch: []graph.Type{graph.T(graph.U32, k.ids)}, Passes: []graph.Pass{k.zero(), k.link(), k.sum()}},
	}
}

// pass runs body for each n below count.
func (k embeddingGradKernels) pass(count int, vectors []string, uses []string, body string) graph.Pass {
	unit, units := "f32", k.width
	if k.width%4 == 0 {
		unit, units = "vec4<f32>", k.width/4
	} else {
		vectors = nil
	}
	return graph.Pass{
		Declarations: fmt.Sprintf(`alias U = %s;
const ROWS = %du;
const IDS = %du;
const UNITS = %du; // of a row
const FIRST = 0x80000000u; // marks a link of the first position of an id; the rest of a link is the next one, or IDS
`, unit, k.rows, k.ids, units),
		Body: fmt.Sprintf("let n = group * %du + lane;\nif (n >= %du) { return; }\n", embeddingLanes, count) + body,
		Uses: uses, Vec4: vectors, Workgroup: embeddingLanes, Groups: (count + embeddingLanes - 1) / embeddingLanes,
	}
}

// units is the number of vectors of all rows.
func (k embeddingGradKernels) units(rows int) int {
	if k.width%4 == 0 {
		return rows * k.width / 4
	}
	return rows * k.width
}

func (k embeddingGradKernels) naive() graph.Pass {
	return k.pass(k.units(k.rows), []string{"in1", "out0"}, []string{"in0", "in1", "out0"}, `let row = n / UNITS;
var sum = U();
for (var i = 0u; i < IDS; i++) {
  if (min(in0[i], ROWS - 1u) == row) { sum += in1[i * UNITS + n % UNITS]; }
}
out0[n] = sum;
`)
}

func (k embeddingGradKernels) zero() graph.Pass {
	return k.pass(k.units(k.rows), []string{"out0"}, []string{"out0"}, "out0[n] = U();\n")
}

// link finds for each position whether its id came before, and where it comes next.
func (k embeddingGradKernels) link() graph.Pass {
	return k.pass(k.ids, nil, []string{"in0", "tmp0"}, `let id = min(in0[n], ROWS - 1u);
var next = n + 1u;
while (next < IDS) {
  if (min(in0[next], ROWS - 1u) == id) { break; }
  next++;
}
var before = n;
while (before > 0u) {
  if (min(in0[before - 1u], ROWS - 1u) == id) { break; }
  before--;
}
tmp0[n] = next | select(0u, FIRST, before == 0u);
`)
}

// sum follows the links from each first position.
func (k embeddingGradKernels) sum() graph.Pass {
	return k.pass(k.units(k.ids), []string{"in1", "out0"}, []string{"in0", "in1", "tmp0", "out0"}, `let start = n / UNITS;
let unit = n % UNITS;
let link = tmp0[start];
if ((link & FIRST) != 0u) {
  var sum = in1[n];
  var i = link & ~FIRST;
  while (i < IDS) {
    sum += in1[i * UNITS + unit];
    i = tmp0[i];
  }
  out0[min(in0[start], ROWS - 1u) * UNITS + unit] = sum;
}
`)
}
