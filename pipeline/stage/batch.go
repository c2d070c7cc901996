package stage

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// batch is what a line knows of a batch from its first action until it is finished.
type batch struct {
	number    int
	evaluates bool
	weights   int               // the buffer of x_t, for its forwards and backwards
	gradients int               // the buffer of g_t; −1 as long as none is free
	left      int               // actions to come until its gradients (or evaluations) are complete
	ran       map[[2]int]bool   // kinds by chunk
	exchange  []schedule.Action // to be done once left is 0, in order
}

// slot holds the activations of a microbatch until they have had all their uses; 0: it is free.
type slot struct{ batch, microbatch, uses int }

// adds tells the actions that complete gradients of weights.
func adds(a schedule.Action) bool {
	return a.Kind == schedule.Backward || a.Kind == schedule.WeightGrad
}

// first tells whether an action is the first of its kind of the batch on its chunk.
func (b *batch) first(a schedule.Action) bool {
	key := [2]int{int(a.Kind), a.Chunk}
	if adds(a) {
		key[0] = int(schedule.Backward)
	}
	before := b.ran[key]
	b.ran[key] = true
	return !before
}

// batch is a batch under way.
func (m *Machine) batch(number int) *batch {
	if number < m.finished || number >= m.begun {
		panic(fmt.Sprintf("stage: line %d works on batch %d, but batches %d to %d are under way", m.cfg.line(), number, m.finished, m.begun-1))
	}
	return m.batches[number-m.finished]
}

// begin takes the weights for the batch of its first action.
func (m *Machine) begin(a schedule.Action) {
	if a.Batch > m.begun || a.Kind != schedule.Forward && a.Kind != schedule.Evaluate {
		panic(fmt.Sprintf("stage: line %d begins with %v, expected a forward of batch %d", m.cfg.line(), a, m.begun))
	}
	b := &batch{number: a.Batch, evaluates: a.Kind == schedule.Evaluate, gradients: -1,
		left: m.cfg.Microbatches * m.cfg.Chunks, ran: map[[2]int]bool{}}
	if !b.evaluates && len(m.batches) > m.cfg.Delay {
		panic(fmt.Sprintf("stage: line %d: %v comes before the last backward of batch %d", m.cfg.line(), a, m.finished))
	}
	b.weights = m.versions[0]
	if !b.evaluates {
		m.versions = m.versions[1:]
	}
	m.batches = append(m.batches, b)
	m.begun++
	m.check()
}

// claim gives the buffers that are free to the batches that have none for their gradients yet, in order.
func (m *Machine) claim() {
	for _, b := range m.batches {
		if b.gradients < 0 && !b.evaluates && len(m.free) > 0 {
			b.gradients, m.free = m.free[0], m.free[1:]
			m.check()
		}
	}
}

// count counts down to the end of a batch's work on microbatches. Then its exchange begins: the line is read up to its deadline.
// With a delay, the batch's weights are dead.
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
		panic(fmt.Sprintf("stage: line %d has no update of batch %d before batch %d begins", m.cfg.line(), b.number, b.number+1+m.cfg.Delay))
	case has[schedule.SendGrads] != from || has[schedule.RecvWeights] != from || has[schedule.RecvGrads] != to || has[schedule.SendWeights] != to:
		panic(fmt.Sprintf("stage: line %d has %v, but copies from lines %v and to lines %v", m.cfg.line(), b.exchange, m.cfg.CopiesFrom, m.cfg.CopiesTo))
	}
	m.check()
}

// finish passes the buffer of the new weights on to the batch that will read them, and forgets the batch.
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
	maps.DeleteFunc(m.mail, func(msg Message, _ bool) bool { return msg.Batch == b.number })
	m.effects = append(m.effects, Effect{Kind: Ready, Action: schedule.Action{Kind: schedule.Update, Batch: b.number}, Place: Place{-1, -1, -1}})
	m.check()
}

// owes tells whether an exchange action is still to be done.
func (m *Machine) owes(a schedule.Action) bool {
	if a.Batch < m.finished {
		return false
	}
	b := m.batch(a.Batch)
	if b.left > 0 {
		panic(fmt.Sprintf("stage: line %d: %v comes before the last backward of its batch", m.cfg.line(), a))
	}
	return slices.Contains(b.exchange, a)
}

// place is where an action on a microbatch works.
func (m *Machine) place(a schedule.Action) Place {
	b := m.batch(a.Batch)
	return Place{Weights: b.weights, Gradients: b.gradients, Slot: m.slot(a)}
}

// exchangePlaces are where a batch's update reads weights and gradients, and where the new weights are afterwards.
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

// take gives a microbatch the lowest free slot of its chunk.
func (m *Machine) take(a schedule.Action) {
	uses, part := 1, m.cfg.part(a) // its backward, or the evaluation itself
	if part < m.cfg.last() {
		uses++ // what is sent on
	}
	if part > 0 && a.Kind == schedule.Forward {
		uses++ // what is sent back
	}
	for i, s := range m.slots[a.Chunk] {
		if s.uses == 0 {
			m.slots[a.Chunk][i] = slot{a.Batch, a.Microbatch, uses}
			return
		}
	}
	panic(fmt.Sprintf("stage: line %d: %v finds all of %d slots taken", m.cfg.line(), a, m.cfg.Slots))
}

// slot is the slot of an action's microbatch.
func (m *Machine) slot(a schedule.Action) int {
	for i, s := range m.slots[a.Chunk] {
		if s.uses > 0 && s.batch == a.Batch && s.microbatch == a.Microbatch {
			return i
		}
	}
	panic(fmt.Sprintf("stage: line %d: %v comes without a forward before it", m.cfg.line(), a))
}

// release counts the uses of a slot down.
func (m *Machine) release(a schedule.Action) { m.slots[a.Chunk][m.slot(a)].uses-- }

// Roles are the buffers' roles when no batch is under way: at the start, and when the machine is Done.
func (m *Machine) Roles() Roles {
	if len(m.batches) > 0 {
		panic(fmt.Sprintf("stage: line %d: roles are asked for while batch %d is under way", m.cfg.line(), m.finished))
	}
	return Roles{Current: m.versions[0], Next: m.versions[m.cfg.Delay], Gradients: m.free[0]}
}

// check panics unless every buffer has one role.
func (m *Machine) check() {
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
		panic(fmt.Sprintf("stage: line %d: buffers clash: weights %v, %d of gradients, free %v", m.cfg.line(), versions, gradients, m.free))
	}
}
