package stage

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// batch is the state of a batch from its first action until it is finished.
type batch struct {
	number    int
	evaluates bool
	weights   int               // the buffer that its forwards and backwards read; with a delay: if they are stale
	stale     int               // with a delay: backwards of stale microbatches to come
	gradients int               // the buffer of g_t; −1 until one is free
	left      int               // actions until its gradients (or evaluations) are complete
	ran       map[[2]int]bool   // kinds by chunk
	exchange  []schedule.Action // in order, once left is 0
}

// addsGradients reports whether an action computes gradients of weights.
func addsGradients(a schedule.Action) bool {
	return a.Kind == schedule.Backward || a.Kind == schedule.WeightGrad
}

// first reports whether an action is the first of its kind of the batch on its chunk.
func (b *batch) first(a schedule.Action) bool {
	key := [2]int{int(a.Kind), a.Chunk}
	if addsGradients(a) {
		key[0] = int(schedule.Backward)
	}
	before := b.ran[key]
	b.ran[key] = true
	return !before
}

// window is the batches in progress, in order. Batches begin and finish in order.
type window struct {
	finished int // batches below are finished
	batches  []*batch
}

// begun is the first batch that has not begun.
func (w *window) begun() int { return w.finished + len(w.batches) }

// begin adds a batch.
func (w *window) begin(b *batch) { w.batches = append(w.batches, b) }

// finish removes the oldest batch.
func (w *window) finish() {
	w.batches = w.batches[1:]
	w.finished++
}

// batch is a batch in progress.
func (m *Machine) batch(number int) *batch {
	w := m.window
	if number < w.finished || number >= w.begun() {
		panic(fmt.Sprintf("stage: rank %d works on batch %d, but batches %d to %d are in progress", m.cfg.rank(), number, w.finished,
			w.begun()-1))
	}
	return w.batches[number-w.finished]
}

// begin begins the batch of an action and gives it its weights.
func (m *Machine) begin(a schedule.Action) {
	if a.Batch > m.window.begun() || a.Kind != schedule.Forward && a.Kind != schedule.Evaluate {
		panic(fmt.Sprintf("stage: rank %d begins with %v, expected a forward of batch %d", m.cfg.rank(), a, m.window.begun()))
	}
	b := &batch{number: a.Batch, evaluates: a.Kind == schedule.Evaluate, gradients: -1,
		left: m.cfg.Pipeline.Microbatches * m.cfg.Pipeline.Chunks, ran: map[[2]int]bool{}}
	if !b.evaluates && len(m.window.batches) > m.cfg.Delay {
		panic(fmt.Sprintf("stage: rank %d: %v comes before the last backward of batch %d", m.cfg.rank(), a, m.window.finished))
	}
	m.buffers.begin(b)
	m.window.begin(b)
	m.checkBuffers()
}

// claim gives free buffers to the batches that have no gradient buffer yet, in order.
func (m *Machine) claim() {
	for _, b := range m.window.batches {
		if m.buffers.claim(b) {
			m.checkBuffers()
		}
	}
}

// count counts an action that completes a microbatch. After the last one the exchange of the batch begins.
func (m *Machine) count(a schedule.Action, b *batch) {
	b.left--
	if m.cfg.isStale(a) && m.buffers.endStale(b) {
		m.checkBuffers()
	}
	if b.left > 0 || b.evaluates {
		return
	}
	b.exchange = m.reader.exchange(b.number, func(a schedule.Action) bool { return m.readsUpdateOf(a, b.number) })
	has := map[schedule.Kind]bool{}
	for _, a := range b.exchange {
		has[a.Kind] = true
	}
	from, to := len(m.cfg.Peers.CopiesFrom) > 0, len(m.cfg.Peers.CopiesTo) > 0
	switch {
	case !has[schedule.Update] && !has[schedule.RecvWeights]:
		panic(fmt.Sprintf("stage: rank %d has no update of batch %d before the first forward that reads its weights", m.cfg.rank(),
			b.number))
	case has[schedule.SendGrads] != from || has[schedule.RecvWeights] != from || has[schedule.RecvGrads] != to ||
		has[schedule.SendWeights] != to:
		panic(fmt.Sprintf("stage: rank %d has %v, but copies from ranks %v and to ranks %v", m.cfg.rank(), b.exchange,
			m.cfg.Peers.CopiesFrom, m.cfg.Peers.CopiesTo))
	}
	m.checkBuffers()
}

