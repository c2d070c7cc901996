//go:build unix

package sidecar

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// window is how many commands may be in transit to the worker, which lags no further behind its host.
const window = 256

// connection is the host's end of a worker. It sends commands while the worker has room for them, and completes calls
// with the worker's answers. See receive.go for the events, and watchdog.go for a worker that gives no answer.
type connection struct {
	d          *Device
	process    *process
	socket     *net.UnixConn
	outbox     *outbox
	memory     *memory
	background background

	mu       sync.Mutex
	room     sync.Cond // the worker took commands, or is lost
	failed   failed
	calls    map[uint64]*call
	progress progress
	uploads  uploads
}

// background is the goroutines of a connection: the reader and the watchdog.
type background struct {
	sync.WaitGroup
	quit chan struct{} // closed when the worker need not be watched any longer
}

// failed is the error that calls return instead of being sent.
type failed struct {
	lost     error // for good
	deferred error // of enqueued work, until Sync
}

// uploads is the ring of shared memory for writes.
type uploads struct {
	ring
	stretches []stretch // in use, in order
}

// stretch is a part of the ring that is free again once so many commands have been carried out.
type stretch struct {
	until uint64
	end   int64
}

// call is a command whose answer is awaited.
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

func (c *call) wait() error {
	<-c.done
	return c.err
}

func newConnection(d *Device, p *process, socket *net.UnixConn, o Options) *connection {
	c := &connection{d: d, process: p, socket: socket, background: background{quit: make(chan struct{})}, calls: map[uint64]*call{},
		progress: progress{silence: o.silence(), setting: o.Setting, moved: time.Now(), heard: time.Now()},
		uploads:  uploads{ring: ring{size: ringBytes}}}
	c.room.L = &c.mu
	return c
}

// start sends and receives from now on.
func (c *connection) start() {
	c.outbox = newOutbox(c.socket, 0)
	c.background.Go(c.receive)
	c.background.Go(c.watch)
}

// usable returns the worker's loss, or the error of enqueued work, which Sync alone ignores.
func (c *connection) usable(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed.lost != nil || op == "sync" {
		return c.failed.lost
	}
	return c.failed.deferred
}

// staging returns the bytes of staging memory that the worker last reported.
func (c *connection) staging() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.progress.last.staging
}

// takeDeferred returns the error of enqueued work, once. A loss stays.
func (c *connection) takeDeferred() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed.deferred == nil || errors.Is(c.failed.deferred, device.ErrLost) {
		return nil
	}
	err := c.failed.deferred
	c.failed.deferred = nil
	return err
}

// enqueue sends a command when the worker has room for it. answer, if not nil, is completed by the worker's answer.
func (c *connection) enqueue(x *command, answer *call) error {
	if answer != nil && x.op != opRead { // the caller will wait for it
		defer c.outbox.flush()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.add(x, answer)
}

// add waits for room and adds a command to the outbox. The lock is held; the outbox must be flushed after it is
// released.
func (c *connection) add(x *command, answer *call) error {
	for c.progress.pending() >= window && c.failed.lost == nil {
		c.room.Wait()
	}
	if c.failed.lost != nil {
		return c.failed.lost
	}
	c.progress.sent++
	if answer != nil {
		c.calls[x.id] = answer
	}
	c.outbox.add(x)
	return nil
}

// expect awaits an answer to a command that is sent under another identifier.
func (c *connection) expect(id uint64, answer *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[id] = answer
}

// upload sends a piece of a write. It waits while the ring is full.
func (c *connection) upload(buffer uint64, offset int64, data []byte) error {
	n := int64(len(data))
	at, end, err := c.reserve(n)
	if err != nil {
		return err
	}
	copy(c.memory.up[at:], data)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.progress.pending() >= window && c.failed.lost == nil {
		c.room.Wait()
	}
	c.uploads.stretches = append(c.uploads.stretches, stretch{c.progress.sent + 1, end})
	return c.add(&command{op: opWrite, buffer: buffer, offset: offset, n: n, at: at}, nil)
}

// reserve takes n bytes of the ring for uploads.
func (c *connection) reserve(n int64) (at, end int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.failed.lost == nil {
		if at, end, ok := c.uploads.take(n); ok {
			return at, end, nil
		}
		c.room.Wait()
	}
	return 0, 0, c.failed.lost
}

// lose records that there will be no more answers, and fails all calls. The first cause counts.
func (c *connection) lose(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed.lost == nil {
		c.failed.lost = cause
	}
	for id, x := range c.calls {
		if x.err = c.failed.lost; id > 0 {
			x.err = c.d.owner.Named(x.op, x.object, c.failed.lost)
		}
		close(x.done)
		delete(c.calls, id)
	}
	c.room.Broadcast()
}

// end ends the worker, and waits for it, the reader and the watchdog.
func (c *connection) end(wait time.Duration) {
	c.outbox.end()
	c.process.stop(wait)
	close(c.background.quit)
	c.socket.Close()
	c.background.Wait()
	c.outbox.drain()
	_ = c.memory.close() // this process mapped it: closing cannot fail
}
