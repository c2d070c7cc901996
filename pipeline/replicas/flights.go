package replicas

import (
	"fmt"
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

// exchange carries out what the plan has after a step, in the order of the fragments: each lands if it is due, and is
// sent, which adds its flight. Those that land at once do so when all have been sent.
func (u flights) exchange(plan schedule.Exchanges, fragments []fragment, step int, land, send, landAtOnce func(f int) error) error {
	do := func(f int, action func(f int) error) error {
		if err := action(f); err != nil {
			return fmt.Errorf("exchange of %s: %w", fragments[f].name, err)
		}
		return nil
	}
	for f := range fragments {
		sends := plan.Sends(f, step)
		if lands, ok := u[f]; ok && (lands <= step || sends) { // a resumed run may have shorter periods
			if err := do(f, land); err != nil {
				return err
			}
			delete(u, f)
		}
		if sends {
			if err := do(f, send); err != nil {
				return err
			}
		}
	}
	for f := range fragments {
		if plan.Sends(f, step) && u[f] <= step {
			if err := do(f, landAtOnce); err != nil {
				return err
			}
			delete(u, f)
		}
	}
	return nil
}
