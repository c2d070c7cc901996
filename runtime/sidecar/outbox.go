package sidecar

import (
	"io"
	"sync"
)

// outbox sends frames in the order in which they are added. Whoever flushes writes, and what others add meanwhile with it. What nobody
// flushes a goroutine does, as soon as it comes to it: a burst of frames goes out together, and whoever adds does not wait for the system.
type outbox struct {
	to   io.Writer
	most int // bytes that may wait to be written before send waits; 0: no bound

	mu      sync.Mutex
	moved   sync.Cond
	queue   []byte
	spare   []byte
	writing bool
	err     error // of writing
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

// add adds a frame for whoever writes next. It is made while no other can be: what it tells is never older than what the frame before it
// told.
func (l *outbox) add(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.append(m)
	l.moved.Broadcast()
}

// send adds a frame and writes it.
func (l *outbox) send(m message) {
	l.mu.Lock()
	for l.most > 0 && len(l.queue) > l.most && !l.over() {
		l.moved.Wait()
	}
	l.append(m)
	l.mu.Unlock()
	l.flush()
}

// offer is send where that need not wait; else nothing.
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

// flush writes what was added, unless another does.
func (l *outbox) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.writing && len(l.queue) > 0 && l.err == nil {
		l.write()
	}
}

// write is called under mu, which it lets go meanwhile.
func (l *outbox) write() {
	out := l.queue
	l.queue, l.spare = l.spare[:0], nil
	l.writing = true
	l.mu.Unlock()
	_, err := l.to.Write(out)
	l.mu.Lock()
	l.writing, l.err = false, err
	if cap(out) <= 1<<20 { // else it held a large program
		l.spare = out
	}
	l.moved.Broadcast()
}

// end takes no more frames.
func (l *outbox) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.moved.Broadcast()
}

// drain waits until what was added is written, or cannot be; after end.
func (l *outbox) drain() { <-l.done }
