package matmul

import (
	"testing"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/internal/boundscheck"
	"github.com/stretchr/testify/assert"
)

// The bounds check reports an index outside an array, in reads and in writes.
func TestIndicesAreWatched(t *testing.T) {
	kernel := func(at string) string {
		return "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\nvar<workgroup> w: array<u32, 4>;\n" +
			"@compute @workgroup_size(1) fn main() {\nvar p = array<u32, 2>();\np[1] = 1u;\nw[2] = p[1];\n" + at + "\n}\n"
	}
	g := openGPU(t)
	for at, leaves := range map[string]bool{
		"x[3] = 1.0;": false, "x[4] = 1.0;": true, "x[w[2]] = x[3];": false, "x[w[2] + 3u] = 1.0;": true, "w[w[2] + 3u] = u32(x[0]);": true,
		"x[p[w[2] + 1u]] = 1.0;": true, "x[0] = f32(p[w[2]]);": false,
	} {
		buffer, outside := g.buffer(16, nil), g.buffer(16, make([]float32, 4))
		k := Kernel{Name: at, Passes: []Pass{{WGSL: boundscheck.Indices(kernel(at), 1), Bindings: []Binding{{Operand: A}, {Operand: B}}, Groups: [3]int{1, 1, 1}}}}
		l := g.load(k, map[Operand]*wgpu.Buffer{A: buffer, B: outside})
		g.run(l, 1)
		assert.Equal(t, leaves, g.read(outside, 1)[0] != 0, at)
		l.release()
		buffer.Release()
		outside.Release()
	}
}
