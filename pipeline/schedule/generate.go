package schedule

import (
	"fmt"
	"iter"
	"strings"
)

// Options is what a generator makes a schedule for.
type Options struct {
	Stages       int // p
	Microbatches int // m, a batch
	Chunks       int // v, a stage; 0: the least that the schedule has
	Batches      int // 0: one
}

// Bounds of Options: what the text of an action can name; maxActions is how many microbatches on parts are listed.
const (
	maxStages  = 1 << 12
	maxChunks  = 1 << 10
	maxNumber  = 999_999_999
	maxActions = 1 << 18
)

// Generator makes the lines of a schedule action by action, so that they cost no memory however many batches there are.
type Generator struct {
	head Schedule // without lines
	line func(stage int, yield func(Action) bool)
}

// family is one kind of schedule.
type family struct {
	name   string
	about  string
	delay  int
	chunks int                   // the least a stage
	many   bool                  // more are fine
	check  func(o Options) error // what it needs beyond sane numbers; may be nil
	// batch is a stage's computation of one batch, for schedules that finish a batch before the next; else stream is all of it.
	batch  func(o Options, stage int) []Action
	stream func(o Options, stage int, yield func(Action) bool)
}

func families() []family {
	return []family{
		{name: "gpipe", about: "all forwards, then all backwards (arXiv 1811.06965)", chunks: 1, batch: gpipe},
		{name: "1f1b", about: "one forward, one backward, within a batch (arXiv 2104.04473)", chunks: 1, batch: oneForwardOneBackward},
		{name: "interleaved", about: "1f1b with several chunks of the model a stage (arXiv 2104.04473)", chunks: 2, many: true, check: interleavable, batch: interleaved},
		{name: "zb-h1", about: "1f1b with the weights' gradients in its bubbles (arXiv 2401.10241)", chunks: 1, batch: zeroBubbleH1},
		{name: "pipedream", about: "1f1b without end, each microbatch its own update (arXiv 1806.03377)", delay: -1, chunks: 1, check: alone, stream: pipedream},
		{name: "2bw", about: "1f1b without end, a gradient a batch, one step old (arXiv 2006.09503)", delay: 1, chunks: 1, check: fills, stream: twoBW},
		{name: "eval", about: "forwards only", chunks: 1, many: true, batch: evaluation},
	}
}

// Names are the schedules that New knows, each with a line on what it is.
func Names() (names, about []string) {
	for _, f := range families() {
		names, about = append(names, f.name), append(about, f.about)
	}
	return names, about
}

// New finds a generator by name. It is an error when no such schedule exists for these numbers; it says why.
func New(name string, o Options) (*Generator, error) {
	for _, f := range families() {
		if f.name == name {
			return f.generator(o)
		}
	}
	names, _ := Names()
	return nil, fmt.Errorf("schedule %q: no such schedule, expected one of %s", name, strings.Join(names, ", "))
}

// Generate is a whole schedule of computation, by name.
func Generate(name string, o Options) (*Schedule, error) {
	g, err := New(name, o)
	if err != nil {
		return nil, err
	}
	return g.Schedule()
}

func (f family) generator(o Options) (*Generator, error) {
	if o.Batches == 0 {
		o.Batches = 1
	}
	if o.Chunks == 0 {
		o.Chunks = f.chunks
	}
	for _, n := range []struct {
		name             string
		found, low, high int
	}{{"stages", o.Stages, 1, maxStages}, {"chunks", o.Chunks, 1, maxChunks}, {"microbatches", o.Microbatches, 1, maxNumber}, {"batches", o.Batches, 1, maxNumber}} {
		if n.found < n.low || n.found > n.high {
			return nil, fmt.Errorf("schedule %s: %s: found %d, expected %d to %d", f.name, n.name, n.found, n.low, n.high)
		}
	}
	switch {
	case o.Chunks > f.chunks && !f.many:
		return nil, fmt.Errorf("schedule %s: chunks: found %d, expected %d: only interleaved trains several chunks a stage", f.name, o.Chunks, f.chunks)
	case o.Chunks < f.chunks:
		return nil, fmt.Errorf("schedule %s: chunks: found %d, expected at least %d: with one chunk a stage it is 1f1b", f.name, o.Chunks, f.chunks)
	}
	if f.check != nil {
		if err := f.check(o); err != nil {
			return nil, fmt.Errorf("schedule %s: %w", f.name, err)
		}
	}
	g := &Generator{head: Schedule{Name: f.name, Stages: o.Stages, Chunks: o.Chunks, Microbatches: o.Microbatches, Batches: o.Batches, Delay: f.delay}}
	g.line = func(stage int, yield func(Action) bool) {
		if f.stream != nil {
			f.stream(o, stage, yield)
			return
		}
		f.batches(o, stage, yield)
	}
	return g, nil
}

