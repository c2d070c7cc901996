package stage

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Machine is the state machine of one rank. Its driver calls Next at first and after every event, and carries out the
// effects.
type Machine struct {
	cfg      Config
	reader   *reader
	allowed  int // the last batch that may begin
	window   *window
	buffers  *buffers
	slots    []slots           // by chunk
	queue    []schedule.Action // Runs in progress
	received map[Message]bool  // messages of batches that are not finished
	effects  []Effect          // of the current Next
}

// Next returns the effects that can be carried out now, in order. If there are none, the machine waits for an event.
func (m *Machine) Next() []Effect {
	for m.communicate() || m.exchange() || m.compute() {
	}
	if _, more := m.head(); !more && len(m.window.batches) > 0 && m.window.batches[0].left > 0 {
		panic(fmt.Sprintf("stage: rank %d ends before the last backward of batch %d", m.cfg.rank(), m.window.finished))
	}
	effects := m.effects
	m.effects = nil
	return effects
}

// Finished reports that the device has finished a Run. Runs finish in order.
func (m *Machine) Finished(a schedule.Action) error {
	if len(m.queue) == 0 || m.queue[0] != a {
		return fmt.Errorf("rank %d: the device finished %v, expected the first of %v", m.cfg.rank(), a, m.queue)
	}
	m.queue = m.queue[1:]
	return nil
}

// Limit ends training before a batch: the machine drops the actions of that batch and later ones, and is done when the
// batches before are finished. All ranks must get the same limit, before any has begun that batch.
func (m *Machine) Limit(batch int) {
	if batch < m.window.begun() {
		panic(fmt.Sprintf("stage: rank %d is limited to batches before %d, but has begun batch %d", m.cfg.rank(), batch,
			m.window.begun()-1))
	}
	m.reader.limit = min(m.reader.limit, batch)
}

// WantsBatch reports whether the next action would begin a batch that is not allowed yet, and which batch.
func (m *Machine) WantsBatch() (batch int, wants bool) {
	a, ok := m.head()
	return m.window.begun(), ok && onMicrobatch(a) && a.Batch > m.allowed
}

// Allow permits the machine to begin batches up to this one.
func (m *Machine) Allow(batch int) { m.allowed = max(m.allowed, batch) }

// Done reports whether the action list has ended and all work is finished.
func (m *Machine) Done() bool {
	_, more := m.head()
	return !more && len(m.window.batches) == 0 && len(m.queue) == 0
}

// Close releases a machine that is not Done and will not be used again.
func (m *Machine) Close() { m.reader.stop() }

// onMicrobatch reports whether an action computes on a microbatch; the others communicate or belong to the exchange.
func onMicrobatch(a schedule.Action) bool { return a.Kind.Computes() && !a.Kind.PerBatch() }

// isProgram reports whether an action runs a program.
func isProgram(a schedule.Action) bool { return a.Kind.Computes() || a.Kind == schedule.GradNorm }

// head is the next action that is not a no-op.
func (m *Machine) head() (schedule.Action, bool) { return m.reader.next(m.isNoOp) }

// isNoOp reports whether the action is a no-op: a met deadline, or a receive (the action that needs the message waits
// instead).
func (m *Machine) isNoOp(a schedule.Action) bool {
	switch a.Kind {
	case schedule.RecvForward, schedule.RecvBackward:
		return true
	}
	return a.Kind.PerBatch() && !m.isPending(a)
}

// communicate executes the next action if it is a send.
func (m *Machine) communicate() bool {
	a, ok := m.head()
	switch {
	case ok && a.Kind == schedule.SendForward:
		m.sendToStage(a, Message{Kind: Activation, VirtualStage: m.cfg.virtualStage(a) + 1})
	case ok && a.Kind == schedule.SendBackward:
		m.sendToStage(a, Message{Kind: Gradient, VirtualStage: m.cfg.virtualStage(a) - 1})
	default:
		return false
	}
	m.reader.pass()
	return true
}

