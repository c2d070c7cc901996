//go:build linux

package vulkan

import (
	"slices"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	vk "github.com/vulkan-go/vulkan"
)

const (
	stagingBytes = 2 << 20  // bytes of a staging buffer
	maxStaging   = 16 << 20 // bytes for each direction
	submitBytes  = 1 << 20  // of copies that are worth a submission of their own
	maxTransfers = 64       // submissions of Transfer in progress
)

// stagingBuffer is filled from its start.
type stagingBuffer struct {
	handle vk.Buffer
	memory vk.DeviceMemory
	data   []byte
	filled int64
	until  uint64 // the last submission that uses it
	pieces int    // of reads that have not been copied out of it
}

// staging is the memory through which data pass between the host and the device. The device's lock guards it.
type staging struct {
	uploads, downloads stagingBuffers
	reads              []*piece // in progress, in order
}

// stagingBuffers are the staging buffers of one direction. The last is being filled.
type stagingBuffers struct {
	d      *Device
	cached bool
	all    []*stagingBuffer
}

// take returns room for n bytes, n ≤ stagingBytes. It waits while all staging buffers that may exist are in use.
func (s *stagingBuffers) take(n int64) (*stagingBuffer, int64, error) {
	n = (n + 63) &^ 63
	for {
		if i := slices.IndexFunc(s.all, func(t *stagingBuffer) bool { return t.filled+n <= stagingBytes }); i >= 0 {
			t := s.all[i]
			at := t.filled
			t.filled, t.until = at+n, s.d.queue.next()
			return t, at, nil
		}
		if s.reuse() {
			continue
		}
		if int64(len(s.all)+1)*stagingBytes <= maxStaging {
			if err := s.make(); err != nil {
				return nil, 0, err
			}
			continue
		}
		if err := s.d.queue.submit(); err != nil {
			return nil, 0, err
		}
		oldest := slices.MinFunc(s.all, func(a, b *stagingBuffer) int { return int(int64(a.until) - int64(b.until)) })
		if err := s.d.queue.until(oldest.until); err != nil {
			return nil, 0, err
		}
	}
}

// reuse empties a staging buffer that the GPU is done with.
func (s *stagingBuffers) reuse() bool {
	s.d.queue.look()
	for _, t := range s.all {
		if t.until <= s.d.queue.done && t.pieces == 0 {
			t.filled = 0
			return true
		}
	}
	return false
}

func (s *stagingBuffers) make() error {
	b, memory, data, err := s.d.heap.mapped(stagingBytes, s.cached)
	if err != nil {
		return err
	}
	s.all = append(s.all, &stagingBuffer{handle: b, memory: memory, data: data})
	s.d.owner.AddStaging(stagingBytes)
	return nil
}

func (s *stagingBuffers) free() {
	for _, t := range s.all {
		vk.DestroyBuffer(s.d.gpu, t.handle, nil)
		vk.FreeMemory(s.d.gpu, t.memory, nil) // unmaps it
	}
	s.all = nil
}

// Write copies data to staging buffers and enqueues the rest. It waits while 16 MiB are in transit.
func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.owner.Write(d.do, b, offset, data, stagingBytes, func(b *buffer, offset int64, data []byte) error {
		n := int64(len(data))
		s, at, err := d.staging.uploads.take(n)
		if err != nil {
			return err
		}
		copy(s.data[at:], data)
		d.queue.batch.upload(s.handle, at, device.Range{Buffer: b, Offset: offset, Size: n})
		if d.queue.batch.bytes >= submitBytes {
			return d.queue.submit()
		}
		return nil
	})
}

// Read enqueues a copy to the host. It waits while 16 MiB are in transit.
func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	r := &pending{Read: base.NewRead(base.Label(b)), d: d}
	return d.owner.Read(d.do, b, offset, n, r, func(b *buffer) error {
		data := r.Expect(n, int((n+stagingBytes-1)/stagingBytes))
		for at := int64(0); at < n; at += stagingBytes {
			to := data[at:min(at+stagingBytes, n)]
			s, place, err := d.staging.downloads.take(int64(len(to)))
			if err != nil {
				return err
			}
			d.queue.batch.download(device.Range{Buffer: b, Offset: offset + at, Size: int64(len(to))}, s.handle, place)
			s.pieces++
			d.staging.reads = append(d.staging.reads, &piece{s, place, to, d.queue.next(), r})
			r.until = d.queue.next()
			if err := d.queue.submit(); err != nil {
				return err
			}
		}
		return nil
	})
}

// piece is the bytes of a read that lie in one staging buffer.
type piece struct {
	staging *stagingBuffer
	at      int64
	to      []byte
	until   uint64
	read    *pending
}

// collect copies completed reads out of the staging buffers.
func (s *staging) collect(done uint64) {
	n := 0
	for ; n < len(s.reads) && s.reads[n].until <= done; n++ {
		p := s.reads[n]
		copy(p.to, p.staging.data[p.at:])
		p.staging.pieces--
		p.read.Complete(nil)
	}
	s.reads = slices.Delete(s.reads, 0, n)
}

// pending is a read in progress, under d.mu.
type pending struct {
	base.Read
	d     *Device
	until uint64 // the submission of its last piece
}

func (r *pending) Wait() ([]byte, error) {
	d := r.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.Completed() {
		if err := d.queue.until(r.until); err != nil && !r.Completed() {
			return nil, d.owner.Named("read", r.Label(), err)
		}
	}
	data, err := r.Result()
	return data, d.owner.Named("read", r.Label(), err)
}

// Transfer enqueues a copy. It waits while 64 transfers are in progress.
func (d *Device) Transfer(from, to device.Range) (device.Pending, error) {
	m := &move{d: d, label: base.Label(from.Buffer)}
	return d.owner.Transfer(d.do, from, to, m, func() error {
		if err := d.queue.room(&d.queue.moving, maxTransfers); err != nil {
			return err
		}
		d.queue.batch.copy(from, to)
		if err := d.queue.submit(); err != nil {
			return err
		}
		m.until = d.queue.submitted
		d.queue.moving = append(d.queue.moving, d.queue.submitted)
		return nil
	})
}

// move is a transfer in progress.
type move struct {
	d     *Device
	label string
	until uint64
}

func (m *move) Wait() ([]byte, error) {
	d := m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.until <= d.queue.done {
		return nil, nil
	}
	return nil, d.owner.Named("transfer", m.label, d.queue.until(m.until))
}
