package stage

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Machine follows one line. After every event (and at first) its owner calls Next and does what it says.
type Machine struct {
	cfg      Config
	pull     func() (schedule.Action, bool)
	stop     func()
	ahead    []schedule.Action // of the line, not yet passed; exchange actions stay as deadlines after they are done
	fetched  int               // the last batch whose computation is seen in the line
	limit    int               // the first batch that is not to begin
	allowed  int               // the last batch that may begin
	begun    int               // batches below have begun
	finished int               // batches below are finished
	batches  []*batch          // the batches between, in order
	versions []int             // buffers of the weights of batches to come, in order
	free     []int             // buffers for the gradients of batches to come, in order
	slots    [][]slot          // of each chunk
	queue    []schedule.Action // Runs given and not yet finished
	mail     map[Message]bool  // which messages have arrived, of batches not finished
	effects  []Effect          // of this Next
}

// Next is everything that can be done now, in order; when there is nothing, an event has to come first.
func (m *Machine) Next() []Effect {
	for m.communicate() || m.exchange() || m.compute() {
	}
	if _, more := m.head(); !more && len(m.batches) > 0 && m.batches[0].left > 0 {
		panic(fmt.Sprintf("stage: line %d ends before the last backward of batch %d", m.cfg.line(), m.finished))
	}
	effects := m.effects
	m.effects = nil
	return effects
}

// Finished says that the device has finished a Run; it does so in order.
func (m *Machine) Finished(a schedule.Action) error {
	if len(m.queue) == 0 || m.queue[0] != a {
		return fmt.Errorf("line %d: the device finished %v, expected the first of %v", m.cfg.line(), a, m.queue)
	}
	m.queue = m.queue[1:]
	return nil
}

// Limit says that no batch from this one on begins any more: what the line has of them is dropped, and it ends when the batches
// before are finished. All lines get the same limit, before any has begun that batch.
func (m *Machine) Limit(batch int) {
	if batch < m.begun {
		panic(fmt.Sprintf("stage: line %d is limited to batches before %d, but has begun batch %d", m.cfg.line(), batch, m.begun-1))
	}
	m.limit = min(m.limit, batch)
}

// WantsBatch tells whether the line's next action would begin a batch that is not allowed yet, and which.
func (m *Machine) WantsBatch() (batch int, wants bool) {
	a, ok := m.head()
	return m.begun, ok && computes(a) && a.Batch > m.allowed
}

// Allow permits the line to begin batches up to this one.
func (m *Machine) Allow(batch int) { m.allowed = max(m.allowed, batch) }

// Done tells whether the line has ended and all of its work is finished.
func (m *Machine) Done() bool {
	_, more := m.head()
	return !more && len(m.batches) == 0 && len(m.queue) == 0
}

// Close ends a machine that is not Done and will not be used any more.
func (m *Machine) Close() { m.stop() }

// computes tells the actions that work on a microbatch from communication and from the exchange.
func computes(a schedule.Action) bool { return a.Kind.Computes() && !a.Kind.PerBatch() }

// runs tells the actions that are programs.
func runs(a schedule.Action) bool { return a.Kind.Computes() || a.Kind == schedule.GradNorm }

// head is the line's next action that is not passed in silence.
func (m *Machine) head() (schedule.Action, bool) {
	for len(m.ahead) > 0 || m.fetch() {
		if a := m.ahead[0]; a.Batch < m.limit && !m.passes(a) {
			return a, true
		}
		m.ahead = m.ahead[1:]
	}
	return schedule.Action{}, false
}

// passes tells deadlines that are kept, and receives: not they wait for a message, but what needs it.
func (m *Machine) passes(a schedule.Action) bool {
	switch a.Kind {
	case schedule.RecvForward, schedule.RecvBackward:
		return true
	}
	return a.Kind.PerBatch() && !m.owes(a)
}

// fetch takes one more action of the line. A batch is complete before the batch after the next begins, so the line ends where it
// begins the second batch beyond its limit.
func (m *Machine) fetch() bool {
	a, ok := m.pull()
	a.Batch += m.cfg.From
	if !ok || computes(a) && m.limit < math.MaxInt && a.Batch > m.limit {
		m.stop()
		return false
	}
	if computes(a) {
		m.fetched = max(m.fetched, a.Batch)
	}
	m.ahead = append(m.ahead, a)
	return true
}

