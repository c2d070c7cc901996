package member

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

const (
	eventsBytes = protocol.MaxEvents - 4<<10 // a message is sent when it has as many
	eventsEvery = time.Second                // or when it is as old
	mostEvents  = 64                         // messages that wait for permission; further events are dropped
)

// timestamps turns times of this process into Unix nanoseconds. Each time.Time has a wall clock reading and a monotonic
// one, which are taken one after the other. Durations are of the monotonic clock, so starts have to be too: else events
// that follow each other overlap by some nanoseconds. Times of other processes, which are wall clock readings alone,
// stay as they are.
type timestamps struct {
	mu     sync.Mutex
	anchor time.Time // whose wall clock reading counts
}

// of is the time stamp of a time. It differs from the wall clock by at most protocol.TimestampError: after that, as
// when the clock is set, the wall clock counts again. A thread that is interrupted between the two readings of one time
// is no reason for that, so it takes further times.
func (s *timestamps) of(t time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for now, n := t, 0; s.off(now); now, n = time.Now(), n+1 {
		if n == 3 {
			s.anchor = now
		}
	}
	return s.stamp(t)
}

// stamp is the time stamp by the present anchor. The caller holds the lock, here and below.
func (s *timestamps) stamp(t time.Time) int64 {
	return s.anchor.UnixNano() + t.Sub(s.anchor).Nanoseconds()
}

// off reports whether the time stamp is too far from the wall clock.
func (s *timestamps) off(t time.Time) bool {
	return s.anchor.IsZero() || time.Duration(s.stamp(t)-t.UnixNano()).Abs() > protocol.TimestampError
}

// recording is the trace of this member's ranks. It sends events in messages, as many as the coordinator permits: a
// slow link delays the trace, and never takes more memory than mostEvents messages. It implements engine.Tracer.
type recording struct {
	send  func(h protocol.Events, payload [][]byte)
	times *timestamps

	mu      sync.Mutex
	events  [][]byte // encoded, of the next message
	size    int      // their bytes
	oldest  time.Time
	waiting [][]byte // messages
	sent    int
	limit   int // of sent
	dropped int
	ended   bool
}

// record begins, continues or ends the trace of the ranks.
func (e *epoch) record(h protocol.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.events == nil {
		if e.segments.begun() {
			return fmt.Errorf("a trace is to begin in segment %d, expected that before the first", e.segments.newest())
		}
		e.events = &recording{times: &e.times, send: func(h protocol.Events, payload [][]byte) {
			e.send(e.member.options.Coordinator, transport.Bulk, h, payload)
		}}
		e.engine.SetTrace(e.events)
	}
	if h.Last {
		e.events.end()
	} else {
		e.events.permit(h.Messages)
	}
	return nil
}

// Complete implements engine.Tracer.
func (r *recording) Complete(track string, c trace.Category, name string, start time.Time, d time.Duration, args map[string]any) {
	e := protocol.Event{Track: track, Category: c, Name: name, Start: r.times.of(start), Duration: d.Nanoseconds(),
		Args: map[string]int64{}}
	for key, value := range args {
		if n, ok := value.(int); ok {
			e.Args[key] = int64(n)
		}
	}
	r.add(e)
}

// Flow implements engine.Tracer.
func (r *recording) Flow(name, from string, sent time.Time, to string, received time.Time) {
	r.add(protocol.Event{Track: to, Name: name, Start: r.times.of(received), From: from, Sent: r.times.of(sent)})
}

// add keeps an event for the next message.
func (r *recording) add(e protocol.Event) {
	text := e.Encode()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || len(text) > eventsBytes {
		return
	}
	if r.size+len(text) > eventsBytes || len(r.events) > 0 && time.Since(r.oldest) > eventsEvery {
		r.close()
	}
	if len(r.events) == 0 {
		r.oldest = time.Now()
	}
	r.events, r.size = append(r.events, text), r.size+len(text)+1
	r.pump()
}

// close makes a message of the events so far, or drops them. The caller holds the lock, here and below.
func (r *recording) close() {
	switch {
	case len(r.events) == 0:
		return
	case len(r.waiting) >= mostEvents:
		r.dropped += len(r.events)
	default:
		r.waiting = append(r.waiting, protocol.EncodeEvents(r.events))
	}
	r.events, r.size = nil, 0
}

// pump sends the messages that are permitted.
func (r *recording) pump() {
	for len(r.waiting) > 0 && r.sent < r.limit {
		r.send(protocol.Events{Dropped: r.dropped}, [][]byte{r.waiting[0]})
		r.waiting, r.sent = r.waiting[1:], r.sent+1
	}
}

// permit permits a number of messages in all.
func (r *recording) permit(limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit = max(r.limit, limit)
	r.pump()
}

// end sends the remaining events.
func (r *recording) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.close()
	r.ended, r.limit = true, r.sent+len(r.waiting)
	r.pump()
	r.send(protocol.Events{Dropped: r.dropped, Last: true}, [][]byte{protocol.EncodeEvents(nil)})
}
