package webgpu

/*
#include <stdlib.h>
#include "native.h"
*/
import "C"

import (
	"slices"
	"unsafe"

	"github.com/cogentcore/webgpu/wgpu"

	"github.com/gpupipe/gpupipe/runtime/device"
)

const (
	mostCommands = 2000    // a submission
	mostRunning  = 8       // submissions of Run under way: the host may run ahead no further
	scratchSize  = 1 << 20 // bytes
)

type pipelineKey struct{ wgsl, access string }

type loaded struct {
	d     *Device
	label string
	// The owner's:
	commands []C.gp_command // C memory
	of       []int          // the program's command that each belongs to
	length   int            // commands of the program
	groups   []*wgpu.BindGroup
	buffers  []*buffer
	released bool
}

// Load compiles and binds p.
func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{d: d}
	if p != nil {
		l.label = p.Label
	}
	err := d.do("load", l.label, func() error {
		if err := d.checker().Program(p); err != nil {
			return err
		}
		if err := l.build(p); err != nil {
			l.free()
			return err
		}
		d.programs[l] = struct{}{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (l *loaded) build(p *device.Program) error {
	l.length = len(p.Commands)
	pipelines := make([]*wgpu.ComputePipeline, len(p.Shaders))
	for i := range p.Shaders {
		if l.d.leaving.Load() {
			return device.ErrClosed
		}
		s := &p.Shaders[i]
		var err error
		if pipelines[i], err = l.d.compile(s); err != nil {
			return l.d.named("compile", s.Label, err)
		}
	}
	var commands []C.gp_command
	seen := map[*buffer]bool{}
	for i, c := range p.Commands {
		for _, r := range c.Args {
			if b := r.Buffer.(*buffer); !seen[b] {
				seen[b] = true
				l.buffers = append(l.buffers, b)
			}
		}
		var err error
		if c.Shader == device.Copy {
			commands, err = l.d.appendCopy(commands, c.Args[0], c.Args[1])
		} else {
			commands, err = l.appendDispatch(commands, pipelines[c.Shader], &p.Shaders[c.Shader], &c)
		}
		if err != nil {
			return err
		}
		for len(l.of) < len(commands) {
			l.of = append(l.of, i)
		}
	}
	if len(commands) > 0 {
		n := len(commands)
		memory := C.malloc(C.size_t(n) * C.sizeof_gp_command)
		l.commands = unsafe.Slice((*C.gp_command)(memory), n)
		copy(l.commands, commands)
	}
	return nil
}

func (l *loaded) appendDispatch(to []C.gp_command, p *wgpu.ComputePipeline, s *device.Shader, c *device.Command) ([]C.gp_command, error) {
	layout, err := l.d.layout(s.Bindings)
	if err != nil {
		return nil, err
	}
	entries := make([]wgpu.BindGroupEntry, len(c.Args))
	for i, r := range c.Args {
		entries[i] = wgpu.BindGroupEntry{
			Binding: uint32(i), Buffer: r.Buffer.(*buffer).gpu, Offset: uint64(r.Offset), Size: uint64(r.Size),
		}
	}
	var group *wgpu.BindGroup
	err = l.d.scoped(func() (err error) {
		group, err = l.d.gpu.CreateBindGroup(&wgpu.BindGroupDescriptor{Label: text(s.Label), Layout: layout, Entries: entries})
		return err
	})
	if err != nil {
		return nil, l.d.named("load", s.Label, err)
	}
	l.groups = append(l.groups, group)
	return append(to, C.gp_command{
		pipeline: handle(p), group: handle(group),
		x: C.uint32_t(c.Groups[0]), y: C.uint32_t(c.Groups[1]), z: C.uint32_t(c.Groups[2]),
	}), nil
}

// appendCopy goes through scratch memory where both ranges lie in one buffer, which WebGPU's own copy refuses.
func (d *Device) appendCopy(to []C.gp_command, src, dst device.Range) ([]C.gp_command, error) {
	from, into := src.Buffer.(*buffer), dst.Buffer.(*buffer)
	if from != into {
		return append(to, copyCommand(from.gpu, src.Offset, into.gpu, dst.Offset, src.Size)), nil
	}
	if d.scratch == nil {
		var err error
		d.scratch, err = d.create("scratch", scratchSize, wgpu.BufferUsageCopySrc|wgpu.BufferUsageCopyDst, false)
		if err != nil {
			d.scratch = nil
			return nil, err
		}
		d.staged.Add(scratchSize)
	}
	for at := int64(0); at < src.Size; at += scratchSize {
		n := min(src.Size-at, scratchSize)
		to = append(to, copyCommand(from.gpu, src.Offset+at, d.scratch, 0, n), copyCommand(d.scratch, 0, into.gpu, dst.Offset+at, n))
	}
	return to, nil
}

// compile makes a pipeline, or finds the one made before from that source.
func (d *Device) compile(s *device.Shader) (*wgpu.ComputePipeline, error) {
	key := pipelineKey{s.WGSL, accessKey(s.Bindings)}
	if p := d.pipelines[key]; p != nil {
		return p, nil
	}
	layout, err := d.layout(s.Bindings)
	if err != nil {
		return nil, err
	}
	var p *wgpu.ComputePipeline
	err = d.scoped(func() error {
		module, err := d.gpu.CreateShaderModule(&wgpu.ShaderModuleDescriptor{
			Label: text(s.Label), WGSLDescriptor: &wgpu.ShaderModuleWGSLDescriptor{Code: s.WGSL},
		})
		if err != nil {
			return err
		}
		defer module.Release()
		// A layout for each pipeline: where two share one, wgpu-native checks the bindings of the second against the sizes
		// that the first needs.
		own, err := d.gpu.CreatePipelineLayout(&wgpu.PipelineLayoutDescriptor{BindGroupLayouts: []*wgpu.BindGroupLayout{layout}})
		if err != nil {
			return err
		}
		defer own.Release()
		p, err = d.gpu.CreateComputePipeline(&wgpu.ComputePipelineDescriptor{
			Label: text(s.Label), Layout: own,
			Compute: wgpu.ProgrammableStageDescriptor{Module: module, EntryPoint: "main"},
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	d.pipelines[key] = p
	return p, nil
}

func accessKey(bindings []device.Access) string {
	b := make([]byte, len(bindings))
	for i, a := range bindings {
		b[i] = byte(a)
	}
	return string(b)
}

// layout is that of a bind group, shared by all that are bound alike.
func (d *Device) layout(bindings []device.Access) (*wgpu.BindGroupLayout, error) {
	key := accessKey(bindings)
	if l := d.layouts[key]; l != nil {
		return l, nil
	}
	entries := make([]wgpu.BindGroupLayoutEntry, len(bindings))
	for i, a := range bindings {
		kind := wgpu.BufferBindingTypeStorage
		if a == device.ReadOnly {
			kind = wgpu.BufferBindingTypeReadOnlyStorage
		}
		entries[i] = wgpu.BindGroupLayoutEntry{
			Binding: uint32(i), Visibility: wgpu.ShaderStageCompute, Buffer: wgpu.BufferBindingLayout{Type: kind},
		}
	}
	var l *wgpu.BindGroupLayout
	err := d.scoped(func() (err error) {
		l, err = d.gpu.CreateBindGroupLayout(&wgpu.BindGroupLayoutDescriptor{Entries: entries})
		return err
	})
	if err != nil {
		return nil, err
	}
	d.layouts[key] = l
	return l, nil
}

// Run enqueues a loaded program. It waits while 8 submissions are under way. (On lavapipe any submission waits for
// the one before: wgpu-native chains them with binary semaphores, which Mesa's software queue waits for on the host.)
func (d *Device) Run(p device.Loaded) error {
	return d.run(p, func(l *loaded) error {
		for part := range slices.Chunk(l.commands, mostCommands) {
			if err := d.enqueue(part, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// run has the owner do something with a program that can be run.
func (d *Device) run(p device.Loaded, f func(l *loaded) error) error {
	l, ok := p.(*loaded)
	if !ok || l == nil || l.d != d {
		return d.named("run", "", device.Invalid("the program %v", errForeign))
	}
	return d.do("run", l.label, func() error {
		if l.released {
			return device.Invalid("the program %v", errReleased)
		}
		for _, b := range l.buffers {
			if b.released {
				return device.Invalid("buffer %q %v", b.label, errReleased)
			}
		}
		return f(l)
	})
}

// enqueue submits a part of a program, when there is room.
func (d *Device) enqueue(part []C.gp_command, timer *C.gp_timer) error {
	if err := d.waitFor(func() bool { return len(d.running) < mostRunning }); err != nil {
		return err
	}
	if err := d.submit(part, timer); err != nil {
		return err
	}
	d.running = append(d.running, uint64(d.native.submitted))
	return nil
}

// Release frees the bindings; the compiled shaders stay for programs to come.
func (l *loaded) Release() {
	// Once the device is closed or lost there is nothing left to release.
	_ = l.d.do("release", l.label, func() error {
		if !l.released {
			delete(l.d.programs, l)
			l.free()
		}
		return nil
	})
}

func (l *loaded) free() {
	l.released = true
	for _, g := range l.groups {
		g.Release()
	}
	if len(l.commands) > 0 {
		C.free(unsafe.Pointer(&l.commands[0]))
	}
	l.groups, l.commands, l.buffers = nil, nil, nil
}
