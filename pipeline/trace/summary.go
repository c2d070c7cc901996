package trace

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Summary is what a trace tells of a pipeline.
//
// All of the time is from the first event of any stage to the end of the last, evaluations, checkpoints and all. The steady state
// is, of each stretch of training between two moments at which the pipeline is empty and of each stage, from the beginning of its
// first run of the stretch's second batch to that of its last batch: whole periods, without the filling and draining of a
// pipeline that need not be empty between batches, and with that of one that must.
type Summary struct {
	File     string  `json:"file"`
	Cut      bool    `json:"cut,omitempty"`      // the file ends in the middle, as that of a killed run may
	Full     bool    `json:"full,omitempty"`     // the run went on after the file had grown as large as it may
	Batches  int     `json:"batches"`            // trained; those that were trained again after a restart count once
	Restarts int     `json:"restarts,omitempty"` // of devices that were lost
	Stages   []Stage `json:"stages"`
	// Means over the stages.
	All    Shares  `json:"all"`
	Steady *Shares `json:"steady,omitempty"` // nil: no stretch of three batches
}

// Stage is what it tells of one stage.
type Stage struct {
	Name   string             `json:"name"`
	Means  map[string]float64 `json:"mean_seconds"` // of a run by kind: F, B, I, W, E, N, U
	All    Shares             `json:"all"`
	Steady *Shares            `json:"steady,omitempty"`
}

// Shares are parts of a time. Transfers go on beside the computation, and the two need not sum to 1.
type Shares struct {
	Seconds  float64 `json:"seconds"`
	Batches  int     `json:"batches"`
	Busy     float64 `json:"busy"`     // Compute and Update
	Compute  float64 `json:"compute"`  // forwards and backwards
	Update   float64 `json:"update"`   // the optimizer: norms of gradients, updates
	Wait     float64 `json:"wait"`     // between two runs
	Transfer float64 `json:"transfer"` // a send or a receive was under way
	Bubble   float64 `json:"bubble"`   // not busy
	Data     float64 `json:"data"`     // some stage waited for a batch that hooks had yet to make; of all stages the same
}

// Summarize reads a trace and sums it up. It is an error when no stage ever computed.
func Summarize(path string) (Summary, error) {
	t := timeline{stages: map[string]*stage{}}
	var err error
	s := Summary{File: path}
	if s.Cut, err = Read(path, t.add); err != nil {
		return s, err
	}
	rows := t.rows()
	if len(rows) == 0 {
		return s, fmt.Errorf("%s: it tells of no stage that computed, expected events of category %q or %q", path, Forward, Evaluate)
	}
	s.Batches, s.Restarts, s.Full = len(t.batches()), t.restarts, t.full
	stretches := t.stretches()
	for _, r := range rows {
		stage := Stage{Name: r.name, Means: r.means(), All: r.shares([]window{t.window(rows)})}
		stage.All.Batches = s.Batches
		if steady := r.steady(stretches); len(steady) > 0 {
			shares := r.shares(steady)
			stage.Steady = &shares
		}
		s.Stages = append(s.Stages, stage)
	}
	s.mean()
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

// include makes a mean of n shares one of n+1.
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
	trained   []stretch // as the events of training tell
	data      []interval
	restarts  int
	restarted float64 // when the last restart ended
	full      bool
}

// stretch is batches between two moments at which the pipeline is empty, the first of which is known: some of them may have been begun
// before, and lost.
type stretch struct {
	from, to int
	start    float64
}

type stage struct {
	name      string
	row       int
	computes  bool
	runs      []interval // and waits, in order
	transfers []interval
	data      []interval // of all stages
}

type interval struct {
	start, end float64
	what       Category
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
			t.trained = append(t.trained, stretch{*e.Args.From, *e.Args.To, e.Start})
		}
		if e.Name == RestartEvent {
			t.restarts, t.restarted = t.restarts+1, max(t.restarted, e.End)
		}
		return nil
	}
	if e.Category == Data {
		t.data = append(t.data, interval{start: e.Start, end: e.End, what: Data})
		return nil
	}
	s := t.stages[name]
	if s == nil {
		s = &stage{name: name, row: math.MaxInt}
		t.stages[name] = s
	}
	if !own {
		s.transfers = append(s.transfers, interval{start: e.Start, end: e.End, what: e.Category})
		return nil
	}
	x := interval{start: e.Start, end: e.End, what: e.Category, batch: -1, kind: strings.TrimRight(e.Name, "0123456789.:")}
	if e.Args.Batch != nil {
		x.batch = *e.Args.Batch
	}
	s.runs, s.row = append(s.runs, x), e.Row
	s.computes = s.computes || e.Category.Computes()
	return nil
}

// rows are the stages in the order of the picture.
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

// trains tells the runs of training.
func (x interval) trains() bool { return (x.what == Forward || x.what == Backward) && x.batch >= 0 }

// batches are those that were trained, in order.
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

// stretches are those of which there is an event, and what comes after them: its event would come at its end.
func (t *timeline) stretches() []stretch {
	all := slices.Clone(t.trained)
	rest := slices.DeleteFunc(t.batches(), func(b int) bool {
		return slices.ContainsFunc(all, func(s stretch) bool { return s.from <= b && b < s.to })
	})
	if len(rest) > 0 {
		all = append(all, stretch{rest[0], rest[len(rest)-1] + 1, t.restarted})
	}
	return all
}

// window is a time, with so many batches.
type window struct {
	start, end float64
	batches    int
}

// window is all of the time.
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

// means are the times of runs by kind.
func (s *stage) means() map[string]float64 {
	sum, n := map[string]float64{}, map[string]float64{}
	for _, x := range s.runs {
		if x.what.Computes() {
			sum[x.kind] += (x.end - x.start) / 1e6
			n[x.kind]++
		}
	}
	for kind := range sum {
		sum[kind] /= n[kind]
	}
	return sum
}

// shares are those of several windows together, in their order.
func (s *stage) shares(ws []window) Shares {
	var sh Shares
	runs, transfers, data := s.runs, s.transfers, s.data
	for _, w := range ws {
		sh.Seconds += (w.end - w.start) / 1e6
		sh.Batches += w.batches
		runs, transfers, data = after(runs, w.start), after(transfers, w.start), after(data, w.start)
		for _, x := range data {
			sh.Data += w.part(x.start, x.end)
		}
		for _, x := range runs {
			if x.start >= w.end {
				break
			}
			t := w.part(x.start, x.end)
			switch {
			case x.what == Wait:
				sh.Wait += t
			case x.what == Vote || x.what == Update:
				sh.Update += t
			case x.what.Computes():
				sh.Compute += t
			}
		}
		reached := w.start // transfers of both directions may overlap
		for _, x := range transfers {
			if x.start >= w.end {
				break
			}
			sh.Transfer += w.part(max(x.start, reached), x.end)
			reached = max(reached, x.end)
		}
	}
	if sh.Seconds > 0 {
		for _, part := range []*float64{&sh.Compute, &sh.Update, &sh.Wait, &sh.Transfer, &sh.Data} {
			*part /= sh.Seconds
		}
	}
	sh.Busy = sh.Compute + sh.Update
	sh.Bubble = 1 - sh.Busy
	return sh
}

// after leaves out what ends before a moment.
func after(xs []interval, start float64) []interval {
	for len(xs) > 0 && xs[0].end <= start {
		xs = xs[1:]
	}
	return xs
}

// part is how much of a time, in microseconds, lies in the window, in seconds.
func (w window) part(start, end float64) float64 {
	return max(0, min(end, w.end)-max(start, w.start)) / 1e6
}
