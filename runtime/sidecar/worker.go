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
	maxHeldBytes = 32 << 20     // bytes of reads that the host has not got
	maxReads     = 1024         // of them
	maxQueue     = 2 * maxFrame // bytes of commands that wait
)

// worker serves one host. A goroutine reads commands, one carries them out in order, one waits for reads and hands them on, and one
// tells the host that all this is alive.
type worker struct {
	conn    *net.UnixConn
	outbox  *outbox
	memory  *memory
	silence time.Duration

	queue   chan *command
	queued  atomic.Int64  // bytes of them
	ending  chan struct{} // closed when there is nothing more to do for the host
	once    sync.Once
	err     error // why; set before ending is closed
	worked  chan struct{}
	answers chan *answer
	waiting sync.WaitGroup // for the device, for the host's sake

	accepted, moves atomic.Uint64
	fresh, staging  atomic.Int64

	mu        sync.Mutex
	room      sync.Cond // in the ring, or for reads
	downloads ring
	held      int64 // bytes of reads

	// What follows belongs to the goroutine that carries out commands.
	dev      device.Device
	buffers  map[uint64]device.Buffer
	programs map[uint64]*program
	seed     maphash.Seed
	seen     map[uint64]*seen // by the source of a kernel, hashed
	acked    uint64
	consumed int64         // bytes of the upload ring since then
	unmarked time.Duration // that the runs since the last mark are expected to take
}

func newWorker(conn *net.UnixConn, h *hello, m *memory) *worker {
	w := &worker{conn: conn, outbox: newOutbox(conn, maxBacklog), memory: m, silence: h.silence,
		queue: make(chan *command, window), ending: make(chan struct{}), worked: make(chan struct{}), answers: make(chan *answer, maxReads),
		downloads: ring{size: int64(len(m.down))},
		buffers:   map[uint64]device.Buffer{}, programs: map[uint64]*program{}, seed: maphash.MakeSeed(), seen: map[uint64]*seen{}}
	w.room.L = &w.mu
	return w
}

// serve serves until the connection or the context ends. What the device then does not end in a moment ends with the process.
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
		done = false // what still uses the memory keeps it
	}
	w.outbox.drain()
	w.conn.Close()
	reading.Wait()
	if done {
		_ = w.memory.close()
	}
	return w.err
}

// end has everything come to an end; the first cause counts.
func (w *worker) end(err error) {
	w.once.Do(func() {
		w.err = err
		close(w.ending)
		w.outbox.end() // who waits for a host to take answers need not
		_ = w.conn.SetWriteDeadline(time.Now().Add(grace))
		w.mu.Lock()
		w.room.Broadcast()
		w.mu.Unlock()
		_ = w.conn.CloseRead() // the reader is to notice
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

// read takes commands from the stream. An honest host has no more under way than there is room for, so that the reader never waits.
func (w *worker) read() {
	f := frames{r: bufio.NewReaderSize(w.conn, 64<<10)}
	for {
		b, err := f.next()
		var c *command
		if err == nil {
			c, err = decodeCommand(b)
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
			return errors.New("it has read what was never written")
		}
		w.room.Broadcast()
		return nil
	}
	c.bytes = bytes
	if all := w.queued.Add(bytes); all > maxQueue {
		return fmt.Errorf("commands of %d bytes under way, expected %d at most", all, int64(maxQueue))
	}
	select {
	case w.queue <- c:
		return nil
	default:
		return fmt.Errorf("more than %d commands under way", window)
	}
}

// live tells the host again and again how things are.
func (w *worker) live() {
	ticker := time.NewTicker(beat(w.silence))
	defer ticker.Stop()
	for {
		select {
		case <-w.ending:
			return
		case <-ticker.C:
			w.outbox.offer((*state)(w))
		}
	}
}

// state is a message: how things are when it is written.
type state worker

func (w *state) append(b []byte) []byte {
	fresh := w.fresh.Load() // first: with what makes it less there is a move
	e := event{kind: evState, accepted: w.accepted.Load(), moves: w.moves.Load(), fresh: fresh, staging: w.staging.Load()}
	return e.append(b)
}

// tell sends an event. A device that is lost is the worker's end.
func (w *worker) tell(e *event) {
	w.moves.Add(1)
	w.outbox.send(e)
	if errors.Is(e.err, device.ErrLost) {
		w.end(e.err)
	}
}

func (w *worker) reply(id uint64, err error) { w.tell(&event{kind: evDone, id: id, err: err}) }

// failed tells of an error of work that nobody waits for.
func (w *worker) failed(err error) { w.tell(&event{kind: evFailed, err: err}) }
