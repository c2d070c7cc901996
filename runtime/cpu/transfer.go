//go:build linux && cgo

package cpu

/*
#include "pool.h"
*/
import "C"

import (
	"math/bits"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

const (
	minStagingBuffer = 64 << 10
	maxStagingBuffer = 2 << 20  // bytes
	maxStaging       = 16 << 20 // bytes
)

// staging holds the buffers with the data of Write until the queue has copied them. The queue's lock guards it.
type staging struct {
	queue *queue
	count func(bytes int64) // gets the bytes that are allocated, or freed
	idle  [][]byte
	total int64
}

// take returns a staging buffer of at least n bytes, n ≤ maxStagingBuffer. It waits while all that may exist are in
// use.
func (s *staging) take(n int) []byte {
	size := max(minStagingBuffer, 1<<bits.Len(uint(n-1)))
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	for {
		for i, b := range s.idle {
			if len(b) == size {
				s.idle = append(s.idle[:i], s.idle[i+1:]...)
				return b
			}
		}
		switch {
		case s.total+int64(size) <= maxStaging:
			s.grow(int64(size))
			return make([]byte, size)
		case len(s.idle) > 0:
			s.grow(-int64(len(s.idle[0])))
			s.idle = s.idle[1:]
		default:
			s.queue.changed.Wait()
		}
	}
}

func (s *staging) grow(bytes int64) {
	s.total += bytes
	s.count(bytes)
}

// give takes a buffer back. The queue's goroutine calls it.
func (s *staging) give(b []byte) {
	s.queue.mu.Lock()
	s.idle = append(s.idle, b)
	s.queue.mu.Unlock()
}

// Write copies data to staging buffers and enqueues the rest. It waits while 16 MiB are in transit.
func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.owner.Write(d.do, b, offset, data, maxStagingBuffer, func(b *buffer, offset int64, data []byte) error {
		n := len(data)
		from, to := d.staging.take(n), b.memory[offset:offset+int64(n)]
		copy(from, data)
		d.queue.add(unbounded, func() {
			copy(to, from[:n])
			d.staging.give(from)
		})
		return nil
	})
}

// Read enqueues a copy to the host.
func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	r := &pending{base.NewRead(base.Label(b))}
	return d.owner.Read(d.do, b, offset, n, r, func(b *buffer) error {
		d.queue.add(transfer, func() {
			data := r.Expect(n, 1)
			d.copy(data, b.memory[offset:offset+n])
			r.Complete(nil)
		})
		return nil
	})
}

// Transfer enqueues a copy between buffers. It waits while 64 transfers are in progress.
func (d *Device) Transfer(from, to device.Range) (device.Pending, error) {
	r := &pending{base.NewRead(base.Label(from.Buffer))}
	return d.owner.Transfer(d.do, from, to, r, func() error {
		source, destination := bytesOf(from), bytesOf(to)
		d.queue.add(transfer, func() {
			r.Expect(0, 1)
			d.copy(destination, source)
			r.Complete(nil)
		})
		return nil
	})
}

func bytesOf(r device.Range) []byte {
	return r.Buffer.(*buffer).memory[r.Offset : r.Offset+r.Size]
}

// copy copies on the queue's goroutine: large ranges by all threads.
func (d *Device) copy(to, from []byte) {
	if len(from) < 4*C.GP_COPY_BLOCK {
		copy(to, from)
		return
	}
	C.gp_pool_copy(d.pool, unsafe.Pointer(&to[0]), unsafe.Pointer(&from[0]), C.uint64_t(len(from)))
}

// pending is a read or transfer in progress. It belongs to the queue's goroutine until it is done.
type pending struct{ base.Read }

func (r *pending) Wait() ([]byte, error) {
	<-r.Done()
	return r.Result()
}
