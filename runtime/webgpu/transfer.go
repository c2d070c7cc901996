package webgpu

/*
#include <stdlib.h>
#include "native.h"
*/
import "C"

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

const (
	mapRead, mapWrite = 1, 2 // WGPUMapMode

	minStagingBuffer = 64 << 10
	maxStagingBuffer = 2 << 20  // bytes
	maxStaging       = 16 << 20 // bytes for each direction
)

// stagingBuffer is free (and mapped, if it is for uploads), or in a pool's queue.
type stagingBuffer struct {
	gpu    *wgpu.Buffer
	size   int64
	status *C.int // C memory: the map request's outcome
	// The destination of a download:
	to   []byte
	read *pending
}

// pool holds the staging buffers of one direction. They are mapped again as soon as the GPU is done with them.
type pool struct {
	d     *Device
	mode  C.uint32_t
	usage wgpu.BufferUsage
	idle  []*stagingBuffer
	queue []*stagingBuffer // with a map request in progress, in order of submission
	total int64
}

func (p *pool) waiting() bool { return len(p.queue) > 0 }

// take returns a staging buffer of at least n bytes, n ≤ maxStagingBuffer. It waits while all that may exist are in
// use.
func (p *pool) take(n int64) (*stagingBuffer, error) {
	size := max(int64(minStagingBuffer), int64(1)<<bits.Len64(uint64(n-1)))
	for {
		for i, s := range p.idle {
			if s.size == size {
				p.idle = append(p.idle[:i], p.idle[i+1:]...)
				return s, nil
			}
		}
		if p.total+size <= maxStaging {
			return p.make(size)
		}
		if len(p.idle) == 0 {
			if err := p.d.waitFor(func() bool { return len(p.idle) > 0 }); err != nil {
				return nil, err
			}
			continue
		}
		p.drop(p.idle[0])
		p.idle = p.idle[1:]
	}
}

func (p *pool) make(size int64) (*stagingBuffer, error) {
	gpu, err := p.d.create("staging", size, p.usage, p.mode == mapWrite)
	if err != nil {
		return nil, err
	}
	p.total += size
	p.d.owner.AddStaging(size)
	return &stagingBuffer{gpu: gpu, size: size, status: (*C.int)(C.malloc(C.sizeof_int))}, nil
}

// drop frees s, which must have no map request in progress.
func (p *pool) drop(s *stagingBuffer) {
	if p.d.owner.Lost() == nil {
		s.gpu.Release()
	}
	C.free(unsafe.Pointer(s.status))
	p.total -= s.size
	p.d.owner.AddStaging(-s.size)
}

// enqueue requests that s is mapped when the work submitted so far is done.
func (p *pool) enqueue(s *stagingBuffer) error {
	var failure C.gp_error
	C.gp_map(p.d.native, bufferHandle(s.gpu), p.mode, C.size_t(s.size), s.status, &failure)
	if failure._type != C.GP_NO_ERROR {
		p.drop(s)
		return nativeError(&failure)
	}
	p.queue = append(p.queue, s)
	return nil
}

// collect completes the transfers of mapped staging buffers, and reports whether there were any.
func (p *pool) collect() bool {
	n := 0
	for ; n < len(p.queue) && *p.queue[n].status != C.GP_MAP_PENDING; n++ {
		s := p.queue[n]
		err := error(nil)
		if *s.status != C.GP_MAP_DONE {
			err = fmt.Errorf("mapping a staging buffer failed with status %d", *s.status)
		}
		if s.read != nil {
			if err == nil {
				copy(s.to, s.gpu.GetMappedRange(0, uint(len(s.to))))
				err = s.gpu.Unmap()
			}
			s.read.Complete(err)
			s.read, s.to = nil, nil
		}
		if err != nil {
			p.drop(s)
			continue
		}
		p.idle = append(p.idle, s)
	}
	p.queue = p.queue[n:]
	return n > 0
}

// abandon fails all downloads of a lost device. Native objects are left as they are.
func (p *pool) abandon(err error) {
	for _, s := range p.queue {
		if s.read != nil {
			s.read.Complete(err)
		}
	}
	p.queue = nil
}

func (p *pool) free() {
	for _, s := range p.idle {
		p.drop(s)
	}
	p.idle = nil
}

// Write copies data to staging buffers and enqueues the rest. It waits while 16 MiB are in transit.
func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.owner.Write(d.do, b, offset, data, maxStagingBuffer, d.upload)
}

func (d *Device) upload(b *buffer, offset int64, data []byte) error {
	s, err := d.uploads.take(int64(len(data)))
	if err != nil {
		return err
	}
	copy(s.gpu.GetMappedRange(0, uint(len(data))), data)
	err = s.gpu.Unmap()
	if err == nil {
		err = d.copyBytes(s.gpu, 0, b.gpu, offset, int64(len(data)))
	}
	if err != nil {
		d.uploads.drop(s)
		return err
	}
	return d.uploads.enqueue(s)
}

// Read enqueues a copy to the host. It waits while 16 MiB are in transit.
func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	r := &pending{Read: base.NewRead(base.Label(b)), d: d}
	return d.owner.Read(d.do, b, offset, n, r, func(b *buffer) error {
		data := r.Expect(n, int((n+maxStagingBuffer-1)/maxStagingBuffer)+1) // one piece for this function itself
		for at := int64(0); at < n; at += maxStagingBuffer {
			to := data[at:min(at+maxStagingBuffer, n)]
			if err := d.download(b, offset+at, to, r); err != nil {
				return err
			}
		}
		r.Complete(nil)
		return nil
	})
}

func (d *Device) download(b *buffer, offset int64, to []byte, r *pending) error {
	s, err := d.downloads.take(int64(len(to)))
	if err != nil {
		return err
	}
	if err := d.copyBytes(b.gpu, offset, s.gpu, 0, int64(len(to))); err != nil {
		d.downloads.drop(s)
		return err
	}
	s.to, s.read = to, r
	return d.downloads.enqueue(s)
}

func (d *Device) copyBytes(src *wgpu.Buffer, so int64, dst *wgpu.Buffer, do, n int64) error {
	c := copyCommand(src, so, dst, do, n)
	return d.submit([]C.gp_command{c}, nil)
}

func copyCommand(src *wgpu.Buffer, so int64, dst *wgpu.Buffer, do, n int64) C.gp_command {
	return C.gp_command{
		src: bufferHandle(src), src_offset: C.uint64_t(so),
		dst: bufferHandle(dst), dst_offset: C.uint64_t(do), size: C.uint64_t(n),
	}
}

func (d *Device) submit(commands []C.gp_command, timer *C.gp_timer) error {
	var failure C.gp_error
	if C.gp_submit(d.native, unsafe.SliceData(commands), C.size_t(len(commands)), timer, &failure) != 0 {
		return nil
	}
	if err := d.checkLost(); err != nil {
		return err
	}
	return nativeError(&failure)
}

// pending is a read in progress. Its pieces belong to the owner's goroutine until it is done.
type pending struct {
	base.Read
	d *Device
}

func (r *pending) Wait() ([]byte, error) {
	<-r.Done()
	data, err := r.Result()
	return data, r.d.owner.Named("read", r.Label(), err)
}
