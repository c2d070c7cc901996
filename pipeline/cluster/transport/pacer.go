package transport

import (
	"slices"
	"sync"
	"time"
)

// Pacer sends messages to several peers, the first of an order first. Little is under way to each peer at a time, so
// that what comes first in the order does not wait behind the rest. A peer that does not acknowledge gets no more.
type Pacer[M any] struct {
	compare        func(a, b M) int // the order
	peer           func(message M) string
	bytes          func(message M) int64
	unacknowledged func() map[string]int64 // bytes that were sent to each peer and are not acknowledged, others than the Pacer's too
	send           func(message M)
	wake           chan struct{} // has room for one

	mu      sync.Mutex
	waiting []M
	flows   map[string]*flow // by peer: messages under way
}

// flow is what a Pacer has sent to a peer and the peer has not acknowledged.
type flow struct {
	sent  []int64 // bytes of messages, in their order
	bytes int64   // of all
	left  int64   // bytes of all kinds that were not acknowledged, at the last look
	fell  time.Time
}

// NewPacer makes a Pacer, which sends nothing before Run. send may not block.
func NewPacer[M any](compare func(a, b M) int, peer func(M) string, bytes func(M) int64, unacknowledged func() map[string]int64,
	send func(M)) *Pacer[M] {
	return &Pacer[M]{compare: compare, peer: peer, bytes: bytes, unacknowledged: unacknowledged, send: send,
		wake: make(chan struct{}, 1), flows: map[string]*flow{}}
}

// Unacknowledged is how many bytes of tensors are on their way to each peer that counts, for NewPacer.
func Unacknowledged(links []Link, counts func(peer string) bool) map[string]int64 {
	bytes := map[string]int64{}
	for _, l := range links {
		if l.Class == Bulk && counts(l.Peer) {
			bytes[l.Peer] = l.Unacknowledged
		}
	}
	return bytes
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
	signal(p.wake)
}

// Drop forgets messages that wait.
func (p *Pacer[M]) Drop(which func(M) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = slices.DeleteFunc(p.waiting, which)
}

// Pending is how many bytes wait or are under way to those peers that count. What peers that have stopped to
// acknowledge should get is not counted.
func (p *Pacer[M]) Pending(counts func(peer string) bool) (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	goes := func(peer string) bool {
		f := p.flows[peer]
		return counts(peer) && (f == nil || time.Since(f.fell) < pacerStuck)
	}
	for _, m := range p.waiting {
		if goes(p.peer(m)) {
			bytes += p.bytes(m)
		}
	}
	for peer, f := range p.flows {
		if goes(peer) {
			bytes += f.bytes
		}
	}
	return bytes
}

const (
	// pacerLook is the time between two looks at the messages under way.
	pacerLook = 20 * time.Millisecond
	// A peer gets the next message while less than pacerWindow of that size are under way to it, or less than
	// pacerBytes: acknowledgments take their time, too.
	pacerWindow = 4
	pacerBytes  = 1 << 20
	// pacerStuck is how long a peer that has stopped may take to acknowledge something.
	pacerStuck = 5 * time.Second
)

// Run sends messages until done is closed.
func (p *Pacer[M]) Run(done <-chan struct{}) {
	tick := time.NewTicker(pacerLook)
	defer tick.Stop()
	for {
		again := tick.C
		if busy := p.sendAll(); !busy {
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

// sendAll sends messages while it can. It reports whether others wait, or some are under way.
func (p *Pacer[M]) sendAll() (busy bool) {
	for {
		unacknowledged := p.unacknowledged()
		p.mu.Lock()
		p.look(unacknowledged)
		i := slices.IndexFunc(p.waiting, p.hasRoom)
		if i < 0 {
			defer p.mu.Unlock()
			return len(p.waiting)+len(p.flows) > 0
		}
		next := p.waiting[i]
		p.waiting = slices.Delete(p.waiting, i, i+1)
		f := p.flows[p.peer(next)]
		if f == nil {
			f = &flow{fell: time.Now()}
			p.flows[p.peer(next)] = f
		}
		f.sent, f.bytes = append(f.sent, p.bytes(next)), f.bytes+p.bytes(next)
		p.mu.Unlock()
		p.send(next)
	}
}

// look takes note of what peers have acknowledged: they acknowledge in order. The caller holds the lock.
func (p *Pacer[M]) look(unacknowledged map[string]int64) {
	for peer, f := range p.flows {
		left := unacknowledged[peer]
		if left < f.left {
			f.fell = time.Now()
		}
		f.left = left
		for len(f.sent) > 0 && f.bytes-f.sent[0] >= left {
			f.sent, f.bytes, f.fell = f.sent[1:], f.bytes-f.sent[0], time.Now()
		}
		if len(f.sent) == 0 {
			delete(p.flows, peer)
		}
	}
}

// hasRoom reports whether little is under way to the peer of a message. The caller holds the lock.
func (p *Pacer[M]) hasRoom(message M) bool {
	f := p.flows[p.peer(message)]
	return f == nil || f.bytes < max(pacerWindow*p.bytes(message), pacerBytes)
}
