package transport

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"google.golang.org/grpc/mem"
)

// A fragment on the wire, little-endian:
//
//	first of a message: kind uint8 | sequence uint64 | epoch uint64 | h uint32 | header [h]byte | n uint32 | sizes [n]uint64 | payload
//	each of the others: kind uint8 | sequence uint64 | payload
//	end of a message whose rest is not sent: kind uint8 | sequence uint64
const (
	fragmentPayload = 256 << 10
	maxHeader       = 4 << 10
	maxTensors      = 4096
	fragmentPrefix  = 1 + 8
	maxFragment     = fragmentPrefix + 8 + 4 + maxHeader + 4 + 8*maxTensors + fragmentPayload

	firstFragment = 1
	nextFragment  = 2
	lastFragment  = 3 // of a message that its sender has dropped in the middle
)

// violation is what a peer that keeps to the protocol never sends. It ends the link.
type violation struct{ text string }

func (v *violation) Error() string { return v.text }

func violationf(format string, args ...any) error {
	return &violation{fmt.Sprintf(format, args...)}
}

// checkMessage returns why a message cannot be sent.
func checkMessage(m Message, limit int64) error {
	switch {
	case m.Class >= classes:
		return fmt.Errorf("class %d: expected Hot, Bulk or Urgent", m.Class)
	case len(m.Header) > maxHeader:
		return fmt.Errorf("header of %d bytes: expected at most %d", len(m.Header), maxHeader)
	case len(m.Payload) > maxTensors:
		return fmt.Errorf("%d tensors: expected at most %d", len(m.Payload), maxTensors)
	case m.size() > limit:
		return fmt.Errorf("message of %d bytes: expected at most %d", m.size(), limit)
	}
	return nil
}

// fragmentsOf is the number of fragments of a message.
func fragmentsOf(m Message) uint64 {
	return uint64(max(1, (m.size()+fragmentPayload-1)/fragmentPayload))
}

// encodeFragment returns fragment k of a message without copying its payload.
func encodeFragment(m Message, sequence, k uint64) mem.BufferSlice {
	prefix := make([]byte, 0, fragmentPrefix+16+len(m.Header)+8*len(m.Payload))
	if k > 0 {
		prefix = append(prefix[:0:fragmentPrefix], nextFragment)
		prefix = binary.LittleEndian.AppendUint64(prefix, sequence)
	} else {
		prefix = append(prefix, firstFragment)
		prefix = binary.LittleEndian.AppendUint64(prefix, sequence)
		prefix = binary.LittleEndian.AppendUint64(prefix, m.Epoch)
		prefix = binary.LittleEndian.AppendUint32(prefix, uint32(len(m.Header)))
		prefix = append(prefix, m.Header...)
		prefix = binary.LittleEndian.AppendUint32(prefix, uint32(len(m.Payload)))
		for _, tensor := range m.Payload {
			prefix = binary.LittleEndian.AppendUint64(prefix, uint64(len(tensor)))
		}
	}
	fragment := mem.BufferSlice{mem.SliceBuffer(prefix)}
	skip, left := int64(k)*fragmentPayload, int64(fragmentPayload)
	for _, tensor := range m.Payload {
		if n := int64(len(tensor)); skip >= n {
			skip -= n
			continue
		}
		piece := tensor[skip:min(int64(len(tensor)), skip+left)]
		fragment, skip, left = append(fragment, mem.SliceBuffer(piece)), 0, left-int64(len(piece))
		if left == 0 {
			break
		}
	}
	return fragment
}

// encodeLast returns the fragment that ends a message whose rest is not sent.
func encodeLast(sequence uint64) mem.BufferSlice {
	return mem.BufferSlice{mem.SliceBuffer(binary.LittleEndian.AppendUint64([]byte{lastFragment}, sequence))}
}

// fragmentReader reads a fragment that has arrived. *mem.Reader is one.
type fragmentReader interface {
	io.Reader
	Remaining() int
}

