//go:build unix

package sidecar

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"golang.org/x/sys/unix"
)

const (
	ackEvery     = 64           // commands
	maxHeldBytes = 32 << 20     // bytes of reads that the host has not fetched
	maxReads     = 1024         // reads in progress
	maxQueue     = 2 * maxFrame // bytes of queued commands
)

// worker serves one host. One goroutine reads commands, one carries them out in order, one waits for reads and sends
// their data, and one reports the state to the host regularly.
type worker struct {
	conn    *net.UnixConn
	outbox  *outbox
	memory  *memory
	silence time.Duration

	queue   chan *command
	queued  atomic.Int64 // bytes of queued commands
	answers chan *answer
	waiting sync.WaitGroup // goroutines that wait for the device

	lifetime
	status
	fetches
	execution
}

// lifetime is how a worker comes to its end.
type lifetime struct {
	ending chan struct{} // closed when the connection ends
	once   sync.Once
	err    error         // the cause; set before ending is closed
	worked chan struct{} // closed when the last command has been carried out
}

// status is a message, what the worker reports to its host: see event.
type status struct {
	accepted, moves atomic.Uint64
	fresh, staging  atomic.Int64
}

// fetches is the data of reads that the host has not fetched.
type fetches struct {
	mu        sync.Mutex
	room      sync.Cond // in the ring, or for reads
	downloads ring
	held      int64 // bytes
}

// execution belongs to the goroutine that carries out commands.
type execution struct {
	dev      device.Device
	buffers  map[uint64]device.Buffer
	programs map[uint64]*program
	seed     maphash.Seed
	seen     map[uint64]*seen // by the hash of a kernel's source
	acked    uint64
	consumed int64         // bytes of the upload ring since the last report
	unmarked time.Duration // expected duration of the runs since the last mark
}

func newWorker(conn *net.UnixConn, h *hello, m *memory) *worker {
	w := &worker{conn: conn, outbox: newOutbox(conn, maxBacklog), memory: m, silence: h.silence,
		queue: make(chan *command, window), answers: make(chan *answer, maxReads),
		lifetime: lifetime{ending: make(chan struct{}), worked: make(chan struct{})},
		fetches:  fetches{downloads: ring{size: int64(len(m.down))}},
		execution: execution{buffers: map[uint64]device.Buffer{}, programs: map[uint64]*program{}, seed: maphash.MakeSeed(),
			seen: map[uint64]*seen{}}}
	w.room.L = &w.mu
	return w
}

// serve serves until the connection or the context ends. A device that does not finish in time ends with the process.
func (w *worker) serve(ctx context.Context, open func() (device.Device, error)) error {
	stop := context.AfterFunc(ctx, func() { w.end(nil) })
	defer stop()
	var reading sync.WaitGroup
	reading.Go(w.read)
	reading.Go(w.live)
	go func() {
		defer close(w.worked)
		w.work(open)
	}()
	<-w.ending
	done := true
	select {
	case <-w.worked:
	case <-time.After(grace):
		done = false // the device may still use the memory
	}
	w.outbox.drain()
	w.conn.Close()
	reading.Wait()
	if done {
		_ = w.memory.close()
	}
	return w.err
}

// end ends everything. The first cause counts.
func (w *worker) end(err error) {
	w.once.Do(func() {
		w.err = err
		close(w.ending)
		w.outbox.end() // releases senders that wait for the host
		_ = w.conn.SetWriteDeadline(time.Now().Add(grace))
		w.mu.Lock()
		w.room.Broadcast()
		w.mu.Unlock()
		_ = w.conn.CloseRead() // ends the reader
	})
}

func (w *worker) over() bool {
	select {
	case <-w.ending:
		return true
	default:
		return false
	}
}

// read takes commands from the stream. An honest host keeps within the window, so the reader never waits.
func (w *worker) read() {
	f := frames{r: bufio.NewReaderSize(w.conn, 64<<10)}
	for {
		b, err := f.next()
		var c *command
		if err == nil {
			c = &command{}
			err = decode(b, c)
		}
		if err == nil {
			err = w.receive(c, int64(len(b)))
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
			w.end(nil) // the host is gone
			return
		default:
			w.end(fmt.Errorf("the host: %w", err))
			return
		}
	}
}

func (w *worker) receive(c *command, bytes int64) error {
	if c.op == opTaken {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.downloads.put(c.at) {
			return errors.New("it reported a read of data that was not written")
		}
		w.room.Broadcast()
		return nil
	}
	c.bytes = bytes
	if all := w.queued.Add(bytes); all > maxQueue {
		return fmt.Errorf("found %d bytes of commands in transit, expected at most %d", all, int64(maxQueue))
	}
	select {
	case w.queue <- c:
		return nil
	default:
		return fmt.Errorf("found more than %d commands in transit", window)
	}
}

// live reports the state to the host regularly.
func (w *worker) live() {
	ticker := time.NewTicker(beat(w.silence))
	defer ticker.Stop()
	for {
		select {
		case <-w.ending:
			return
		case <-ticker.C:
			w.outbox.offer(&w.status)
		}
	}
}

// code makes status a message: the state at the time when it is written.
func (w *status) code(c *coder) {
	fresh := w.fresh.Load() // read before moves: whatever reduces it increases moves
	e := event{kind: evState, accepted: w.accepted.Load(), moves: w.moves.Load(), fresh: fresh, staging: w.staging.Load()}
	e.code(c)
}

// report sends an event. If the device is lost, the worker ends.
func (w *worker) report(e *event) {
	w.moves.Add(1)
	w.outbox.send(e)
	if errors.Is(e.err, device.ErrLost) {
		w.end(e.err)
	}
}

func (w *worker) reply(id uint64, err error) { w.report(&event{kind: evDone, id: id, err: err}) }

// failed reports an error of work whose answer is not awaited.
func (w *worker) failed(err error) { w.report(&event{kind: evFailed, err: err}) }
