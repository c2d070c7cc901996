package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// Kinds of control messages. On the wire a kind is one byte, integers are little-endian, and a text has a length of two
// bytes before it.
const (
	kindHello   = 1 // dialing side, first
	kindWelcome = 2 // the answer
	kindAck     = 3
	kindPing    = 4
	kindPong    = 5
	kindRefusal = 6 // dialing side, last; the other side ends the stream with a status
)

const (
	protocolVersion = 2
	maxID           = 256
	maxRefusal      = 1024
	maxGreeting     = 128 << 10
)

// hello opens a connection. The answer to it holds the fields incarnation and received only.
type hello struct {
	version     uint16
	from, to    string
	epoch       uint64          // 0: of a session
	incarnation uint64          // differs for each process, session and epoch
	known       uint64          // incarnation of the other side, of a session that goes on; 0: it has not answered yet
	greeting    []byte          // of a session that begins
	received    [classes]uint64 // fragments that the side has accepted so far
}

// ping is a ping or a pong. The times are Unix nanoseconds.
type ping struct {
	pong           bool
	sent, answered int64
}

// Refusal says why a side ends a connection. An aborted link does not come back in its epoch.
type Refusal struct {
	Code codes.Code
	Text string
}

func (r *Refusal) Error() string { return r.Text }

func refusalf(code codes.Code, format string, args ...any) *Refusal {
	return &Refusal{code, fmt.Sprintf(format, args...)}
}

func appendText(b []byte, text string, limit int) []byte {
	text = text[:min(len(text), limit)]
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(text))), text...)
}

func (h hello) encode() []byte {
	b := binary.LittleEndian.AppendUint16([]byte{kindHello}, h.version)
	b = appendText(appendText(b, h.from, maxID), h.to, maxID)
	b = binary.LittleEndian.AppendUint64(b, h.epoch)
	b = binary.LittleEndian.AppendUint64(b, h.known)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(h.greeting))), h.greeting...)
	return appendState(b, h)
}

func (h hello) encodeWelcome() []byte { return appendState([]byte{kindWelcome}, h) }

func appendState(b []byte, h hello) []byte {
	return appendCounts(binary.LittleEndian.AppendUint64(b, h.incarnation), h.received)
}

func appendCounts(b []byte, counts [classes]uint64) []byte {
	for _, n := range counts {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func encodeAck(received [classes]uint64) []byte { return appendCounts([]byte{kindAck}, received) }

func (p ping) encode() []byte {
	kind := byte(kindPing)
	if p.pong {
		kind = kindPong
	}
	b := binary.LittleEndian.AppendUint64([]byte{kind}, uint64(p.sent))
	return binary.LittleEndian.AppendUint64(b, uint64(p.answered))
}

func (r *Refusal) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte{kindRefusal}, uint32(r.Code))
	return appendText(b, r.Text, maxRefusal)
}

// decoder reads a control message. After a read beyond its end, ok is false.
type decoder struct {
	b  []byte
	ok bool
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.ok, d.b = false, nil
		return make([]byte, n)
	}
	taken := d.b[:n]
	d.b = d.b[n:]
	return taken
}

func (d *decoder) uint16() uint16 { return binary.LittleEndian.Uint16(d.take(2)) }
func (d *decoder) uint32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }
func (d *decoder) uint64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }

func (d *decoder) text(limit int) string { return string(d.bytes(int(d.uint16()), limit)) }

// bytes are the next n; nil if there are fewer, or more than a limit.
func (d *decoder) bytes(n, limit int) []byte {
	if n > limit || n > len(d.b) {
		d.ok, d.b = false, nil
		return nil
	}
	return d.take(n)
}

func (d *decoder) counts() (counts [classes]uint64) {
	for c := range counts {
		counts[c] = d.uint64()
	}
	return counts
}

// acknowledgment holds how many fragments of each class the peer has accepted.
type acknowledgment [classes]uint64

// welcome answers a hello.
type welcome hello

// decodeControl returns a hello, a welcome, an acknowledgment, a ping or a *Refusal.
func decodeControl(b []byte) (any, error) {
	d := &decoder{b, true}
	kind := d.take(1)[0]
	var m any
	switch kind {
	case kindHello:
		h := hello{version: d.uint16()}
		if d.ok && h.version != protocolVersion {
			return h, nil // what follows may differ
		}
		h.from, h.to, h.epoch, h.known = d.text(maxID), d.text(maxID), d.uint64(), d.uint64()
		h.greeting = bytes.Clone(d.bytes(int(d.uint32()), maxGreeting))
		h.incarnation, h.received = d.uint64(), d.counts()
		m = h
	case kindWelcome:
		m = welcome{incarnation: d.uint64(), received: d.counts()}
	case kindAck:
		m = acknowledgment(d.counts())
	case kindPing, kindPong:
		m = ping{kind == kindPong, int64(d.uint64()), int64(d.uint64())}
	case kindRefusal:
		m = &Refusal{codes.Code(d.uint32()), d.text(maxRefusal)}
	default:
		return nil, violationf("a control message has kind %d", kind)
	}
	if !d.ok || len(d.b) > 0 {
		return nil, violationf("a control message of kind %d has a wrong length", kind)
	}
	return m, nil
}

// now is the time as pings carry it.
func now() int64 { return time.Now().UnixNano() }
