//go:build linux

package vulkan

/*
#include "native.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	vk "github.com/vulkan-go/vulkan"
)

const (
	maxCommands = 2000 // per submission
	maxRunning  = 8    // submissions of Run in progress: how far the host may run ahead
)

// loaded is a recorded program.
type loaded struct {
	base.Program
	d *Device
	// Under d.mu:
	list     []C.gv_command
	recorded []unsafe.Pointer // VkCommandBuffer, each of at most maxCommands
	pool     C.uint64_t       // VkDescriptorPool, or 0
}

// Load compiles, binds and records p.
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
	d := l.d
	pipelines, err := base.Compile(d.owner, p, d.kernels.compile)
	if err != nil {
		return err
	}
	d.kernels.cache.saveNow(d)
	sets, err := l.bind(p, pipelines)
	if err != nil {
		return err
	}
	var list []C.gv_command
	var h hazards
	for i, c := range p.Commands {
		var command C.gv_command
		var touched []access
		if c.Shader == device.Copy {
			src, dst := c.Args[0], c.Args[1]
			command = C.gv_command{src: handle(src.Buffer.(*buffer).handle), src_offset: C.uint64_t(src.Offset),
				dst: handle(dst.Buffer.(*buffer).handle), dst_offset: C.uint64_t(dst.Offset), size: C.uint64_t(src.Size)}
			touched = []access{{src, false}, {dst, true}}
		} else {
			q := pipelines[c.Shader]
			command = C.gv_command{pipeline: q.handle, layout: q.layout.pipeline, set: sets[i],
				x: C.uint32_t(c.Groups[0]), y: C.uint32_t(c.Groups[1]), z: C.uint32_t(c.Groups[2])}
			for k, r := range c.Args {
				if use := q.use[k]; use != unused {
					touched = append(touched, access{r, use == written})
				}
			}
		}
		if h.add(touched...) {
			command.barrier = 1
		}
		list = append(list, command)
	}
	l.list = list // recorded again for measurements
	for section := range slices.Chunk(list, maxCommands) {
		if err := l.record(section); err != nil {
			return err
		}
	}
	return nil
}

func (l *loaded) record(section []C.gv_command) error {
	var handle unsafe.Pointer
	if err := failure(vk.Result(C.gv_new_commands(l.d.handle, &handle))); err != nil {
		return err
	}
	l.recorded = append(l.recorded, handle)
	return failure(vk.Result(C.gv_record(l.d.handle, handle, &section[0], C.size_t(len(section)), 1)))
}

// bind makes a descriptor set for each distinct list of arguments, and returns the set of each command.
func (l *loaded) bind(p *device.Program, pipelines []*pipeline) ([]C.uint64_t, error) {
	sets := make([]C.uint64_t, len(p.Commands))
	same := map[string][]int{} // commands with equal arguments
	var order []string
	descriptors := 0
	for i, c := range p.Commands {
		if c.Shader == device.Copy || len(c.Args) == 0 {
			continue
		}
		var key strings.Builder
		for _, r := range c.Args {
			fmt.Fprintf(&key, "%p %d %d;", r.Buffer, r.Offset, r.Size)
		}
		if same[key.String()] == nil {
			order = append(order, key.String())
			descriptors += len(c.Args)
		}
		same[key.String()] = append(same[key.String()], i)
	}
	if len(order) == 0 {
		return sets, nil
	}
	r := C.gv_new_pool(l.d.handle, C.uint32_t(len(order)), C.uint32_t(descriptors), &l.pool)
	if err := failure(vk.Result(r)); err != nil {
		return nil, err
	}
	var bindings []C.gv_binding
	for _, key := range order {
		args := p.Commands[same[key][0]].Args
		var set C.uint64_t
		r := C.gv_new_set(l.d.handle, l.pool, pipelines[p.Commands[same[key][0]].Shader].layout.set, &set)
		if err := failure(vk.Result(r)); err != nil {
			return nil, err
		}
		for _, i := range same[key] {
			sets[i] = set
		}
		for k, r := range args {
			bindings = append(bindings, C.gv_binding{set: set, binding: C.uint32_t(k), buffer: handle(r.Buffer.(*buffer).handle),
				offset: C.uint64_t(r.Offset), size: C.uint64_t(r.Size)})
		}
	}
	C.gv_bind(l.d.handle, &bindings[0], C.size_t(len(bindings)))
	return sets, nil
}

// Run enqueues a loaded program. It waits while 8 submissions are in progress.
func (d *Device) Run(p device.Loaded) error {
	return d.owner.Run(d.do, p, func(l *loaded) error {
		for _, section := range l.recorded {
			if err := d.queue.enqueue(section); err != nil {
				return err
			}
		}
		return nil
	})
}

// RunTimed enqueues a loaded program as Run does, and measures its commands. Each command waits for the previous one.
func (d *Device) RunTimed(p device.Loaded) (device.Timings, error) {
	t := &timings{d: d}
	err := d.owner.Run(d.do, p, func(l *loaded) error {
		if err := d.timer.prepare(d); err != nil {
			return err
		}
		t.label, t.times = l.Label(), make([]time.Duration, len(l.list))
		first := 0
		for section := range slices.Chunk(l.list, maxCommands) {
			if err := t.measure(first, section); err != nil {
				return err
			}
			first += len(section)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Release frees the bindings when enqueued work is done with them. The compiled shaders are kept for later programs.
func (l *loaded) Release() {
	l.d.owner.UnloadWith(l.d.do, l, func() { l.d.queue.discard(l.free) })
}

func (l *loaded) free() {
	for _, section := range l.recorded {
		C.gv_free_commands(l.d.handle, section)
	}
	if l.pool != 0 {
		C.gv_free_pool(l.d.handle, l.pool)
	}
	l.list, l.recorded, l.pool = nil, nil, 0
}
