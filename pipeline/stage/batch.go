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
	weights   int               // the buffer of x_t, for its forwards and backwards
	gradients int               // the buffer of g_t; −1 until one is free
	left      int               // actions until its gradients (or evaluations) are complete
	ran       map[[2]int]bool   // kinds by chunk
	exchange  []schedule.Action // in order, once left is 0
}

// slot holds the activations of a microbatch; uses counts the uses that are left, and 0 means that it is free.
type slot struct{ batch, microbatch, uses int }

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

// batch is a batch in progress.
func (m *Machine) batch(number int) *batch {
	if number < m.finished || number >= m.begun {
		panic(fmt.Sprintf("stage: rank %d works on batch %d, but batches %d to %d are in progress", m.cfg.rank(), number, m.finished, m.begun-1))
	}
	return m.batches[number-m.finished]
}

// begin begins the batch of an action and gives it its weights.
func (m *Machine) begin(a schedule.Action) {
	if a.Batch > m.begun || a.Kind != schedule.Forward && a.Kind != schedule.Evaluate {
		panic(fmt.Sprintf("stage: rank %d begins with %v, expected a forward of batch %d", m.cfg.rank(), a, m.begun))
	}
	b := &batch{number: a.Batch, evaluates: a.Kind == schedule.Evaluate, gradients: -1,
		left: m.cfg.Microbatches * m.cfg.Chunks, ran: map[[2]int]bool{}}
	if !b.evaluates && len(m.batches) > m.cfg.Delay {
		panic(fmt.Sprintf("stage: rank %d: %v comes before the last backward of batch %d", m.cfg.rank(), a, m.finished))
	}
	b.weights = m.versions[0]
	if !b.evaluates {
		m.versions = m.versions[1:]
	}
	m.batches = append(m.batches, b)
	m.begun++
	m.checkBuffers()
}

// claim gives free buffers to the batches that have no gradient buffer yet, in order.
func (m *Machine) claim() {
	for _, b := range m.batches {
		if b.gradients < 0 && !b.evaluates && len(m.free) > 0 {
			b.gradients, m.free = m.free[0], m.free[1:]
			m.checkBuffers()
		}
	}
}

// count counts an action that completes a microbatch. After the last one the exchange of the batch begins, so the
// machine reads its actions up to the deadline. With a delay, the buffer of the batch's weights is free then.
func (m *Machine) count(b *batch) {
	b.left--
	if b.left > 0 || b.evaluates {
		return
	}
	if m.cfg.Delay == 1 {
		m.free = append(m.free, b.weights)
	}
	for m.fetched <= b.number+m.cfg.Delay && m.fetch() {
	}
	has := map[schedule.Kind]bool{}
	for _, a := range m.ahead {
		if a.Kind.PerBatch() && a.Batch == b.number {
			b.exchange = append(b.exchange, a)
			has[a.Kind] = true
		}
	}
	from, to := len(m.cfg.CopiesFrom) > 0, len(m.cfg.CopiesTo) > 0
	switch {
	case !has[schedule.Update] && !has[schedule.RecvWeights]:
		panic(fmt.Sprintf("stage: rank %d has no update of batch %d before batch %d begins", m.cfg.rank(), b.number, b.number+1+m.cfg.Delay))
	case has[schedule.SendGrads] != from || has[schedule.RecvWeights] != from || has[schedule.RecvGrads] != to || has[schedule.SendWeights] != to:
		panic(fmt.Sprintf("stage: rank %d has %v, but copies from ranks %v and to ranks %v", m.cfg.rank(), b.exchange, m.cfg.CopiesFrom, m.cfg.CopiesTo))
	}
	m.checkBuffers()
}

