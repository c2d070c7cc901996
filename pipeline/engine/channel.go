package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// channels are the channels of an engine.
type channels struct {
	all      map[channelKey]*channel
	room     int64 // bytes of host memory that further staging buffers may take
	unshared int64 // bytes of the staging buffers that there was no room for
}

// channelKey identifies a channel: what one rank sends to another, activations for a virtual stage, say.
type channelKey struct {
	kind                   stage.MessageKind
	virtualStage, from, to int
}

// channel holds the staging buffers for the messages of one key. A message for which there is no channel, or no free
// staging buffer, passes as bytes.
type channel struct {
	buffers []*stagingBuffer
	idle    chan *stagingBuffer
}

// stagingBuffer is host memory for one message that both devices import: the sender copies to it, the receiver from it.
type stagingBuffer struct {
	*host.Mapping
	channel          *channel
	sender, receiver device.Buffer // the imports
	users            atomic.Int32  // devices that may touch it
}

// take returns a staging buffer that is free, or nil.
func (c *channel) take() *stagingBuffer {
	if c == nil {
		return nil
	}
	select {
	case s := <-c.idle:
		return s
	default: // an evaluation sends as far ahead as it can
		return nil
	}
}

// free returns the buffer to its channel, once its message has reached the receiver's device.
func (s *stagingBuffer) free() { s.channel.idle <- s }

// unuse records that a device does not touch the memory any more. The last one unmaps it.
func (s *stagingBuffer) unuse() {
	if s.users.Add(-1) == 0 {
		s.Unmap()
	}
}

func (s *stagingBuffer) release() {
	for _, b := range []device.Buffer{s.sender, s.receiver} {
		if b != nil {
			b.Release()
		}
	}
}

// stagingShare is the inverse of the share of host memory that staging buffers may take. A device without memory of its
// own takes up to three quarters.
const stagingShare = 4

// connect opens the channels between ranks whose devices import memory.
func (c *channels) connect(e *Engine) error {
	// A system may not report its memory.
	*c = channels{all: map[channelKey]*channel{}, room: cmp.Or(e.options.HostMemory, host.Memory(), math.MaxInt64) / stagingShare}
	l := e.options.Layout
	for _, r := range e.ranks {
		for chunk := range l.Chunks {
			v := r.virtualStage(chunk)
			if v+1 == l.virtualStages() {
				continue
			}
			if e.options.Wire.Activations != wire.F32 {
				continue
			}
			// A microbatch in flight between two virtual stages, in either direction, has a slot of the first.
			next := e.ranks[r.replica()*l.Stages+(v+1)%l.Stages]
			if err := errors.Join(
				c.open(e.ranks, channelKey{stage.Activation, v + 1, r.index, next.index}, r.slots, chunkVariable(model.ActOut, chunk)),
				c.open(e.ranks, channelKey{stage.Gradient, v, next.index, r.index}, r.slots,
					chunkVariable(model.GradIn, (v+1)/l.Stages))); err != nil {
				return err
			}
		}
	}
	for _, x := range e.exchanges { // one at a time: the owner answers contributions with weights
		if e.options.exchangeFormats(x.gradients) == nil {
			if err := c.open(e.ranks, channelKey{stage.Contribution, 0, x.from, x.to}, 1, x.gradients...); err != nil {
				return err
			}
		}
		if e.options.exchangeFormats(x.params) == nil {
			if err := c.open(e.ranks, channelKey{stage.Weights, 0, x.to, x.from}, 1, x.params...); err != nil {
				return err
			}
		}
	}
	return nil
}

// sharedSession is a Session whose variables lie in buffers of its rank's device; exec.Session is one.
type sharedSession interface {
	Buffer(variable string, at exec.Binding) (device.Buffer, error)
}

// sharedAlignment reports whether messages between two ranks pass in memory that both devices import, and its
// alignment.
func sharedAlignment(a, b *rank) (alignment int64, share bool) {
	if !a.local() || !b.local() {
		return 0, false
	}
	_, aShares := a.session.(sharedSession)
	_, bShares := b.session.(sharedSession)
	alignment, share = device.Share(a.device, b.device)
	return alignment, share && aShares && bShares
}

// open opens a channel for messages of some of the sender's variables. At most that many messages are in flight. A
// driver that imports no more memory leaves the channel with fewer staging buffers, or none, and so does a host without
// room.
func (c *channels) open(ranks []*rank, key channelKey, most int, variables ...string) error {
	from, to := ranks[key.from], ranks[key.to]
	alignment, share := sharedAlignment(from, to)
	if !share || len(variables) == 0 {
		return nil
	}
	size := int64(0)
	for _, name := range variables {
		b, err := from.session.(sharedSession).Buffer(name, exec.Binding{weightsClass: 0, gradientsClass: 0, slotClass: 0})
		if err != nil {
			return err
		}
		size += b.Size()
	}
	size = (size + alignment - 1) / alignment * alignment
	ch := &channel{idle: make(chan *stagingBuffer, most)}
	c.all[key] = ch
	for len(ch.buffers) < most {
		if size > c.room {
			c.unshared += size * int64(most-len(ch.buffers))
			return nil
		}
		s, err := ch.stage(fmt.Sprintf("%s to %s", from.name(), to.name()), size, alignment, from.device.(device.Importer),
			to.device.(device.Importer))
		switch {
		case errors.Is(err, device.ErrLost), errors.Is(err, device.ErrClosed):
			return err
		case err != nil:
			return nil
		}
		ch.buffers, c.room = append(ch.buffers, s), c.room-size
		s.free()
	}
	return nil
}

// stage maps a staging buffer and imports it into both devices.
func (c *channel) stage(label string, size, alignment int64, sender, receiver device.Importer) (*stagingBuffer, error) {
	m, err := host.Map(size, alignment)
	if err != nil {
		return nil, err
	}
	s := &stagingBuffer{Mapping: m, channel: c}
	s.users.Store(1) // until both have it
	defer s.unuse()
	for _, side := range []struct {
		device.Importer
		buffer *device.Buffer
	}{{sender, &s.sender}, {receiver, &s.receiver}} {
		s.users.Add(1)
		if *side.buffer, err = side.Import(label, m.Bytes, s.unuse); err != nil {
			*side.buffer = nil
			s.unuse()
			s.release()
			return nil, err
		}
	}
	return s, nil
}

// close releases all staging buffers.
func (c *channels) close() {
	for _, channel := range c.all {
		for _, s := range channel.buffers {
			s.release()
		}
	}
	c.all = nil
}

// bytes is the memory of the channels on which a rank sends.
func (c channels) bytes(from int) (bytes int64) {
	for key, channel := range c.all {
		for _, s := range channel.buffers {
			if key.from == from {
				bytes += int64(len(s.Bytes))
			}
		}
	}
	return bytes
}
