package schedule

import (
	"fmt"
	"slices"
	"strings"
)

// The names of the schedules, where code needs a particular one. Everything else asks the table of Families.
const (
	GPipe       = "gpipe"
	OneF1B      = "1f1b"
	Interleaved = "interleaved"
	ZBH1        = "zb-h1"
	PipeDream   = "pipedream"
	TwoBW       = "2bw"
	Eval        = "eval"
)

// Family is a kind of schedule that New generates. Help texts, validation, plans and tests read this table, so a new
// schedule is a generator function and a row of Families.
type Family struct {
	Name        string
	Summary     string // one line, for help texts
	Delay       int    // as Schedule.Delay
	Chunks      int    // the fewest model chunks per stage
	ManyChunks  bool   // a stage may hold more chunks than that
	Deep        bool   // Options.Depth may be more than 0
	Untrainable string // why a run cannot train with it; empty if it can

	check    func(o Options) error                  // checks needs beyond the fields above; nil: there are none
	example  func(o Options) Options                // fills in omitted options where the usual ones do not fit; nil: they do
	closed   func(o Options, c Cost) (Form, bool)   // its closed form, without Form.InFlight; nil: not known
	inFlight func(o Options, stage int) (count int) // Form.InFlight of a stage

	// batch is one batch of a stage, for schedules that finish a batch before the next one; stream is all batches of a
	// stage, for the others. A family has one of the two.
	batch  func(o Options, stage int) []Action
	stream func(o Options, stage int, yield func(Action) bool)
}

// Families lists all schedules that New knows.
func Families() []Family {
	return []Family{
		{Name: GPipe, Summary: "all forwards, then all backwards (arXiv 1811.06965)", Chunks: 1,
			batch: gpipe, closed: flushForm, inFlight: allInFlight},
		{Name: OneF1B, Summary: "one forward, one backward, within a batch (arXiv 2104.04473)", Chunks: 1,
			Deep: true, batch: oneForwardOneBackward, closed: flushForm, inFlight: fewInFlight},
		{Name: Interleaved, Summary: "1f1b with several model chunks per stage (arXiv 2104.04473)", Chunks: 2, ManyChunks: true,
			check: wholeGroups, batch: interleaved, closed: flushForm, inFlight: interleavedInFlight},
		{Name: ZBH1, Summary: "1f1b with weight gradients in its bubbles (arXiv 2401.10241)", Chunks: 1,
			batch: zeroBubbleH1, closed: zeroBubbleForm, inFlight: stagesInFlight},
		{Name: PipeDream, Summary: "no flush; each microbatch has its own update (arXiv 1806.03377)", Delay: -1, Chunks: 1,
			Untrainable: "its delay differs by stage",
			check:       oneMicrobatch, example: pipedreamExample, stream: pipedream, closed: streamForm, inFlight: batchesInFlight},
		{Name: TwoBW, Summary: "no flush; first microbatches one step old (arXiv 2006.09503)", Delay: 1, Chunks: 1,
			Deep: true, check: enoughMicrobatches, example: twoBWExample, stream: twoBW, closed: streamForm, inFlight: fewInFlight},
		{Name: Eval, Summary: "forwards only", Chunks: 1, ManyChunks: true, Untrainable: "it has no backward",
			batch: evaluation, closed: evaluationForm, inFlight: noneInFlight},
	}
}

// Find returns the family of a name.
func Find(name string) (Family, bool) {
	all := Families()
	i := slices.IndexFunc(all, func(f Family) bool { return f.Name == name })
	if i < 0 {
		return Family{}, false
	}
	return all[i], true
}

// Trainable lists the families that a run can train with.
func Trainable() []Family {
	return slices.DeleteFunc(Families(), func(f Family) bool { return f.Untrainable != "" })
}

// ForDelay is the name of the schedule that trains with a delay of 0 or 1 unless another is asked for.
func ForDelay(delay int) string {
	if delay == 1 {
		return TwoBW
	}
	return OneF1B
}

// Names are the names of all schedules.
func Names() []string { return names(Families()) }

// TrainableNames are the names of the schedules that a run can train with.
func TrainableNames() []string { return names(Trainable()) }

func names(families []Family) (names []string) {
	for _, f := range families {
		names = append(names, f.Name)
	}
	return names
}

// Example fills in the options that o omits with values that show the pattern of the schedule: four stages, twice as
// many microbatches or as many as the depth needs, and as many batches as the pattern needs.
func (f Family) Example(o Options) Options {
	if o.Stages == 0 {
		o.Stages = 4
	}
	if f.example != nil {
		o = f.example(o)
	}
	if o.Microbatches == 0 {
		o.Microbatches = max(2*o.Stages, o.Stages+o.Depth)
	}
	return o
}

