package contract

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// MaxStaging is the bytes of staging buffers that a device may hold for each direction.
const MaxStaging = 16 << 20

// Execute checks programs and transfers on a device that computes, one at a time and concurrently.
func Execute(t *testing.T, open Open) {
	t.Run("long loops run", func(t *testing.T) { longLoopsRun(t, open) })
	t.Run("arena", func(t *testing.T) { arena(t, open) })
	t.Run("copy between buffers", func(t *testing.T) { copyBetweenBuffers(t, open) })
	t.Run("order", func(t *testing.T) { order(t, open) })
	t.Run("shader errors", func(t *testing.T) { shaderErrors(t, open) })
	t.Run("release while running", func(t *testing.T) { releaseWhileRunning(t, open) })
	t.Run("binding sizes", func(t *testing.T) { bindingSizes(t, open) })
	t.Run("transfers survive the collector", func(t *testing.T) { transfersSurviveTheCollector(t, open) })
	t.Run("large transfers", func(t *testing.T) { largeTransfers(t, open) })
	t.Run("mixed sizes", func(t *testing.T) { mixedSizes(t, open) })
	t.Run("memory does not grow", func(t *testing.T) { memoryDoesNotGrow(t, open) })
	t.Run("open and close often", func(t *testing.T) { openAndCloseOften(t, open) })
	t.Run("concurrent use", func(t *testing.T) { concurrentUse(t, open) })
	t.Run("close while in use", func(t *testing.T) { closeWhileInUse(t, open) })
	t.Run("two devices", func(t *testing.T) { twoDevices(t, open) })
}

// spin is a program whose 8 invocations loop n times, once in a single loop and once in nested ones.
func spin(b device.Buffer, n uint32) *device.Program {
	s := device.Shader{Label: "spin", Workgroup: [3]int{8, 1, 1}, Bindings: []device.Access{device.ReadWrite},
		Source: strings.ReplaceAll(`
@group(0) @binding(0) var<storage, read_write> a: array<u32>;
@compute @workgroup_size(8) fn main(@builtin(local_invocation_index) l: u32) {
  var c = 0u;
  for (var i = 0u; i < N; i++) { c += 1u + (c & a[8]); }
  var e = 0u;
  for (var i = 0u; i < N / 1000u; i++) { for (var j = 0u; j < 1000u; j++) { e += 1u + (e & a[8]); } }
  a[l] = c; a[16u + l] = e;
}`, "N", uitoa(n)+"u")}
	return &device.Program{Label: "spin", Shaders: []device.Shader{s}, Commands: []device.Command{
		{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}},
	}}
}

func uitoa(n uint32) string {
	var out []byte
	for ; n > 0; n /= 10 {
		out = append([]byte{byte('0' + n%10)}, out...)
	}
	return string(out)
}

// Mesa 22.3's lavapipe gives an invocation 65,535 iterations in all, and then goes on with wrong data.
func longLoopsRun(t *testing.T, open Open) {
	d := opened(t, open, 0)
	for _, n := range []uint32{65_000, 70_000, 1_000_000} {
		b := alloc(t, d, "b", 256)
		require.NoError(t, d.Run(Load(t, d, spin(b, n))))
		got := Words(Read(t, d, b, 0, 256))
		for i := range 8 {
			require.Equal(t, n, got[i], "single loop")
			require.Equal(t, n, got[16+i], "nested loops")
		}
	}
}

// An arena is one buffer bound at three writable ranges, with copies within it.
func arena(t *testing.T, open Open) {
	d := opened(t, open, 0)
	const part, parts = 3 << 20, 4
	b := alloc(t, d, "b", part*parts)
	add := device.Shader{Label: "add", Workgroup: [3]int{64, 1, 1}, Bindings: make([]device.Access, 3), Source: `
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<storage, read_write> z: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) g: vec3<u32>) { z[g.x] = x[g.x] + 3u * y[g.x]; }`}
	at := func(i int) device.Range { return device.Range{Buffer: b, Offset: int64(i) * part, Size: part} }
	l := Load(t, d, &device.Program{Label: "arena", Shaders: []device.Shader{add}, Commands: []device.Command{
		{Args: []device.Range{at(0), at(1), at(2)}, Groups: [3]int{part / 256, 1, 1}},
		{Shader: device.Copy, Args: []device.Range{at(2), at(3)}}, // larger than scratch memory
		{Args: []device.Range{at(2), at(3), at(0)}, Groups: [3]int{part / 256, 1, 1}},
	}})
	x, y := Pattern(part, 1), Pattern(part, 2)
	require.NoError(t, d.Write(b, 0, x))
	require.NoError(t, d.Write(b, part, y))
	require.NoError(t, d.Run(l))
	xs, ys := Words(x), Words(y)
	sum := make([]uint32, len(xs))
	for i := range sum {
		sum[i] = xs[i] + 3*ys[i]
	}
	require.Equal(t, sum, Words(Read(t, d, b, 3*part, part)))
	for i := range sum {
		sum[i] *= 4
	}
	require.Equal(t, sum, Words(Read(t, d, b, 0, part)))
}

