package transport

import (
	"slices"
	"sync"
	"time"
)

// Pacer sends messages to several peers one after the other, the first of an order first. Of messages that are sent at once, each
// link carries some of each, and all arrive late.
type Pacer[M any] struct {
	compare  func(a, b M) int // the order
	underWay func() int64     // bytes that are sent and not acknowledged
	bytes    func(message M) int64
	send     func(message M)
	wake     chan struct{} // has room for one

	mu      sync.Mutex
	waiting []M
}

// NewPacer makes a Pacer, which sends nothing before Run. send may not block.
func NewPacer[M any](compare func(a, b M) int, bytes func(M) int64, underWay func() int64, send func(M)) *Pacer[M] {
	return &Pacer[M]{compare: compare, underWay: underWay, bytes: bytes, send: send, wake: make(chan struct{}, 1)}
}

// Add takes a message.
func (p *Pacer[M]) Add(message M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, _ := slices.BinarySearchFunc(p.waiting, message, func(a, b M) int {
		if c := p.compare(a, b); c != 0 {
			return c
		}
		return -1 // behind its equals
	})
	p.waiting = slices.Insert(p.waiting, at, message)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Waiting is how many bytes wait of those messages that count.
func (p *Pacer[M]) Waiting(counts func(M) bool) (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.waiting {
		if counts(m) {
			bytes += p.bytes(m)
		}
	}
	return bytes
}

const (
	// pacerLook is the time between two looks at what is under way.
	pacerLook = 20 * time.Millisecond
	// pacerWindow is how many messages as large as the next may be under way before it: acknowledgments take their time, too.
	pacerWindow = 4
)

// Run sends messages until done is closed: the next one when little is under way.
func (p *Pacer[M]) Run(done <-chan struct{}) {
	tick := time.NewTicker(pacerLook)
	defer tick.Stop()
	for {
		again := tick.C
		if waits := p.sendNext(); !waits {
			again = nil
		}
		select {
		case <-again:
		case <-p.wake:
		case <-done:
			return
		}
	}
}

// sendNext sends messages while it can. It reports whether others wait.
func (p *Pacer[M]) sendNext() (waits bool) {
	for {
		underWay := p.underWay()
		p.mu.Lock()
		if len(p.waiting) == 0 || underWay > pacerWindow*p.bytes(p.waiting[0]) {
			defer p.mu.Unlock()
			return len(p.waiting) > 0
		}
		next := p.waiting[0]
		p.waiting = slices.Delete(p.waiting, 0, 1)
		p.mu.Unlock()
		p.send(next)
	}
}