// complete fills in the options that have defaults and checks all of them.
func (f Family) complete(o Options) (Options, error) {
	o.Batches, o.Chunks = orElse(o.Batches, 1), orElse(o.Chunks, f.Chunks)
	if f.Delay == 1 {
		o.Stale = orElse(o.Stale, o.Stages-1+o.Depth)
	}
	for _, n := range []struct {
		name             string
		found, low, high int
	}{
		{"stages", o.Stages, 1, maxStages}, {"chunks", o.Chunks, 1, maxChunks},
		{"microbatches", o.Microbatches, 1, maxNumber}, {"batches", o.Batches, 1, maxNumber},
	} {
		if n.found < n.low || n.found > n.high {
			return o, fmt.Errorf("schedule %s: %s: found %d, expected %d to %d", f.Name, n.name, n.found, n.low, n.high)
		}
	}
	switch {
	case o.Chunks > f.Chunks && !f.ManyChunks:
		chunked := slices.DeleteFunc(Trainable(), func(f Family) bool { return !f.ManyChunks })
		return o, fmt.Errorf("schedule %s: chunks: found %d, expected %d: several chunks per stage need schedule %s",
			f.Name, o.Chunks, f.Chunks, strings.Join(names(chunked), " or "))
	case o.Chunks < f.Chunks:
		return o, fmt.Errorf("schedule %s: chunks: found %d, expected at least %d", f.Name, o.Chunks, f.Chunks)
	}
	if f.Delay != 1 && o.Stale != 0 {
		return o, fmt.Errorf("schedule %s: stale microbatches: found %d, expected 0: it has no stale microbatches", f.Name, o.Stale)
	}
	for _, check := range []func(Options) error{f.checkDepth, f.check} {
		if check == nil {
			continue
		}
		if err := check(o); err != nil {
			return o, fmt.Errorf("schedule %s: %w", f.Name, err)
		}
	}
	return o, nil
}

