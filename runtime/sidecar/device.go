//go:build unix

package sidecar

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// window is how many commands may be on their way to the worker: it runs behind its host no further.
const window = 256

// Device implements device.Device and device.Timer by a worker process. What can be checked here is; Run, Write and Read do not wait
// for an answer. What fails later fails the calls that follow, until Sync has told it.
type Device struct {
	name    string // its device's; in an error before that is known, what was asked for
	has     description
	silence time.Duration
	setting string
	process *process
	conn    *net.UnixConn
	link    *link
	memory  *memory
	reading sync.WaitGroup // of what the worker says, and the watchdog
	told    int64          // what the reader last told that it has taken out of its ring
	quit    chan struct{}  // closed when nobody need watch any more
	ended   chan struct{}  // closed when Close is done

	loading sync.Mutex // held until a program is loaded: what travels is bounded

	// turn is held by whoever adds to the queue, also while he waits for room. It guards what has been released, and:
	turn  sync.Mutex
	ids   uint64
	close bool

	mu        sync.Mutex
	room      sync.Cond // the worker took commands, or is lost
	closed    bool
	parting   bool  // the connection has ended
	lost      error // for good
	deferred  error // of enqueued work, until Sync
	sent      uint64
	last      event // the worker's latest state
	moved     time.Time
	heard     time.Time
	used      int64
	calls     map[uint64]*call
	uploads   ring
	stretches []stretch // of uploads, in order
}

// stretch is a part of the ring that is free again when that many commands were carried out.
type stretch struct {
	until uint64
	end   int64
}

// call is what an answer is awaited to.
type call struct {
	op, object string
	done       chan struct{} // closed when the rest is there
	data       []byte        // of a read
	filled     int64
	times      []time.Duration
	err        error
}

func newCall(op, object string) *call {
	return &call{op: op, object: object, done: make(chan struct{})}
}

type buffer struct {
	d        *Device
	id       uint64
	label    string
	size     int64
	released bool // under turn
}

type loaded struct {
	d        *Device
	id       uint64
	label    string
	buffers  []*buffer
	released bool // under turn
}

var (
	errForeign  = errors.New("does not belong to this device")
	errReleased = errors.New("is released")
)

func (d *Device) Info() device.Info     { return d.has.Info }
func (d *Device) Limits() target.Limits { return d.has.Limits }

// Budget is the memory that the worker's device may take in bytes, 0 where it is not known.
func (d *Device) Budget() int64 { return d.has.Budget }

// Process is that of the worker.
func (d *Device) Process() *os.Process { return d.process.cmd.Process }

// Allocated returns the bytes of live buffers, and of the staging memory of the worker's device as last heard; what the two processes
// share is not counted.
func (d *Device) Allocated() (buffers, staging int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, 0
	}
	return d.used, d.last.staging
}

func (d *Device) named(op, object string, cause error) error {
	return device.Named(op, object, d.name, cause)
}

func (d *Device) checker() device.Checker {
	return device.Checker{Device: d.name, Limits: d.has.Limits, Own: d.owns}
}

func (d *Device) owns(b device.Buffer) error {
	sb, ok := b.(*buffer)
	switch {
	case !ok || sb == nil || sb.d != d:
		return errForeign
	case sb.released:
		return errReleased
	}
	return nil
}

// do runs f when it is the caller's turn and the device can be used, and names its error.
func (d *Device) do(op, object string, f func() error) error {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	err := d.usable()
	if err == nil && op != "sync" {
		err = d.deferred
	}
	d.mu.Unlock()
	if err == nil {
		err = f()
	}
	return d.named(op, object, err)
}

// usable is called under mu.
func (d *Device) usable() error {
	if d.closed {
		return device.ErrClosed
	}
	return d.lost
}

// newID is called by whose turn it is.
func (d *Device) newID() uint64 {
	d.ids++
	return d.ids
}

