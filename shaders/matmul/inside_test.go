package matmul

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
)

// The bounds check reports an index outside an array, in reads and in writes.
func TestIndicesAreWatched(t *testing.T) {
	kernel := func(at string) string {
		return "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\nvar<workgroup> w: array<u32, 4>;\n" +
			"@compute @workgroup_size(1) fn main() {\nvar p = array<u32, 2>();\np[1] = 1u;\nw[2] = p[1];\n" + at + "\n}\n"
	}
	b := &bench{t: t, dev: testdevice.Translated(t), bufs: map[Operand]device.Buffer{}}
	for at, leaves := range map[string]bool{
		"x[3] = 1.0;": false, "x[4] = 1.0;": true, "x[w[2]] = x[3];": false, "x[w[2] + 3u] = 1.0;": true, "w[w[2] + 3u] = u32(x[0]);": true,
		"x[p[w[2] + 1u]] = 1.0;": true, "x[0] = f32(p[w[2]]);": false,
	} {
		b.bufs[A] = b.buffer("x", make([]byte, 16))
		k := Kernel{Name: at, Passes: []Pass{{Code: kernel(at), Bindings: []Binding{{Operand: A}}, Groups: [3]int{1, 1, 1},
			Workgroup: [3]int{1, 1, 1}, WorkgroupMemory: 16}}}
		assert.Equal(t, leaves, b.execute(k, asIs), at)
		b.bufs[A].Release()
	}
}