func orElse(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// actions yields all actions of a stage.
func (f Family) actions(o Options, stage int, yield func(Action) bool) {
	if f.stream != nil {
		f.stream(o, stage, yield)
		return
	}
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

// gpipe: Huang et al., arXiv 1811.06965. Backwards ascend by microbatch, because gradients are summed in that order.
func gpipe(o Options, _ int) (actions []Action) {
	for _, kind := range []Kind{Forward, Backward} {
		for i := range o.Microbatches {
			actions = append(actions, Action{Kind: kind, Microbatch: i})
		}
	}
	return actions
}

// evaluation: groups of p microbatches pass through chunk after chunk, as in interleaved.
func evaluation(o Options, _ int) (actions []Action) {
	for group := 0; group < o.Microbatches; group += o.Stages {
		for c := range o.Chunks {
			for i := group; i < min(group+o.Stages, o.Microbatches); i++ {
				actions = append(actions, Action{Kind: Evaluate, Microbatch: i, Chunk: c})
			}
		}
	}
	return actions
}

// alternate yields n forwards and n backwards by their number: warm-up forwards first, then one forward and one
// backward in turn, then the remaining backwards. It returns false as soon as yield does.
func alternate(n, warmup int, yield func(kind Kind, number int) bool) bool {
	for k := range n + warmup {
		if k < n && !yield(Forward, k) || k >= warmup && !yield(Backward, k-warmup) {
			return false
		}
	}
	return true
}

// oneForwardOneBackward: Narayanan et al., arXiv 2104.04473, §2.2.1 (PipeDream-Flush), with o.Depth more microbatches
// in flight.
func oneForwardOneBackward(o Options, stage int) (actions []Action) {
	alternate(o.Microbatches, min(o.warmup(stage), o.Microbatches), func(kind Kind, i int) bool {
		actions = append(actions, Action{Kind: kind, Microbatch: i})
		return true
	})
	return actions
}

// MicrobatchesError reports a number of microbatches that a schedule cannot work with.
type MicrobatchesError struct {
	Found, Stages int
	Next          int // the next larger number that the schedule works with
	Expected      string
}

func (e *MicrobatchesError) Error() string {
	return fmt.Sprintf("microbatches: found %d on %d stages, expected %s", e.Found, e.Stages, e.Expected)
}

// wholeGroups: interleaved passes microbatches through the chunks in groups of as many as there are stages.
func wholeGroups(o Options) error {
	if o.Microbatches%o.Stages != 0 {
		return &MicrobatchesError{Found: o.Microbatches, Stages: o.Stages, Next: (o.Microbatches/o.Stages + 1) * o.Stages,
			Expected: "a multiple of the stages: microbatches pass through the chunks in groups of as many as there are stages"}
	}
	return nil
}

// interleaved: Narayanan et al., arXiv 2104.04473, §2.2.2. Groups of p microbatches pass through chunk after chunk.
func interleaved(o Options, stage int) (actions []Action) {
	p, v := o.Stages, o.Chunks
	n := o.Microbatches * v
	warmup := min(2*(p-stage-1)+(v-1)*p, n)
	alternate(n, warmup, func(kind Kind, k int) bool {
		group, within := k/(p*v), k%(p*v)
		a := Action{Kind: kind, Microbatch: group*p + within%p, Chunk: within / p}
		if kind == Backward {
			a.Chunk = v - 1 - a.Chunk
		}
		actions = append(actions, a)
		return true
	})
	return actions
}

// zeroBubbleH1: Qi et al., arXiv 2401.10241, §2.2. Stage s delays its weight gradients by s microbatches, so that every
// stage keeps as many microbatches as the first stage of 1F1B, and computes the rest where 1F1B waits.
func zeroBubbleH1(o Options, stage int) (actions []Action) {
	m, warmup := o.Microbatches, min(o.Stages-stage-1, o.Microbatches)
	alternate(m, warmup, func(kind Kind, i int) bool {
		if kind == Forward {
			actions = append(actions, Action{Kind: Forward, Microbatch: i})
			return true
		}
		actions = append(actions, Action{Kind: InputGrad, Microbatch: i})
		if i >= stage {
			actions = append(actions, Action{Kind: WeightGrad, Microbatch: i - stage})
		}
		return true
	})
	for i := max(0, m-stage); i < m; i++ {
		actions = append(actions, Action{Kind: WeightGrad, Microbatch: i})
	}
	return actions
}

// oneMicrobatch: each microbatch of pipedream is a batch of its own.
func oneMicrobatch(o Options) error {
	if o.Microbatches != 1 {
		return fmt.Errorf("microbatches: found %d, expected 1: each microbatch is a batch of its own (set batches instead)", o.Microbatches)
	}
	return nil
}

func pipedreamExample(o Options) Options {
	o.Microbatches, o.Batches = orElse(o.Microbatches, 1), orElse(o.Batches, 2*o.Stages)
	return o
}

// pipedream: Harlap et al., arXiv 1806.03377, with weight stashing. In the steady state the gradient of stage s is p −
// 1 − s updates old.
func pipedream(o Options, stage int, yield func(Action) bool) {
	alternate(o.Batches, min(o.Stages-stage-1, o.Batches), func(kind Kind, t int) bool {
		return yield(Action{Kind: kind, Batch: t}) && (kind == Forward || yield(Action{Kind: Update, Batch: t}))
	})
}

// enoughMicrobatches: 2bw holds two versions of the weights, which is enough from one microbatch per stage on. When the
// first stage finishes a batch, it has begun p − 1 microbatches of the next, and as many more as its depth. At least
// these are stale.
func enoughMicrobatches(o Options) error {
	if o.Microbatches < o.Stages {
		return &MicrobatchesError{Found: o.Microbatches, Stages: o.Stages, Next: o.Stages,
			Expected: "at least one per stage: with fewer, " +
				"a batch would start before the update that it needs, and two versions of the weights would not be enough"}
	}
	if least := o.warmup(0); o.Stale < least || o.Stale > o.Microbatches {
		return fmt.Errorf("stale microbatches: found %d on %d stages with %d microbatches%s, expected %d to %d: the first stage begins %d "+
			"before the update of the batch before is possible", o.Stale, o.Stages, o.Microbatches, atDepth(o.Depth), least,
			o.Microbatches, least)
	}
	return nil
}

func twoBWExample(o Options) Options {
	o.Batches = orElse(o.Batches, 3)
	return o
}

// twoBW: Narayanan et al., arXiv 2006.09503 (PipeDream-2BW), in which all microbatches of a batch are stale and a stage
// has as many in flight as there are stages from it to the last. Here the first o.Stale are stale, the others read the
// weights that the batch before left, and o.Depth is how many more are in flight. An update stands at its deadline, the
// first forward that reads its weights. The updates of the last batches follow at the end.
func twoBW(o Options, stage int, yield func(Action) bool) {
	m, due := o.Microbatches, 0 // due is the next update
	n := m * o.Batches
	more := alternate(n, min(o.warmup(stage), n), func(kind Kind, k int) bool {
		if kind == Forward && k == (due+1)*m+o.Stale {
			if !yield(Action{Kind: Update, Batch: due}) {
				return false
			}
			due++
		}
		return yield(Action{Kind: kind, Microbatch: k % m, Batch: k / m})
	})
	for ; more && due < o.Batches; due++ {
		more = yield(Action{Kind: Update, Batch: due})
	}
}
