package webgpu

/*
#include "native.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

const (
	maxTimed   = maxCommands / 2             // a submission that is measured: WebGPU has 4096 queries at most in a set
	maxStamps  = maxTimed * C.GP_COPY_STAMPS // timestamps of one
	stampBytes = 8
)

// clock is what measuring needs. The owner makes it when it is first asked to measure.
type clock struct {
	tick     float64 // nanoseconds a tick of the device's timestamps; 0: not known yet
	queries  unsafe.Pointer
	resolved *wgpu.Buffer
}

func (c *clock) free() {
	if c.queries != nil {
		C.gp_free_queries(c.queries)
	}
	if c.resolved != nil {
		c.resolved.Release()
	}
	*c = clock{}
}

// RunTimed enqueues a loaded program as Run does, and measures its commands: dispatches in a pass each, copies between two empty ones.
func (d *Device) RunTimed(p device.Loaded) (device.Timings, error) {
	t := &timings{}
	err := d.run(p, func(l *loaded) error {
		if err := d.wind(); err != nil {
			return err
		}
		t.tick, t.commands = d.clock.tick, l.length
		of := l.of
		for section := range slices.Chunk(l.commands, maxTimed) {
			r, err := d.measure(l.Label(), section)
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

// measure submits commands, maxTimed at most, and a read of their timestamps.
func (d *Device) measure(label string, section []C.gp_command) (*pending, error) {
	stamps := int64(C.GP_DISPATCH_STAMPS)
	if len(section) > 0 {
		stamps = 0
	}
	for i := range section {
		stamps += stampsOf(&section[i])
	}
	r := &pending{Read: base.NewRead(label), d: d}
	data := r.Expect(stamps*stampBytes, 1)
	s, err := d.downloads.take(int64(len(data)))
	if err != nil {
		return nil, err
	}
	timer := C.gp_timer{queries: d.clock.queries, resolved: bufferHandle(d.clock.resolved), staging: bufferHandle(s.gpu)}
	if err := d.enqueue(section, &timer); err != nil {
		d.downloads.drop(s)
		return nil, err
	}
	s.to, s.read = data, r
	return r, d.downloads.enqueue(s)
}

func stampsOf(c *C.gp_command) int64 {
	if c.pipeline != nil {
		return C.GP_DISPATCH_STAMPS
	}
	return C.GP_COPY_STAMPS
}

// wind makes the clock ready, which takes a tenth of a second or so the first time.
func (d *Device) wind() (err error) {
	if d.native.timestamps == 0 {
		return device.ErrNoTimestamps
	}
	if d.clock.tick != 0 {
		return nil
	}
	defer func() {
		if err != nil && d.owner.Lost() == nil {
			d.clock.free()
		}
	}()
	var failure C.gp_error
	if d.clock.queries = C.gp_queries(d.native, maxStamps, &failure); failure._type != C.GP_NO_ERROR {
		return nativeError(&failure)
	}
	d.clock.resolved, err = d.create("timestamps", maxStamps*stampBytes, wgpu.BufferUsageQueryResolve|wgpu.BufferUsageCopySrc, false)
	if err != nil {
		d.clock.resolved = nil
		return err
	}
	if err := d.waitFor(func() bool { return !d.busy() }); err != nil {
		return err
	}
	d.clock.tick, err = d.calibrate()
	return err
}

// glance is a timestamp, and the moments between which it was taken.
type glance struct {
	after, before time.Time
	ticks         uint64
}

const (
	exact       = 0.01 // of a tick's length that need not be known
	longestLook = time.Second
)

// calibrate finds the length of a tick, which wgpu-native v22 does not tell, by the host's clock. Most devices count nanoseconds: where that may be, it is so.
func (d *Device) calibrate() (float64, error) {
	first, err := d.glance()
	if err != nil {
		return 0, err
	}
	least, most := 0.0, math.Inf(1)
	for most > (1+exact)*least && time.Since(first.before) < longestLook {
		time.Sleep(5 * time.Millisecond)
		next, err := d.glance()
		if err != nil {
			return 0, err
		}
		if next.ticks <= first.ticks {
			return 0, fmt.Errorf("%w: its clock stands still", device.ErrNoTimestamps)
		}
		ticks := float64(next.ticks - first.ticks)
		least = max(least, float64(next.after.Sub(first.before))/ticks)
		most = min(most, float64(next.before.Sub(first.after))/ticks)
	}
	if least <= 1 && 1 <= most {
		return 1, nil
	}
	return (least + most) / 2, nil
}

func (d *Device) glance() (glance, error) {
	g := glance{after: time.Now()}
	r, err := d.measure("clock", nil)
	if err != nil {
		return g, err
	}
	if err := d.waitFor(r.Completed); err != nil {
		return g, err
	}
	g.before = time.Now()
	data, err := r.Result()
	if err == nil {
		g.ticks = binary.LittleEndian.Uint64(data)
	}
	return g, err
}

// timings is a program's times, of which each section arrives for itself.
type timings struct {
	sections []measured
	tick     float64
	commands int
}

// measured is one submission: where its commands' timestamps lie, and which commands of the program they are.
type measured struct {
	read    *pending
	of      []int
	started []int // by command, its first timestamp; the second is next to it
}

func newMeasured(r *pending, section []C.gp_command, of []int) measured {
	m := measured{read: r, of: of}
	at := 0
	for i := range section {
		first, n := at, int(stampsOf(&section[i]))
		if n == C.GP_COPY_STAMPS {
			first++ // the end of the empty pass before the copy, then the beginning of the one after it
		}
		m.started = append(m.started, first)
		at += n
	}
	return m
}

// Wait returns each command's time. A copy within one buffer is several to the GPU: their sum.
func (t *timings) Wait() ([]time.Duration, error) {
	times := make([]time.Duration, t.commands)
	for _, m := range t.sections {
		data, err := m.read.Wait()
		if err != nil {
			return nil, err
		}
		for i, first := range m.started {
			began, ended := binary.LittleEndian.Uint64(data[first*stampBytes:]), binary.LittleEndian.Uint64(data[(first+1)*stampBytes:])
			if ended > began {
				times[m.of[i]] += time.Duration(float64(ended-began) * t.tick)
			}
		}
	}
	return times, nil
}
