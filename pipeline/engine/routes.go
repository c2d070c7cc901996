package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/stage"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// way is what one line sends another: activations for a part, say.
type way struct {
	kind           stage.MessageKind
	part, from, to int
}

// route is memory for the messages of one way that both devices have imported: the sender copies to a block, the receiver from it. Where there
// is no route, or no block is free, a message is bytes.
type route struct {
	blocks []*block
	free   chan *block
}

// block is for one message.
type block struct {
	*host.Mapping
	route   *route
	out, in device.Buffer // the sender's and the receiver's
	devices atomic.Int32  // that may touch it
}

// take gives a block that is free, or nil.
func (r *route) take() *block {
	if r == nil {
		return nil
	}
	select {
	case b := <-r.free:
		return b
	default: // an evaluation sends as far ahead as it can
		return nil
	}
}

// give takes it back when its message has reached the receiver's device.
func (b *block) give() { b.route.free <- b }

// ended is called when a device does not touch it any more.
func (b *block) ended() {
	if b.devices.Add(-1) == 0 {
		b.Unmap()
	}
}

func (b *block) release() {
	for _, side := range []device.Buffer{b.out, b.in} {
		if side != nil {
			side.Release()
		}
	}
}

// share is the part of the host's memory that blocks may take, one of so many: a device without memory of its own takes up to three quarters.
const share = 4

// connect opens the routes between lines whose devices import memory.
func (e *Engine) connect() error {
	e.routes, e.unshared = map[way]*route{}, 0
	e.room = cmp.Or(e.HostMemory, host.Memory(), math.MaxInt64) / share // a system may not tell
	for _, l := range e.ranks {
		for chunk := range e.Chunks {
			part := chunk*e.Stages + l.stage
			if part+1 == e.virtualStages() {
				continue
			}
			// A microbatch that is on its way between two parts, there or back, has a slot of the first.
			next := e.ranks[l.replica*e.Stages+(part+1)%e.Stages]
			if err := errors.Join(
				e.open(way{stage.Activation, part + 1, l.index, next.index}, l.slots, chunkVariable(model.ActOut, chunk)),
				e.open(way{stage.Gradient, part, next.index, l.index}, l.slots, chunkVariable(model.GradIn, (part+1)/e.Stages))); err != nil {
				return err
			}
		}
	}
	for _, x := range e.exchanges { // one at a time: the owner answers contributions with weights
		if err := errors.Join(e.open(way{stage.Contribution, 0, x.from, x.to}, 1, x.gradients...),
			e.open(way{stage.Weights, 0, x.to, x.from}, 1, x.params...)); err != nil {
			return err
		}
	}
	return nil
}

// sharedSession is a Session whose variables lie in buffers of its line's device; exec.Session is one.
type sharedSession interface {
	Buffer(variable string, at exec.Binding) (device.Buffer, error)
}

// shares tells whether messages between two lines pass in memory that both devices import, and its alignment.
func (l *rank) shares(with *rank) (alignment int64, share bool) {
	_, here := l.session.(sharedSession)
	_, there := with.session.(sharedSession)
	alignment, share = device.Share(l.dev, with.dev)
	return alignment, share && here && there
}

// open makes a route for messages of those variables of the sender, so many of which can be under way. A driver that takes no more memory
// leaves fewer blocks, or none, and so does a host that has no more room.
func (e *Engine) open(w way, most int, variables ...string) error {
	from, to := e.ranks[w.from], e.ranks[w.to]
	alignment, share := from.shares(to)
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
	r := &route{free: make(chan *block, most)}
	e.routes[w] = r
	for len(r.blocks) < most {
		if size > e.room {
			e.unshared += size * int64(most-len(r.blocks))
			return nil
		}
		b, err := r.block(fmt.Sprintf("%s to %s", from.name(), to.name()), size, alignment, from.dev.(device.Importer), to.dev.(device.Importer))
		switch {
		case errors.Is(err, device.ErrLost), errors.Is(err, device.ErrClosed):
			return err
		case err != nil:
			return nil
		}
		r.blocks, e.room = append(r.blocks, b), e.room-size
		r.free <- b
	}
	return nil
}

// block makes one.
func (r *route) block(label string, size, alignment int64, out, in device.Importer) (*block, error) {
	m, err := host.Map(size, alignment)
	if err != nil {
		return nil, err
	}
	b := &block{Mapping: m, route: r}
	b.devices.Store(1) // until both have it
	defer b.ended()
	for _, side := range []struct {
		device.Importer
		buffer *device.Buffer
	}{{out, &b.out}, {in, &b.in}} {
		b.devices.Add(1)
		if *side.buffer, err = side.Import(label, m.Bytes, b.ended); err != nil {
			*side.buffer = nil
			b.ended()
			b.release()
			return nil, err
		}
	}
	return b, nil
}

// disconnect gives all blocks back.
func (e *Engine) disconnect() {
	for _, r := range e.routes {
		for _, b := range r.blocks {
			b.release()
		}
	}
	e.routes = nil
}

// shared is the memory of the routes that begin at a line, in bytes.
func (e *Engine) shared(l *rank) (bytes int64) {
	for w, r := range e.routes {
		for _, b := range r.blocks {
			if w.from == l.index {
				bytes += int64(len(b.Bytes))
			}
		}
	}
	return bytes
}

// fetch enqueues the copies of tensors to a block, or their reads where there is none.
func (w *worker) fetch(ts []tensor, b *block) (reads []device.Pending, err error) {
	if b != nil {
		return w.copies(ts, func(here device.Range, at int64) (from, to device.Range) {
			return here, device.Range{Buffer: b.out, Offset: at, Size: here.Size}
		})
	}
	for _, t := range ts {
		p, err := w.session.ReadAt(t.name, t.at)
		if err != nil {
			return nil, err
		}
		reads = append(reads, p)
	}
	return reads, nil
}

// unload enqueues the copies of what a block holds to where it belongs; then the block is free.
func (w *worker) unload(e stage.Effect, b *block) error {
	ps, err := w.copies(w.receives(e), func(here device.Range, at int64) (from, to device.Range) {
		return device.Range{Buffer: b.in, Offset: at, Size: here.Size}, here
	})
	if err != nil {
		return err
	}
	w.flights <- flight{e.Action, ps, func([][]byte) { b.give() }}
	return nil
}

// copies enqueues copies of tensors from or to a block, in which each has its place behind the one before.
func (w *worker) copies(ts []tensor, ends func(here device.Range, at int64) (from, to device.Range)) (ps []device.Pending, err error) {
	at := int64(0)
	for _, t := range ts {
		b, err := w.session.(sharedSession).Buffer(t.name, t.at)
		if err != nil {
			return nil, err
		}
		from, to := ends(device.Range{Buffer: b, Size: b.Size()}, at)
		p, err := w.dev.(device.Importer).Transfer(from, to)
		if err != nil {
			return nil, err
		}
		ps, at = append(ps, p), at+b.Size()
	}
	return ps, nil
}
