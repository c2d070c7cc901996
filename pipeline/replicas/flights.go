package replicas

import (
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// flights are the steps at which fragments land that were sent, by fragment.
type flights map[int]int

// next is the first step after one at which something is sent or lands, at most a limit.
func (u flights) next(plan schedule.Exchanges, after, limit int) int {
	for s := after + 1; s < limit; s++ {
		if len(plan.Sent(s)) > 0 || u.landing(s) {
			return s
		}
	}
	return limit
}

// landing reports whether an exchange lands at a step.
func (u flights) landing(step int) bool {
	for _, lands := range u {
		if lands <= step {
			return true
		}
	}
	return false
}

// list lists the flights, by fragment.
func (u flights) list() []Flight {
	all := []Flight{}
	for f, lands := range u {
		all = append(all, Flight{f, lands})
	}
	slices.SortFunc(all, func(a, b Flight) int { return a.Fragment - b.Fragment })
	return all
}
