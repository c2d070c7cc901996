package control

import (
	"errors"
	"fmt"
)

// maxQueue is how many bytes of messages wait for the other side, in each direction of a session.
const maxQueue = 128 << 20

// ErrQueueFull is the error of a message for a process that has not taken earlier ones for too long.
var ErrQueueFull = fmt.Errorf("more than %d bytes wait for the other side", maxQueue)

// sender is the sending end of a stream. It does no input or output and has no lock.
type sender struct {
	queue  []message // not cut into pieces yet, but for the first
	offset int       // of the data of the first message that is not cut yet
	bytes  int       // of queued messages and unacknowledged pieces

	unacknowledged []piece
	sent           int // pieces of unacknowledged that this connection has carried
	inFlight       int // bytes of unacknowledged
	last           uint64
}

type piece struct {
	sequence uint64
	body     []byte
}

func (s *sender) add(m message) error {
	if err := m.check(); err != nil {
		return err
	}
	if s.bytes+m.size() > maxQueue {
		return ErrQueueFull
	}
	s.queue = append(s.queue, m)
	s.bytes += m.size()
	return nil
}

// next returns the next piece to send, if the window has room for it.
func (s *sender) next() (piece, bool) {
	if s.sent < len(s.unacknowledged) {
		s.sent++
		return s.unacknowledged[s.sent-1], true
	}
	if len(s.queue) == 0 || s.inFlight >= window {
		return piece{}, false
	}
	m := s.queue[0]
	body, next := m.appendPiece(make([]byte, 0, min(len(m.data)-s.offset, pieceSize)+pieceHeader), s.offset)
	s.last++
	p := piece{s.last, body}
	s.unacknowledged = append(s.unacknowledged, p)
	s.sent++
	s.inFlight += len(body)
	s.bytes += len(body)
	s.offset = next
	if next == len(m.data) {
		s.queue[0] = message{}
		s.queue = s.queue[1:]
		s.offset = 0
		s.bytes -= m.size()
	}
	return p, true
}

// acknowledge drops pieces that have arrived. It reports whether the window has grown.
func (s *sender) acknowledge(sequence uint64) bool {
	n := 0
	for n < len(s.unacknowledged) && s.unacknowledged[n].sequence <= sequence {
		s.inFlight -= len(s.unacknowledged[n].body)
		s.bytes -= len(s.unacknowledged[n].body)
		s.unacknowledged[n].body = nil
		n++
	}
	s.unacknowledged = s.unacknowledged[n:]
	s.sent = max(0, s.sent-n)
	return n > 0
}

// rewind sends all unacknowledged pieces again.
func (s *sender) rewind() { s.sent = 0 }

// idle reports whether everything has arrived.
func (s *sender) idle() bool { return len(s.queue) == 0 && len(s.unacknowledged) == 0 }

// receiver is the receiving end of a stream. It does no input or output and has no lock.
type receiver struct {
	received uint64 // the last piece that came in order
	waiting  int    // bytes of complete messages that are not handled yet
	held     uint64 // what acknowledged reported when waiting became too large; 0: nothing is held back
	asked    uint64 // the piece that was last asked for again, plus one
	assembly assembly
}

var errWindow = errors.New("the sender ignores the window")

// take accepts the next piece. It reports whether pieces before it are missing: the caller asks for them then. A piece
// that came before is dropped.
func (r *receiver) take(sequence uint64, body []byte) (m message, complete, missing bool, err error) {
	switch {
	case sequence <= r.received:
		return message{}, false, false, nil
	case sequence > r.received+1:
		again := r.asked == r.received+1
		r.asked = r.received + 1
		return message{}, false, !again, nil
	case r.waiting > maxQueue+2*window:
		return message{}, false, false, errWindow
	}
	m, complete, err = r.assembly.add(body)
	if err != nil {
		return message{}, false, false, err
	}
	r.received++
	if complete {
		r.waiting += m.size()
	}
	if r.held == 0 && r.waiting > maxQueue/2 {
		r.held = r.received
	}
	return m, complete, false, nil
}

// acknowledged returns the last piece to acknowledge. It stays behind while too much waits to be handled, which stops
// the sender.
func (r *receiver) acknowledged() uint64 {
	if r.held > 0 {
		return r.held
	}
	return r.received
}

// handled says that a message needs no memory any more. It reports whether the sender may go on.
func (r *receiver) handled(m message) bool {
	r.waiting -= m.size()
	if r.held > 0 && r.waiting <= maxQueue/4 {
		r.held = 0
		return true
	}
	return false
}
