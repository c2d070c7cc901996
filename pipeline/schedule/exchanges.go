package schedule

import "fmt"

// Exchanges says which fragments of the model replicas that train on their own exchange after which steps. Steps count
// from 1: step s has done batch s − 1.
type Exchanges struct {
	Fragments int `json:"fragments"`
	Period    int `json:"period"` // steps between two exchanges of a fragment
	Late      int `json:"late"`   // steps from sending to landing, at most Period
	Last      int `json:"last"`   // the step after which all fragments are exchanged and land at once: the end of the run
}

// Sent lists the fragments that are sent after a step. Fragments are spread evenly over the period; the last one is
// sent at its end.
func (e Exchanges) Sent(step int) (fragments []int) {
	for f := range e.Fragments {
		if e.Sends(f, step) {
			fragments = append(fragments, f)
		}
	}
	return fragments
}

// Sends reports whether a fragment is sent after a step.
func (e Exchanges) Sends(fragment, step int) bool {
	at := ((fragment+1)*e.Period + e.Fragments - 1) / e.Fragments
	return step == e.Last || step > 0 && (step-at)%e.Period == 0
}

// Next is the first step after one after which a fragment is sent; 0: there is none.
func (e Exchanges) Next(fragment, after int) int {
	for s := after + 1; s <= e.Last; s++ {
		if e.Sends(fragment, s) {
			return s
		}
	}
	return 0
}

// Lands is the step at which a message lands that is sent after a step.
func (e Exchanges) Lands(sent int) int { return min(sent+e.Late, max(sent, e.Last)) }

// mostExchanged bounds the fragments and the period of a plan, and Endless its steps: the Last of a run without end.
const (
	mostExchanged = 1 << 20
	Endless       = 1 << 40
)

// Validate checks that the plan can be followed, and that it exchanges what it should: each fragment once in each
// period, none again before its last exchange has landed, and all of them after the last step, when everything has
// landed.
func (e Exchanges) Validate() error {
	for _, n := range []struct {
		name               string
		found, least, most int
	}{{"fragments", e.Fragments, 1, mostExchanged}, {"period", e.Period, 1, mostExchanged}, {"late", e.Late, 0, e.Period},
		{"last", e.Last, 1, Endless}} {
		if n.found < n.least || n.found > n.most {
			return fmt.Errorf("exchanges: %s: found %d, expected %d to %d", n.name, n.found, n.least, n.most)
		}
	}
	e.Last = min(e.Last, 3*e.Period+e.Last%e.Period) // the others repeat these
	sent, lands := make([]int, e.Fragments), make([]int, e.Fragments)
	for s := 1; s <= e.Last; s++ {
		for _, f := range e.Sent(s) {
			if lands[f] > s {
				return fmt.Errorf("exchanges: fragment %d is sent after step %d, before its last exchange lands at step %d", f, s, lands[f])
			}
			if s-sent[f] > e.Period {
				return fmt.Errorf("exchanges: fragment %d is sent after step %d and then after step %d, expected every %d steps", f, sent[f], s,
					e.Period)
			}
			sent[f], lands[f] = s, e.Lands(s)
		}
	}
	for f := range sent {
		if sent[f] != e.Last || lands[f] != e.Last {
			return fmt.Errorf("exchanges: fragment %d was sent after step %d and lands at step %d, expected both after the last step, %d", f,
				sent[f], lands[f], e.Last)
		}
	}
	return nil
}
