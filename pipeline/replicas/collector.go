package replicas

import (
	"fmt"
	"slices"
)

// Exchange is a fragment and the step after which it is sent.
type Exchange struct{ Step, Fragment int }

// Expect refuses an exchange that is not the next one of its fragment after a step. A replica sends nothing else of the
// fragment before that is done, since it waits for the change: messages that are held for it have the size of the model
// at most.
func (o *Owner) Expect(x Exchange, after int) error {
	why := ""
	switch {
	case x.Fragment < 0 || x.Fragment >= len(o.fragments) || x.Step > after && !o.Plan.Sends(x.Fragment, x.Step):
		why = "it is not sent then"
	case x.Step <= after:
		why = "it was exchanged before"
	case x.Step != o.Plan.Next(x.Fragment, after):
		why = fmt.Sprintf("the exchange after step %d comes first", o.Plan.Next(x.Fragment, after))
	default:
		return nil
	}
	return fmt.Errorf("fragment %d after step %d: %s", x.Fragment, x.Step, why)
}

// Arrived decodes what a process has sent for an expected exchange, of the parameters that it owns, and adds it to what
// has arrived before of the same replica and exchange. complete reports whether all parameters have arrived. What no
// replica of this build sends is an error.
func (o *Owner) Arrived(before *Message, x Exchange, owns func(param string) bool, payload [][]byte) (m *Message, complete bool,
	err error) {
	whole := o.fragments[x.Fragment]
	if m = before; m == nil {
		first := newMessage(o.config, whole)
		m = &first
	}
	part := whole.of(owns)
	if len(part.params) == 0 {
		return nil, false, fmt.Errorf("%s after step %d: none of it is on the sender", whole.name, x.Step)
	}
	if err := m.decode(o.config, part, payload); err != nil {
		return nil, false, err
	}
	return m, len(m.known) == len(whole.params), nil
}

// Encode is what a receiver is sent of the change of a fragment; nil: it owns nothing of it.
func (o *Owner) Encode(change Message, fragment int, owns func(param string) bool) [][]byte {
	f := o.fragments[fragment].of(owns)
	if len(f.params) == 0 {
		return nil
	}
	return change.encode(o.config, f)
}

// Planned lists the newest exchange of each fragment after a step and up to another, by step and fragment.
func (o *Owner) Planned(after, to int) (all []Exchange) {
	for f := range o.Plan.Fragments {
		for s := to; s > after; s-- {
			if o.Plan.Sends(f, s) {
				all = append(all, Exchange{s, f})
				break
			}
		}
	}
	slices.SortFunc(all, Exchange.compare)
	return all
}

// compare orders exchanges by step and fragment.
func (x Exchange) compare(y Exchange) int {
	if x.Step != y.Step {
		return x.Step - y.Step
	}
	return x.Fragment - y.Fragment
}

// Before reports whether an exchange is planned before another.
func (x Exchange) Before(y Exchange) bool { return x.compare(y) < 0 }
