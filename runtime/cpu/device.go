//go:build linux && cgo

package cpu

/*
#include "pool.h"
*/
import "C"

import (
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

// MakeCache makes a folder for Options.CacheDir, or checks that only the user may write to it.
func MakeCache(dir string) error { return cc.MakeCache(dir) }

// Open opens the CPU as a device.
func Open(o Options) (*Device, error) {
	name := fmt.Sprintf("cpu:%d", o.Index)
	if o.Index != 0 {
		return nil, fmt.Errorf("%s: no such device; there are: cpu:0 (%s)", name, thisMachine().model)
	}
	t := o.Toolchain
	if t == nil {
		var err error
		if t, err = newToolchain(o); err != nil {
			return nil, device.Named("open", "", name, err)
		}
	}
	m := t.machine
	threads := o.Threads
	if threads == 0 {
		threads = m.processors.Cores()
	}
	if threads < 1 || threads > device.MaxThreads {
		return nil, device.Named("open", "", name, device.Invalid("found %d threads, expected 1 to %d", threads, device.MaxThreads))
	}
	pool := C.gp_pool_new(C.int(threads), C.int(m.processors.Whole()))
	if pool == nil {
		return nil, device.Named("open", "", name, errors.New("no memory for threads"))
	}
	d := &Device{pool: pool, queue: newQueue(), kernels: newKernels(t.compiler, m.processors.Cores())}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	budget := o.MemoryBudget
	if budget == 0 {
		budget = host.Memory() / 4 * 3
	}
	d.owner.Describe(m.info(t.compiler, d.Threads()), limits(m, t.compiler), budget)
	d.owner.SetDump(o.Dump)
	d.staging = staging{queue: d.queue, count: d.owner.AddStaging}
	return d, nil
}

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
	d.kernels.libraries.free()
	C.gp_pool_free(d.pool)
	return nil
}