func readUint32(r fragmentReader) (uint32, error) {
	var b [4]byte
	_, err := io.ReadFull(r, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

func readUint64(r fragmentReader) (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(r, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// assembler makes messages of the fragments of one class.
type assembler struct {
	class  Class
	limit  int64                   // of a message's payload, in bytes
	wanted func(epoch uint64) bool // messages of other epochs are counted and not kept; nil: all are wanted

	next    uint64 // sequence of the fragment that is expected
	partial bool   // a message has begun
	skips   bool   // and it is not wanted
	message Message
	sizes   []uint64
	tensor  int   // that the next byte belongs to
	missing int64 // bytes of the message's payload
}

// accept takes a fragment. It returns true with the message that the fragment completes. A fragment that was accepted
// before is dropped.
func (a *assembler) accept(r fragmentReader) (Message, bool, error) {
	var kind [1]byte
	if _, err := io.ReadFull(r, kind[:]); err != nil {
		return Message{}, false, violationf("a fragment ends within its prefix")
	}
	sequence, err := readUint64(r)
	switch {
	case err != nil:
		return Message{}, false, violationf("a fragment ends within its prefix")
	case kind[0] < firstFragment || kind[0] > lastFragment:
		return Message{}, false, violationf("fragment %d has kind %d, expected 1 to 3", sequence, kind[0])
	case sequence < a.next:
		return Message{}, false, nil
	case sequence > a.next:
		return Message{}, false, violationf("fragment %d arrived, expected %d", sequence, a.next)
	case (kind[0] != firstFragment) != a.partial:
		return Message{}, false, violationf("fragment %d has kind %d in the wrong place", sequence, kind[0])
	}
	switch kind[0] {
	case firstFragment:
		if err := a.begin(r); err != nil {
			return Message{}, false, err
		}
	case lastFragment:
		if r.Remaining() > 0 {
			return Message{}, false, violationf("fragment %d ends a message and brings %d bytes", sequence, r.Remaining())
		}
		a.next, a.message, a.sizes, a.partial = a.next+1, Message{}, nil, false
		return Message{}, false, nil
	}
	return a.fill(r)
}

// begin reads what the first fragment says of its message. It allocates no tensor.
func (a *assembler) begin(r fragmentReader) error {
	epoch, _ := readUint64(r)
	length, err := readUint32(r)
	if err != nil || length > maxHeader || int(length) > r.Remaining() {
		return violationf("a message declares a header of %d bytes, expected at most %d", length, maxHeader)
	}
	header := make([]byte, length)
	_, _ = io.ReadFull(r, header)
	count, err := readUint32(r)
	if err != nil || count > maxTensors || 8*int(count) > r.Remaining() {
		return violationf("a message declares %d tensors, expected at most %d", count, maxTensors)
	}
	sizes, total := make([]uint64, count), uint64(0)
	for i := range sizes {
		sizes[i], _ = readUint64(r)
		if sizes[i] > math.MaxInt64-total || total+sizes[i] > uint64(a.limit) {
			return violationf("a message declares a payload of at least %d bytes, expected at most %d", max(sizes[i], total), a.limit)
		}
		total += sizes[i]
	}
	a.missing, a.partial = int64(total), true
	if a.skips = a.wanted != nil && !a.wanted(epoch); !a.skips {
		a.message = Message{Class: a.class, Header: header, Payload: make([][]byte, count), Epoch: epoch}
		a.sizes, a.tensor = sizes, 0
	}
	return nil
}

// fill takes the payload of a fragment.
func (a *assembler) fill(r fragmentReader) (Message, bool, error) {
	n := int64(r.Remaining())
	switch {
	case n > a.missing:
		return Message{}, false, violationf("fragment %d brings %d bytes, but its message lacks %d", a.next, n, a.missing)
	case n == 0 && a.missing > 0:
		return Message{}, false, violationf("fragment %d is empty, but its message lacks %d bytes", a.next, a.missing)
	}
	if !a.skips {
		if err := a.keep(r); err != nil {
			return Message{}, false, err
		}
	}
	a.next, a.missing = a.next+1, a.missing-n
	if a.missing > 0 {
		return Message{}, false, nil
	}
	m := a.message
	a.message, a.sizes, a.partial = Message{}, nil, false
	for i, tensor := range m.Payload {
		if tensor == nil {
			m.Payload[i] = []byte{}
		}
	}
	return m, !a.skips, nil
}

// keep copies the payload of a fragment to the tensors. A tensor is allocated when its first byte is there.
func (a *assembler) keep(r fragmentReader) error {
	for r.Remaining() > 0 {
		tensor := &a.message.Payload[a.tensor]
		if *tensor == nil {
			*tensor = make([]byte, 0, a.sizes[a.tensor])
		}
		room := (*tensor)[len(*tensor):min(cap(*tensor), len(*tensor)+r.Remaining())]
		if _, err := io.ReadFull(r, room); err != nil {
			return fmt.Errorf("reading a fragment: %w", err)
		}
		*tensor = (*tensor)[:len(*tensor)+len(room)]
		if len(*tensor) == cap(*tensor) {
			a.tensor++
		}
	}
	return nil
}
