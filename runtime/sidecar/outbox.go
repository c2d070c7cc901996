package sidecar

import (
	"io"
	"sync"
)

// outbox sends frames in the order in which they are added. A caller of flush writes its own frames and the frames that
// others added meanwhile. A goroutine writes frames without a flush, so a burst of frames is one write and add does not
// wait for the system.
type outbox struct {
	to   io.Writer
	most int // bytes that may be queued before send waits; 0: no bound

	mu      sync.Mutex
	moved   sync.Cond
	queue   []byte
	spare   []byte
	writing bool
	err     error // of the first failed write
	ended   bool
	done    chan struct{} // closed when the goroutine has ended
}

func newOutbox(to io.Writer, most int) *outbox {
	l := &outbox{to: to, most: most, done: make(chan struct{})}
	l.moved.L = &l.mu
	go l.work()
	return l
}

func (l *outbox) work() {
	defer close(l.done)
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.over() || len(l.queue) > 0 && l.err == nil {
		if len(l.queue) == 0 || l.writing {
			l.moved.Wait()
		} else {
			l.write()
		}
	}
}

// add queues a frame. The frame is made under the lock, so its content is never older than the content of the frame
// before it.
func (l *outbox) add(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.append(m)
	l.moved.Broadcast()
}

// send queues a frame and writes it.
func (l *outbox) send(m message) {
	l.mu.Lock()
	for l.most > 0 && len(l.queue) > l.most && !l.over() {
		l.moved.Wait()
	}
	l.append(m)
	l.mu.Unlock()
	l.flush()
}

// offer sends a frame if that need not wait. Otherwise it does nothing.
func (l *outbox) offer(m message) {
	l.mu.Lock()
	idle := !l.writing
	if idle {
		l.append(m)
	}
	l.mu.Unlock()
	if idle {
		l.flush()
	}
}

func (l *outbox) over() bool { return l.ended || l.err != nil }

func (l *outbox) append(m message) {
	if !l.over() {
		l.queue = appendFrame(l.queue, m)
	}
}

// flush writes the queued frames, unless another goroutine is writing.
func (l *outbox) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.writing && len(l.queue) > 0 && l.err == nil {
		l.write()
	}
}

// write writes the queued frames. It is called with mu held, and releases mu while it writes.
func (l *outbox) write() {
	out := l.queue
	l.queue, l.spare = l.spare[:0], nil
	l.writing = true
	l.mu.Unlock()
	_, err := l.to.Write(out)
	l.mu.Lock()
	l.writing, l.err = false, err
	if cap(out) <= 1<<20 { // a larger one held a program
		l.spare = out
	}
	l.moved.Broadcast()
}

// end discards frames that are added later.
func (l *outbox) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.moved.Broadcast()
}

// drain waits until the queued frames are written or cannot be written. It is called after end.
func (l *outbox) drain() { <-l.done }
