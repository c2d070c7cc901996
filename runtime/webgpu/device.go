package webgpu

/*
#include <stdlib.h>
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/runtime/device/host"
)

// Options of a device.
type Options struct {
	Label        string
	Dump         device.Dump // receives the kernels that are loaded; nil: they are not dumped
	MemoryBudget int64       // bytes of buffers; 0: three quarters of the host's memory on adapters without memory of their own, else no bound
}

// Device implements device.Device and device.Timer. One goroutine owns the native objects, because error scopes belong
// to a device and callbacks run within a poll. Everything else reaches them through requests.
type Device struct {
	base.Properties
	requests chan func()
	ended    chan struct{}
	now      chan time.Time // closed: always ready

	// The rest is used by the owner's goroutine.
	driver
	owner     *base.Owner[*buffer, *loaded]
	closing   bool
	kernels   kernels
	queue     queue
	uploads   pool
	downloads pool
	clock     clock
}

// driver is the native objects of a device.
type driver struct {
	instance *wgpu.Instance
	adapter  *wgpu.Adapter
	gpu      *wgpu.Device
	native   *C.gp_device
}

// queue is the host's record of work in progress.
type queue struct {
	running  []uint64 // submissions of Run that have not finished
	syncs    []syncWaiter
	deferred error // of enqueued work, for Sync
}

type syncWaiter struct {
	until uint64 // submission
	done  chan error
}

// Open opens the adapter with that index in the list of Adapters.
func Open(index int, o Options) (*Device, error) {
	instance, found := enumerate()
	if index < 0 || index >= len(found) {
		releaseAll(instance, found, -1)
		return nil, unknownAdapter(index, found)
	}
	a := found[index]
	releaseAll(instance, found, index)
	label := C.CString(text(o.Label))
	defer C.free(unsafe.Pointer(label))
	var limits C.gp_limits
	var failure C.gp_error
	native := C.gp_open(handle(a.Adapter), label, &limits, &failure)
	if native == nil {
		a.Release()
		instance.Release()
		return nil, &device.Error{Op: "open", Object: a.info.Adapter, Device: a.info.Name, Cause: nativeError(&failure)}
	}
	d := &Device{
		requests: make(chan func()), ended: make(chan struct{}), now: make(chan time.Time),
		driver:  driver{instance: instance, adapter: a.Adapter, native: native, gpu: deviceOf(native.device)},
		kernels: kernels{pipelines: map[base.Key]*wgpu.ComputePipeline{}, layouts: map[string]*wgpu.BindGroupLayout{}},
	}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	budget := o.MemoryBudget
	if budget == 0 && (a.info.Kind == device.Software || a.info.Kind == device.Integrated) {
		budget = host.Memory() / 4 * 3
	}
	d.owner.Describe(a.info, limitsOf(&limits, a.info.Kind), budget)
	d.owner.SetDump(o.Dump)
	d.uploads = pool{d: d, mode: mapWrite, usage: wgpu.BufferUsageMapWrite | wgpu.BufferUsageCopySrc}
	d.downloads = pool{d: d, mode: mapRead, usage: wgpu.BufferUsageMapRead | wgpu.BufferUsageCopyDst}
	d.clock.d = d
	close(d.now)
	go d.own()
	return d, nil
}

func unknownAdapter(index int, found []adapter) error {
	if len(found) == 0 {
		return fmt.Errorf("webgpu:%d: no adapter found (looked for Vulkan, Metal and Direct3D 12); "+
			"install a GPU driver, or Mesa's lavapipe to compute on the CPU", index)
	}
	var names []string
	for _, a := range found {
		names = append(names, fmt.Sprintf("%s (%s)", a.info.Name, a.info.Adapter))
	}
	return fmt.Errorf("webgpu:%d: no such adapter; there are: %s", index, strings.Join(names, ", "))
}

func limitsOf(l *C.gp_limits, kind device.Kind) target.Limits {
	clamp := func(n C.uint64_t) int64 { return int64(min(uint64(n), math.MaxInt64)) &^ 3 }
	return target.Limits{
		MaxBindings: int(l.bindings), MaxBindingSize: clamp(l.binding_size), MaxBufferSize: clamp(l.buffer_size),
		OffsetAlignment: int64(l.offset_alignment), MaxWorkgroupMemory: int(l.workgroup_memory),
		MaxInvocations:       int(l.invocations),
		MaxWorkgroupSize:     [3]int{int(l.size_x), int(l.size_y), int(l.size_z)},
		MaxDispatchDimension: int(l.groups),
		Software:             kind == device.Software,
	}
}

// Described is an adapter with the limits of its devices.
type Described struct {
	Info   device.Info
	Limits target.Limits
}

// Describe lists the adapters that Adapters lists, with their limits.
func Describe() (all []Described) {
	instance, found := enumerate()
	defer releaseAll(instance, found, -1)
	for _, a := range found {
		l := C.gp_limits_of(handle(a.Adapter))
		all = append(all, Described{a.info, limitsOf(&l, a.info.Kind)})
	}
	return all
}

// own is the owner's loop: it serves requests, and polls while work is in progress.
func (d *Device) own() {
	defer close(d.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for idle := 0; !d.closing; {
		select {
		case request := <-d.requests:
			request()
			idle = 0
		case <-d.rest(timer, idle):
		}
		if d.closing || !d.busy() {
			continue
		}
		if d.poll() {
			idle = 0
		} else {
			idle++
		}
	}
}

// rest returns a channel that is ready when it is time to poll. Without work that is never. After any event it is at
// once, and then ever later, up to a fifth of a millisecond. So short work is answered at once, and polling takes few
// cycles from long work, which a software adapter computes on the same cores.
func (d *Device) rest(timer *time.Timer, idle int) <-chan time.Time {
	switch {
	case !d.busy():
		return nil
	case idle < 4:
		runtime.Gosched()
		return d.now
	}
	timer.Reset(pause(idle))
	return timer.C
}

func pause(idle int) time.Duration {
	return time.Duration(min(idle, 20)) * 10 * time.Microsecond
}

// do runs f on the owner's goroutine and names its error.
func (d *Device) do(op, object string, f func() error) error {
	result := make(chan error, 1)
	request := func() {
		result <- d.owner.Do(op, object, func() error {
			err := f()
			d.checkLost()
			return err
		})
	}
	select {
	case d.requests <- request:
		return <-result
	case <-d.ended:
		return d.owner.Named(op, object, device.ErrClosed)
	}
}

// scoped runs f within error scopes. It is for calls of the bindings, which ignore out-of-memory errors.
func (d *Device) scoped(f func() error) error {
	var failure C.gp_error
	C.gp_push(d.native)
	err := f()
	C.gp_pop(d.native, &failure)
	if failure._type != C.GP_NO_ERROR {
		return nativeError(&failure)
	}
	if err != nil {
		return device.Invalid("%s", compact(err.Error()))
	}
	return d.checkLost()
}

func (d *Device) busy() bool {
	return d.owner.Lost() == nil && (d.native.done < d.native.submitted || d.uploads.waiting() || d.downloads.waiting() ||
		len(d.queue.syncs) > 0)
}

// poll runs callbacks, completes transfers and reports whether there was any progress.
func (d *Device) poll() bool {
	before := d.native.done
	C.gp_poll(d.native)
	if d.checkLost() != nil {
		return true
	}
	if e := &d.native.uncaptured; e._type != C.GP_NO_ERROR {
		d.queue.deferred = errors.Join(d.queue.deferred, nativeError(e))
		e._type = C.GP_NO_ERROR
	}
	completed := d.uploads.collect()
	completed = d.downloads.collect() || completed
	for len(d.queue.running) > 0 && d.queue.running[0] <= uint64(d.native.done) {
		d.queue.running = d.queue.running[1:]
	}
	for len(d.queue.syncs) > 0 && d.queue.syncs[0].until <= uint64(d.native.done) {
		d.queue.syncs[0].done <- d.queue.deferred
		d.queue.deferred = nil
		d.queue.syncs = d.queue.syncs[1:]
	}
	return completed || d.native.done != before
}

// waitFor polls until cond holds. Requests wait until then.
func (d *Device) waitFor(cond func() bool) error {
	for idle := 0; !cond(); {
		if err := d.owner.Lost(); err != nil {
			return err
		}
		if !d.busy() {
			panic("webgpu: waiting for work that was never submitted")
		}
		if d.poll() {
			idle = 0
		} else if idle++; idle < 4 {
			runtime.Gosched()
		} else {
			time.Sleep(pause(idle))
		}
	}
	return nil
}

// checkLost returns the cause of the device's loss. When it first observes the loss, it fails everything that waits.
// Native objects are not used after that.
func (d *Device) checkLost() error {
	if d.owner.Lost() == nil && d.native != nil && d.native.lost != 0 {
		d.owner.Lose(fmt.Errorf("%w: %s", device.ErrLost, compact(C.GoString(&d.native.lost_msg[0]))))
		err := d.owner.Lost()
		d.downloads.abandon(err)
		d.uploads.abandon(err)
		for _, s := range d.queue.syncs {
			s.done <- err
		}
		d.queue.syncs, d.queue.running = nil, nil
	}
	return d.owner.Lost()
}

// Sync waits until all enqueued work is done.
func (d *Device) Sync() error {
	done := make(chan error, 1)
	err := d.do("sync", "", func() error {
		d.queue.syncs = append(d.queue.syncs, syncWaiter{uint64(d.native.submitted), done})
		return nil
	})
	if err != nil {
		return err
	}
	return d.owner.Named("sync", "", <-done)
}

// Close waits for enqueued work and releases everything. A Load in progress ends before its next kernel. Closing twice
// is allowed.
func (d *Device) Close() error {
	d.owner.Leave()
	result := make(chan error, 1)
	select {
	case d.requests <- func() { result <- d.shut() }:
		return d.owner.Named("close", "", <-result)
	case <-d.ended:
		return nil
	}
}

func (d *Device) shut() error {
	d.closing = true
	defer d.owner.Close()
	if d.checkLost() != nil {
		return nil // a lost device's objects cannot be released without risk to the process
	}
	if err := d.waitFor(func() bool { return !d.busy() }); err != nil {
		return nil
	}
	d.owner.FreeAll((*loaded).free, (*buffer).free)
	d.uploads.free()
	d.downloads.free()
	if d.kernels.scratch != nil {
		d.kernels.scratch.Release()
	}
	d.clock.free()
	for _, p := range d.kernels.pipelines {
		p.Release()
	}
	for _, l := range d.kernels.layouts {
		l.Release()
	}
	C.gp_close(d.native)
	d.native = nil
	d.adapter.Release()
	d.instance.Release()
	return d.queue.deferred
}