// communicate does the line's next action if it is a send.
func (m *Machine) communicate() bool {
	a, ok := m.head()
	switch {
	case ok && a.Kind == schedule.SendForward:
		m.sendPart(a, Message{Kind: Activation, Part: m.cfg.part(a) + 1})
	case ok && a.Kind == schedule.SendBackward:
		m.sendPart(a, Message{Kind: Gradient, Part: m.cfg.part(a) - 1})
	default:
		return false
	}
	m.ahead = m.ahead[1:]
	return true
}

// compute gives the line's next action to the device if it computes.
func (m *Machine) compute() bool {
	a, ok := m.head()
	if !ok || !computes(a) || a.Batch > m.allowed || len(m.queue) == m.cfg.Depth || len(m.missing(a)) > 0 {
		return false
	}
	if a.Batch >= m.begun {
		m.begin(a)
	}
	forward := a.Kind == schedule.Forward || a.Kind == schedule.Evaluate
	if forward {
		m.take(a)
	}
	m.claim()
	b, place := m.batch(a.Batch), m.place(a)
	if adds(a) && place.Gradients < 0 {
		panic(fmt.Sprintf("stage: line %d: %v has no buffer for its gradients: the batch before still holds it", m.cfg.line(), a))
	}
	m.store(a, m.inputs(a), place)
	if part := m.cfg.part(a); forward && (part == 0 || part == m.cfg.last() || m.cfg.FeedAll) {
		m.effects = append(m.effects, Effect{Kind: Feed, Action: a, Place: place})
	}
	m.run(a, place, b.first(a))
	if adds(a) || a.Kind == schedule.Evaluate {
		m.release(a)
		m.count(b)
	}
	m.ahead = m.ahead[1:]
	return true
}

// exchange does the next thing that the oldest batch needs after its last backward.
func (m *Machine) exchange() bool {
	if len(m.batches) == 0 || m.batches[0].left > 0 {
		return false
	}
	b := m.batches[0]
	if len(b.exchange) == 0 {
		m.finish(b)
		return true
	}
	a := b.exchange[0]
	if len(m.missing(a)) > 0 || runs(a) && len(m.queue) == m.cfg.Depth {
		return false
	}
	before, after := m.exchangePlaces(b)
	switch a.Kind {
	case schedule.SendGrads:
		m.sendAll(a, Message{Kind: Contribution}, m.cfg.CopiesFrom, before)
	case schedule.RecvGrads:
		m.store(a, m.inputs(a), before)
	case schedule.GradNorm:
		m.run(a, before, false)
		if len(m.cfg.Owners) > 0 {
			m.send(a, Message{Kind: Votes}, -1, before)
		}
	case schedule.Update:
		m.store(a, m.inputs(a), before)
		m.run(a, before, false)
	case schedule.SendWeights:
		m.sendAll(a, Message{Kind: Weights}, m.cfg.CopiesTo, after)
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

// send completes a message with what the action knows.
func (m *Machine) send(a schedule.Action, msg Message, to int, p Place) {
	msg.Batch, msg.Microbatch, msg.From = a.Batch, a.Microbatch, m.cfg.line()
	m.effects = append(m.effects, Effect{Kind: Send, Action: a, Message: msg, To: to, Place: p})
}

// sendPart sends what a microbatch's action leaves for another part: a use of its slot.
func (m *Machine) sendPart(a schedule.Action, msg Message) {
	m.send(a, msg, m.cfg.lineOf(msg.Part), m.place(a))
	m.release(a)
}

func (m *Machine) sendAll(a schedule.Action, msg Message, to []int, p Place) {
	for _, l := range to {
		m.send(a, msg, l, p)
	}
}

// store asks for the payloads of messages that have arrived.
func (m *Machine) store(a schedule.Action, msgs []Message, p Place) {
	for _, msg := range msgs {
		m.effects = append(m.effects, Effect{Kind: Store, Action: a, Message: msg, Place: p})
	}
}
