package transport

import (
	"sync"
	"time"

	"google.golang.org/grpc/mem"
)

// outgoing is a message that is not acknowledged.
type outgoing struct {
	message   Message
	first     uint64 // sequence of its first fragment
	fragments uint64
	at        time.Time // of Send
	abandoned bool      // it was being sent when its epoch ended
	cut       bool      // and its last fragment says that the rest is missing
}

// outbox keeps the messages of a class until they are acknowledged.
type outbox struct {
	mu         sync.Mutex
	queue      []outgoing
	end        uint64 // sequence after the last fragment of the queue
	sent       uint64 // sequence after the last fragment that was ever sent
	acked      uint64 // fragments that the peer has accepted
	connection int    // whose writer may take fragments
	cursor     uint64 // sequence of the fragment that the writer takes next
	current    int    // index in queue of the message that the cursor is in
	stats      outboxStats
	wake       chan struct{} // holds a token after something was enqueued
	idle       chan struct{} // closed while the queue is empty
}

type outboxStats struct {
	bytes, messages, unacknowledged, resent int64
	wait                                    time.Duration
}

func newOutbox() *outbox {
	o := &outbox{wake: make(chan struct{}, 1), idle: make(chan struct{})}
	close(o.idle)
	return o
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (o *outbox) push(m Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.idle = make(chan struct{})
	}
	n := fragmentsOf(m)
	o.queue = append(o.queue, outgoing{message: m, first: o.end, fragments: n, at: time.Now()})
	o.end += n
	o.stats.unacknowledged += m.size()
	signal(o.wake)
}

// take returns the next fragment for the writer of a connection, or false if there is none.
func (o *outbox) take(connection int) (mem.BufferSlice, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if connection != o.connection || o.cursor == o.end {
		return nil, false
	}
	for o.cursor >= o.queue[o.current].first+o.queue[o.current].fragments {
		o.current++
	}
	q := &o.queue[o.current]
	var fragment mem.BufferSlice
	if k := o.cursor - q.first; q.cut && k == q.fragments-1 {
		fragment = encodeLast(o.cursor)
	} else {
		fragment = encodeFragment(q.message, o.cursor, k)
	}
	o.cursor++
	o.sent = max(o.sent, o.cursor)
	o.stats.bytes += int64(fragment.Len())
	return fragment, true
}

// pending reports whether there are fragments that were not sent on the present connection.
func (o *outbox) pending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cursor < o.end
}

// resume hands the outbox to a connection whose peer has accepted a number of fragments.
func (o *outbox) resume(connection int, accepted uint64) error {
	o.mu.Lock()
	acked := o.acked
	o.mu.Unlock()
	if accepted < acked {
		return violationf("%d fragments were accepted, but %d were acknowledged", accepted, acked)
	}
	if err := o.acknowledge(accepted); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connection, o.cursor, o.current = connection, accepted, 0
	for i := range o.queue {
		if o.queue[i].first < o.sent {
			o.stats.resent++
		}
	}
	signal(o.wake)
	return nil
}

// acknowledge drops the messages whose fragments have all been accepted. What is accepted is not taken again.
func (o *outbox) acknowledge(accepted uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if accepted > o.sent {
		return violationf("%d fragments are acknowledged, but %d were sent", accepted, o.sent)
	}
	o.acked = max(o.acked, accepted)
	o.cursor = max(o.cursor, o.acked)
	done := 0
	for done < len(o.queue) && o.queue[done].first+o.queue[done].fragments <= o.acked {
		if q := o.queue[done]; !q.abandoned {
			o.stats.messages++
			o.stats.unacknowledged -= q.message.size()
			o.stats.wait += time.Since(q.at)
		}
		o.queue[done] = outgoing{}
		done++
	}
	o.drop(done)
	return nil
}

// drop removes messages from the front of the queue.
func (o *outbox) drop(n int) {
	o.queue = o.queue[n:]
	o.current = max(0, o.current-n)
	if len(o.queue) == 0 && !isClosed(o.idle) {
		o.queue = nil
		close(o.idle)
	}
}

// abandon drops the messages of an epoch that has ended, and its statistics. What the peer may have received in part
// stays until it is acknowledged, without the fragments that were not sent.
func (o *outbox) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := 0
	for kept < len(o.queue) && o.queue[kept].first < o.sent {
		o.queue[kept].abandoned = true
		kept++
	}
	clear(o.queue[kept:])
	o.queue, o.end, o.stats = o.queue[:kept], o.sent, outboxStats{}
	if kept == 0 {
		o.drop(0)
		return
	}
	if q := &o.queue[kept-1]; !q.cut && q.first+q.fragments > o.sent {
		q.fragments, q.cut = o.sent-q.first+1, true
	}
	o.end = o.queue[kept-1].first + o.queue[kept-1].fragments
	signal(o.wake)
}

// clear drops all messages and takes the outbox from its connection.
func (o *outbox) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connection, o.cursor, o.end, o.stats.unacknowledged = noConnection, 0, 0, 0
	o.drop(len(o.queue))
}

// empty returns a channel that is closed once the queue is empty.
func (o *outbox) empty() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle
}

func (o *outbox) statistics() outboxStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stats
}
