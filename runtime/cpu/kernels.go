//go:build linux && cgo

package cpu

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// kernels is what has been compiled. The device's lock guards it.
type kernels struct {
	compiler  *cc.Compiler
	parallel  int // compilers at once
	made      map[base.Key]kernel
	libraries libraries
}

func newKernels(c *cc.Compiler, parallel int) kernels {
	return kernels{compiler: c, parallel: parallel, made: map[base.Key]kernel{}}
}

// compilation is a kernel being compiled, or one that is there already.
type compilation struct {
	source string
	done   chan struct{}
	kernel kernel
	err    error
}

// batch is the compilations of one program.
type batch struct {
	started map[base.Key]*compilation

	mu      sync.Mutex
	waiting []*compilation
}

// A run of the compiler takes from fewestAtOnce to mostAtOnce kernels. More of them hardly save anything.
const fewestAtOnce, mostAtOnce = 2, 8

// take returns the next kernels for one of several compilers. They are few at the end, so that all compilers end at
// once.
func (b *batch) take(compilers int) []*compilation {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), mostAtOnce, max(fewestAtOnce, (len(b.waiting)+compilers-1)/compilers))
	taken := b.waiting[:n]
	b.waiting = b.waiting[n:]
	return taken
}

// compile returns the kernels of a program's shaders. Each distinct source is compiled once, several at once.
func (d *Device) compile(p *device.Program) ([]kernel, error) {
	b := &batch{started: map[base.Key]*compilation{}}
	begun := map[*device.Shader]*compilation{}
	if _, err := base.Compile(d.owner, p, func(s *device.Shader) (*compilation, error) {
		begun[s] = d.add(b, s)
		return nil, nil
	}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range d.kernels.parallel {
		running.Go(func() {
			for some := b.take(d.kernels.parallel); len(some) > 0; some = b.take(d.kernels.parallel) {
				d.kernels.build(ctx, some)
			}
		})
	}
	defer func() {
		cancel()
		running.Wait()
		for key, c := range b.started {
			if c.err == nil {
				d.kernels.made[key] = c.kernel
			}
		}
	}()
	return base.Compile(d.owner, p, func(s *device.Shader) (kernel, error) {
		c := begun[s]
		<-c.done
		return c.kernel, c.err
	})
}

// add adds a shader to a batch, unless its kernel is there.
func (d *Device) add(b *batch, s *device.Shader) *compilation {
	key := base.KeyOf(s)
	if c := b.started[key]; c != nil {
		return c
	}
	c := &compilation{source: s.Source, done: make(chan struct{})}
	b.started[key] = c
	if k, ok := d.kernels.made[key]; ok {
		c.kernel = k
		close(c.done)
		return c
	}
	b.waiting = append(b.waiting, c)
	return c
}

// build compiles and loads kernels, with one run of the compiler if none of them is kept.
func (k *kernels) build(ctx context.Context, some []*compilation) {
	sources := make([]cc.Source, len(some))
	for i, c := range some {
		sources[i].Unit, sources[i].Symbol = native.Unit(c.source, cc.Unit)
	}
	var results []cc.Result
	if ctx.Err() == nil {
		results = k.compiler.CompileAll(ctx, sources)
	}
	for i, c := range some {
		if ctx.Err() != nil {
			c.err = device.ErrClosed
		} else {
			c.kernel, c.err = k.load(ctx, sources[i], results[i])
		}
		close(c.done)
	}
}

// load loads a compiled kernel. A kept library that does not load, because the system changed, is made again.
func (k *kernels) load(ctx context.Context, s cc.Source, r cc.Result) (kernel, error) {
	if r.Err != nil {
		return nil, refusal(k.compiler, r.Err)
	}
	made, err := k.libraries.load(r.Library, s.Symbol)
	if err == nil || !r.Kept {
		return made, err
	}
	library, again := k.compiler.Again(ctx, s.Unit, s.Symbol)
	if again != nil {
		return nil, fmt.Errorf("%w; compiling it again: %w", err, again)
	}
	return k.libraries.load(library, s.Symbol)
}

// refusal makes a compiler's refusal of a source a validation error.
func refusal(compiler *cc.Compiler, err error) error {
	var source *cc.SourceError
	if errors.As(err, &source) {
		return device.Invalid("%s: %v", compiler, source)
	}
	return err
}
