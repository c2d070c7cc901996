package runs

import (
	"context"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/config"
)

// Run identifies a training run of a set. String describes it, as in "adamw, lr 0.001, seed 1".
type Run interface {
	comparable
	fmt.Stringer
}

// Set is a set of training runs.
type Set[R Run] struct {
	Noun string // what the runs make up, for messages, as in "study"
	Dir  string // of the set; the folders of the runs are in its folder runs
	File *File  // that describes the set, for Dir to record; nil: it does not

	// Begin is called before the runs, with the set's folder held; nil: not at all.
	Begin func(context.Context, Options) error
	// Needed lists the runs that are known to be needed, ended or not, in the order in which they are begun. later
	// bounds the runs that the outcomes of these decide.
	Needed func(outcomes map[R]Outcome) (needed []R, later Later)
	Folder func(R) string // of a run
	Config func(R) (config.Config, error)
	// Span returns the steps that a run trains: those after from, up to to. Runs of one folder continue each other.
	// nil: every run trains all steps of its config.
	Span func(R) (from, to int)
	// Summaries is a folder that gets a summary of each run that ends: its config, its outcome, and its losses. A run
	// whose summary is there has ended, so that a set can go on without the run folders, on another machine. "": none.
	Summaries string
	// Complete refuses the outcome of a run that ended without what the set compares.
	Complete func(Outcome) error
	// KeepGoing makes the error of a run its outcome. Otherwise it stops the set.
	KeepGoing bool
}

// Later bounds the runs that are not known yet.
type Later struct {
	Runs int
	Cost float64 // in units of Set.cost
}

// span is Span, or zeros without one.
func (s *Set[R]) span(r R) (from, to int) {
	if s.Span == nil {
		return 0, 0
	}
	return s.Span(r)
}

// cost is the cost of a run: its steps, or 1 without a span.
func (s *Set[R]) cost(r R) float64 {
	if from, to := s.span(r); to > 0 {
		return float64(to - from)
	}
	return 1
}

// Planned is the remaining work of a comparison.
type Planned[R Run] struct {
	Ended   []Ended[R]
	Waiting []R
	Later   int // an upper bound of further runs, which the waiting ones decide
}

// Ended is a run that has ended.
type Ended[R Run] struct {
	Run     R
	Outcome Outcome
}

// Plan returns what Compare would do. It trains nothing and writes nothing.
func Plan[R Run](c Comparison[R]) (p Planned[R], err error) {
	s, err := c.Set()
	if err != nil {
		return p, err
	}
	outcomes := map[R]Outcome{}
	needed, later, err := s.recall(outcomes, map[R]bool{})
	if err != nil {
		return p, err
	}
	p.Later = later.Runs
	for _, r := range needed {
		if o, ok := outcomes[r]; ok {
			p.Ended = append(p.Ended, Ended[R]{r, o})
		} else {
			p.Waiting = append(p.Waiting, r)
		}
	}
	return p, nil
}

// recall adds the outcomes of earlier executions, and returns all runs that are known to be needed. An outcome may make
// more runs known, so it repeats until there is no new one.
func (s *Set[R]) recall(outcomes map[R]Outcome, examined map[R]bool) (needed []R, later Later, err error) {
	for found := true; found; {
		found = false
		needed, later = s.Needed(outcomes)
		for _, r := range needed {
			if examined[r] {
				continue
			}
			examined[r] = true
			o, ended, err := s.kept(r)
			if err != nil {
				return needed, later, err
			}
			if ended {
				outcomes[r], found = o, true
			}
		}
	}
	return needed, later, nil
}
