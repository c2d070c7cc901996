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
	compiler   *cc.Compiler
	parallel   int                  // compilers at once
	translated map[wgslKey]string   // C of shaders in WGSL
	made       map[string]*function // by the C
}

// wgslKey identifies a shader in WGSL.
type wgslKey struct {
	base.Key
	inside bool
}

func newKernels(c *cc.Compiler, parallel int) kernels {
	return kernels{compiler: c, parallel: parallel, translated: map[wgslKey]string{}, made: map[string]*function{}}
}

// kernel is a shader's code and its sizes.
type kernel struct {
	function *function
	store    *function // nil: none
	sizes    []uint64
}

// compilation is a function being compiled, or one that is there already.
type compilation struct {
	done     chan struct{}
	function *function
	err      error
}

func (c *compilation) wait() (*function, error) {
	if c == nil {
		return nil, nil
	}
	<-c.done
	return c.function, c.err
}

// begun is a shader whose functions are being compiled.
type begun struct {
	function, store *compilation // store is nil without one
	sizes           []uint64
}

func (b begun) wait() (k kernel, err error) {
	k.sizes = b.sizes
	if k.function, err = b.function.wait(); err == nil {
		k.store, err = b.store.wait()
	}
	return k, err
}

// batch is the compilations of one program.
type batch struct {
	*kernels
	ctx     context.Context
	started map[string]*compilation
	slots   chan struct{} // holds one value for each compiler that runs
	running sync.WaitGroup
}

// compile returns the kernels of a program's shaders. Each distinct function is compiled once, several at once.
func (d *Device) compile(p *device.Program) ([]kernel, error) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &batch{kernels: &d.kernels, ctx: ctx, started: map[string]*compilation{}, slots: make(chan struct{}, d.kernels.parallel)}
	defer func() {
		cancel()
		b.running.Wait()
		for source, c := range b.started {
			if c.function != nil {
				d.kernels.made[source] = c.function
			}
		}
	}()
	all, err := base.Compile(d.owner, p, func(s *device.Shader) (begun, error) { return d.start(b, s) })
	if err != nil {
		return nil, err
	}
	next := 0
	return base.Compile(d.owner, p, func(*device.Shader) (kernel, error) {
		next++
		return all[next-1].wait()
	})
}

// start begins to compile a shader's functions.
func (d *Device) start(b *batch, s *device.Shader) (begun, error) {
	text := s.WGSL
	if !s.C() {
		var err error
		if text, err = d.translate(s); err != nil {
			return begun{}, err
		}
	}
	source, err := native.Parse(text)
	if err != nil {
		return begun{}, device.Invalid("%v", err)
	}
	out := begun{function: b.begin(source.Kernel), sizes: source.Sizes}
	if source.Store != "" {
		out.store = b.begin(source.Store)
	}
	return out, nil
}

// translate returns the C of a shader in WGSL.
func (d *Device) translate(s *device.Shader) (string, error) {
	key := wgslKey{base.KeyOf(s), s.Inside}
	if c, ok := d.kernels.translated[key]; ok {
		return c, nil
	}
	k, err := native.Translate(s.WGSL, native.Options{Inside: s.Inside})
	if err != nil {
		return "", device.Invalid("%v", err)
	}
	if err := fits(s, k); err != nil {
		return "", err
	}
	if err := d.owner.Dump("", s, device.FormatC, []byte(k.C)); err != nil {
		return "", err
	}
	d.kernels.translated[key] = k.C
	return k.C, nil
}

// begin begins to compile a function.
func (b *batch) begin(source string) *compilation {
	if c := b.started[source]; c != nil {
		return c
	}
	c := &compilation{done: make(chan struct{}), function: b.made[source]}
	if c.function != nil {
		close(c.done)
		return c
	}
	b.started[source] = c
	b.running.Go(func() {
		defer close(c.done)
		b.slots <- struct{}{}
		defer func() { <-b.slots }()
		if b.ctx.Err() != nil {
			c.err = device.ErrClosed
			return
		}
		c.function, c.err = build(b.ctx, b.compiler, source)
	})
	return c
}

// build compiles and loads a function. A kept library that does not load, because the system changed, is made again.
func build(ctx context.Context, compiler *cc.Compiler, source string) (*function, error) {
	unit, symbol := native.Unit(source, cc.Unit)
	library, kept, err := compiler.Compile(ctx, unit, symbol)
	if err != nil {
		return nil, refusal(compiler, err)
	}
	f, err := load(library, symbol)
	if err == nil || !kept {
		return f, err
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
