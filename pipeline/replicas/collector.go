package replicas

import (
	"fmt"
	"slices"
)

// Exchange is a fragment and the step after which it is sent.
type Exchange struct{ Step, Fragment int }

// Arrived decodes what a process has sent of a fragment, for the parameters that it owns, and adds it to what has arrived
// before of the same replica and exchange. complete reports whether all parameters have arrived. What no replica of this
// build sends is an error.
func (o *Owner) Arrived(before *Message, x Exchange, owns func(param string) bool, payload [][]byte) (m *Message, complete bool,
	err error) {
	if x.Fragment < 0 || x.Fragment >= len(o.fragments) || !o.Plan.Sends(x.Fragment, x.Step) {
		return nil, false, fmt.Errorf("fragment %d after step %d: it is not sent then", x.Fragment, x.Step)
	}
	whole := o.fragments[x.Fragment]
	if m = before; m == nil {
		first := newMessage(o.config, whole)
		m = &first
	}
	if err := m.decode(o.config, whole.of(owns), payload); err != nil {
		return nil, false, err
	}
	if m.rows > whole.blocks {
		return nil, false, fmt.Errorf("%s after step %d: found it a second time", whole.name, x.Step)
	}
	return m, m.rows == whole.blocks, nil
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
