package trace

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Summary is the use of a pipeline's stages over a trace.
//
// The share "all" covers the time from the first event of any stage to the end of the last, evaluations and checkpoints
// included. The share "steady" covers the steady state. A stretch of training lies between two moments at which the
// pipeline is empty. In each stretch, the steady state of a stage begins with its first run of the stretch's second
// batch, and ends with its first run of the stretch's last batch. So it has whole periods: it includes the flush of a
// schedule that flushes, and excludes the first fill and the last drain of a schedule that does not.
type Summary struct {
	File     string `json:"file"`
	Cut      bool   `json:"cut,omitempty"`      // the file ends in the middle of an event, as the file of a killed run may
	Full     bool   `json:"full,omitempty"`     // the run continued after the file had reached MaxSize
	Batches  int    `json:"batches"`            // trained; a batch that was trained again after a restart counts once
	Restarts int    `json:"restarts,omitempty"` // of lost devices
	// Staleness is the mean age of the gradients in steps; nil if no event of the trace has it.
	Staleness *float64     `json:"staleness,omitempty"`
	Stages    []Stage      `json:"stages"`
	Machines  *Machines    `json:"machines,omitempty"`  // nil: all stages are on one
	Exchanges *ExchangeUse `json:"exchanges,omitempty"` // nil: no replicas train on their own
	// Means over the stages.
	All    Shares  `json:"all"`
	Steady *Shares `json:"steady,omitempty"` // nil: no stretch of three batches
}

// Stage is the use of one stage.
type Stage struct {
	Name   string             `json:"name"`
	Member string             `json:"member,omitempty"` // the machine that has the stage; "": this one
	Means  map[string]float64 `json:"mean_seconds"`     // of a run by kind: F, B, I, W, E, N, U
	All    Shares             `json:"all"`
	Steady *Shares            `json:"steady,omitempty"`
}

// Shares are fractions of a time. They need not sum to 1: transfers overlap with computation.
type Shares struct {
	Seconds  float64 `json:"seconds"`
	Batches  int     `json:"batches"`
	Busy     float64 `json:"busy"`     // Compute and Update
	Compute  float64 `json:"compute"`  // forwards and backwards
	Update   float64 `json:"update"`   // the optimizer: gradient norms, updates
	Wait     float64 `json:"wait"`     // between two runs
	Transfer float64 `json:"transfer"` // at least one send or receive was in progress
	Bubble   float64 `json:"bubble"`   // not busy
	Data     float64 `json:"data"`     // some stage waited for a batch that hooks had not finished; the same for all stages
}

// Summarize reads a trace and sums it up. It is an error if no stage computed.
func Summarize(path string) (Summary, error) {
	t := timeline{stages: map[string]*stage{}, network: newNetwork()}
	var err error
	s := Summary{File: path}
	if s.Cut, err = Read(path, t.add, t.network.addArrow); err != nil {
		return s, err
	}
	rows := t.rows()
	if len(rows) == 0 {
		return s, fmt.Errorf("%s: found no stage that computed, expected events of category %q or %q", path, Forward, Evaluate)
	}
	s.Batches, s.Restarts, s.Full = len(t.batches()), t.restarts, t.full
	stretches := t.stretches()
	for _, r := range rows {
		stage := Stage{Name: r.name, Member: r.member, Means: r.means(), All: r.shares([]window{t.window(rows)})}
		stage.All.Batches = s.Batches
		if steady := r.steady(stretches); len(steady) > 0 {
			shares := r.shares(steady)
			stage.Steady = &shares
			r.windows = steady
		} else {
			r.windows = []window{t.window(rows)}
		}
		s.Stages = append(s.Stages, stage)
	}
	s.mean()
	s.Staleness = t.staleness()
	s.Machines = t.network.summarize(rows, s.Stages)
	s.Exchanges = t.exchanges.summarize(t.window(rows))
	return s, nil
}

// mean fills in the means over the stages.
func (s *Summary) mean() {
	steady := Shares{}
	for i, stage := range s.Stages {
		s.All.include(stage.All, i)
		if stage.Steady != nil {
			steady.include(*stage.Steady, i)
			s.Steady = &steady
		}
	}
}

