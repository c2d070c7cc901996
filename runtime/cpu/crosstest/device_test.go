//go:build linux && cgo

package crosstest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/shaders/native"
	"github.com/stretchr/testify/require"
)

// build is how kernels are compiled and run.
type build struct {
	compiler string   // command
	flags    []string // of kernels, after those of the CPU's device
	harness  []string // flags of the harness
	runner   []string // command that runs the harness; nil: it runs by itself
	env      []string
	matrices []target.CooperativeMatrix // of the instructions that the flags allow
}

// crossDevice is a device that runs each command in a harness. Every call waits for its end.
type crossDevice struct {
	base.Properties
	dir      string
	compiler *cc.Compiler
	harness  harness

	mu      sync.Mutex
	owner   *base.Owner[*buffer, *loaded]
	files   int
	kernels map[string]*compiled // by source
}

// compiled is a kernel; library and symbol are set when done is closed.
type compiled struct {
	done            chan struct{}
	library, symbol string
	err             error
}

type buffer struct {
	base.Buffer
	d    *crossDevice
	path string
}

type loaded struct {
	base.Program
	d       *crossDevice
	program *device.Program
	kernels []*compiled
}

// open returns a device with the limits of the CPU's, except for the matrices.
func open(t *testing.T, b build) *crossDevice {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpupipe-cross-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	like, err := testdevice.Open("cpu:0/1")
	require.NoError(t, err)
	defer like.Close()
	d := &crossDevice{dir: dir, kernels: map[string]*compiled{}}
	d.compiler, err = cc.Find(cc.Options{Command: b.compiler, Last: b.flags})
	require.NoError(t, err)
	d.harness, err = newHarness(dir, b)
	require.NoError(t, err)
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	limits := like.Limits()
	limits.Cooperative = b.matrices
	d.owner.Describe(device.Info{Name: "cross:0", Adapter: b.compiler, Kind: device.CPU}, limits, 0)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func (d *crossDevice) do(op, object string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owner.Do(op, object, f)
}

func (d *crossDevice) Alloc(label string, size int64) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, size), d: d}
	return d.owner.Alloc(d.do, b, func() error {
		d.files++
		b.path = filepath.Join(d.dir, fmt.Sprint("buffer", d.files))
		if err := os.WriteFile(b.path, nil, 0o600); err != nil {
			return err
		}
		return os.Truncate(b.path, size)
	})
}

func (b *buffer) Release() {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if b.d.owner.Release(b) {
		os.Remove(b.path)
	}
}

func (d *crossDevice) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{Program: d.owner.NewProgram(p), d: d, program: p}
	return d.owner.Load(d.do, l, p, func() (err error) {
		l.kernels, err = d.compile(p)
		return err
	})
}

// compile compiles the kernels that the device does not have yet.
func (d *crossDevice) compile(p *device.Program) ([]*compiled, error) {
	slots := make(chan struct{}, runtime.NumCPU())
	all := make([]*compiled, len(p.Shaders))
	for i := range p.Shaders {
		s := &p.Shaders[i]
		if all[i] = d.kernels[s.Source]; all[i] != nil {
			continue
		}
		c := &compiled{done: make(chan struct{})}
		all[i], d.kernels[s.Source] = c, c
		go func() {
			defer close(c.done)
			slots <- struct{}{}
			c.err = d.build(c, s)
			<-slots
		}()
	}
	next := 0
	return base.Compile(d.owner, p, func(*device.Shader) (*compiled, error) {
		c := all[next]
		next++
		<-c.done
		return c, c.err
	})
}

func (d *crossDevice) build(c *compiled, s *device.Shader) error {
	var unit string
	unit, c.symbol = native.Unit(s.Source, cc.Unit)
	library, _, err := d.compiler.Compile(context.Background(), unit, c.symbol)
	if err != nil {
		return err
	}
	c.library = filepath.Join(d.dir, c.symbol+".so")
	return os.WriteFile(c.library, library, 0o700)
}

func (l *loaded) Release() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.owner.Unload(l)
}

func (d *crossDevice) Run(p device.Loaded) error {
	return d.owner.Run(d.do, p, func(l *loaded) error {
		for i := range l.program.Commands {
			c := &l.program.Commands[i]
			if c.Shader == device.Copy {
				if err := copyRange(c.Args[0], c.Args[1]); err != nil {
					return err
				}
			} else if err := d.harness.dispatch(l.kernels[c.Shader], c); err != nil {
				return fmt.Errorf("%s: %w", l.program.Shaders[c.Shader].Label, err)
			}
		}
		return nil
	})
}

func copyRange(from, to device.Range) error {
	data, err := read(from.Buffer.(*buffer), from.Offset, from.Size)
	if err != nil {
		return err
	}
	return write(to.Buffer.(*buffer), to.Offset, data)
}

func (d *crossDevice) Write(b device.Buffer, offset int64, data []byte) error {
	return d.do("write", base.Label(b), func() error {
		if err := d.owner.Checker().Transfer("write", b, offset, int64(len(data))); err != nil {
			return err
		}
		return write(b.(*buffer), offset, data)
	})
}

func write(b *buffer, offset int64, data []byte) error {
	f, err := os.OpenFile(b.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(data, offset)
	return err
}

func read(b *buffer, offset, n int64) ([]byte, error) {
	f, err := os.Open(b.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, n)
	_, err = f.ReadAt(data, offset)
	return data, err
}

type pending []byte

func (p pending) Wait() ([]byte, error) { return p, nil }

func (d *crossDevice) Read(b device.Buffer, offset, n int64) (p device.Pending, err error) {
	err = d.do("read", base.Label(b), func() error {
		if err := d.owner.Checker().Transfer("read", b, offset, n); err != nil {
			return err
		}
		data, err := read(b.(*buffer), offset, n)
		p = pending(data)
		return err
	})
	return p, err
}

func (d *crossDevice) Sync() error { return d.do("sync", "", func() error { return nil }) }

func (d *crossDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owner.Close() {
		d.harness.stop()
	}
	return nil
}
