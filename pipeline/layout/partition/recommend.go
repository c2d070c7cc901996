package partition

import "fmt"

// Candidate is a schedule with its plan, or the reason why it has none.
type Candidate struct {
	Schedule     string  `json:"schedule"`
	Chunks       int     `json:"chunks"`
	Delay        int     `json:"delay"`
	Microbatches int     `json:"microbatches"` // per replica
	Stale        int     `json:"stale"`        // of them
	Staleness    float64 `json:"staleness"`    // mean age of the gradients in steps
	Depth        int     `json:"depth"`
	Plan         *Plan   `json:"plan,omitempty"`
	Problem      string  `json:"problem,omitempty"`
}

const (
	// worthwhile is the speedup that a schedule needs over the best without delay if all its microbatches are stale,
	// because its gradients are older and predictions are not exact. With fewer stale microbatches the gain may be
	// smaller in proportion.
	worthwhile = 1.05
	// tie is the slowdown up to which a schedule is preferred for its smaller memory.
	tie = 1.005
)

// delayed explains the effect of a candidate's delay on training.
func (c Candidate) delayed() string {
	if c.Stale < c.Microbatches {
		return fmt.Sprintf("the first %d of %d microbatches of a batch lack the update of the batch before: the loss rises less than if all "+
			"lacked it, and more microbatches make the share smaller (docs/STALENESS.md)", c.Stale, c.Microbatches)
	}
	return "all microbatches are stale, so every gradient is applied one batch late: Muon loses little by that, AdamW much, " +
		"and error feedback closes most of the gap (arXiv 2606.30634)"
}

// Recommend returns the index of the best candidate and the reason; −1 if none has a plan.
func Recommend(cs []Candidate) (best int, reason string) {
	sync, late := fastest(cs, 0), fastest(cs, 1)
	switch {
	case sync < 0 && late < 0:
		return -1, "no schedule is possible"
	case late < 0:
		return sync, "the fastest; none with a delay is possible"
	case sync < 0:
		return late, "the only kind that is possible; " + cs[late].delayed()
	}
	gain := cs[late].Plan.TokensPerSec / cs[sync].Plan.TokensPerSec
	switch {
	case gain >= 1+(worthwhile-1)*cs[late].Staleness && gain > 1:
		return late, fmt.Sprintf("%.0f %% more tokens a second than %s, the fastest without delay, since no stage waits at a batch's end; %s",
			100*(gain-1), cs[sync].Schedule, cs[late].delayed())
	case gain > 1:
		return sync, fmt.Sprintf("%s would be %.1f %% faster, too little for a staleness of %.2g", cs[late].Schedule, 100*(gain-1),
			cs[late].Staleness)
	}
	return sync, fmt.Sprintf("no slower than %s, whose staleness is %.2g", cs[late].Schedule, cs[late].Staleness)
}

// fastest is the fastest candidate with a given delay; of those nearly as fast, the one whose largest stage takes least
// memory.
func fastest(cs []Candidate, delay int) (best int) {
	best = -1
	rate := 0.0
	for _, c := range cs {
		if c.Plan != nil && c.Delay == delay {
			rate = max(rate, c.Plan.TokensPerSec)
		}
	}
	for i, c := range cs {
		if c.Plan == nil || c.Delay != delay || c.Plan.TokensPerSec*tie < rate {
			continue
		}
		if best < 0 || c.Plan.Largest() < cs[best].Plan.Largest() {
			best = i
		}
	}
	return best
}

// Largest is the memory of the stage that takes most.
func (p Plan) Largest() (most int64) {
	for _, s := range p.Stages {
		most = max(most, s.Memory.Total())
	}
	return most
}
