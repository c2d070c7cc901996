//go:build linux && cgo

package cpu

/*
#include <stdlib.h>
#include "pool.h"
*/
import "C"

import (
	"math"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

// takesPerThread bounds what a thread takes at a time: at most the dispatch's workgroups / (takesPerThread · threads).
// Larger takes let kernels read operands once for neighboring workgroups. Smaller ones balance the threads.
const takesPerThread = 4

type loaded struct {
	base.Program
	d *Device
	// The rest is used by the queue's goroutine.
	commands []C.gp_command // C memory
	args     unsafe.Pointer // C memory: the arguments of all commands
}

// Load compiles and binds p.
func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{Program: d.owner.NewProgram(p), d: d}
	return d.owner.Load(d.do, l, p, func() error {
		compiled, err := d.compile(p)
		if err != nil {
			return err
		}
		return l.bind(p, compiled)
	})
}

// bind makes the list of commands.
func (l *loaded) bind(p *device.Program, compiled []kernel) error {
	if len(p.Commands) == 0 {
		return nil
	}
	arguments := 0
	for i := range p.Commands {
		arguments += len(p.Commands[i].Args)
	}
	l.args = C.calloc(C.size_t(arguments+1), C.sizeof_gp_arg)
	args := unsafe.Slice((*C.gp_arg)(l.args), arguments+1)
	memory := C.calloc(C.size_t(len(p.Commands)), C.sizeof_gp_command)
	l.commands = unsafe.Slice((*C.gp_command)(memory), len(p.Commands))
	threads := l.d.Threads()
	for i := range p.Commands {
		c := &p.Commands[i]
		if c.Shader == device.Copy {
			l.commands[i] = copyCommand(c)
			continue
		}
		if err := dispatch(&l.commands[i], c, args, threads); err != nil {
			l.free()
			return l.d.owner.Named("load", p.Shaders[c.Shader].Label, err)
		}
		l.commands[i].kernel = C.gp_kernel(compiled[c.Shader])
		args = args[len(c.Args):]
	}
	return nil
}

func copyCommand(c *device.Command) C.gp_command {
	size := c.Args[0].Size
	return C.gp_command{from: at(c.Args[0]), to: at(c.Args[1]), bytes: C.uint64_t(size),
		groups: C.uint32_t((size + C.GP_COPY_BLOCK - 1) / C.GP_COPY_BLOCK), max_taken: 1}
}

// dispatch sets the arguments of a dispatch, and how its workgroups are divided among threads.
func dispatch(to *C.gp_command, c *device.Command, args []C.gp_arg, threads int) error {
	groups := int64(1)
	for i, n := range c.Groups {
		if groups *= int64(n); groups > math.MaxUint32 {
			return device.Invalid("dispatch %v: more than %d workgroups in all", c.Groups, uint32(math.MaxUint32))
		}
		to.grid[i] = C.uint32_t(n)
	}
	for i, r := range c.Args {
		args[i] = C.gp_arg{at: at(r), bytes: C.ulonglong(r.Size)}
	}
	most := (groups + int64(takesPerThread*threads) - 1) / int64(takesPerThread*threads)
	to.args, to.groups, to.max_taken = &args[0], C.uint32_t(groups), C.uint32_t(most)
	return nil
}

// Run enqueues a loaded program. It waits while 8 programs are in the queue.
func (d *Device) Run(p device.Loaded) error {
	_, err := d.run(p, nil)
	return err
}

// run enqueues a program, which stores the times of its commands unless times is nil. It returns the job's number.
func (d *Device) run(p device.Loaded, times func(commands int) []C.uint64_t) (number uint64, err error) {
	err = d.owner.Run(d.do, p, func(l *loaded) error {
		var nanoseconds []C.uint64_t
		if times != nil {
			nanoseconds = times(len(l.commands))
		}
		number = d.queue.add(program, func() {
			if n := len(l.commands); n > 0 {
				C.gp_pool_run(d.pool, &l.commands[0], C.uint32_t(n), unsafe.SliceData(nanoseconds))
			}
		})
		return nil
	})
	return number, err
}

// Release frees the list of commands when enqueued work is done with it. The compiled kernels are kept for later
// programs.
func (l *loaded) Release() {
	l.d.owner.UnloadWith(l.d.do, l, func() { l.d.queue.add(unbounded, l.free) })
}

func (l *loaded) free() {
	C.free(unsafe.Pointer(unsafe.SliceData(l.commands)))
	C.free(l.args)
	l.commands, l.args = nil, nil
}
