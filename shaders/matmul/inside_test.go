package matmul

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/stretchr/testify/assert"
)

var (
	bound = regexp.MustCompile(`var<storage[^>]*> (\w+): array<`)
	own   = regexp.MustCompile(`var(?:<\w+>)? (\w+)(?:: | = )array<[^;]*, (\d+)>`)
	word  = regexp.MustCompile(`\w+`)
)

// watched is a kernel that tells, in word 0 of one more binding, of an index that leaves its array.
func watched(wgsl string, binding int) string {
	sizes := map[string]string{}
	for _, m := range bound.FindAllStringSubmatch(wgsl, -1) {
		sizes[m[1]] = "arrayLength(&" + m[1] + ")"
	}
	for _, m := range own.FindAllStringSubmatch(wgsl, -1) {
		sizes[m[1]] = m[2] + "u"
	}
	i := strings.LastIndex(wgsl, "enable ") // directives come first
	if i >= 0 {
		i += strings.Index(wgsl[i:], "\n")
	}
	return wgsl[:i+1] + fmt.Sprintf("@group(0) @binding(%d) var<storage, read_write> outside: array<u32>;\n", binding) +
		"fn inside(i: u32, n: u32) -> u32 { if (i >= n) { outside[0] = 1u; return 0u; } return i; }\n" + watch(wgsl[i+1:], sizes)
}

// watch has every index into an array of a known size pass through inside.
func watch(text string, sizes map[string]string) string {
	var out strings.Builder
	for {
		m := word.FindStringIndex(text)
		if m == nil {
			return out.String() + text
		}
		name := text[m[0]:m[1]]
		out.WriteString(text[:m[1]])
		text = text[m[1]:]
		if sizes[name] == "" || !strings.HasPrefix(text, "[") {
			continue
		}
		end := 1
		for depth := 1; depth > 0; end++ {
			depth += map[byte]int{'[': 1, ']': -1}[text[end]]
		}
		fmt.Fprintf(&out, "[inside(u32(%s), %s)]", watch(text[1:end-1], sizes), sizes[name])
		text = text[end:]
	}
}

// An index behind an array is told of, wherever it is read or written.
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
		k := Kernel{Name: at, Passes: []Pass{{WGSL: watched(kernel(at), 1), Bindings: []Binding{{Operand: A}, {Operand: B}}, Groups: [3]int{1, 1, 1}}}}
		l := g.load(k, map[Operand]*wgpu.Buffer{A: buffer, B: outside})
		g.run(l, 1)
		assert.Equal(t, leaves, g.read(outside, 1)[0] != 0, at)
		l.release()
		buffer.Release()
		outside.Release()
	}
}
