package stage

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Received reports that a message has arrived. The driver keeps its payload until the Store effect of the message.
// Messages may arrive in any order, and before they are needed.
func (m *Machine) Received(msg Message) error {
	_, twice := m.received[msg]
	switch {
	case !m.Expects(msg):
		return fmt.Errorf("rank %d: unexpected message: %v", m.cfg.rank(), msg)
	case msg.Batch >= m.reader.limit:
		return fmt.Errorf("rank %d: unexpected message: %v: batch %d is the last", m.cfg.rank(), msg, m.reader.limit-1)
	case twice || msg.Batch < m.window.finished:
		return fmt.Errorf("rank %d: message received twice: %v", m.cfg.rank(), msg)
	}
	m.received[msg] = true
	return nil
}

// Expects reports whether some batch has such a message. It depends on the Config alone and may be called at any time.
func (m *Machine) Expects(msg Message) bool {
	a := schedule.Action{Microbatch: msg.Microbatch, Batch: msg.Batch, Chunk: msg.VirtualStage / m.cfg.Pipeline.Stages}
	switch msg.Kind {
	case Activation:
		a.Kind = schedule.RecvForward
	case Gradient:
		a.Kind = schedule.RecvBackward
	case Contribution:
		a.Kind = schedule.RecvGrads
	case NormSquares:
		a.Kind = schedule.Update
	case Weights:
		a.Kind = schedule.RecvWeights
	}
	return msg.Batch >= m.cfg.From && msg.VirtualStage >= 0 && msg.VirtualStage <= m.cfg.last() &&
		msg.Microbatch >= 0 && msg.Microbatch < m.cfg.Pipeline.Microbatches && slices.Contains(m.inputs(a), msg)
}

// inputs are the messages that an action needs, in the order in which they are stored.
func (m *Machine) inputs(a schedule.Action) []Message {
	v := m.cfg.virtualStage(a)
	switch a.Kind {
	case schedule.RecvForward, schedule.Forward, schedule.Evaluate:
		if v > 0 {
			return []Message{{Activation, a.Batch, a.Microbatch, v, m.cfg.rankOf(v - 1)}}
		}
	case schedule.RecvBackward, schedule.Backward, schedule.InputGrad:
		if v < m.cfg.last() {
			return []Message{{Gradient, a.Batch, a.Microbatch, v, m.cfg.rankOf(v + 1)}}
		}
	case schedule.RecvGrads:
		return messages(Contribution, a.Batch, m.cfg.Peers.CopiesTo)
	case schedule.Update:
		return messages(NormSquares, a.Batch, m.cfg.Peers.Owners)
	case schedule.RecvWeights:
		return messages(Weights, a.Batch, m.cfg.Peers.CopiesFrom)
	}
	return nil
}

func messages(kind MessageKind, batch int, from []int) []Message {
	var msgs []Message
	for _, rank := range from {
		msgs = append(msgs, Message{Kind: kind, Batch: batch, From: rank})
	}
	return msgs
}

// missing are the messages that an action waits for.
func (m *Machine) missing(a schedule.Action) []Message {
	return slices.DeleteFunc(m.inputs(a), func(msg Message) bool { return m.received[msg] })
}