// enqueue sends a command when the worker has room for it. The answer, if there will be one, comes to a call.
func (d *Device) enqueue(c *command, answer *call) error {
	if answer != nil && c.op != opRead { // somebody will wait
		defer d.link.flush()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.sent-d.last.accepted >= window && d.lost == nil {
		d.room.Wait()
	}
	return d.add(c, answer)
}

// add is called under mu, when there is room; when mu is free again the link is to be flushed.
func (d *Device) add(c *command, answer *call) error {
	if d.lost != nil {
		return d.lost
	}
	d.sent++
	if answer != nil {
		d.calls[c.id] = answer
	}
	d.link.add(c)
	return nil
}

// Alloc makes a zeroed buffer.
func (d *Device) Alloc(label string, size int64) (device.Buffer, error) {
	var b *buffer
	answer := newCall("alloc", label)
	err := d.do("alloc", label, func() error {
		used, _ := d.Allocated()
		if err := d.checker().Alloc(label, size, used, d.has.Budget); err != nil {
			return err
		}
		b = &buffer{d: d, id: d.newID(), label: label, size: size}
		d.count(size)
		return d.enqueue(&command{op: opAlloc, id: b.id, label: label, n: size}, answer)
	})
	if err == nil {
		err = answer.wait()
	}
	if err != nil {
		if b != nil {
			d.count(-size)
		}
		return nil, err
	}
	return b, nil
}

func (d *Device) count(bytes int64) {
	d.mu.Lock()
	d.used += bytes
	d.mu.Unlock()
}

func (b *buffer) Label() string  { return b.label }
func (b *buffer) Size() int64    { return b.size }
func (b *buffer) number() uint64 { return b.id }

func (b *buffer) Release() {
	if b.d.release(&b.released, &command{op: opFree, id: b.id}) {
		b.d.count(-b.size)
	}
}

// release tells the worker once that something is not needed any more. What was enqueued before still has it.
func (d *Device) release(released *bool, c *command) bool {
	d.turn.Lock()
	defer d.turn.Unlock()
	if *released {
		return false
	}
	*released = true
	if !d.close {
		_ = d.enqueue(c, nil) // a lost worker has released it already
	}
	return true
}

// Load compiles and binds p.
func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{d: d}
	if p != nil {
		l.label = p.Label
	}
	d.loading.Lock()
	defer d.loading.Unlock()
	answer := newCall("load", l.label)
	err := d.do("load", l.label, func() error {
		if err := d.checker().Program(p); err != nil {
			return err
		}
		seen := map[*buffer]bool{}
		for _, c := range p.Commands {
			for _, r := range c.Args {
				if b := r.Buffer.(*buffer); !seen[b] {
					seen[b] = true
					l.buffers = append(l.buffers, b)
				}
			}
		}
		l.id = d.newID()
		c := &command{op: opLoad, id: l.id, program: p}
		if n := len(c.append(nil)); n > maxFrame {
			return device.Invalid("the program takes %d bytes to be sent to its worker, at most %d", n, maxFrame)
		}
		return d.enqueue(c, answer)
	})
	if err == nil {
		err = answer.wait()
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (l *loaded) Release() { l.d.release(&l.released, &command{op: opUnload, id: l.id}) }

// runnable checks that l can be run.
func (d *Device) runnable(l *loaded) error {
	if l.released {
		return device.Invalid("the program %v", errReleased)
	}
	for _, b := range l.buffers {
		if b.released {
			return device.Invalid("buffer %q %v", b.label, errReleased)
		}
	}
	return nil
}

// own is a program of this device.
func (d *Device) own(p device.Loaded) (*loaded, error) {
	l, ok := p.(*loaded)
	if !ok || l == nil || l.d != d {
		return nil, d.named("run", "", device.Invalid("the program %v", errForeign))
	}
	return l, nil
}

// Run enqueues a loaded program. It waits while 256 commands are on their way.
func (d *Device) Run(p device.Loaded) error {
	l, err := d.own(p)
	if err != nil {
		return err
	}
	return d.do("run", l.label, func() error {
		if err := d.runnable(l); err != nil {
			return err
		}
		return d.enqueue(&command{op: opRun, id: l.id}, nil)
	})
}

// RunTimed enqueues a loaded program and measures it, if the worker's device can. It waits until the device has it in its queue.
func (d *Device) RunTimed(p device.Loaded) (device.Timings, error) {
	l, err := d.own(p)
	if err != nil {
		return nil, err
	}
	queued, measured := newCall("run", l.label), newCall("run", l.label)
	err = d.do("run", l.label, func() error {
		if err := d.runnable(l); err != nil {
			return err
		}
		if !d.has.Timer {
			return device.ErrNoTimestamps
		}
		id := d.newID()
		d.mu.Lock()
		d.calls[d.newID()] = measured // the worker answers twice, to one number and the next
		d.mu.Unlock()
		return d.enqueue(&command{op: opTimed, id: id, buffer: l.id}, queued)
	})
	if err == nil {
		err = queued.wait()
	}
	if err != nil {
		return nil, err
	}
	return timings{measured}, nil
}

type timings struct{ *call }

func (t timings) Wait() ([]time.Duration, error) {
	err := t.wait()
	return t.times, err
}

// Write copies data to shared memory and enqueues the rest. It waits while that is full.
func (d *Device) Write(b device.Buffer, offset int64, data []byte) error {
	return d.do("write", label(b), func() error {
		if err := d.checker().Transfer("write", b, offset, int64(len(data))); err != nil {
			return err
		}
		for len(data) > 0 {
			n := min(int64(len(data)), d.uploads.most())
			if err := d.upload(b.(*buffer), offset, data[:n]); err != nil {
				return err
			}
			offset, data = offset+n, data[n:]
		}
		return nil
	})
}

// upload sends a piece of a write.
func (d *Device) upload(b *buffer, offset int64, data []byte) error {
	n := int64(len(data))
	d.mu.Lock()
	at, end, ok := d.uploads.take(n)
	for ; !ok && d.lost == nil; at, end, ok = d.uploads.take(n) {
		d.room.Wait()
	}
	if d.lost != nil {
		defer d.mu.Unlock()
		return d.lost
	}
	d.mu.Unlock()
	copy(d.memory.up[at:], data)
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.sent-d.last.accepted >= window && d.lost == nil {
		d.room.Wait()
	}
	d.stretches = append(d.stretches, stretch{d.sent + 1, end})
	return d.add(&command{op: opWrite, buffer: b.id, offset: offset, n: n, at: at}, nil)
}

// Read enqueues a copy to the host.
func (d *Device) Read(b device.Buffer, offset, n int64) (device.Pending, error) {
	answer := newCall("read", label(b))
	err := d.do("read", answer.object, func() error {
		if err := d.checker().Transfer("read", b, offset, n); err != nil {
			return err
		}
		answer.data = make([]byte, n)
		return d.enqueue(&command{op: opRead, id: d.newID(), buffer: b.(*buffer).id, offset: offset, n: n}, answer)
	})
	if err != nil {
		return nil, err
	}
	return pending{answer}, nil
}

type pending struct{ *call }

func (p pending) Wait() ([]byte, error) {
	if err := p.wait(); err != nil {
		return nil, err
	}
	return p.data, nil
}

func (c *call) wait() error {
	<-c.done
	return c.err
}

// Sync waits until all enqueued work is done, and tells what went wrong with it.
func (d *Device) Sync() error {
	answer := newCall("sync", "")
	err := d.do("sync", "", func() error { return d.enqueue(&command{op: opSync, id: d.newID()}, answer) })
	if err != nil {
		return err
	}
	err = answer.wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deferred != nil && !errors.Is(err, device.ErrLost) {
		err, d.deferred = d.named("sync", "", d.deferred), nil
	}
	return err
}

// Close waits for enqueued work, and for the worker to end. Closing twice is fine.
func (d *Device) Close() error {
	d.turn.Lock()
	if d.close {
		d.turn.Unlock()
		<-d.ended
		return nil
	}
	d.close = true
	answer := newCall("close", "")
	err := d.enqueue(&command{op: opClose, id: d.newID()}, answer)
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.turn.Unlock()
	if err == nil {
		err = answer.wait()
	}
	if d.end(grace); err == nil && d.deferred != nil {
		err = d.named("close", "", d.deferred)
	}
	if errors.Is(err, device.ErrLost) {
		return nil // no error of closing it
	}
	return err
}

// end ends all that belongs to the device.
func (d *Device) end(wait time.Duration) {
	d.link.end()
	d.process.stop(wait)
	close(d.quit)
	d.conn.Close()
	d.reading.Wait()
	d.link.drain()
	_ = d.memory.close() // mapped by us: it cannot fail
	close(d.ended)
}

func label(b device.Buffer) string {
	if b == nil {
		return ""
	}
	return b.Label()
}
