package schedule

import (
	"fmt"
	"iter"
	"strings"
)

// Options are the sizes of a schedule to generate.
type Options struct {
	Stages       int // p
	Microbatches int // m, per batch
	Chunks       int // v, per stage; 0: the fewest that the schedule allows
	Depth        int // k, how many microbatches more the first stage of 1f1b or 2bw has in flight, m ≥ p + k; later stages have a share
	Stale        int // q, the stale microbatches of a batch in 2bw; 0: p − 1 + k, the fewest that cost nothing
	Batches      int // 0: one
}

// Bounds of Options. The text of an action can name no more; maxActions bounds virtual stages · microbatches · batches
// of a listed schedule.
const (
	maxStages  = 1 << 12
	maxChunks  = 1 << 10
	maxNumber  = MaxBatches
	maxActions = 1 << 18
)

// MaxBatches is the most batches that a schedule has.
const MaxBatches = 999_999_999

// Generator yields the action lists of a schedule action by action, so that the number of batches costs no memory.
type Generator struct {
	head    Schedule // without Actions
	actions func(stage int, yield func(Action) bool)
}

// New returns the generator of a schedule by name. The error says why no such schedule exists for these options.
func New(name string, o Options) (*Generator, error) {
	f, ok := Find(name)
	if !ok {
		return nil, fmt.Errorf("schedule %q: no such schedule, expected one of %s", name, strings.Join(Names(), ", "))
	}
	o, err := f.complete(o)
	if err != nil {
		return nil, err
	}
	return &Generator{
		head:    f.head(o),
		actions: func(stage int, yield func(Action) bool) { f.actions(o, stage, yield) },
	}, nil
}

// head is the schedule of complete options, without its action lists. Without a stale microbatch there is no delay.
func (f Family) head(o Options) Schedule {
	s := Schedule{Name: f.Name, Stages: o.Stages, Chunks: o.Chunks, Microbatches: o.Microbatches, Batches: o.Batches, Delay: f.Delay,
		Stale: o.Stale, Depth: o.Depth}
	if f.Delay == 1 {
		s.Delay = min(1, o.Stale)
	}
	return s
}

// Generate lists a whole schedule of computation, by name.
func Generate(name string, o Options) (*Schedule, error) {
	g, err := New(name, o)
	if err != nil {
		return nil, err
	}
	return g.Schedule()
}

// Head is the schedule without its action lists.
func (g *Generator) Head() Schedule { return g.head }

// Actions yields the action list of a stage. It may be read any number of times, each time from its start.
func (g *Generator) Actions(stage int) iter.Seq[Action] {
	if stage < 0 || stage >= g.head.Stages {
		panic(fmt.Sprintf("schedule: no stage %d among %d", stage, g.head.Stages))
	}
	return func(yield func(Action) bool) { g.actions(stage, yield) }
}

// Schedule lists all actions of the generator's schedule. It is an error when they are too many to be held in memory.
func (g *Generator) Schedule() (*Schedule, error) {
	s := g.head
	if n := float64(s.VirtualStages()) * float64(s.Microbatches) * float64(s.Batches); n > maxActions {
		return nil, fmt.Errorf("schedule %s: %d stages · %d chunks · %d microbatches · %d batches are too many to list, expected at most %d",
			s.Name, s.Stages, s.Chunks, s.Microbatches, s.Batches, maxActions)
	}
	s.Actions = make([][]Action, s.Stages)
	for i := range s.Actions {
		for a := range g.Actions(i) {
			s.Actions[i] = append(s.Actions[i], a)
		}
	}
	return &s, nil
}

// SplitBackward is the same computation with each backward split into its input gradient and its weight gradients, one
// right after the other. The input gradient is then sent while the weight gradients are computed. In the steady state
// of 2bw, where a stage waits for each gradient, a transfer costs nothing if it takes no longer than the weight
// gradients.
func (g *Generator) SplitBackward() *Generator {
	return &Generator{head: g.head, actions: func(stage int, yield func(Action) bool) {
		g.actions(stage, func(a Action) bool {
			if a.Kind != Backward {
				return yield(a)
			}
			first, second := a, a
			first.Kind, second.Kind = InputGrad, WeightGrad
			return yield(first) && yield(second)
		})
	}}
}

// Repeat repeats the action lists of a schedule for any number of batches: each list starts again at its own end, with
// the batches that follow. If fewer batches remain than the pattern has, Repeat omits the actions of the batches beyond
// the last. The pattern must contain computation only; Repeat validates it.
func Repeat(s *Schedule, batches int) (*Generator, error) {
	if batches < 1 || batches > maxNumber {
		return nil, fmt.Errorf("schedule %s: batches: found %d, expected 1 to %d", s.Name, batches, maxNumber)
	}
	if s.Copies != nil {
		return nil, fmt.Errorf("schedule %s: found communication in a schedule to repeat, expected computation only", s.Name)
	}
	if _, err := Validate(s); err != nil {
		return nil, err
	}
	g := &Generator{head: *s}
	g.head.Actions, g.head.Batches = nil, batches
	g.actions = func(stage int, yield func(Action) bool) {
		for first := 0; first < batches; first += s.Batches {
			for _, a := range s.Actions[stage] {
				a.Batch += first
				if a.Batch < batches && !yield(a) {
					return
				}
			}
		}
	}
	return g, nil
}