// compute executes the next action if it computes on a microbatch and can start.
func (m *Machine) compute() bool {
	a, ok := m.head()
	if !ok || !onMicrobatch(a) || a.Batch > m.allowed || len(m.queue) == m.cfg.QueueDepth || len(m.missing(a)) > 0 {
		return false
	}
	if a.Batch >= m.window.begun() {
		m.begin(a)
	}
	forward := a.Kind == schedule.Forward || a.Kind == schedule.Evaluate
	if forward {
		m.takeSlot(a)
	}
	m.claim()
	b, place := m.batch(a.Batch), m.place(a)
	if addsGradients(a) && place.Gradients < 0 {
		panic(fmt.Sprintf("stage: rank %d: %v has no buffer for its gradients: the batch before still holds it", m.cfg.rank(), a))
	}
	m.store(a, m.inputs(a), place)
	if v := m.cfg.virtualStage(a); forward && (v == 0 || v == m.cfg.last() || m.cfg.FeedAll) {
		m.effects = append(m.effects, Effect{Kind: Feed, Action: a, Place: place})
	}
	m.run(a, place, b.first(a))
	if addsGradients(a) || a.Kind == schedule.Evaluate {
		m.release(a)
		m.count(a, b)
	}
	m.reader.pass()
	return true
}

// exchange executes the next exchange action of the oldest batch, once its last backward is done.
func (m *Machine) exchange() bool {
	if len(m.window.batches) == 0 || m.window.batches[0].left > 0 {
		return false
	}
	b := m.window.batches[0]
	if len(b.exchange) == 0 {
		m.finish(b)
		return true
	}
	a := b.exchange[0]
	if len(m.missing(a)) > 0 || isProgram(a) && len(m.queue) == m.cfg.QueueDepth {
		return false
	}
	before, after := m.buffers.exchange(m.window.batches)
	switch a.Kind {
	case schedule.SendGrads:
		m.sendAll(a, Message{Kind: Contribution}, m.cfg.Peers.CopiesFrom, before)
	case schedule.RecvGrads:
		m.store(a, m.inputs(a), before)
	case schedule.GradNorm:
		m.run(a, before, false)
		if len(m.cfg.Peers.Owners) > 0 {
			m.send(a, Message{Kind: NormSquares}, -1, before)
		}
	case schedule.Update:
		m.store(a, m.inputs(a), before)
		m.run(a, before, false)
	case schedule.SendWeights:
		m.sendAll(a, Message{Kind: Weights}, m.cfg.Peers.CopiesTo, after)
	case schedule.RecvWeights:
		m.store(a, m.inputs(a), after)
	}
	b.exchange = b.exchange[1:]
	return true
}

func (m *Machine) run(a schedule.Action, p Place, first bool) {
	m.effects = append(m.effects, Effect{Kind: Run, Action: a, Place: p, First: first})
	m.queue = append(m.queue, a)
}

// send completes a message with the numbers of its action.
func (m *Machine) send(a schedule.Action, msg Message, to int, p Place) {
	msg.Batch, msg.Microbatch, msg.From = a.Batch, a.Microbatch, m.cfg.rank()
	m.effects = append(m.effects, Effect{Kind: Send, Action: a, Message: msg, To: to, Place: p})
}

// sendToStage sends an activation or a gradient to another virtual stage, which is a use of its slot.
func (m *Machine) sendToStage(a schedule.Action, msg Message) {
	m.send(a, msg, m.cfg.rankOf(msg.VirtualStage), m.place(a))
	m.release(a)
}

func (m *Machine) sendAll(a schedule.Action, msg Message, to []int, p Place) {
	for _, l := range to {
		m.send(a, msg, l, p)
	}
}

// store writes the payloads of messages that were received.
func (m *Machine) store(a schedule.Action, msgs []Message, p Place) {
	for _, msg := range msgs {
		m.effects = append(m.effects, Effect{Kind: Store, Action: a, Message: msg, Place: p})
	}
}