// include updates s, the mean of n shares, with another one.
func (s *Shares) include(x Shares, n int) {
	for _, f := range []struct{ to, from *float64 }{{&s.Seconds, &x.Seconds}, {&s.Busy, &x.Busy}, {&s.Compute, &x.Compute},
		{&s.Update, &x.Update}, {&s.Wait, &x.Wait}, {&s.Transfer, &x.Transfer}, {&s.Bubble, &x.Bubble},
		{&s.Data, &x.Data}} {
		*f.to += (*f.from - *f.to) / float64(n+1)
	}
	s.Batches = x.Batches
}

// timeline is a trace in memory.
type timeline struct {
	stages    map[string]*stage
	trained   []stretch // of the events of training
	data      []interval
	restarts  int
	restarted float64 // the end of the last restart
	full      bool
	network   *network
	exchanges exchangeLog
}

// stretch is the batches from, from+1, …, to−1, trained between two moments at which the pipeline is empty. The first
// moment is start: a lost device may have begun some of the batches before it.
type stretch struct {
	from, to  int
	start     float64
	staleness *float64 // mean age of the gradients in steps; nil: not known
}

type stage struct {
	name      string
	member    string
	row       int
	windows   []window // in which its waits count
	computes  bool
	runs      []interval // and waits, in order
	transfers []interval
	data      []interval // of all stages
}

type interval struct {
	start, end float64
	category   Category
	kind       string // F, B, …
	batch      int
}

func (t *timeline) add(e Event) error {
	name, own := e.Track, true
	for _, suffix := range []string{sendSuffix, receiveSuffix} {
		if of, is := strings.CutSuffix(name, suffix); is {
			name, own = of, false
		}
	}
	if e.Category == Run || e.Category == "" {
		t.full = t.full || e.Category == "" && strings.HasPrefix(e.Name, fullEvent)
		if e.Name == TrainEvent && e.Args.From != nil && e.Args.To != nil {
			t.trained = append(t.trained, stretch{*e.Args.From, *e.Args.To, e.Start, e.Args.Staleness})
		}
		if e.Name == RestartEvent {
			t.restarts, t.restarted = t.restarts+1, max(t.restarted, e.End)
		}
		return nil
	}
	if t.network.add(e) || t.exchanges.add(e) {
		return nil
	}
	if e.Category == Data {
		t.data = append(t.data, interval{start: e.Start, end: e.End, category: Data})
		return nil
	}
	s := t.stages[name]
	if s == nil {
		s = &stage{name: name, row: math.MaxInt}
		t.stages[name] = s
	}
	if !own {
		s.transfers = append(s.transfers, interval{start: e.Start, end: e.End, category: e.Category})
		return nil
	}
	x := interval{start: e.Start, end: e.End, category: e.Category, batch: -1, kind: strings.TrimRight(e.Name, "0123456789.:")}
	if e.Args.Batch != nil {
		x.batch = *e.Args.Batch
	}
	s.runs, s.row, s.member = append(s.runs, x), e.Row, e.Process
	s.computes = s.computes || e.Category.Computes()
	return nil
}

// rows are the stages that compute, in the order of their tracks.
func (t *timeline) rows() []*stage {
	all := slices.DeleteFunc(slices.Collect(maps.Values(t.stages)), func(s *stage) bool { return !s.computes })
	slices.SortFunc(all, func(a, b *stage) int { return cmp.Compare(a.row, b.row) })
	byStart := func(a, b interval) int { return cmp.Compare(a.start, b.start) }
	slices.SortStableFunc(t.data, byStart)
	for _, s := range all {
		s.data = t.data
		slices.SortStableFunc(s.runs, byStart)
		slices.SortStableFunc(s.transfers, byStart)
	}
	return all
}

// trains reports whether the interval is a run of training.
func (x interval) trains() bool {
	return (x.category == Forward || x.category == Backward) && x.batch >= 0
}