func copyBetweenBuffers(t *testing.T, open Open) {
	d := opened(t, open, 0)
	a, b := alloc(t, d, "b", 1024), alloc(t, d, "b", 1024)
	require.NoError(t, d.Write(a, 0, Pattern(1024, 0)))
	require.NoError(t, d.Run(Load(t, d, &device.Program{Commands: []device.Command{
		{Shader: device.Copy, Args: []device.Range{{Buffer: a, Offset: 4, Size: 100}, {Buffer: b, Offset: 12, Size: 100}}},
	}})))
	want := make([]byte, 1024)
	copy(want[12:], Pattern(1024, 0)[4:104])
	require.Equal(t, want, Read(t, d, b, 0, 1024), "and memory is zeroed")
}

// Dispatches run in order, over passes, submissions, and more work than may be in progress.
func order(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 256)
	l := Load(t, d, Increments(b, 5000))
	for range 8 {
		require.NoError(t, d.Run(l))
	}
	short := Load(t, d, Increments(b, 1))
	var reads []device.Pending
	for range 100 {
		require.NoError(t, d.Run(short))
		r, err := d.Read(b, 0, 4)
		require.NoError(t, err)
		reads = append(reads, r)
	}
	for i, r := range reads {
		data, err := r.Wait()
		require.NoError(t, err)
		require.EqualValues(t, 40_001+i, binary.LittleEndian.Uint32(data))
	}
	require.NoError(t, d.Sync())
}

func shaderErrors(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 256)
	good := Increment(1)
	for name, c := range map[string]struct{ wgsl, want string }{
		"not WGSL":        {"this is not wgsl", "expected global item"},
		"type error":      {"@compute @workgroup_size(64) fn main() { let x: f32 = 1u; }", "f32"},
		"no entry point":  {strings.ReplaceAll(good.Source, "main", "other"), "main"},
		"other binding":   {strings.ReplaceAll(good.Source, "binding(0)", "binding(1)"), "binding"},
		"other group":     {strings.ReplaceAll(good.Source, "group(0)", "group(1)"), "group"},
		"too many in all": {"const N = 4096u; @compute @workgroup_size(N) fn main() {}", "workgroup"},
		"only a comment":  {"// nothing", "main"},
		"odd characters":  {"fn \u2028 \u0000", "not text"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			s.Label, s.Source = "bad kernel", c.wgsl
			_, err := d.Load(&device.Program{Label: "p", Shaders: []device.Shader{good, s}})
			require.ErrorIs(t, err, device.ErrValidation)
			var de *device.Error
			require.ErrorAs(t, err, &de)
			assert.Equal(t, "bad kernel", de.Object)
			assert.Equal(t, "compile", de.Op)
			assert.Contains(t, err.Error(), c.want)
			assert.NotContains(t, err.Error(), "\n")
			t.Log(err)
		})
	}
	s := good
	s.Bindings = []device.Access{device.ReadOnly}
	_, err := d.Load(&device.Program{Label: "p", Shaders: []device.Shader{s}})
	require.ErrorIs(t, err, device.ErrValidation)
	t.Log(err)

	require.NoError(t, d.Run(Load(t, d, Increments(b, 1))))
	require.EqualValues(t, 1, Words(Read(t, d, b, 0, 4))[0])
}

func releaseWhileRunning(t *testing.T, open Open) {
	d := opened(t, open, 0)
	for range 50 {
		b := alloc(t, d, "b", 1<<20)
		l := Load(t, d, Increments(b, 100))
		require.NoError(t, d.Run(l))
		b.Release()
		require.ErrorIs(t, d.Run(l), device.ErrValidation)
		l.Release()
	}
	require.NoError(t, d.Sync())
}

// wgpu-native checks a binding against the smallest size that the pipeline before needed, where both pipelines share
// one layout: a word where that one had vectors of four was refused.
func bindingSizes(t *testing.T, open Open) {
	d := opened(t, open, 0)
	shader := func(element, value string) device.Shader {
		return device.Shader{Label: element, Workgroup: [3]int{1, 1, 1}, Bindings: make([]device.Access, 1), Source: `
@group(0) @binding(0) var<storage, read_write> x: array<` + element + `>;
@compute @workgroup_size(1) fn main() { x[0] = ` + value + `; }`}
	}
	wide, narrow := alloc(t, d, "b", 16), alloc(t, d, "b", 4)
	p := Load(t, d, &device.Program{Label: "sizes", Shaders: []device.Shader{shader("vec4<u32>", "vec4<u32>(7u)"), shader("u32", "9u")},
		Commands: []device.Command{
			{Args: []device.Range{{Buffer: wide, Size: 16}}, Groups: [3]int{1, 1, 1}},
			{Shader: 1, Args: []device.Range{{Buffer: narrow, Size: 4}}, Groups: [3]int{1, 1, 1}},
		}})
	require.NoError(t, d.Run(p))
	require.NoError(t, d.Sync())
	assert.Equal(t, []uint32{7, 7, 7, 7}, Words(Read(t, d, wide, 0, 16)))
	assert.Equal(t, []uint32{9}, Words(Read(t, d, narrow, 0, 4)))
}
