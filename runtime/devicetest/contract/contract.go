// Package contract is the conformance suite for the refusals, transfers and lifetimes of a device, without kernels of
// the model. The tests of every backend call Run, and Execute, Timer, Import and Shared where the backend has these
// abilities.
package contract

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Open returns a new device with a memory budget in bytes (0: the backend's default). The suite closes it.
type Open func(t *testing.T, budget int64) device.Device

// Increment returns a shader of n read-write bindings that adds one to each word of the first, 64 words a workgroup.
func Increment(n int) device.Shader {
	s := device.Shader{Label: "increment", Workgroup: [3]int{64, 1, 1}, Bindings: make([]device.Access, n)}
	for i := range n {
		s.Source += fmt.Sprintf("@group(0) @binding(%d) var<storage, read_write> b%d: array<u32>;\n", i, i)
	}
	s.Source += "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) g: vec3<u32>) { b0[g.x] += 1u; }\n"
	return s
}

// Run checks what any device must refuse, and its lifetimes, budget and closing.
func Run(t *testing.T, open Open) {
	t.Run("refusals", func(t *testing.T) { refusals(t, open) })
	t.Run("lifetimes", func(t *testing.T) { lifetimes(t, open) })
	t.Run("budget", func(t *testing.T) { budget(t, open) })
	t.Run("closed", func(t *testing.T) { closed(t, open) })
}

func opened(t *testing.T, open Open, budget int64) device.Device {
	d := open(t, budget)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func alloc(t *testing.T, d device.Device, label string, size int64) device.Buffer {
	b, err := d.Alloc(label, size)
	require.NoError(t, err)
	return b
}

// refused asserts that err is a validation error of the device that names object and holds text.
func refused(t *testing.T, err error, d device.Device, object, text string) {
	t.Helper()
	require.ErrorIs(t, err, device.ErrValidation)
	var de *device.Error
	require.ErrorAs(t, err, &de)
	assert.Equal(t, d.Info().Name, de.Device)
	assert.Equal(t, object, de.Object)
	assert.Contains(t, err.Error(), text)
}

// breach is a program that differs in one point from a valid one.
type breach struct {
	name         string
	change       func(p *device.Program)
	object, text string
}

func breaches(l target.Limits, b, other, foreign, gone device.Buffer) []breach {
	arg := func(i int, f func(r *device.Range)) func(*device.Program) {
		return func(p *device.Program) { f(&p.Commands[0].Args[i]) }
	}
	shader := func(f func(s *device.Shader)) func(*device.Program) {
		return func(p *device.Program) { f(&p.Shaders[0]) }
	}
	copying := func(src, dst device.Range) func(*device.Program) {
		return func(p *device.Program) {
			p.Commands = []device.Command{{Shader: device.Copy, Args: []device.Range{src, dst}}}
		}
	}
	at := func(b device.Buffer, offset, size int64) device.Range {
		return device.Range{Buffer: b, Offset: offset, Size: size}
	}
	assembly := "which this device does not take"
	if l.Assembly {
		assembly = "line 2: unknown instruction OpNonsense"
	}
	c := "which this device does not take"
	if l.Native {
		c = "error: "
	}
	return []breach{
		{"C", shader(func(s *device.Shader) { s.Source, s.Workgroup = target.C+"\nnonsense it is;", [3]int{1, 1, 1} }), "increment", c},
		{"assembly", shader(func(s *device.Shader) { s.Source = target.Assembly + "\nOpNonsense" }), "increment", assembly},
		{"too many bindings", shader(func(s *device.Shader) { s.Bindings = make([]device.Access, l.MaxBindings+1) }), "increment",
			"bindings exceed"},
		{"unknown access", shader(func(s *device.Shader) { s.Bindings = []device.Access{9, 0} }), "increment", "unknown access"},
		{"workgroup of zero", shader(func(s *device.Shader) { s.Workgroup[1] = 0 }), "increment", "dimension 1"},
		{"workgroup too wide", shader(func(s *device.Shader) { s.Workgroup[2] = l.MaxWorkgroupSize[2] + 1 }), "increment", "dimension 2"},
		{"too many invocations", shader(func(s *device.Shader) { s.Workgroup = [3]int{l.MaxInvocations / 2, 4, 1} }), "increment",
			"invocations"},
		{"workgroup memory", shader(func(s *device.Shader) { s.WorkgroupMemory = l.MaxWorkgroupMemory + 4 }), "increment",
			"workgroup memory"},
		{"undeclared workgroup memory", shader(func(s *device.Shader) { s.Source += "var<workgroup> t: array<array<f32, 1000>, 100>;" }),
			"increment", "at least 400000 bytes"},
		{"another workgroup in the source", shader(func(s *device.Shader) { s.Workgroup = [3]int{32, 1, 1} }), "increment",
			"declares workgroup [64 1 1]"},
		{"zero byte", shader(func(s *device.Shader) { s.Source += "\x00" }), "increment", "zero byte"},
		{"not UTF-8", shader(func(s *device.Shader) { s.Source += "\xff" }), "increment", "not text"},
		{"no source", shader(func(s *device.Shader) { s.Source = "" }), "increment", "not text"},
		{"unknown shader", func(p *device.Program) { p.Commands[0].Shader = 1 }, "program", "shader 1 of 1"},
		{"negative shader", func(p *device.Program) { p.Commands[0].Shader = -2 }, "program", "shader -2 of 1"},
		{"argument missing", func(p *device.Program) { p.Commands[0].Args = p.Commands[0].Args[:1] }, "increment", "1 arguments for 2"},
		{"dispatch too large", func(p *device.Program) { p.Commands[0].Groups[1] = l.MaxDispatchDimension + 1 }, "increment",
			"dimension 1"},
		{"empty dispatch", func(p *device.Program) { p.Commands[0].Groups[0] = 0 }, "increment", "dimension 0"},
		{"no buffer", arg(0, func(r *device.Range) { r.Buffer = nil }), "increment", "is nil"},
		{"another device's buffer", arg(0, func(r *device.Range) { r.Buffer = foreign }), "increment", "does not belong"},
		{"released buffer", arg(0, func(r *device.Range) { r.Buffer = gone }), "increment", "released"},
		{"unaligned offset", arg(0, func(r *device.Range) { r.Offset = 4 }), "increment", "multiple of"},
		{"negative offset", arg(0, func(r *device.Range) { r.Offset = -l.OffsetAlignment }), "increment", "multiple of"},
		{"odd size", arg(0, func(r *device.Range) { r.Size = 254 }), "increment", "multiple of 4"},
		{"empty", arg(0, func(r *device.Range) { r.Size = 0 }), "increment", "positive"},
		{"out of range", arg(1, func(r *device.Range) { r.Offset = 4096 }), "increment", "exceed the 4096"},
		{"overflowing", arg(1, func(r *device.Range) { r.Offset, r.Size = 1<<62, 1<<62 }), "increment", "exceed the 4096"},
		{bindingTooLarge, arg(0, func(r *device.Range) { *r = at(other, 0, l.MaxBindingSize+4) }), "increment", "largest binding"},
		{"overlap", arg(1, func(r *device.Range) { r.Offset = 0 }), "increment", "overlap"},
		{"read-only and writable", shader(func(s *device.Shader) { s.Bindings = []device.Access{device.ReadWrite, device.ReadOnly} }),
			"increment", "read-only and writable"},
		{"copy of three", func(p *device.Program) {
			p.Commands[0].Shader, p.Commands[0].Args = device.Copy, make([]device.Range, 3)
		}, "program", "3 arguments"},
		{"copy sizes", copying(at(b, 0, 256), at(other, 0, 128)), "program", "differ"},
		{"copy overlap", copying(at(b, 0, 256), at(b, 128, 256)), "program", "overlap"},
		{"copy odd", copying(at(b, 0, 6), at(other, 0, 6)), "program", "multiple of 4"},
		{"copy beyond", copying(at(b, 4000, 256), at(other, 0, 256)), "program", "exceed"},
		{"copy of released", copying(at(gone, 0, 256), at(b, 0, 256)), "program", "released"},
	}
}

const bindingTooLarge = "binding too large"

func refusals(t *testing.T, open Open) {
	d, stranger := opened(t, open, 0), opened(t, open, 0)
	l := d.Limits()
	assert.Equal(t, d.Info().Kind == device.Software || d.Info().Kind == device.CPU, l.Software, "Limits.Software agrees with Info.Kind")
	large := l.MaxBindingSize + 256
	if large > l.MaxBufferSize { // any buffer fits a binding
		large = 4096
	}
	b, other := alloc(t, d, "arena", 4096), alloc(t, d, "other", large)
	foreign, gone := alloc(t, stranger, "foreign", 4096), alloc(t, d, "gone\xff\x00", 4096) // a label is anything
	gone.Release()
	good := func() *device.Program {
		return &device.Program{Label: "program", Shaders: []device.Shader{Increment(2)}, Commands: []device.Command{
			{Args: []device.Range{{Buffer: b, Size: 256}, {Buffer: b, Offset: 256, Size: 256}}, Groups: [3]int{1, 1, 1}},
		}}
	}
	for _, c := range breaches(l, b, other, foreign, gone) {
		if c.name == bindingTooLarge && other.Size() <= l.MaxBindingSize {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p := good()
			c.change(p)
			_, err := d.Load(p)
			refused(t, err, d, c.object, c.text)
		})
	}
	_, err := d.Load(nil)
	refused(t, err, d, "", "nil")
	for _, size := range []int64{-4, 0, 6, l.MaxBufferSize + 4, 1<<63 - 4} {
		_, err := d.Alloc("bad", size)
		refused(t, err, d, "bad", fmt.Sprint(size))
	}
	for _, c := range []struct {
		b         device.Buffer
		offset, n int64
		text      string
	}{{b, 2, 4, "multiples of 4"}, {b, 0, 3, "multiples of 4"}, {b, -4, 8, "exceed"}, {b, 4092, 8, "exceed"},
		{b, 1<<63 - 4, 8, "exceed"}, {gone, 0, 4, "released"}, {foreign, 0, 4, "does not belong"}} {
		_, err := d.Read(c.b, c.offset, c.n)
		refused(t, err, d, c.b.Label(), c.text)
		refused(t, d.Write(c.b, c.offset, make([]byte, c.n)), d, c.b.Label(), c.text)
	}
	_, err = d.Read(b, 0, -4)
	refused(t, err, d, "arena", "exceed")

	loaded, err := d.Load(good()) // the device still works
	require.NoError(t, err)
	require.NoError(t, d.Run(loaded))
	require.NoError(t, d.Sync())
	require.ErrorIs(t, stranger.Run(loaded), device.ErrValidation)
	require.ErrorIs(t, d.Run(nil), device.ErrValidation)
}

func lifetimes(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 256)
	p := &device.Program{Label: "p", Shaders: []device.Shader{Increment(1)}, Commands: []device.Command{
		{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}},
	}}
	first, err := d.Load(p)
	require.NoError(t, err)
	second, err := d.Load(p)
	require.NoError(t, err)
	first.Release()
	first.Release()
	refused(t, d.Run(first), d, "p", "released")
	require.NoError(t, d.Run(second))
	b.Release()
	b.Release()
	refused(t, d.Run(second), d, "p", `buffer "b" is released`)
	used, _ := d.Allocated()
	assert.Zero(t, used)
}

