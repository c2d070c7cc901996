package op

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph/target"
)

// total returns the WGSL functions total and largest, which compute the sum and the maximum of x over the lanes of a
// workgroup. The number of lanes is a power of two, and all lanes must call them.
func total(lanes int) string {
	return fmt.Sprintf(`const LANES = %du;
var<workgroup> part: array<f32, LANES>;
fn total(lane: u32, x: f32) -> f32 {
  part[lane] = x;
  for (var n = LANES / 2u; n > 0u; n /= 2u) {
    workgroupBarrier();
    if (lane < n) { part[lane] += part[lane + n]; }
  }
  workgroupBarrier();
  let y = part[0];
  workgroupBarrier();
  return y;
}
fn largest(lane: u32, x: f32) -> f32 {
  part[lane] = x;
  for (var n = LANES / 2u; n > 0u; n /= 2u) {
    workgroupBarrier();
    if (lane < n) { part[lane] = max(part[lane], part[lane + n]); }
  }
  workgroupBarrier();
  let y = part[0];
  workgroupBarrier();
  return y;
}
`, lanes)
}

// householder returns the WGSL functions of total and the function reflection. reflection replaces the vector x of
// count elements tmp0[at], tmp0[at + stride], … by the vector v of the Householder reflection I − β·v·vᵀ that maps x to
// a multiple of the first unit vector. It returns β and that multiple, −sign(x₀)·‖x‖. β is 0 if x is 0. All lanes of
// the workgroup must call it with the same arguments except lane. It begins with a barrier, so it reads what other
// lanes wrote to tmp0 before the call.
func householder(lanes int) string {
	return total(lanes) + `fn reflection(lane: u32, at: u32, stride: u32, count: u32) -> vec2<f32> {
  storageBarrier();
  // In units of the largest element nothing over- or underflows.
  var top = 0.0;
  for (var i = lane; i < count; i += LANES) { top = max(top, abs($tmp0[at + i * stride])); }
  let unit = largest(lane, top);
  let scale = select(0.0, 1.0 / unit, unit > 1e-37);
  var squares = 0.0;
  for (var i = lane; i < count; i += LANES) {
    let x = $tmp0[at + i * stride] * scale;
    squares += x * x;
  }
  let norm = sqrt(total(lane, squares));
  let first = $tmp0[at] * scale;
  storageBarrier();
  for (var i = lane; i < count; i += LANES) {
    let x = $tmp0[at + i * stride] * scale;
    $tmp0[at + i * stride] = x + select(0.0, select(norm, -norm, first < 0.0), i == 0u);
  }
  storageBarrier();
  return vec2<f32>(select(0.0, 1.0 / (norm * (norm + abs(first))), norm > 0.0), select(-norm, norm, first < 0.0) * unit);
}
`
}

// decompositionLanes returns the workgroup size of a kernel with one workgroup for each matrix: a power of two of at
// least cols if the device allows it. Software adapters run the lanes of a workgroup one after the other, so theirs are
// smaller.
func decompositionLanes(cols int, l target.Limits) int {
	lanes, most := 32, 1024
	if l.Software {
		most = 256
	}
	for lanes < cols && 2*lanes <= min(most, l.MaxInvocations) {
		lanes *= 2
	}
	return lanes
}

// columnLanes is the workgroup size of a kernel with one invocation for each column, or row, of a matrix.
const columnLanes = 64
