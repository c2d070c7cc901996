package watch

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/trace"
)

const (
	// keptSlices is how many of the newest slices of a track are kept.
	keptSlices = 2048
	// maxTracks bounds the tracks of a timeline. Others are ignored.
	maxTracks = 1024
	// maxMicros bounds the times of a trace, in microseconds: thirty years.
	maxMicros = 1e15
	// maxDrawn bounds the runs of a rank in a picture.
	maxDrawn = 1000
	// usedBatches is how many of the newest batches the shares of a pipeline cover.
	usedBatches = 8
)

// timeline is the end of a trace: the newest slices of each rank, and where the run was restarted.
type timeline struct {
	tracks    map[int]*track
	processes map[int]string
	restarts  []restart
}

// track is the events of a rank in the order in which they began.
type track struct {
	name, member string
	row          int
	slices       []slice
	dropped      bool // there were more slices
}

// slice is a run or a wait on a rank. Times are in microseconds since the start of the trace.
type slice struct {
	start, end float64
	category   trace.Category
	name       string
	batch      int // -1: of none
	microbatch int // -1: of none
}

// restart is a restart of lost devices.
type restart struct {
	Step  float64
	Fault string
}

// written is an event of the file.
type written struct {
	Name     string          `json:"name"`
	Category trace.Category  `json:"cat"`
	Phase    string          `json:"ph"`
	PID      int             `json:"pid"`
	TID      int             `json:"tid"`
	Start    float64         `json:"ts"`
	Duration float64         `json:"dur"`
	Args     json.RawMessage `json:"args"`
}

// passedOver begin events that the timeline does not need: transfers' arrows and charts.
var passedOver = [][]byte{[]byte(`"ph":"s"`), []byte(`"ph":"f"`), []byte(`"ph":"C"`)}

// take takes a line of the file: an event. Lines that are none are ignored.
func (t *timeline) take(line []byte) {
	for _, phase := range passedOver {
		if bytes.Contains(line, phase) {
			return
		}
	}
	var e written
	if json.Unmarshal(line, &e) != nil {
		return
	}
	switch e.Phase {
	case "M":
		t.describe(e)
	case "X":
		t.add(e)
	}
}

// describe takes the name of a track or of a process.
func (t *timeline) describe(e written) {
	var args struct{ Name string }
	if json.Unmarshal(e.Args, &args) != nil {
		return
	}
	switch {
	case e.Name == "thread_name" && len(t.tracks) < maxTracks:
		t.tracks[e.TID] = &track{name: args.Name, member: t.processes[e.PID], row: e.TID}
	case e.Name == "process_name" && e.PID != 1 && len(t.processes) < maxTracks:
		t.processes[e.PID] = args.Name
	}
}

// add takes a slice.
func (t *timeline) add(e written) {
	args := struct {
		Batch, Microbatch *int
		Step              float64
		Fault             string
	}{}
	if len(e.Args) > 0 && json.Unmarshal(e.Args, &args) != nil {
		return
	}
	if e.Category == trace.Run && e.Name == trace.RestartEvent && len(t.restarts) < keptSlices {
		t.restarts = append(t.restarts, restart{args.Step, args.Fault})
	}
	k := t.tracks[e.TID]
	if k == nil || !e.Category.Computes() && e.Category != trace.Wait || e.Duration < 0 || e.Duration > maxMicros ||
		math.Abs(e.Start) > maxMicros {
		return
	}
	s := slice{e.Start, e.Start + e.Duration, e.Category, e.Name, -1, -1}
	if args.Batch != nil {
		s.batch = *args.Batch
	}
	if args.Microbatch != nil {
		s.microbatch = *args.Microbatch
	}
	if k.slices = append(k.slices, s); len(k.slices) >= 2*keptSlices {
		k.slices, k.dropped = append(k.slices[:0], k.slices[len(k.slices)-keptSlices:]...), true
	}
}

// picture is the pipeline as the page draws it: the slices of each rank during the newest complete batch.
type picture struct {
	Batch   int         `json:"batch"`
	Batches int         `json:"batches"` // that the shares cover
	Span    float64     `json:"span"`    // microseconds
	Ranks   []rankTrack `json:"ranks"`
}