// batches are the batches that were trained, in ascending order.
func (t *timeline) batches() []int {
	seen := map[int]bool{}
	for _, s := range t.stages {
		for _, x := range s.runs {
			if x.trains() {
				seen[x.batch] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// stretches are the stretches with an event, and one of all other batches: the event of a stretch in progress is not
// written yet.
func (t *timeline) stretches() []stretch {
	all := slices.Clone(t.trained)
	rest := slices.DeleteFunc(t.batches(), func(b int) bool {
		return slices.ContainsFunc(all, func(s stretch) bool { return s.from <= b && b < s.to })
	})
	if len(rest) > 0 {
		all = append(all, stretch{from: rest[0], to: rest[len(rest)-1] + 1, start: t.restarted})
	}
	return all
}

// staleness is the mean over the batches of all stretches whose staleness is known.
func (t *timeline) staleness() *float64 {
	sum, n := 0.0, 0
	for _, s := range t.trained {
		if s.staleness != nil {
			sum += *s.staleness * float64(s.to-s.from)
			n += s.to - s.from
		}
	}
	if n == 0 {
		return nil
	}
	mean := sum / float64(n)
	return &mean
}

// window is a time in which a number of batches were trained.
type window struct {
	start, end float64
	batches    int
}

// window is the time from the first event of any stage to the end of the last.
func (t *timeline) window(rows []*stage) window {
	w := window{start: math.Inf(1), end: math.Inf(-1)}
	for _, s := range rows {
		for _, x := range s.runs {
			w.start, w.end = min(w.start, x.start), max(w.end, x.end)
		}
	}
	return w
}

// steady is a stage's steady state: see Summary.
func (s *stage) steady(stretches []stretch) (ws []window) {
	starts := map[int][]float64{} // of a batch's runs
	for _, x := range s.runs {
		if x.trains() {
			starts[x.batch] = append(starts[x.batch], x.start)
		}
	}
	first := func(batch int, after float64) (float64, bool) {
		i, _ := slices.BinarySearch(starts[batch], after)
		if i == len(starts[batch]) {
			return 0, false
		}
		return starts[batch][i], true
	}
	for _, t := range stretches {
		start, begun := first(t.from+1, t.start)
		end, ended := first(t.to-1, t.start)
		if begun && ended && t.to-t.from >= 3 {
			ws = append(ws, window{start, end, t.to - t.from - 2})
		}
	}
	return ws
}

// means are the mean times of runs by kind, in seconds.
func (s *stage) means() map[string]float64 {
	sum, n := map[string]float64{}, map[string]float64{}
	for _, x := range s.runs {
		if x.category.Computes() {
			sum[x.kind] += (x.end - x.start) / 1e6
			n[x.kind]++
		}
	}
	for kind := range sum {
		sum[kind] /= n[kind]
	}
	return sum
}

// shares returns the shares over several windows together. The windows are in ascending order.
func (s *stage) shares(ws []window) Shares {
	var sh Shares
	runs, transfers, data := s.runs, s.transfers, s.data
	for _, w := range ws {
		sh.Seconds += (w.end - w.start) / 1e6
		sh.Batches += w.batches
		runs, transfers, data = after(runs, w.start), after(transfers, w.start), after(data, w.start)
		for _, x := range data {
			sh.Data += w.overlap(x.start, x.end)
		}
		for _, x := range runs {
			if x.start >= w.end {
				break
			}
			t := w.overlap(x.start, x.end)
			switch {
			case x.category == Wait:
				sh.Wait += t
			case x.category == GradientNorm || x.category == Update:
				sh.Update += t
			case x.category.Computes():
				sh.Compute += t
			}
		}
		reached := w.start // transfers of both directions may overlap
		for _, x := range transfers {
			if x.start >= w.end {
				break
			}
			sh.Transfer += w.overlap(max(x.start, reached), x.end)
			reached = max(reached, x.end)
		}
	}
	if sh.Seconds > 0 {
		for _, share := range []*float64{&sh.Compute, &sh.Update, &sh.Wait, &sh.Transfer, &sh.Data} {
			*share /= sh.Seconds
		}
	}
	sh.Busy = sh.Compute + sh.Update
	sh.Bubble = 1 - sh.Busy
	return sh
}

// after drops the first intervals that end before a time.
func after(xs []interval, start float64) []interval {
	for len(xs) > 0 && xs[0].end <= start {
		xs = xs[1:]
	}
	return xs
}

// overlap is the length of the intersection of a time with the window, in seconds.
func (w window) overlap(start, end float64) float64 {
	return max(0, min(end, w.end)-max(start, w.start)) / 1e6
}
