package control

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

const (
	maxName = 200 // bytes

	// maxQueue is how many bytes of messages wait for the other side, in each direction of a session.
	maxQueue = 128 << 20

	// MaxMessage is the largest request or reply, in bytes.
	MaxMessage = transport.MaxUrgent
)

// ErrQueueFull is the error of a message for a process that has not taken earlier ones for too long.
var ErrQueueFull = fmt.Errorf("more than %d bytes wait for the other side", maxQueue)

// messageKind says what a message is for.
type messageKind uint8

const (
	messageRequest messageKind = iota + 1 // of the coordinator
	messageCancel                         // of the coordinator: the request with this ID is no longer wanted
	messageReply                          // of a member: the result of the request with this ID
	messageFailure                        // of a member: the error of the request with this ID; JSON
	messageEnd                            // of the coordinator: the run has ended; JSON
	messageKinds
)

// message is what coordinator and members say. As a message of package transport its header is kind, ID and name, and
// its payload the data.
type message struct {
	kind messageKind
	id   uint64 // of a request and its answer
	name string // of a request
	data []byte
}

func (m message) check() error {
	switch {
	case m.kind == 0 || m.kind >= messageKinds:
		return fmt.Errorf("message: found kind %d, expected 1 to %d", m.kind, messageKinds-1)
	case (m.kind == messageRequest) != (m.name != ""):
		return errors.New("name: expected one for a request, and none otherwise")
	case len(m.name) > maxName:
		return fmt.Errorf("name: found %d bytes, expected at most %d", len(m.name), maxName)
	case len(m.data) > MaxMessage:
		return fmt.Errorf("%.40q: found %d bytes, expected at most %d", m.name, len(m.data), MaxMessage)
	}
	return nil
}

// send enqueues a message. Small ones that others wait for pass a queue that is full.
func (m message) send(s *transport.Session) error {
	if err := m.check(); err != nil {
		return err
	}
	limited := m.kind == messageRequest || m.kind == messageReply
	if limited && s.Waiting()+int64(len(m.data)) > maxQueue {
		return ErrQueueFull
	}
	return s.Send(m.encode())
}

func (m message) encode() transport.Message {
	header := binary.BigEndian.AppendUint64([]byte{byte(m.kind)}, m.id)
	return transport.Message{Header: append(header, m.name...), Payload: [][]byte{m.data}}
}

// decode is the inverse of encode.
func decode(t transport.Message) (m message, err error) {
	const start = 1 + 8 // of the name
	if len(t.Header) < start || len(t.Payload) != 1 {
		return m, fmt.Errorf("message: found a header of %d bytes and %d tensors, expected at least %d and 1", len(t.Header),
			len(t.Payload), start)
	}
	m = message{kind: messageKind(t.Header[0]), id: binary.BigEndian.Uint64(t.Header[1:]), name: string(t.Header[start:]),
		data: t.Payload[0]}
	return m, m.check()
}
