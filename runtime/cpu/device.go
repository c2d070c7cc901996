//go:build linux && cgo

package cpu

/*
#include "pool.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/runtime/device/host"
)

// Device implements device.Device, device.Timer and device.Importer. Its queue runs on a goroutine of its own.
type Device struct {
	base.Properties
	queue   *queue
	pool    *C.gp_pool // for the queue's goroutine
	staging staging
	memory  memory

	mu      sync.Mutex
	owner   *base.Owner[*buffer, *loaded]
	kernels kernels
}

// Adapters lists the CPU as one device. If it cannot be one, the list is empty and the error says why: there is no C
// compiler, or a kernel that it compiles does not load. cache is Options.CacheDir.
func Adapters(cache string) ([]device.Info, error) {
	m := thisMachine()
	c, err := cc.Find(cc.Options{Cache: cache, CPU: m.identity()})
	if err != nil {
		return nil, err
	}
	k, err := build(context.Background(), c, trial)
	if err != nil {
		return nil, fmt.Errorf("the C compiler does not work: %w", err)
	}
	k.free()
	return []device.Info{m.info(c, m.processors.Cores())}, nil
}

// AdapterLimits returns the limits of the device; those of an adapter that Adapters does not list are zero. cache is
// Options.CacheDir.
func AdapterLimits(cache string) target.Limits {
	m := thisMachine()
	c, err := cc.Find(cc.Options{Cache: cache, CPU: m.identity()})
	if err != nil {
		return target.Limits{}
	}
	return limits(m, c)
}

// trial is a kernel that compiles and loads wherever others do.
const trial = target.C + "\nKERNEL { for (u32 group = first; group < last; group++) ((u32 *)args[0].at)[group] = grid[0]; }\n"

// MakeCache makes a folder for Options.CacheDir, or checks that only the user may write to it.
func MakeCache(dir string) error { return cc.MakeCache(dir) }

// Open opens the CPU as a device.
func Open(o Options) (*Device, error) {
	name := fmt.Sprintf("cpu:%d", o.Index)
	m := thisMachine()
	if o.Index != 0 {
		return nil, fmt.Errorf("%s: no such device; there are: cpu:0 (%s)", name, m.model)
	}
	if o.CacheDir != "" {
		if err := MakeCache(o.CacheDir); err != nil {
			return nil, device.Named("open", "", name, err)
		}
	}
	compiler, err := cc.Find(cc.Options{Command: o.Compiler, Cache: o.CacheDir, CPU: m.identity()})
	if err != nil {
		return nil, device.Named("open", "", name, err)
	}
	threads := o.Threads
	if threads == 0 {
		threads = m.processors.Cores()
	}
	if threads < 1 || threads > maxThreads {
		return nil, device.Named("open", "", name, device.Invalid("%d threads, must lie in 1…%d", threads, maxThreads))
	}
	pool := C.gp_pool_new(C.int(threads), C.int(m.processors.Whole()))
	if pool == nil {
		return nil, device.Named("open", "", name, errors.New("no memory for threads"))
	}
	d := &Device{pool: pool, queue: newQueue(), kernels: newKernels(compiler, m.processors.Cores())}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	budget := o.MemoryBudget
	if budget == 0 {
		budget = host.Memory() / 4 * 3
	}
	d.owner.Describe(m.info(compiler, d.Threads()), limits(m, compiler), budget)
	d.owner.SetDump(o.Dump)
	d.staging = staging{queue: d.queue, count: d.owner.AddStaging}
	return d, nil
}

const maxThreads = 1024

// limits are the same on all CPUs, except for the products of matrices. No flat index of an invocation in a dispatch
// along one dimension exceeds 32 bits.
func limits(m machine, c *cc.Compiler) target.Limits {
	const most = 256
	return target.Limits{
		MaxBindings: 64, MaxBindingSize: 1 << 40, MaxBufferSize: 1 << 40, OffsetAlignment: 64,
		MaxWorkgroupMemory: 32 << 10, MaxInvocations: most, MaxWorkgroupSize: [3]int{most, most, most},
		MaxDispatchDimension: 1<<32/most - 1,
		Software:             true,
		Native:               true,
		Cooperative:          matrices(m, c),
	}
}

// Threads returns the number of threads that run a program's workgroups.
func (d *Device) Threads() int { return int(C.gp_pool_threads(d.pool)) }

// do runs f under the device's lock and names its error.
func (d *Device) do(op, object string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owner.Do(op, object, f)
}

// Sync waits until all enqueued work is done.
func (d *Device) Sync() error {
	var last uint64
	err := d.do("sync", "", func() error {
		last = d.queue.last()
		return nil
	})
	if err == nil {
		d.queue.wait(last)
	}
	return err
}

// Close waits for enqueued work and releases everything. A Load in progress ends before its next kernel. Closing twice
// is allowed.
func (d *Device) Close() error {
	d.owner.Leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owner.Usable() != nil {
		return nil
	}
	d.queue.close()
	d.owner.FreeAll((*loaded).free, (*buffer).free)
	d.owner.Close()
	d.kernels.free()
	C.gp_pool_free(d.pool)
	return nil
}