// finish gives the buffer of the new weights to the batch that will read them, and removes the finished batch.
func (m *Machine) finish(b *batch) {
	switch {
	case b.evaluates:
	case m.cfg.Delay == 1:
		m.versions = append(m.versions, b.gradients)
	default:
		m.versions, m.free = append(m.versions, b.weights), append(m.free, b.gradients)
	}
	m.batches = m.batches[1:]
	m.finished++
	maps.DeleteFunc(m.received, func(msg Message, _ bool) bool { return msg.Batch == b.number })
	m.effects = append(m.effects, Effect{Kind: Ready, Action: schedule.Action{Kind: schedule.Update, Batch: b.number}, Place: Place{-1, -1, -1}})
	m.checkBuffers()
}

// isPending reports whether an exchange action is still to be done.
func (m *Machine) isPending(a schedule.Action) bool {
	if a.Batch < m.finished {
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
	return Place{Weights: b.weights, Gradients: b.gradients, Slot: m.slot(a)}
}

// exchangePlaces are the place where the update of a batch reads, and the place of the new weights after it.
func (m *Machine) exchangePlaces(b *batch) (before, after Place) {
	if m.cfg.Delay == 0 {
		return Place{b.weights, b.gradients, -1}, Place{b.weights, -1, -1}
	}
	newest := m.versions
	if len(m.batches) > 1 {
		newest = []int{m.batches[1].weights}
	}
	return Place{newest[0], b.gradients, -1}, Place{b.gradients, -1, -1}
}

// takeSlot gives a microbatch the lowest free slot of its chunk.
func (m *Machine) takeSlot(a schedule.Action) {
	uses, v := 1, m.cfg.virtualStage(a) // its backward, or the evaluation itself
	if v < m.cfg.last() {
		uses++ // the activation is sent
	}
	if v > 0 && a.Kind == schedule.Forward {
		uses++ // the gradient is sent
	}
	for i, s := range m.slots[a.Chunk] {
		if s.uses == 0 {
			m.slots[a.Chunk][i] = slot{a.Batch, a.Microbatch, uses}
			return
		}
	}
	panic(fmt.Sprintf("stage: rank %d: %v finds all %d slots in use", m.cfg.rank(), a, m.cfg.Slots))
}

// slot is the slot of an action's microbatch.
func (m *Machine) slot(a schedule.Action) int {
	for i, s := range m.slots[a.Chunk] {
		if s.uses > 0 && s.batch == a.Batch && s.microbatch == a.Microbatch {
			return i
		}
	}
	panic(fmt.Sprintf("stage: rank %d: %v has no forward before it", m.cfg.rank(), a))
}

// release counts one use of a slot.
func (m *Machine) release(a schedule.Action) { m.slots[a.Chunk][m.slot(a)].uses-- }

// Roles are the roles of the buffers while no batch is in progress: at the start, and when the machine is Done.
func (m *Machine) Roles() Roles {
	if len(m.batches) > 0 {
		panic(fmt.Sprintf("stage: rank %d: Roles is called while batch %d is in progress", m.cfg.rank(), m.finished))
	}
	return Roles{Current: m.versions[0], Next: m.versions[m.cfg.Delay], Gradients: m.free[0]}
}

// checkBuffers panics unless every buffer has one role.
func (m *Machine) checkBuffers() {
	versions, gradients := slices.Clone(m.versions), 0
	all := slices.Clone(m.free)
	for _, b := range m.batches {
		if !b.evaluates && (m.cfg.Delay == 0 || b.left > 0) {
			versions = append(versions, b.weights)
		}
		if b.gradients >= 0 {
			all = append(all, b.gradients)
			gradients++
		}
	}
	all = append(all, versions...)
	slices.Sort(all)
	roles := m.cfg.Roles
	buffers := []int{roles.Current, roles.Next, roles.Gradients}
	slices.Sort(buffers)
	if !slices.Equal(all, slices.Compact(buffers)) || len(versions) > 1+m.cfg.Delay || gradients > 1+m.cfg.Delay {
		panic(fmt.Sprintf("stage: rank %d: buffers clash: weights %v, %d of gradients, free %v", m.cfg.rank(), versions, gradients, m.free))
	}
}