// readsUpdateOf reports whether an action reads weights that have the update of a batch.
func (m *Machine) readsUpdateOf(a schedule.Action, batch int) bool {
	if m.cfg.isStale(a) {
		batch++
	}
	return onMicrobatch(a) && a.Batch > batch
}

// finish finishes the oldest batch.
func (m *Machine) finish(b *batch) {
	m.buffers.finish(b)
	m.window.finish()
	maps.DeleteFunc(m.received, func(msg Message, _ bool) bool { return msg.Batch == b.number })
	m.effects = append(m.effects, Effect{Kind: Ready, Action: schedule.Action{Kind: schedule.Update, Batch: b.number},
		Place: Place{-1, -1, -1, -1}})
	m.checkBuffers()
}

// isPending reports whether an exchange action is still to be done.
func (m *Machine) isPending(a schedule.Action) bool {
	if a.Batch < m.window.finished {
		return false
	}
	b := m.batch(a.Batch)
	if b.left > 0 {
		panic(fmt.Sprintf("stage: rank %d: %v comes before the last backward of its batch", m.cfg.rank(), a))
	}
	return slices.Contains(b.exchange, a)
}

// place is the place of an action on a microbatch.
func (m *Machine) place(a schedule.Action) Place {
	b := m.batch(a.Batch)
	p := Place{Weights: b.weights, Gradients: b.gradients, Slot: m.slot(a), Scale: b.weights}
	if m.cfg.Delay == 1 && !m.cfg.isStale(a) {
		if p.Weights = m.buffers.current(b, m.window.batches); p.Weights < 0 {
			panic(fmt.Sprintf("stage: rank %d: %v comes before the update of batch %d", m.cfg.rank(), a, a.Batch-1))
		}
	}
	return p
}

// takeSlot gives a microbatch a slot of its chunk.
func (m *Machine) takeSlot(a schedule.Action) {
	uses, v := 1, m.cfg.virtualStage(a) // its backward, or the evaluation itself
	if v < m.cfg.last() {
		uses++ // the activation is sent
	}
	if v > 0 && a.Kind == schedule.Forward {
		uses++ // the gradient is sent
	}
	if !m.slots[a.Chunk].take(a.Batch, a.Microbatch, uses) {
		panic(fmt.Sprintf("stage: rank %d: %v finds all %d slots in use", m.cfg.rank(), a, m.cfg.Slots))
	}
}

// slot is the slot of an action's microbatch.
func (m *Machine) slot(a schedule.Action) int {
	i := m.slots[a.Chunk].find(a.Batch, a.Microbatch)
	if i < 0 {
		panic(fmt.Sprintf("stage: rank %d: %v has no forward before it", m.cfg.rank(), a))
	}
	return i
}

// release counts one use of a slot.
func (m *Machine) release(a schedule.Action) { m.slots[a.Chunk].release(m.slot(a)) }

// Roles are the roles of the buffers while no batch is in progress: at the start, and when the machine is Done.
func (m *Machine) Roles() Roles {
	if len(m.window.batches) > 0 {
		panic(fmt.Sprintf("stage: rank %d: Roles is called while batch %d is in progress", m.cfg.rank(), m.window.finished))
	}
	return m.buffers.roles()
}

// checkBuffers panics unless every buffer has one role.
func (m *Machine) checkBuffers() {
	if err := m.buffers.check(m.window.batches); err != nil {
		panic(fmt.Sprintf("stage: rank %d: %v", m.cfg.rank(), err))
	}
}
