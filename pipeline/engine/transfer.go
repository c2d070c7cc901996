package engine

import (
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// transfer carries the payload of one message from the tensors of one rank to the tensors of another. Its sender
// creates it, reads the payload from its device and hands the transfer to the receiver, which writes the payload to its
// own device. The payload passes through a staging buffer that both devices import, or else as bytes through the host.
// A transfer belongs to one goroutine at a time: the channels between goroutines hand it over.
type transfer struct {
	message stage.Message
	state   transferState
	wire    encoding
	staging *stagingBuffer // nil: the payload passes as bytes
	payload [][]byte       // without a staging buffer, once read: the bytes of each tensor, encoded
	pooled  bool           // encode has returned the payload: this process has encoded it
	began   time.Time      // when the read began, for the trace
}

// transferState is the progress of a transfer. Each state follows the one before.
type transferState uint8

const (
	created   transferState = iota // nothing is enqueued
	reading                        // the sender's device copies the payload to the staging buffer or to the host
	inFlight                       // the payload has left the sender's device; the receiver does not know it yet
	received                       // the receiver's stage machine knows the message, and will ask for its payload
	writing                        // the receiver's device copies the payload to its tensors
	completed                      // the payload is written, and the staging buffer is free again
)

var transferStates = [...]string{"created", "reading", "in flight", "received", "writing", "completed"}

func (s transferState) String() string {
	if int(s) < len(transferStates) {
		return transferStates[s]
	}
	return fmt.Sprintf("transferState(%d)", uint8(s))
}

// newTransfer creates the transfer of a message over a channel, which is nil if the tensors are to be encoded, and may
// be nil if not. It takes a staging buffer if one is free.
func newTransfer(m stage.Message, c *channel, wire encoding) *transfer {
	return &transfer{message: m, wire: wire, staging: c.take()}
}

// String is as in "activation 0.1 for virtual stage 1 from rank 0: in flight, staged".
func (t *transfer) String() string {
	s := fmt.Sprintf("%v: %v", t.message, t.state)
	switch {
	case t.staging != nil:
		return s + ", staged"
	case t.payload != nil:
		n := 0
		for _, b := range t.payload {
			n += len(b)
		}
		return s + fmt.Sprintf(", %d bytes", n)
	}
	return s
}

// advance moves to the next state and panics if that is not the expected one.
func (t *transfer) advance(to transferState) {
	if t.state+1 != to {
		panic(fmt.Sprintf("engine: transfer of %v: cannot become %v", t, to))
	}
	t.state = to
}

// fail is an error of the transfer in its present state.
func (t *transfer) fail(err error) error { return fmt.Errorf("transfer of %v: %w", t, err) }

// read enqueues the copies of the sender's tensors to the staging buffer or to the host. The payload is complete when
// all are done.
func (t *transfer) read(p port, tensors []tensor) ([]device.Pending, error) {
	t.advance(reading)
	reads, err := p.read(tensors, t.staging)
	if err != nil {
		return nil, t.fail(err)
	}
	return reads, nil
}

// depart ends the read. payload is what the reads returned, nothing with a staging buffer.
func (t *transfer) depart(payload [][]byte) {
	t.advance(inFlight)
	if t.staging == nil {
		t.payload, t.pooled = t.wire.encode(payload), true
	}
}

// forReceiver is a transfer of the same payload for one of several receivers. A payload in a staging buffer has only
// one.
func (t *transfer) forReceiver() *transfer {
	c := *t
	return &c
}

// receive records that the receiver knows the message.
func (t *transfer) receive() { t.advance(received) }

// write enqueues the copies of the payload to the receiver's tensors. The caller completes the transfer when all are
// done; without a staging buffer there are none, and the device has taken the bytes.
func (t *transfer) write(p port, tensors []tensor) ([]device.Pending, error) {
	t.advance(writing)
	payload, err := t.wire.decode(t.payload)
	if err != nil {
		return nil, t.fail(err)
	}
	writes, err := p.write(tensors, t.staging, payload)
	if err != nil {
		return nil, t.fail(err)
	}
	t.wire.release(payload)
	return writes, nil
}

// complete ends the transfer and frees its staging buffer.
func (t *transfer) complete() {
	t.advance(completed)
	if t.staging != nil {
		t.staging.free()
	}
	if t.pooled {
		t.wire.release(t.payload)
	}
	t.payload = nil
}

// consume ends a transfer whose payload, a single tensor without a staging buffer, stays on the host.
func (t *transfer) consume() []byte {
	t.advance(writing)
	tensor := t.payload[0]
	t.complete()
	return tensor
}

// tensor is a variable of a rank, in one of its buffers.
type tensor struct {
	name string
	at   exec.Binding
}

func tensors(names []string, at exec.Binding) (ts []tensor) {
	for _, name := range names {
		ts = append(ts, tensor{name, at})
	}
	return ts
}

// port is a rank's access to its tensors.
type port struct {
	session Session
	device  device.Device
}

// read enqueues copies of tensors to a staging buffer, or to the host if it is nil.
func (p port) read(tensors []tensor, s *stagingBuffer) (reads []device.Pending, err error) {
	if s != nil {
		return p.copy(tensors, func(tensor device.Range, offset int64) (from, to device.Range) {
			return tensor, device.Range{Buffer: s.sender, Offset: offset, Size: tensor.Size}
		})
	}
	for _, t := range tensors {
		r, err := p.session.ReadAt(t.name, t.at)
		if err != nil {
			return nil, err
		}
		reads = append(reads, r)
	}
	return reads, nil
}

// write enqueues copies of a staging buffer, or of a payload's bytes if it is nil, to tensors. Only the former are
// pending afterwards.
func (p port) write(tensors []tensor, s *stagingBuffer, payload [][]byte) ([]device.Pending, error) {
	if s != nil {
		return p.copy(tensors, func(tensor device.Range, offset int64) (from, to device.Range) {
			return device.Range{Buffer: s.receiver, Offset: offset, Size: tensor.Size}, tensor
		})
	}
	for i, t := range tensors {
		if err := p.session.WriteAt(t.name, t.at, payload[i]); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// copy enqueues a copy for each tensor. In a staging buffer tensors lie one behind the other.
func (p port) copy(tensors []tensor, ends func(tensor device.Range, offset int64) (from, to device.Range)) (copies []device.Pending,
	err error) {
	offset := int64(0)
	for _, t := range tensors {
		b, err := p.session.(sharedSession).Buffer(t.name, t.at)
		if err != nil {
			return nil, err
		}
		c, err := p.device.(device.Importer).Transfer(ends(device.Range{Buffer: b, Size: b.Size()}, offset))
		if err != nil {
			return nil, err
		}
		copies, offset = append(copies, c), offset+b.Size()
	}
	return copies, nil
}
