package stage

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

var messageKinds = [...]string{"activation", "gradient", "contribution", "norms", "weights"}

func (k MessageKind) String() string {
	if int(k) < len(messageKinds) {
		return messageKinds[k]
	}
	return fmt.Sprintf("MessageKind(%d)", uint8(k))
}

// String is as in "activation 0.1 for virtual stage 1 from rank 0" and "norms 1 from rank 2".
func (m Message) String() string {
	if m.Kind == Activation || m.Kind == Gradient {
		return fmt.Sprintf("%v %d.%d for virtual stage %d from rank %d", m.Kind, m.Microbatch, m.Batch, m.VirtualStage, m.From)
	}
	return fmt.Sprintf("%v %d from rank %d", m.Kind, m.Batch, m.From)
}

// String is as in "w1 g0 s2"; it omits buffers that are not used, and the loss scale of the weights themselves.
func (p Place) String() string {
	var s []string
	scale := p.Scale
	if scale == p.Weights {
		scale = -1
	}
	for _, f := range []struct {
		name  string
		index int
	}{{"w", p.Weights}, {"g", p.Gradients}, {"s", p.Slot}, {"scale ", scale}} {
		if f.index >= 0 {
			s = append(s, fmt.Sprint(f.name, f.index))
		}
	}
	return strings.Join(s, " ")
}

// String is as in "run F0.1 at w0 g1 s0".
func (e Effect) String() string {
	switch e.Kind {
	case Run:
		s := fmt.Sprintf("run %v at %v", e.Action, e.Place)
		if e.First {
			s += " first"
		}
		return s
	case Feed:
		return fmt.Sprintf("feed %v at %v", e.Action, e.Place)
	case Store:
		return fmt.Sprintf("store %v at %v", e.Message, e.Place)
	case Send:
		to := fmt.Sprintf("rank %d", e.To)
		if e.To < 0 {
			to = "all owners"
		}
		return fmt.Sprintf("send %v to %s at %v", e.Message, to, e.Place)
	case Ready:
		return fmt.Sprintf("ready %d", e.Action.Batch)
	}
	return fmt.Sprintf("EffectKind(%d)", uint8(e.Kind))
}

// State describes which action waits for what, in one line of text.
func (m *Machine) State() string {
	s := fmt.Sprintf("rank %d: ", m.cfg.rank())
	switch a, ok := m.head(); {
	case m.Done():
		s += "done"
	case !ok:
		s += "at its end"
	case a.Kind.PerBatch():
		s += fmt.Sprintf("at the deadline of %v", a)
	default:
		s += fmt.Sprintf("at %v%s", a, m.reason(a))
	}
	if len(m.window.batches) > 0 && len(m.window.batches[0].exchange) > 0 {
		a := m.window.batches[0].exchange[0]
		s += fmt.Sprintf("; exchange at %v%s", a, m.reason(a))
	}
	if len(m.queue) > 0 {
		s += fmt.Sprintf("; %d of %d on the device: %v", len(m.queue), m.cfg.QueueDepth, m.queue)
	}
	return s
}

// reason names the message or buffer that an action waits for.
func (m *Machine) reason(a schedule.Action) string {
	missing := m.missing(a)
	switch {
	case len(missing) > 0:
		var s []string
		for _, msg := range missing {
			s = append(s, msg.String())
		}
		return ", waits for " + strings.Join(s, ", ")
	case onMicrobatch(a) && a.Batch > m.allowed:
		return ", waits for permission to begin the batch"
	case isProgram(a) && len(m.queue) == m.cfg.QueueDepth:
		return ", waits for the device"
	}
	return ""
}