// rankTrack is the row of a rank. The shares are of the time of the newest batches.
type rankTrack struct {
	Name    string  `json:"name"`
	Member  string  `json:"member,omitempty"`
	Compute float64 `json:"compute"` // forwards and backwards
	Update  float64 `json:"update"`  // gradient norms and the optimizer
	Bubble  float64 `json:"bubble"`  // the rest
	// Slices are the start and the duration in microseconds, the kind and the name of each run.
	Slices []drawnSlice `json:"slices"`
}

// drawnSlice is a run on a rank, relative to the start of the picture.
type drawnSlice struct {
	Start    float64 `json:"t"`
	Duration float64 `json:"d"`
	Kind     string  `json:"k"`
	Name     string  `json:"n"`
	Batch    int     `json:"b"`
}

// kinds are the names of the events that are drawn, by category.
var kinds = map[trace.Category]string{trace.Forward: "forward", trace.Backward: "backward", trace.Evaluate: "evaluate",
	trace.GradientNorm: "update", trace.Update: "update"}

// picture draws the newest batch that all ranks have finished; nil without one.
func (t *timeline) picture() *picture {
	ranks := t.ranks()
	batch := -1
	for i, k := range ranks {
		if newest := k.finished(); i == 0 || newest < batch {
			batch = newest
		}
	}
	if batch < 0 {
		return nil
	}
	start, end := window(ranks, batch, batch)
	p := &picture{Batch: batch, Span: end - start}
	oldest := 0
	for _, k := range ranks {
		oldest = max(oldest, k.first(batch-usedBatches+1))
	}
	oldest = min(oldest, batch)
	from, to := window(ranks, oldest, batch)
	p.Batches = batch - oldest + 1
	for _, k := range ranks {
		p.Ranks = append(p.Ranks, k.draw(start, end, from, to))
	}
	return p
}

// ranks are the tracks of ranks that trained, in the order of their rows.
func (t *timeline) ranks() (all []*track) {
	for _, k := range t.tracks {
		if k.finished() >= 0 {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *track) int { return a.row - b.row })
	return all
}

// finished is the newest batch that is over on the rank: one that was updated, or that a later one follows; -1: none.
func (k *track) finished() int {
	later := -1
	for _, s := range slices.Backward(k.slices) {
		switch {
		case s.batch < 0 || s.category == trace.Evaluate:
		case s.category == trace.Update || later > s.batch:
			return s.batch
		default:
			later = max(later, s.batch)
		}
	}
	return -1
}

// first is the oldest batch, not below one, whose slices are kept from its beginning.
func (k *track) first(least int) int {
	for _, s := range k.slices {
		if s.batch >= least && s.category != trace.Evaluate && (!k.dropped || s.batch != k.slices[0].batch) {
			return s.batch
		}
	}
	return least
}

// window is the time in which ranks trained some batches. An evaluation or a checkpoint between them counts.
func window(ranks []*track, from, to int) (start, end float64) {
	start, end = math.Inf(1), math.Inf(-1)
	for _, k := range ranks {
		for _, s := range k.slices {
			if s.batch >= from && s.batch <= to && s.category.Computes() && s.category != trace.Evaluate {
				start, end = min(start, s.start), max(end, s.end)
			}
		}
	}
	return start, end
}

// draw is the row of a rank from start to end, with the shares from one time to another.
func (k *track) draw(start, end, from, to float64) rankTrack {
	r := rankTrack{Name: k.name, Member: k.member, Slices: []drawnSlice{}}
	for _, s := range k.slices {
		inside := max(0, min(s.end, to)-max(s.start, from)) / max(to-from, 1e-9)
		switch {
		case !s.category.Computes():
			continue
		case s.category == trace.Update || s.category == trace.GradientNorm:
			r.Update += inside
		default:
			r.Compute += inside
		}
		if s.end > start && s.start < end && len(r.Slices) < maxDrawn {
			at := max(s.start, start)
			r.Slices = append(r.Slices, drawnSlice{at - start, min(s.end, end) - at, kinds[s.category], strings.ToValidUTF8(s.name, "?"),
				s.batch})
		}
	}
	r.Bubble = max(0, 1-r.Compute-r.Update)
	return r
}
