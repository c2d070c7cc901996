//go:build linux

package vulkan

/*
#include "timer.h"
*/
import "C"

import (
	"slices"
	"time"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	vk "github.com/vulkan-go/vulkan"
)

// timer is what measuring needs, made for the first measurement. The device's lock guards it.
type timer struct {
	handle *C.gv_timer
	period float64      // nanoseconds per tick
	mask   uint64       // the valid bits of a timestamp
	idle   []C.uint64_t // VkQueryPool, of maxCommands+1
	open   []*timed     // in progress, in order
}

// timed is one measured submission of a program.
type timed struct {
	of      *timings
	first   int // its first command
	n       int // its commands
	queries C.uint64_t
	until   uint64
}

// timings is a program's times. The device's lock guards it.
type timings struct {
	d       *Device
	label   string
	times   []time.Duration
	until   uint64
	missing int // submissions
	err     error
}

// measure enqueues at most maxCommands commands.
func (t *timings) measure(first int, section []C.gv_command) error {
	d := t.d
	queries, err := d.timer.take()
	if err != nil {
		return err
	}
	c, err := d.queue.takeCommands()
	if err != nil {
		d.timer.idle = append(d.timer.idle, queries)
		return err
	}
	r := C.gv_record_timed(d.handle, d.timer.handle, c.handle, &section[0], C.size_t(len(section)), queries)
	if err := failure(vk.Result(r)); err != nil {
		return d.lose(err)
	}
	if err := d.queue.enqueue(c.handle); err != nil {
		return err
	}
	d.queue.spare = append(d.queue.spare, commands{c.handle, d.queue.submitted})
	d.timer.open = append(d.timer.open, &timed{t, first, len(section), queries, d.queue.submitted})
	t.until, t.missing = d.queue.submitted, t.missing+1
	return nil
}

// prepare makes the timer.
func (t *timer) prepare(d *Device) error {
	if t.handle != nil {
		return nil
	}
	bits := C.gv_timestamp_bits(loader.get, unsafe.Pointer(d.instance), unsafe.Pointer(d.adapter.physical), C.uint32_t(d.adapter.family))
	if bits == 0 {
		return device.ErrNoTimestamps
	}
	if t.handle = C.gv_new_timer(loader.get, unsafe.Pointer(d.instance), unsafe.Pointer(d.gpu)); t.handle == nil {
		return device.ErrNoTimestamps
	}
	var props vk.PhysicalDeviceProperties
	vk.GetPhysicalDeviceProperties(d.adapter.physical, &props)
	defer props.Free()
	props.Deref()
	props.Limits.Deref()
	t.period, t.mask = float64(props.Limits.TimestampPeriod), ^uint64(0)>>(64-min(bits, 64))
	return nil
}

// take returns a query pool that no submission uses.
func (t *timer) take() (q C.uint64_t, err error) {
	if n := len(t.idle); n > 0 {
		q, t.idle = t.idle[n-1], t.idle[:n-1]
		return q, nil
	}
	err = failure(vk.Result(C.gv_new_queries(t.handle, maxCommands+1, &q)))
	return q, err
}

// collect reads the times of submissions that are done.
func (t *timer) collect(done uint64) {
	n := 0
	for ; n < len(t.open) && t.open[n].until <= done; n++ {
		t.read(t.open[n])
	}
	t.open = slices.Delete(t.open, 0, n)
}

func (t *timer) read(x *timed) {
	ticks := make([]uint64, x.n+1)
	r := C.gv_times(t.handle, x.queries, C.uint32_t(len(ticks)), (*C.uint64_t)(&ticks[0]))
	if err := failure(vk.Result(r)); err != nil && x.of.err == nil {
		x.of.err = err
	}
	for i := range x.n {
		x.of.times[x.first+i] = time.Duration(float64((ticks[i+1]-ticks[i])&t.mask) * t.period)
	}
	t.idle = append(t.idle, x.queries)
	x.of.missing--
}

// free frees everything. The queue must be idle.
func (t *timer) free() {
	for _, x := range t.open {
		t.idle = append(t.idle, x.queries)
	}
	for _, q := range t.idle {
		C.gv_free_queries(t.handle, q)
	}
	if t.handle != nil {
		C.gv_free_timer(t.handle)
	}
	*t = timer{}
}

// Wait returns each command's time.
func (t *timings) Wait() ([]time.Duration, error) {
	d := t.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.missing > 0 && t.err == nil {
		t.err = d.queue.until(t.until)
	}
	if t.err != nil {
		return nil, d.owner.Named("run", t.label, t.err)
	}
	return slices.Clone(t.times), nil
}
