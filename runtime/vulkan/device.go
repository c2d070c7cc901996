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
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	vk "github.com/vulkan-go/vulkan"
)

// Device implements device.Device. Its queue is in order: each recorded list of commands begins with a barrier, and brings the
// device's timeline one further when it is done.
type Device struct {
	base.Properties
	features spirv.Features
	dir      string // of compiled shaders; "" keeps none

	// turn is held by whoever adds to the queue, also while he waits for room; mu guards what follows, and is let go meanwhile.
	turn, mu sync.Mutex
	waiters  sync.WaitGroup // in Vulkan's wait, without mu

	owner     *base.Owner[*buffer, *loaded]
	instance  vk.Instance
	adapter   adapter
	gpu       vk.Device
	native    *C.gv_device
	compiler  *spirv.Compiler
	cache     pipelineCache
	submitted uint64
	done      uint64 // submissions, as last looked
	heap      heap
	pipelines map[pipelineKey]*pipeline
	layouts   map[int]layout // by the number of bindings
	batch     batch
	spare     []commands // for batches
	garbage   []garbage
	uploads   stages
	downloads stages
	reads     []*piece       // under way, in order
	running   []uint64       // submissions of Run
	moving    []uint64       // submissions of Transfer
	importer  *C.gv_importer // nil until it is needed
	timer     timer
}

// garbage is what can be given back once a submission is done.
type garbage struct {
	until uint64
	free  func()
}

// commands is a VkCommandBuffer, and the submission that uses it.
type commands struct {
	handle unsafe.Pointer
	until  uint64
}

// Open opens the adapter of that index, as Adapters lists them.
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
	d := &Device{
		dir: o.CacheDir, instance: instance, adapter: a, pipelines: map[pipelineKey]*pipeline{}, layouts: map[int]layout{},
	}
	if !a.robustness {
		d.features |= spirv.CheckBuffers
	}
	if a.zeros {
		d.features |= spirv.ZeroWorkgroup
	}
	d.features |= a.matrixFeatures()
	budget := o.MemoryBudget
	if budget == 0 {
		budget = a.budget()
	}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	d.owner.Describe(a.Info, a.Limits, budget)
	d.owner.SetDump(o.Dump)
	d.heap = heap{d: d, types: a.types}
	d.uploads, d.downloads = stages{d: d}, stages{d: d, cached: true}
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

// budget is how much of its memory a device takes: all but a sixteenth of a GPU's own, three quarters of what it shares with the host, in bytes.
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
	if d.compiler, err = spirv.NewCompiler(d.dir); err != nil {
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
	d.native = C.gv_open(loader.get, unsafe.Pointer(d.instance), unsafe.Pointer(d.gpu), unsafe.Pointer(q), C.uint32_t(a.family), &result)
	if d.native == nil {
		return failure(vk.Result(result))
	}
	return d.cache.open(d)
}

// do runs f when it is the caller's turn, and names its error.
func (d *Device) do(op, object string, f func() error) error {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owner.Do(op, object, f)
}

// next is the submission that what is added to the batch now will be part of.
func (d *Device) next() uint64 { return d.submitted + 1 }

// submit hands the batch, and after it what was recorded before, to the GPU as one submission. Where even that fails, nothing that was
// promised can be kept, so the device counts as lost.
func (d *Device) submit(recorded ...unsafe.Pointer) error {
	list := recorded
	if len(d.batch.commands) > 0 {
		c, err := d.takeCommands()
		if err != nil {
			return d.lose(err)
		}
		r := C.gv_record(d.native, c.handle, &d.batch.commands[0], C.size_t(len(d.batch.commands)), 0)
		if err := failure(vk.Result(r)); err != nil {
			return d.lose(err)
		}
		d.batch.reset()
		d.spare = append(d.spare, commands{c.handle, d.next()})
		list = append([]unsafe.Pointer{c.handle}, recorded...)
	}
	if len(list) == 0 {
		return nil
	}
	if err := failure(vk.Result(C.gv_submit(d.native, &list[0], C.size_t(len(list)), C.uint64_t(d.next())))); err != nil {
		return d.lose(err)
	}
	d.submitted++
	return nil
}

// takeCommands is a command buffer that no submission uses any more, or a new one.
func (d *Device) takeCommands() (commands, error) {
	d.look()
	for i, c := range d.spare {
		if c.until <= d.done {
			d.spare = slices.Delete(d.spare, i, i+1)
			return c, nil
		}
	}
	var c commands
	err := failure(vk.Result(C.gv_new_commands(d.native, &c.handle)))
	return c, err
}

