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
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

const (
	maxCommands = 2000    // per submission
	maxRunning  = 8       // submissions of Run in progress: how far the host may run ahead
	scratchSize = 1 << 20 // bytes
)

// kernels holds compiled kernels, and the objects that programs share. The owner's goroutine uses it.
type kernels struct {
	pipelines map[base.Key]*wgpu.ComputePipeline
	layouts   map[string]*wgpu.BindGroupLayout // by base.AccessKey
	scratch   *wgpu.Buffer                     // for copies within one buffer
}

type loaded struct {
	base.Program
	d *Device
	// The rest is used by the owner's goroutine.
	commands []C.gp_command // C memory
	of       []int          // for each of commands, the index of the program's command
	length   int            // commands of the program
	groups   []*wgpu.BindGroup
}

// Load compiles and binds p.
func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{Program: d.owner.NewProgram(p), d: d}
	return d.owner.Load(d.do, l, p, func() error {
		err := l.build(p)
		if err != nil {
			l.free()
		}
		return err
	})
}

func (l *loaded) build(p *device.Program) error {
	l.length = len(p.Commands)
	pipelines, err := base.Compile(l.d.owner, p, l.d.compile)
	if err != nil {
		return err
	}
	var commands []C.gp_command
	for i, c := range p.Commands {
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
		return nil, l.d.owner.Named("load", s.Label, err)
	}
	l.groups = append(l.groups, group)
	return append(to, C.gp_command{
		pipeline: handle(p), group: handle(group),
		x: C.uint32_t(c.Groups[0]), y: C.uint32_t(c.Groups[1]), z: C.uint32_t(c.Groups[2]),
	}), nil
}

// appendCopy appends a copy. WebGPU refuses copies within one buffer, so these go through scratch memory.
func (d *Device) appendCopy(to []C.gp_command, src, dst device.Range) ([]C.gp_command, error) {
	from, into := src.Buffer.(*buffer), dst.Buffer.(*buffer)
	if from != into {
		return append(to, copyCommand(from.gpu, src.Offset, into.gpu, dst.Offset, src.Size)), nil
	}
	if d.kernels.scratch == nil {
		var err error
		d.kernels.scratch, err = d.create("scratch", scratchSize, wgpu.BufferUsageCopySrc|wgpu.BufferUsageCopyDst, false)
		if err != nil {
			d.kernels.scratch = nil
			return nil, err
		}
		d.owner.AddStaging(scratchSize)
	}
	for at := int64(0); at < src.Size; at += scratchSize {
		n := min(src.Size-at, scratchSize)
		to = append(to, copyCommand(from.gpu, src.Offset+at, d.kernels.scratch, 0, n),
			copyCommand(d.kernels.scratch, 0, into.gpu, dst.Offset+at, n))
	}
	return to, nil
}

// compile returns the pipeline of a source, which it makes once.
func (d *Device) compile(s *device.Shader) (*wgpu.ComputePipeline, error) {
	key := base.KeyOf(s)
	if p := d.kernels.pipelines[key]; p != nil {
		return p, nil
	}
	layout, err := d.layout(s.Bindings)
	if err != nil {
		return nil, err
	}
	var p *wgpu.ComputePipeline
	err = d.scoped(func() error {
		module, err := d.gpu.CreateShaderModule(&wgpu.ShaderModuleDescriptor{
			Label: text(s.Label), WGSLDescriptor: &wgpu.ShaderModuleWGSLDescriptor{Code: s.Source},
		})
		if err != nil {
			return err
		}
		defer module.Release()
		// Each pipeline has a layout of its own: where two share one, wgpu-native checks the bindings of the second
		// against the sizes that the first needs.
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
	d.kernels.pipelines[key] = p
	return p, nil
}

// layout returns the layout of bind groups with these accesses, which it makes once.
func (d *Device) layout(bindings []device.Access) (*wgpu.BindGroupLayout, error) {
	key := base.AccessKey(bindings)
	if l := d.kernels.layouts[key]; l != nil {
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
	d.kernels.layouts[key] = l
	return l, nil
}

// Run enqueues a loaded program. It waits while 8 submissions are in progress. On lavapipe each submission waits for
// the previous one: wgpu-native chains submissions with binary semaphores, for which Mesa's software queue waits on the
// host.
func (d *Device) Run(p device.Loaded) error {
	return d.owner.Run(d.do, p, func(l *loaded) error {
		for section := range slices.Chunk(l.commands, maxCommands) {
			if err := d.enqueue(section, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// RunTimed enqueues a loaded program as Run does, and measures its commands. Each dispatch has a pass of its own, and
// each copy lies between two empty passes.
func (d *Device) RunTimed(p device.Loaded) (device.Timings, error) {
	t := &timings{}
	err := d.owner.Run(d.do, p, func(l *loaded) error {
		if err := d.clock.prepare(); err != nil {
			return err
		}
		t.tick, t.commands = d.clock.tick, l.length
		of := l.of
		for section := range slices.Chunk(l.commands, maxTimed) {
			r, err := d.clock.measure(l.Label(), section)
			if err != nil {
				return err
			}
			t.sections = append(t.sections, newMeasured(r, section, of[:len(section)]))
			of = of[len(section):]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// enqueue submits a section of a program when there is room.
func (d *Device) enqueue(section []C.gp_command, timer *C.gp_timer) error {
	if err := d.waitFor(func() bool { return len(d.queue.running) < maxRunning }); err != nil {
		return err
	}
	if err := d.submit(section, timer); err != nil {
		return err
	}
	d.queue.running = append(d.queue.running, uint64(d.native.submitted))
	return nil
}

// Release frees the bindings. The compiled shaders are kept for later programs.
func (l *loaded) Release() { l.d.owner.UnloadWith(l.d.do, l, l.free) }

func (l *loaded) free() {
	for _, g := range l.groups {
		g.Release()
	}
	if len(l.commands) > 0 {
		C.free(unsafe.Pointer(&l.commands[0]))
	}
	l.groups, l.commands = nil, nil
}
