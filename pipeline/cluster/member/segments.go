package member

import (
	"fmt"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
)

// segments are the stretches of work of an epoch, one after the other, with what has arrived before its time.
type segments struct {
	mu         sync.Mutex
	current    *segment        // the newest; nil: none yet
	written    int64           // variables
	read       uint64          // the number of the newest Read
	changed    chan struct{}   // closed and replaced when one of them changes
	waiting    *protocol.Begin // its writes have not all arrived
	early      []message       // for the segment that begins next
	earlyBytes int64           // of their payloads
}

// message is a message of a segment.
type message struct {
	header  segmented
	payload [][]byte
}

// segmented is the header of a message of a segment: a Batch, Grant, End or Stage.
type segmented interface {
	protocol.Header
	InSegment() uint64
}

// mostEarly and mostEarlyBytes bound the messages that arrive before their segment.
const (
	mostEarly      = 1 << 14
	mostEarlyBytes = 1 << 30
)

// route returns the segment of a message. It keeps a message for the segment that begins next, and returns nil for one
// of a segment that has ended.
func (s *segments) route(m message) (*segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := m.header.InSegment()
	if number != s.number()+1 {
		if s.current == nil || number != s.current.number {
			return nil, nil
		}
		return s.current, nil
	}
	for _, tensor := range m.payload {
		s.earlyBytes += int64(len(tensor))
	}
	if len(s.early) >= mostEarly || s.earlyBytes > mostEarlyBytes {
		return nil, fmt.Errorf("%d messages of %d bytes before their segment %d, expected at most %d of %d", len(s.early)+1, s.earlyBytes,
			number, mostEarly, mostEarlyBytes)
	}
	s.early = append(s.early, m)
	return nil, nil
}

// newest is the number of the newest segment; 0: there is none.
func (s *segments) newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.number()
}

// number is newest of a caller that holds the lock.
func (s *segments) number() uint64 {
	if s.current == nil {
		return 0
	}
	return s.current.number
}

// begun reports whether there is a segment, or one is to begin.
func (s *segments) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != nil || s.waiting != nil
}

// wrote counts a variable that is written. It returns the Begin that waits for variables, or nil.
func (s *segments) wrote() *protocol.Begin {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
	s.change()
	return s.waiting
}

// asked notes the newest Read.
func (s *segments) asked(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = number
	s.change()
}

// change wakes those in await. The caller holds the lock.
func (s *segments) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until a condition on the variables that are written and the newest Read holds. It reports whether it
// does: one of two channels may be closed before.
func (s *segments) await(done, over <-chan struct{}, enough func(written int64, read uint64) bool) bool {
	for {
		s.mu.Lock()
		ready, changed := enough(s.written, s.read), s.changed
		s.mu.Unlock()
		if ready {
			return true
		}
		select {
		case <-changed:
		case <-done:
			return false
		case <-over:
			return false
		}
	}
}

// ready reports whether the variables before a Begin are written. If not, the Begin waits for them.
func (s *segments) ready(h protocol.Begin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written < h.Writes {
		s.waiting = &h
		return false
	}
	s.waiting = nil
	return true
}

// begin makes a segment the newest and returns the messages that have arrived for it.
func (s *segments) begin(next *segment) []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = next
	all := s.early
	s.early, s.earlyBytes = nil, 0
	return all
}