// look asks how far the GPU is, takes what has arrived, and gives back what it no longer uses.
func (d *Device) look() {
	if d.owner.Lost() != nil || d.native == nil {
		return
	}
	var done C.uint64_t
	if err := failure(vk.Result(C.gv_done(d.native, &done))); err != nil {
		_ = d.lose(err) // the caller finds it in d.owner
		return
	}
	d.done = uint64(done)
	d.collect()
	d.timer.collect(d.done)
	n := 0
	for ; n < len(d.garbage) && d.garbage[n].until <= d.done; n++ {
		d.garbage[n].free()
	}
	d.garbage = slices.Delete(d.garbage, 0, n)
	for _, list := range []*[]uint64{&d.running, &d.moving} {
		for len(*list) > 0 && (*list)[0] <= d.done {
			*list = (*list)[1:]
		}
	}
}

// discard has something given back once all that was enqueued so far is done.
func (d *Device) discard(free func()) {
	until := d.submitted
	if len(d.batch.commands) > 0 {
		until = d.next()
	}
	d.garbage = append(d.garbage, garbage{until, free})
	d.look()
}

// until waits for a submission, without mu.
func (d *Device) until(value uint64) error {
	if err := d.owner.Lost(); err != nil {
		return err
	}
	d.waiters.Add(1)
	d.mu.Unlock()
	err := d.await(value)
	d.mu.Lock()
	d.waiters.Done()
	if err != nil {
		return d.lose(err)
	}
	d.look()
	return d.owner.Lost()
}

// await waits for a submission. The device must not be destroyed meanwhile: callers count as waiters.
func (d *Device) await(value uint64) error {
	for {
		r := vk.Result(C.gv_wait(d.native, C.uint64_t(value), C.uint64_t(time.Second)))
		if r != vk.Timeout {
			return failure(r)
		}
		d.mu.Lock()
		lost := d.owner.Lost()
		d.mu.Unlock()
		if lost != nil {
			return lost
		}
	}
}

// lose notices that the device is of no use any more: whoever waits is told, and nothing of it is touched from then on.
func (d *Device) lose(cause error) error {
	if d.owner.Lose(cause) {
		for _, p := range d.reads {
			p.read.Complete(d.owner.Lost())
		}
		d.reads, d.running, d.moving, d.garbage = nil, nil, nil, nil
		d.batch.reset()
	}
	return d.owner.Lost()
}

// Sync waits until all enqueued work is done.
func (d *Device) Sync() error {
	var value uint64
	err := d.do("sync", "", func() error {
		if err := d.submit(); err != nil {
			return err
		}
		value = d.submitted
		d.waiters.Add(1)
		return nil
	})
	if err != nil {
		return err
	}
	err = d.await(value)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiters.Done()
	if err != nil {
		err = d.lose(err)
	} else {
		d.look()
	}
	return d.owner.Named("sync", "", err)
}

// Close waits for enqueued work and releases everything; a Load under way ends before its next kernel. Closing twice is fine.
func (d *Device) Close() error {
	d.owner.Leave()
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	if errors.Is(d.owner.Usable(), device.ErrClosed) {
		d.mu.Unlock()
		return nil
	}
	if d.submit() == nil {
		_ = d.until(d.submitted) // else the device is lost, which is no error of closing it
	}
	d.owner.Close()
	d.mu.Unlock()
	d.waiters.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owner.Lost() != nil {
		return d.compiler.Close() // a lost device's objects cannot be released without risk to the process
	}
	d.cache.save(d)
	err := d.compiler.Close()
	d.destroy()
	return err
}

// destroy gives back all that there is; the GPU does nothing any more.
func (d *Device) destroy() {
	d.owner.FreeAll((*loaded).free, (*buffer).free)
	for _, g := range d.garbage {
		g.free()
	}
	d.uploads.free()
	d.downloads.free()
	d.heap.free()
	for _, p := range d.pipelines {
		C.gv_free_pipeline(d.native, p.handle)
	}
	for _, l := range d.layouts {
		C.gv_free_layout(d.native, l.set, l.pipeline)
	}
	d.cache.free(d)
	d.timer.free()
	C.gv_free_importer(d.importer)
	if d.native != nil {
		C.gv_close(d.native)
		d.native = nil
	}
	if d.gpu != nil {
		vk.DestroyDevice(d.gpu, nil)
	}
	vk.DestroyInstance(d.instance, nil)
}
