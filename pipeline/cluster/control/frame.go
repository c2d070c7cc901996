package control

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	pieceSize   = 32 << 10 // bytes of a message in a frame
	window      = 1 << 20  // bytes of pieces that are sent and not acknowledged
	frameHeader = 33
	maxFrame    = frameHeader + 128<<10 // a hello is the largest
	maxName     = 200                   // bytes

	// framesPerSecond is how many frames the coordinator takes from one member. A member sends half as many at most.
	framesPerSecond = 20_000

	// MaxMessage is the largest request or reply, in bytes.
	MaxMessage = 32 << 20
)

// frameKind says what a frame is for. Frames other than pieces are not part of a stream: they may be lost.
type frameKind uint8

const (
	frameHello     frameKind = iota + 1 // up: begins or resumes a session; JSON
	frameWelcome                        // down: the session exists; JSON
	frameForgotten                      // down: the session does not exist; begin a new one
	frameRenew                          // up: renews the lease
	frameRenewed                        // down: answers frameRenew
	framePiece                          // both: a piece of a message, numbered
	frameAck                            // both: acknowledges pieces
	frameResend                         // both: acknowledges pieces and asks for those that follow
	framePing                           // down: time of the coordinator
	framePong                           // up: the same, and the time of the member twice
	frameGoodbye                        // up: the member leaves
	frameBye                            // down: the coordinator ends the session; JSON
	frameKinds
)

// frame is what NATS carries as one message.
type frame struct {
	kind         frameKind
	session      uint64 // chosen by the member, new for each session
	instance     uint64 // of the coordinator: new when it starts; 0 in a member's first hello
	sequence     uint64 // of a piece, from 1
	acknowledged uint64 // the last piece received in order
	body         []byte
}

// append encodes a frame.
func (f frame) append(b []byte) []byte {
	b = append(b, byte(f.kind))
	for _, n := range []uint64{f.session, f.instance, f.sequence, f.acknowledged} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return append(b, f.body...)
}

// decodeFrame is the inverse of append. The body aliases b.
func decodeFrame(b []byte) (frame, error) {
	if len(b) < frameHeader || len(b) > maxFrame {
		return frame{}, fmt.Errorf("frame: found %d bytes, expected %d to %d", len(b), frameHeader, maxFrame)
	}
	f := frame{kind: frameKind(b[0]), session: binary.BigEndian.Uint64(b[1:]), instance: binary.BigEndian.Uint64(b[9:]),
		sequence: binary.BigEndian.Uint64(b[17:]), acknowledged: binary.BigEndian.Uint64(b[25:]), body: b[frameHeader:]}
	if f.kind == 0 || f.kind >= frameKinds {
		return frame{}, fmt.Errorf("frame: found kind %d, expected 1 to %d", f.kind, frameKinds-1)
	}
	return f, nil
}

// messageKind says what a message is for.
type messageKind uint8

const (
	messageRequest messageKind = iota + 1 // down
	messageCancel                         // down: the request with this ID is no longer wanted
	messageReply                          // up: the result of the request with this ID
	messageFailure                        // up: the error of the request with this ID; JSON
	messageKinds
)

// message is what a stream carries.
type message struct {
	kind messageKind
	id   uint64 // of a request and its answer
	name string
	data []byte
}

// A piece begins with a byte of flags. The first piece of a message goes on with its header: kind, ID, length of the
// name, name, length of the data.
const (
	pieceFirst  = 1
	pieceLast   = 2
	pieceHeader = 1 + 1 + 8 + 1 + maxName + 4
)

// size returns the bytes that a message counts as in queues.
func (m message) size() int { return len(m.data) + len(m.name) + 64 }

func (m message) check() error {
	switch {
	case m.name == "" && m.kind != messageCancel && m.kind != messageReply && m.kind != messageFailure:
		return errors.New("name: empty, expected at least one byte")
	case len(m.name) > maxName:
		return fmt.Errorf("name: found %d bytes, expected at most %d", len(m.name), maxName)
	case len(m.data) > MaxMessage:
		return fmt.Errorf("%.40q: found %d bytes, expected at most %d", m.name, len(m.data), MaxMessage)
	}
	return nil
}

// appendPiece encodes the piece of m whose data begins at offset, and returns where the next one begins.
func (m message) appendPiece(b []byte, offset int) (piece []byte, next int) {
	next = min(len(m.data), offset+pieceSize)
	var flags byte
	if offset == 0 {
		flags |= pieceFirst
	}
	if next == len(m.data) {
		flags |= pieceLast
	}
	b = append(b, flags)
	if offset == 0 {
		b = append(b, byte(m.kind))
		b = binary.BigEndian.AppendUint64(b, m.id)
		b = append(b, byte(len(m.name)))
		b = append(b, m.name...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(m.data)))
	}
	return append(b, m.data[offset:next]...), next
}

// assembly puts pieces together again.
type assembly struct {
	message message
	total   int // bytes of data
	open    bool
}

var errPiece = errors.New("piece: malformed")

// add takes the next piece. It returns a message when its last piece is there. Memory grows with what has arrived, not
// with what a header declares.
func (a *assembly) add(b []byte) (m message, complete bool, err error) {
	if len(b) == 0 || b[0] > pieceFirst|pieceLast || (b[0]&pieceFirst != 0) == a.open {
		return message{}, false, errPiece
	}
	flags, b := b[0], b[1:]
	if flags&pieceFirst != 0 {
		if b, err = a.begin(b); err != nil {
			return message{}, false, err
		}
	}
	if len(b) > pieceSize || len(a.message.data)+len(b) > a.total {
		return message{}, false, errPiece
	}
	a.message.data = append(a.message.data, b...)
	if flags&pieceLast == 0 {
		if len(b) != pieceSize {
			return message{}, false, errPiece
		}
		return message{}, false, nil
	}
	if len(a.message.data) != a.total {
		return message{}, false, errPiece
	}
	m = a.message
	*a = assembly{}
	return m, true, nil
}

// begin reads the header of a message and returns what follows it.
func (a *assembly) begin(b []byte) ([]byte, error) {
	if len(b) < 10 || len(b) < 10+int(b[9])+4 {
		return nil, errPiece
	}
	name := b[10 : 10+int(b[9])]
	m := message{kind: messageKind(b[0]), id: binary.BigEndian.Uint64(b[1:]), name: string(name)}
	total := binary.BigEndian.Uint32(b[10+len(name):])
	if total > MaxMessage {
		return nil, fmt.Errorf("message %.40q: found %d bytes, expected at most %d", m.name, total, MaxMessage)
	}
	if m.kind == 0 || m.kind >= messageKinds || m.check() != nil {
		return nil, errPiece
	}
	*a = assembly{message: m, total: int(total), open: true}
	return b[10+len(name)+4:], nil
}
