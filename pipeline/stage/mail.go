package stage

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Arrived says that a message has come; its payload is kept until a Store asks for it. Messages may come in any order, and before
// the line is where it needs them.
func (m *Machine) Arrived(msg Message) error {
	_, twice := m.mail[msg]
	switch {
	case !m.expects(msg):
		return fmt.Errorf("line %d: unexpected message: %v", m.cfg.line(), msg)
	case msg.Batch >= m.limit:
		return fmt.Errorf("line %d: unexpected message: %v: batch %d is the last", m.cfg.line(), msg, m.limit-1)
	case twice || msg.Batch < m.finished:
		return fmt.Errorf("line %d: message comes twice: %v", m.cfg.line(), msg)
	}
	m.mail[msg] = true
	return nil
}

// expects tells whether some batch has such a message.
func (m *Machine) expects(msg Message) bool {
	a := schedule.Action{Microbatch: msg.Microbatch, Batch: msg.Batch, Chunk: msg.Part / m.cfg.Stages}
	switch msg.Kind {
	case Activation:
		a.Kind = schedule.RecvForward
	case Gradient:
		a.Kind = schedule.RecvBackward
	case Contribution:
		a.Kind = schedule.RecvGrads
	case Votes:
		a.Kind = schedule.Update
	case Weights:
		a.Kind = schedule.RecvWeights
	}
	return msg.Batch >= m.cfg.From && msg.Part >= 0 && msg.Part <= m.cfg.last() &&
		msg.Microbatch >= 0 && msg.Microbatch < m.cfg.Microbatches && slices.Contains(m.inputs(a), msg)
}

// inputs are the messages that an action needs, in the order in which they are stored.
func (m *Machine) inputs(a schedule.Action) []Message {
	part := m.cfg.part(a)
	switch a.Kind {
	case schedule.RecvForward, schedule.Forward, schedule.Evaluate:
		if part > 0 {
			return []Message{{Activation, a.Batch, a.Microbatch, part, m.cfg.lineOf(part - 1)}}
		}
	case schedule.RecvBackward, schedule.Backward, schedule.InputGrad:
		if part < m.cfg.last() {
			return []Message{{Gradient, a.Batch, a.Microbatch, part, m.cfg.lineOf(part + 1)}}
		}
	case schedule.RecvGrads:
		return messages(Contribution, a.Batch, m.cfg.CopiesTo)
	case schedule.Update:
		return messages(Votes, a.Batch, m.cfg.Owners)
	case schedule.RecvWeights:
		return messages(Weights, a.Batch, m.cfg.CopiesFrom)
	}
	return nil
}

func messages(kind MessageKind, batch int, from []int) []Message {
	var msgs []Message
	for _, line := range from {
		msgs = append(msgs, Message{Kind: kind, Batch: batch, From: line})
	}
	return msgs
}

// missing are the messages that an action waits for.
func (m *Machine) missing(a schedule.Action) []Message {
	return slices.DeleteFunc(m.inputs(a), func(msg Message) bool { return m.mail[msg] })
}