func budget(t *testing.T, open Open) {
	d := opened(t, open, 10000)
	a := alloc(t, d, "a", 6000)
	_, err := d.Alloc("b", 4004)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	assert.Contains(t, err.Error(), `alloc "b"`)
	assert.Contains(t, err.Error(), "3.91 KiB needed, 5.859 KiB of 9.766 KiB in use")
	c := alloc(t, d, "c", 4000)
	used, _ := d.Allocated()
	assert.EqualValues(t, 10000, used)
	a.Release()
	used, _ = d.Allocated()
	assert.EqualValues(t, 4000, used)
	alloc(t, d, "d", 6000)
	c.Release()
}

func closed(t *testing.T, open Open) {
	d := open(t, 0)
	b := alloc(t, d, "b", 256)
	p := &device.Program{Label: "p", Shaders: []device.Shader{Increment(1)}, Commands: []device.Command{
		{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}},
	}}
	l, err := d.Load(p)
	require.NoError(t, err)
	require.NoError(t, d.Run(l))
	r, err := d.Read(b, 0, 256)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	data, err := r.Wait() // enqueued before Close, so it completes
	require.NoError(t, err)
	assert.Len(t, data, 256)
	require.NoError(t, d.Close())
	b.Release()
	l.Release()
	_, err = d.Alloc("b", 256)
	assert.ErrorIs(t, err, device.ErrClosed)
	_, err = d.Load(p)
	assert.ErrorIs(t, err, device.ErrClosed)
	assert.ErrorIs(t, d.Run(l), device.ErrClosed)
	assert.ErrorIs(t, d.Write(b, 0, make([]byte, 4)), device.ErrClosed)
	_, err = d.Read(b, 0, 4)
	assert.ErrorIs(t, err, device.ErrClosed)
	assert.ErrorIs(t, d.Sync(), device.ErrClosed)
	used, staging := d.Allocated()
	assert.Zero(t, used+staging)
}
