//go:build linux

package vulkan

/*
#cgo LDFLAGS: -ldl
#include "import.h"
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	vk "github.com/vulkan-go/vulkan"
)

// Device implements device.Device, device.Timer and device.Importer.
type Device struct {
	base.Properties
	driver

	// queueMu is held while something is added to the queue, also while that waits for room. mu guards the rest, and is
	// released while waiting.
	queueMu, mu sync.Mutex
	owner       *base.Owner[*buffer, *loaded]
	queue       queue
	heap        heap
	staging     staging
	kernels     kernels
	timer       timer
}

// driver is the Vulkan objects of a device.
type driver struct {
	instance vk.Instance
	adapter  adapter
	gpu      vk.Device
	handle   *C.gv_device
	importer *C.gv_importer // nil until it is needed
}

// Open opens the adapter with that index in the list of Adapters.
func Open(index int, o Options) (*Device, error) {
	name := fmt.Sprintf("vulkan:%d", index)
	instance, found, err := enumerate()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if index < 0 || index >= len(found) {
		vk.DestroyInstance(instance, nil)
		return nil, unknownAdapter(name, found)
	}
	a := found[index]
	d := &Device{driver: driver{instance: instance, adapter: a}}
	d.queue.d = d
	d.kernels = newKernels(d, o.CacheDir)
	budget := o.MemoryBudget
	if budget == 0 {
		budget = a.budget()
	}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	d.owner.Describe(a.Info, a.Limits, budget)
	d.owner.SetDump(o.Dump)
	d.heap = heap{d: d, types: a.types}
	d.staging.uploads, d.staging.downloads = stagingBuffers{d: d}, stagingBuffers{d: d, cached: true}
	if err := d.open(); err != nil {
		d.destroy()
		return nil, &device.Error{Op: "open", Object: a.Info.Adapter, Device: name, Cause: err}
	}
	return d, nil
}

func unknownAdapter(name string, found []adapter) error {
	if len(found) == 0 {
		return fmt.Errorf("%s: no GPU with Vulkan 1.2 was found; install a GPU driver, or Mesa's lavapipe to compute on the CPU", name)
	}
	var names []string
	for _, a := range found {
		names = append(names, fmt.Sprintf("%s (%s)", a.Name, a.Info.Adapter))
	}
	return fmt.Errorf("%s: no such adapter; there are: %s", name, strings.Join(names, ", "))
}

// budget returns the bytes that a device may take: all but a sixteenth of a GPU's own memory, or three quarters of
// memory that it shares with the host.
func (a *adapter) budget() int64 {
	var own int64
	for _, h := range a.Heaps {
		if h.Device {
			own = max(own, h.Bytes)
		}
	}
	if a.Kind != device.Software && a.Kind != device.Integrated {
		return own - own/16
	}
	if shared := host.Memory(); shared > 0 {
		own = min(own, shared)
	}
	return own / 4 * 3
}

func (d *Device) open() (err error) {
	a := &d.adapter
	if d.kernels.compiler, err = spirv.NewCompiler(d.kernels.dir); err != nil {
		return err
	}
	var gpu unsafe.Pointer
	if err := failure(vk.Result(C.gv_new_device(loader.get, unsafe.Pointer(d.instance), unsafe.Pointer(a.physical), C.uint32_t(a.family),
		flag(a.robustness), flag(a.trusts), flag(a.zeros), flag(a.ImportAlignment > 0), &a.cooperative, &gpu))); err != nil {
		return err
	}
	d.gpu = vk.Device(gpu)
	var q vk.Queue
	vk.GetDeviceQueue(d.gpu, a.family, 0, &q)
	var result C.int
	d.handle = C.gv_open(loader.get, unsafe.Pointer(d.instance), unsafe.Pointer(d.gpu), unsafe.Pointer(q), C.uint32_t(a.family), &result)
	if d.handle == nil {
		return failure(vk.Result(result))
	}
	return d.kernels.cache.open(d)
}

// do runs f with queueMu held, and names its error.
func (d *Device) do(op, object string, f func() error) error {
	d.queueMu.Lock()
	defer d.queueMu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owner.Do(op, object, f)
}

// lose marks the device as lost and fails everything that waits. Native objects are not used after that.
func (d *Device) lose(cause error) error {
	if d.owner.Lose(cause) {
		for _, p := range d.staging.reads {
			p.read.Complete(d.owner.Lost())
		}
		d.staging.reads, d.queue.running, d.queue.moving, d.queue.garbage = nil, nil, nil, nil
		d.queue.batch.reset()
	}
	return d.owner.Lost()
}

// Sync waits until all enqueued work is done.
func (d *Device) Sync() error {
	var value uint64
	err := d.do("sync", "", func() error {
		if err := d.queue.submit(); err != nil {
			return err
		}
		value = d.queue.submitted
		d.queue.waiters.Add(1)
		return nil
	})
	if err != nil {
		return err
	}
	err = d.queue.await(value)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue.waiters.Done()
	if err != nil {
		err = d.lose(err)
	} else {
		d.queue.look()
	}
	return d.owner.Named("sync", "", err)
}

// Close waits for enqueued work and releases everything. A Load in progress ends before its next kernel. Closing twice
// is allowed.
func (d *Device) Close() error {
	d.owner.Leave()
	d.queueMu.Lock()
	defer d.queueMu.Unlock()
	d.mu.Lock()
	if errors.Is(d.owner.Usable(), device.ErrClosed) {
		d.mu.Unlock()
		return nil
	}
	if d.queue.submit() == nil {
		_ = d.queue.until(d.queue.submitted) // a loss is no error of closing
	}
	d.owner.Close()
	d.mu.Unlock()
	d.queue.waiters.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owner.Lost() != nil {
		return d.kernels.compiler.Close() // a lost device's objects cannot be released without risk to the process
	}
	d.kernels.cache.save(d)
	err := d.kernels.compiler.Close()
	d.destroy()
	return err
}

// destroy frees everything. The GPU must be idle.
func (d *Device) destroy() {
	d.owner.FreeAll((*loaded).free, (*buffer).free)
	for _, g := range d.queue.garbage {
		g.free()
	}
	d.staging.uploads.free()
	d.staging.downloads.free()
	d.heap.free()
	d.kernels.free()
	d.timer.free()
	C.gv_free_importer(d.importer)
	if d.handle != nil {
		C.gv_close(d.handle)
		d.handle = nil
	}
	if d.gpu != nil {
		vk.DestroyDevice(d.gpu, nil)
	}
	vk.DestroyInstance(d.instance, nil)
}