// batches is one batch after the other, each with its update at its end.
func (f family) batches(o Options, stage int, yield func(Action) bool) {
	one := f.batch(o, stage)
	for t := range o.Batches {
		for _, a := range one {
			a.Batch = t
			if !yield(a) {
				return
			}
		}
		if one[0].Kind != Evaluate && !yield(Action{Kind: Update, Batch: t}) {
			return
		}
	}
}

// Head is the schedule without its lines.
func (g *Generator) Head() Schedule { return g.head }

// Line is all that a stage does, in order. It can be read as often as wanted, each time from its beginning.
func (g *Generator) Line(stage int) iter.Seq[Action] {
	if stage < 0 || stage >= g.head.Stages {
		panic(fmt.Sprintf("schedule: no line %d among %d", stage, g.head.Stages))
	}
	return func(yield func(Action) bool) { g.line(stage, yield) }
}

// Schedule is the generator's schedule with all lines. It is an error when they are too long to be held in memory.
func (g *Generator) Schedule() (*Schedule, error) {
	s := g.head
	if n := float64(s.Parts()) * float64(s.Microbatches) * float64(s.Batches); n > maxActions {
		return nil, fmt.Errorf("schedule %s: %d stages · %d chunks · %d microbatches · %d batches are too many to be listed, expected at most %d",
			s.Name, s.Stages, s.Chunks, s.Microbatches, s.Batches, maxActions)
	}
	s.Lines = make([][]Action, s.Stages)
	for i := range s.Lines {
		for a := range g.Line(i) {
			s.Lines[i] = append(s.Lines[i], a)
		}
	}
	return &s, nil
}

// Halved is the same computation with each backward in its two halves, one right after the other: the gradient of a part's input
// can be on its way while those of its weights are computed. Where a stage waits for each gradient, as in the steady state of 2bw, a
// transfer costs nothing as long as it takes no longer than that half.
func (g *Generator) Halved() *Generator {
	return &Generator{head: g.head, line: func(stage int, yield func(Action) bool) {
		g.line(stage, func(a Action) bool {
			if a.Kind != Backward {
				return yield(a)
			}
			first, second := a, a
			first.Kind, second.Kind = InputGrad, WeightGrad
			return yield(first) && yield(second)
		})
	}}
}

// Repeat takes a schedule's lines as a pattern for any number of batches: each line starts again at its own end, with the
// batches that follow. Where fewer batches remain than the pattern has, the actions of those that are too many are left out.
// The pattern is of computation only and is validated.
func Repeat(s *Schedule, batches int) (*Generator, error) {
	if batches < 1 || batches > maxNumber {
		return nil, fmt.Errorf("schedule %s: batches: found %d, expected 1 to %d", s.Name, batches, maxNumber)
	}
	if s.Links != nil {
		return nil, fmt.Errorf("schedule %s: found communication in a schedule that is to be repeated, expected computation only", s.Name)
	}
	if _, err := Validate(s); err != nil {
		return nil, err
	}
	g := &Generator{head: *s}
	g.head.Lines, g.head.Batches = nil, batches
	g.line = func(stage int, yield func(Action) bool) {
		for first := 0; first < batches; first += s.Batches {
			for _, a := range s.Lines[stage] {
				a.Batch += first
				if a.Batch < batches && !yield(a) {
					return
				}
			}
		}
	}
	return g, nil
}
