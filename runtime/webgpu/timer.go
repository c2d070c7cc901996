package webgpu

/*
#include "native.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

const (
	maxTimed   = maxCommands / 2             // commands of a measured submission: WebGPU allows 4096 queries in a set
	maxStamps  = maxTimed * C.GP_COPY_STAMPS // timestamps of a measured submission
	stampBytes = 8
)

// clock is what measuring needs. The owner makes it for the first measurement.
type clock struct {
	d        *Device
	tick     float64 // nanoseconds per tick of the device's timestamps; 0: not known yet
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
	*c = clock{d: c.d}
}

// measure submits at most maxTimed commands, and a read of their timestamps.
func (c *clock) measure(label string, section []C.gp_command) (*pending, error) {
	d := c.d
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
	timer := C.gp_timer{queries: c.queries, resolved: bufferHandle(c.resolved), staging: bufferHandle(s.gpu)}
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

// prepare makes the clock. The first call takes about a tenth of a second.
func (c *clock) prepare() (err error) {
	d := c.d
	if d.native.timestamps == 0 {
		return device.ErrNoTimestamps
	}
	if c.tick != 0 {
		return nil
	}
	defer func() {
		if err != nil && d.owner.Lost() == nil {
			c.free()
		}
	}()
	var failure C.gp_error
	if c.queries = C.gp_queries(d.native, maxStamps, &failure); failure._type != C.GP_NO_ERROR {
		return nativeError(&failure)
	}
	c.resolved, err = d.create("timestamps", maxStamps*stampBytes, wgpu.BufferUsageQueryResolve|wgpu.BufferUsageCopySrc, false)
	if err != nil {
		c.resolved = nil
		return err
	}
	if err := d.waitFor(func() bool { return !d.busy() }); err != nil {
		return err
	}
	c.tick, err = c.calibrate()
	return err
}

// reading is a timestamp, and moments before and after it was taken.
type reading struct {
	after, before time.Time
	ticks         uint64
}

const (
	tickError      = 0.01 // relative, that calibrate accepts
	maxCalibration = time.Second
)

// calibrate measures the length of a tick by the host's clock, because wgpu-native v22 does not report it. Most devices
// count nanoseconds, so a length that may be one nanosecond is taken as one.
func (c *clock) calibrate() (float64, error) {
	first, err := c.read()
	if err != nil {
		return 0, err
	}
	least, most := 0.0, math.Inf(1)
	for most > (1+tickError)*least && time.Since(first.before) < maxCalibration {
		time.Sleep(5 * time.Millisecond)
		next, err := c.read()
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

// read takes a timestamp.
func (c *clock) read() (reading, error) {
	g := reading{after: time.Now()}
	r, err := c.measure("clock", nil)
	if err != nil {
		return g, err
	}
	if err := c.d.waitFor(r.Completed); err != nil {
		return g, err
	}
	g.before = time.Now()
	data, err := r.Result()
	if err == nil {
		g.ticks = binary.LittleEndian.Uint64(data)
	}
	return g, err
}

// timings is a program's times. Each section completes by itself.
type timings struct {
	sections []measured
	tick     float64
	commands int
}

// measured is one submission: the positions of its commands' timestamps, and the program's commands that they measure.
type measured struct {
	read    *pending
	of      []int
	started []int // for each command, the index of its first timestamp; the second follows it
}

func newMeasured(r *pending, section []C.gp_command, of []int) measured {
	m := measured{read: r, of: of}
	at := 0
	for i := range section {
		first, n := at, int(stampsOf(&section[i]))
		if n == C.GP_COPY_STAMPS {
			first++ // the end of the empty pass before the copy, then the start of the one after it
		}
		m.started = append(m.started, first)
		at += n
	}
	return m
}

// Wait returns each command's time. A copy within one buffer is several commands of the GPU, whose times are added.
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
