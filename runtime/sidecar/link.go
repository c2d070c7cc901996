package sidecar

import (
	"io"
	"sync"
)

// link sends frames in the order in which they are given. One goroutine writes; what is given meanwhile goes out together, so that
// whoever sends does not wait for the system.
type link struct {
	to   io.Writer
	most int // bytes that may wait to be written before send waits; 0: no bound

	mu     sync.Mutex
	moved  sync.Cond
	queue  []byte
	err    error // of writing
	ending bool
	ended  chan struct{}
}

func newLink(to io.Writer, most int) *link {
	l := &link{to: to, most: most, ended: make(chan struct{})}
	l.moved.L = &l.mu
	go l.write()
	return l
}

// send adds a frame. It is made while no other can be: what it tells is never older than what the frame before it told.
func (l *link) send(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.most > 0 && len(l.queue) > l.most && !l.over() {
		l.moved.Wait()
	}
	l.add(m)
}

// offer is send where that need not wait; else nothing.
func (l *link) offer(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.most == 0 || len(l.queue) <= l.most {
		l.add(m)
	}
}

func (l *link) over() bool { return l.ending || l.err != nil }

func (l *link) add(m message) {
	if l.over() {
		return
	}
	l.queue = appendFrame(l.queue, m)
	l.moved.Broadcast()
}

func (l *link) write() {
	defer close(l.ended)
	var out []byte
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(l.queue) == 0 && !l.over() {
			l.moved.Wait()
		}
		if len(l.queue) == 0 || l.err != nil {
			return
		}
		out, l.queue = l.queue, out[:0]
		if cap(l.queue) > 1<<20 {
			l.queue = nil // after a large program
		}
		l.moved.Broadcast()
		l.mu.Unlock()
		_, err := l.to.Write(out)
		l.mu.Lock()
		if err != nil {
			l.err = err
			l.moved.Broadcast()
		}
	}
}

// end has what is in the queue written, and nothing more.
func (l *link) end() {
	l.mu.Lock()
	l.ending = true
	l.moved.Broadcast()
	l.mu.Unlock()
}
