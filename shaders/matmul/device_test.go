package matmul

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/boundscheck"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/require"
)

// bench has the operands of one case on a device.
type bench struct {
	t    testing.TB
	dev  device.Device
	bufs map[Operand]device.Buffer
	bias device.Buffer // that epilogues read; nil: none
	sums []byte        // the content of the scratch before a kernel runs
}

func (b *bench) buffer(name string, data []byte) device.Buffer {
	buf, err := b.dev.Alloc(name, int64(max(len(data), 16)))
	require.NoError(b.t, err)
	require.NoError(b.t, b.dev.Write(buf, 0, data))
	return buf
}

func (b *bench) read(buf device.Buffer) []byte {
	pending, err := b.dev.Read(buf, 0, buf.Size())
	require.NoError(b.t, err)
	bytes, err := pending.Wait()
	require.NoError(b.t, err)
	return bytes
}

// program is a kernel's passes, which change rewrites. Those in WGSL report into outside whether an index leaves its
// array, unless it is nil.
func (b *bench) program(k Kernel, change func(Pass) Pass, outside device.Buffer) *device.Program {
	p := &device.Program{Label: k.Name}
	for i, pass := range k.Passes {
		pass = change(pass)
		c := device.Command{Shader: i, Groups: pass.Groups}
		for _, bind := range pass.Bindings {
			buf := b.bufs[bind.Operand]
			r := device.Range{Buffer: buf, Offset: int64(bind.Offset), Size: buf.Size()}
			if bind.Operand == Scratch {
				r.Size = int64(bind.Size)
			}
			c.Args = append(c.Args, r)
		}
		if pass.Epilogue != nil && b.bias != nil {
			c.Args = append(c.Args, device.Range{Buffer: b.bias, Size: b.bias.Size()})
		}
		if outside != nil && !strings.HasPrefix(pass.Code, target.Assembly) {
			pass = pass.of(boundscheck.Indices(pass.Source(), len(c.Args)))
			c.Args = append(c.Args, device.Range{Buffer: outside, Size: outside.Size()})
		}
		p.Shaders = append(p.Shaders, device.Shader{Label: k.Name, Source: pass.Source(), Bindings: make([]device.Access, len(c.Args)),
			Workgroup: pass.Workgroup, WorkgroupMemory: pass.WorkgroupMemory})
		p.Commands = append(p.Commands, c)
	}
	return p
}

// execute runs a kernel, and reports whether an index left its array.
func (b *bench) execute(k Kernel, change func(Pass) Pass) (left bool) {
	outside := b.buffer("outside", make([]byte, 16))
	defer outside.Release()
	p := b.program(k, change, outside)
	l, err := b.dev.Load(p)
	require.NoError(b.t, err, "%s\n%s", k.Name, p.Shaders[0].Source)
	defer l.Release()
	require.NoError(b.t, b.dev.Run(l))
	return b.read(outside)[0] != 0
}

// run runs a kernel that change rewrites. It returns C, of n words, and the memory behind it.
func (b *bench) run(k Kernel, n int, change func(Pass) Pass) []float32 {
	const guard = 64
	unwritten := make([]float32, n+guard)
	for i := range unwritten {
		unwritten[i] = float32(math.Inf(1))
	}
	b.bufs[C] = b.buffer("c", floatBytes(unwritten))
	defer b.bufs[C].Release()
	b.bufs[Scratch] = b.buffer("scratch", append(slices.Clone(b.sums), make([]byte, k.Scratch-len(b.sums))...))
	defer b.bufs[Scratch].Release()
	require.False(b.t, b.execute(k, change), "%s: an index leaves its array", k.Name)
	bytes := b.read(b.bufs[C])
	out := make([]float32, n+guard)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
	}
	return out
}

// asIs changes no pass.
func asIs(p Pass) Pass { return p }

// check compares every element of C with gonum, and the bits of two runs. The memory behind C must not change.
func check(t *testing.T, dev device.Device, c testCase, ks []Kernel, change func(Pass) Pass) {
	s, r := c.spec, rand.New(rand.NewPCG(1, 2))
	x, xBits := elements(r, s.M*s.K+(s.Batch-1)*s.BatchStrideA, s.TypeA)
	y, yBits := elements(r, s.N*s.K+(max(s.Batch, s.Groups)-1)*s.BatchStrideB, s.TypeB)
	bias := random(r, s.N)
	want := reference(s, x, y, bias)
	b := &bench{t: t, dev: dev, bufs: map[Operand]device.Buffer{}}
	b.bufs[A], b.bufs[B], b.bias = b.buffer("a", xBits), b.buffer("b", yBits), b.buffer("bias", floatBytes(bias))
	defer b.bufs[A].Release()
	defer b.bufs[B].Release()
	defer b.bias.Release()
	if s.Grouping != graph.Ungrouped {
		b.bufs[Offsets] = b.buffer("offsets", floatBytes(bitsOf(offsetsOf(groupRows(s)))))
		defer b.bufs[Offsets].Release()
	}
	for _, k := range ks {
		got := b.run(k, len(want), change)
		requireClose(t, k, want, got, s.K)
		for _, v := range got[len(want):] {
			require.True(t, math.IsInf(float64(v), 1), "%s writes behind C", k.Name)
		}
		require.Equal(t, got, b.run(k, len(want), change), "%s: a second run gives other bits", k.Name)
	}
}

// elements returns random numbers, and how they are stored.
func elements(r *rand.Rand, n int, e Element) ([]float32, []byte) {
	if e != F32 {
		return randomFloat16(r, n, e)
	}
	x := random(r, n)
	return x, floatBytes(x)
}
