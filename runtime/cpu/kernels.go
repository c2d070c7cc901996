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
	compiler *cc.Compiler
	parallel int // compilers at once
	made     map[base.Key]*kernel
}

func newKernels(c *cc.Compiler, parallel int) kernels {
	return kernels{compiler: c, parallel: parallel, made: map[base.Key]*kernel{}}
}

// compilation is a kernel being compiled, or one that is there already.
type compilation struct {
	done   chan struct{}
	kernel *kernel
	err    error
}

// batch is the compilations of one program.
type batch struct {
	ctx     context.Context
	started map[base.Key]*compilation
	slots   chan struct{} // holds one value for each compiler that runs
	running sync.WaitGroup
}

// compile returns the kernels of a program's shaders. Each distinct source is compiled once, several at once.
func (d *Device) compile(p *device.Program) ([]*kernel, error) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &batch{ctx: ctx, started: map[base.Key]*compilation{}, slots: make(chan struct{}, d.kernels.parallel)}
	defer func() {
		cancel()
		b.running.Wait()
		for key, c := range b.started {
			if c.kernel != nil {
				d.kernels.made[key] = c.kernel
			}
		}
	}()
	begun := map[*device.Shader]*compilation{}
	if _, err := base.Compile(d.owner, p, func(s *device.Shader) (*compilation, error) {
		begun[s] = d.start(b, s)
		return nil, nil
	}); err != nil {
		return nil, err
	}
	return base.Compile(d.owner, p, func(s *device.Shader) (*kernel, error) {
		c := begun[s]
		<-c.done
		return c.kernel, c.err
	})
}

// start begins to compile a shader.
func (d *Device) start(b *batch, s *device.Shader) *compilation {
	key := base.KeyOf(s)
	if c := b.started[key]; c != nil {
		return c
	}
	c := &compilation{done: make(chan struct{}), kernel: d.kernels.made[key]}
	if c.kernel != nil {
		close(c.done)
		return c
	}
	b.started[key] = c
	b.running.Go(func() {
		defer close(c.done)
		b.slots <- struct{}{}
		defer func() { <-b.slots }()
		if b.ctx.Err() != nil {
			c.err = device.ErrClosed
			return
		}
		c.kernel, c.err = build(b.ctx, d.kernels.compiler, s.WGSL)
	})
	return c
}

// build compiles and loads a kernel. A kept library that does not load, because the system changed, is made again.
func build(ctx context.Context, compiler *cc.Compiler, source string) (*kernel, error) {
	unit, symbol := native.Unit(source, cc.Unit)
	library, kept, err := compiler.Compile(ctx, unit, symbol)
	if err != nil {
		return nil, refusal(compiler, err)
	}
	k, err := load(library, symbol)
	if err == nil || !kept {
		return k, err
	}
	library, again := compiler.Again(ctx, unit, symbol)
	if again != nil {
		return nil, fmt.Errorf("%w; compiling it again: %w", err, again)
	}
	return load(library, symbol)
}

// refusal makes a compiler's refusal of a source a validation error.
func refusal(compiler *cc.Compiler, err error) error {
	var source *cc.SourceError
	if errors.As(err, &source) {
		return device.Invalid("%s: %v", compiler, source)
	}
	return err
}

// free unloads all kernels.
func (k *kernels) free() {
	for _, made := range k.made {
		made.free()
	}
}
