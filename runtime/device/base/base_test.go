package base

import (
	"errors"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type buffer struct{ Buffer }

func (*buffer) Release() {}

type loaded struct{ Program }

func (*loaded) Release() {}

type owner = Owner[*buffer, *loaded]

func newOwner(budget int64) (*owner, *Properties) {
	p := &Properties{}
	o := NewOwner[*buffer, *loaded](p)
	o.Describe(device.Info{Name: "fake:0"}, target.DefaultLimits(), budget)
	return o, p
}

func do(_, _ string, f func() error) error { return f() }

func alloc(t *testing.T, o *owner, label string, size int64) *buffer {
	t.Helper()
	b := &buffer{o.NewBuffer(label, size)}
	_, err := o.Alloc(do, b, func() error { return nil })
	require.NoError(t, err)
	return b
}

// copying is a program that copies a to b.
func copying(a, b device.Buffer) *device.Program {
	return &device.Program{Label: "p", Commands: []device.Command{{Shader: device.Copy,
		Args: []device.Range{{Buffer: a, Size: 4}, {Buffer: b, Size: 4}}}}}
}

func TestBudget(t *testing.T) {
	o, p := newOwner(100)
	a := alloc(t, o, "a", 60)
	b := &buffer{o.NewBuffer("b", 44)}
	_, err := o.Alloc(do, b, func() error { t.Error("created"); return nil })
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	assert.True(t, o.Release(a))
	assert.False(t, o.Release(a))
	failed := errors.New("the driver's")
	_, err = o.Alloc(do, b, func() error { return failed })
	require.ErrorIs(t, err, failed)
	used, _ := p.Allocated()
	assert.Zero(t, used, "what was not created does not count")
	memory := make([]byte, 64)
	c := &buffer{o.NewBuffer("c", 64)}
	_, err = o.Import(do, c, memory, 1, func() error { return nil })
	require.NoError(t, err)
	used, _ = p.Allocated()
	assert.Zero(t, used, "imported memory does not count")
	assert.True(t, o.Release(c))
	used, _ = p.Allocated()
	assert.Zero(t, used)
}

func TestOwnership(t *testing.T) {
	o, _ := newOwner(0)
	other, _ := newOwner(0)
	a, b, foreign := alloc(t, o, "a", 64), alloc(t, o, "b", 64), alloc(t, other, "foreign", 64)
	load := func(p *device.Program) (*loaded, error) {
		l := &loaded{o.NewProgram(p)}
		_, err := o.Load(do, l, p, func() error { return nil })
		return l, err
	}
	run := func(p device.Loaded) error { return o.Run(do, p, func(*loaded) error { return nil }) }
	_, err := load(copying(a, foreign))
	require.ErrorContains(t, err, `buffer "foreign": does not belong to this device`)
	l, err := load(copying(a, b))
	require.NoError(t, err)
	for _, p := range []device.Loaded{nil, (*loaded)(nil), &loaded{other.NewProgram(nil)}} {
		require.ErrorContains(t, run(p), "the program does not belong to this device")
	}
	require.NoError(t, run(l))
	o.Release(b)
	require.ErrorContains(t, run(l), `buffer "b" is released`)
	assert.True(t, o.Unload(l))
	assert.False(t, o.Unload(l))
	require.ErrorContains(t, run(l), "the program is released")
	_, err = load(copying(a, b))
	require.ErrorContains(t, err, "is released")
}

func TestStates(t *testing.T) {
	o, p := newOwner(0)
	alloc(t, o, "a", 64)
	fine := func() error { return nil }
	require.NoError(t, o.Do("sync", "", fine))
	assert.True(t, o.Lose(errors.New("first")))
	assert.False(t, o.Lose(errors.New("second")))
	err := o.Do("run", "p", func() error { t.Error("done"); return nil })
	require.ErrorIs(t, err, device.ErrLost)
	require.EqualError(t, err, `fake:0: run "p": device lost: first`)
	assert.True(t, o.Close())
	assert.False(t, o.Close())
	require.ErrorIs(t, o.Do("run", "p", fine), device.ErrClosed)
	used, staged := p.Allocated()
	assert.Zero(t, used+staged)
	freed := 0
	o.FreeAll(func(*loaded) {}, func(*buffer) { freed++ })
	o.FreeAll(func(*loaded) {}, func(*buffer) { freed++ })
	assert.Equal(t, 1, freed)

	o, _ = newOwner(0)
	err = o.Do("read", "b", func() error {
		o.Lose(errors.New("meanwhile"))
		return nil
	})
	require.ErrorContains(t, err, `read "b": device lost: meanwhile`)
}

func TestCompile(t *testing.T) {
	o, _ := newOwner(0)
	p := &device.Program{Shaders: []device.Shader{{Label: "first"}, {Label: "second"}}}
	labels, err := Compile(o, p, func(s *device.Shader) (string, error) { return s.Label, nil })
	require.NoError(t, err)
	assert.Equal(t, []string{"first", "second"}, labels)
	_, err = Compile(o, p, func(s *device.Shader) (string, error) { return "", device.Invalid("no") })
	require.EqualError(t, err, `fake:0: compile "first": validation failed: no`)
	_, err = Compile(o, p, func(s *device.Shader) (string, error) { o.Leave(); return "", nil })
	require.ErrorIs(t, err, device.ErrClosed, "not the second")
}

func TestReadInParts(t *testing.T) {
	r := NewRead("b")
	copy(r.Expect(8, 2), "01234567")
	r.Complete(nil)
	assert.False(t, r.Completed())
	r.Complete(nil)
	<-r.Done()
	data, err := r.Result()
	require.NoError(t, err)
	assert.Equal(t, "01234567", string(data))

	r = NewRead("b")
	r.Expect(8, 2)
	r.Complete(device.ErrLost)
	r.Complete(nil)
	<-r.Done()
	_, err = r.Result()
	require.ErrorIs(t, err, device.ErrLost)

	r = NewRead("empty")
	r.Expect(0, 0)
	<-r.Done()
}
