package watch

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/gpupipe/gpupipe/internal/httpserver"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

const (
	// shownRuns is how many runs a page shows that asks for none.
	shownRuns = 5
	// maxShown bounds the runs that a page shows.
	maxShown = 32
	// maxPoints is how many rows of a run a page gets, and minPoints how many of one with very many columns.
	maxPoints, minPoints = 2000, 200
	// sentCells bounds the values of a run that a page gets at once, if that leaves minPoints.
	sentCells = 200_000
	// heartbeatEvery is how often a stream without news writes a comment, which finds readers that are gone.
	heartbeatEvery = 15 * time.Second
	// digits is the number of significant digits of a value on the page.
	digits = 7
)

// view is what a page shows.
type view struct {
	runs     []string // none: the newest
	focus    string   // the run whose pipeline, experts, events and samples are shown; "": the first
	search   string   // the list has runs whose names contain this text, besides the runs that are shown
	axis     string   // the column of the x axis that from and to are of; "": steps
	from, to float64
	zoomed   bool
	once     bool // the stream ends after what there is now
}

func readView(query url.Values) view {
	v := view{runs: query["run"], focus: query.Get("focus"), search: query.Get("search"), once: query.Has("once"),
		axis: query.Get("axis"), from: math.Inf(-1), to: math.Inf(1)}
	if len(v.runs) > maxShown {
		v.runs = v.runs[:maxShown]
	}
	if x, err := strconv.ParseFloat(query.Get("from"), 64); err == nil && !math.IsNaN(x) {
		v.from, v.zoomed = x, true
	}
	if x, err := strconv.ParseFloat(query.Get("to"), 64); err == nil && !math.IsNaN(x) {
		v.to, v.zoomed = x, true
	}
	return v
}

// stream sends a page the values that it does not have yet.
type stream struct {
	watcher *Watcher
	view    view
	held    map[string]*watched
	sent    map[string]*cursor
	version int // of the list of runs
}

// cursor is the part of a run that a page has.
type cursor struct {
	run        *run
	generation int
	rows       int // of the series
	appended   int // rows behind the last sample
	changes    int // of the series
	columns    int
	revision   int
	drawn      int
	loaded     int // of the experts
	newest     int // changes of the series when the newest values were sent
}

// message is a server-sent event.
type message struct {
	kind string
	data []byte
}

// serve sends messages until the reader is gone.
func (s *stream) serve(ctx context.Context, out http.ResponseWriter) error {
	writer := http.NewResponseController(out)
	defer func() { s.watcher.release(s.held) }()
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	for {
		messages, changed := s.collect()
		for _, m := range messages {
			if err := m.write(out); err != nil {
				return err
			}
		}
		if err := writer.Flush(); err != nil || s.view.once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-httpserver.Closing(ctx):
			return nil
		case <-changed:
		case <-heartbeat.C:
			if _, err := io.WriteString(out, ":\n\n"); err != nil {
				return err
			}
		}
	}
}

func (m message) write(out io.Writer) error {
	text := append([]byte("event: "+m.kind+"\ndata: "), m.data...)
	_, err := out.Write(append(text, "\n\n"...))
	return err
}

// collect returns new messages, and a channel that is closed when there are more.
func (s *stream) collect() (messages []message, changed <-chan struct{}) {
	w := s.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	s.hold()
	if s.version != w.version || s.sent == nil {
		s.version = w.version
		messages = append(messages, encode("runs", map[string]any{"runs": w.summaries(s.view), "total": len(w.runs),
			"shown": append([]string{}, s.view.runs...), "focus": s.view.focus}))
	}
	sent := map[string]*cursor{}
	for _, name := range s.view.runs {
		r := s.held[name]
		if r == nil {
			continue
		}
		c := s.sent[name]
		if c == nil || c.run != r.run {
			c = &cursor{run: r.run, generation: -1, revision: -1, drawn: -1, loaded: -1, newest: -1}
		}
		sent[name] = c
		messages = append(messages, c.news(s.view)...)
	}
	s.sent = sent
	return messages, w.changed
}

// hold holds the runs of the view. It releases a run that was removed, and holds it again if it comes back.
func (s *stream) hold() {
	if len(s.view.runs) == 0 {
		s.view.runs = s.watcher.newest(shownRuns)
	}
	for name, r := range s.held {
		if s.watcher.runs[name] != r {
			r.streams--
			delete(s.held, name)
		}
	}
	var missing []string
	for _, name := range s.view.runs {
		if s.held[name] == nil {
			missing = append(missing, name)
		}
	}
	if s.held == nil {
		s.held = map[string]*watched{}
	}
	for name, r := range s.watcher.watch(missing) {
		s.held[name] = r
	}
	if !slices.Contains(s.view.runs, s.view.focus) && len(s.view.runs) > 0 {
		s.view.focus = s.view.runs[0]
	}
}

// news is the part of a run that a page does not have.
func (c *cursor) news(v view) (messages []message) {
	r := c.run
	if c.revision != r.contents.revision {
		c.revision = r.contents.revision
		messages = append(messages, encode("about", about{Name: r.name, Start: r.contents.start, Config: r.config,
			Events: lastOf(r.contents.events, keptEvents), Samples: r.samples, Restarts: r.contents.timeline.restarts}))
	}
	if m, ok := c.rowsSince(v); ok {
		messages = append(messages, m)
	}
	if s := r.contents.series; v.focus == r.name && c.newest != s.changes {
		c.newest = s.changes
		messages = append(messages, encode("newest", r.newest()))
	}
	if v.focus == r.name && c.drawn != r.contents.drawn {
		c.drawn = r.contents.drawn
		messages = append(messages, encode("pipeline", map[string]any{"name": r.name, "picture": r.contents.timeline.picture()}))
	}
	if v.focus == r.name && c.loaded != r.contents.loaded {
		c.loaded = r.contents.loaded
		messages = append(messages, encode("experts", map[string]any{"name": r.name, "loads": r.contents.experts.loads}))
	}
	return messages
}

// newest are the newest values of a run, whatever part of it the page shows.
type newest struct {
	Name   string                    `json:"name"`
	Step   float64                   `json:"step"`
	Values map[string]metrics.Number `json:"values"`
}

func (r *run) newest() newest {
	s := r.contents.series
	n := newest{Name: r.name, Values: map[string]metrics.Number{}}
	if len(s.steps) > 0 {
		n.Step = s.steps[len(s.steps)-1]
	}
	for _, name := range s.names {
		if x := s.last(name); !isMissing(x) {
			n.Values[name] = metrics.Number(x)
		}
	}
	return n
}

// about describes a run on the page, besides its measurements.
type about struct {
	Name     string    `json:"name"`
	Start    start     `json:"start"`
	Config   settings  `json:"config"`
	Events   []Event   `json:"events"`
	Samples  []Event   `json:"samples"`
	Restarts []restart `json:"restarts"`
}

// rowsSince are the rows that a page does not have: all rows, thinned, or the added rows. After maxPoints added rows
// all are sent again, so that a page does not grow.
func (c *cursor) rowsSince(v view) (message, bool) {
	s := c.run.contents.series
	n := len(s.steps)
	points := min(maxPoints, max(minPoints, sentCells/(len(s.columns)+1)))
	if c.generation == c.run.contents.generation && n >= c.rows && c.columns == len(s.columns) && c.appended < points {
		if c.changes == s.changes {
			return message{}, false
		}
		lo, hi := s.within(v, max(0, c.rows-lateRows), n)
		c.appended += n - c.rows
		c.rows, c.changes = n, s.changes
		if hi <= lo {
			return message{}, false
		}
		steps, columns := s.sample(lo, hi, points)
		return encodeRows(c.run.name, false, s.names, steps, columns, n), true
	}
	c.generation, c.rows, c.appended, c.columns, c.changes = c.run.contents.generation, n, 0, len(s.columns), s.changes
	lo, hi := s.within(v, 0, n)
	steps, columns := s.sample(lo, hi, points)
	return encodeRows(c.run.name, true, s.names, steps, columns, n), true
}

// within is the range of rows between lo and hi that the view shows, with one row more on each side.
func (s *series) within(v view, lo, hi int) (int, int) {
	if !v.zoomed {
		return lo, hi
	}
	x := s.steps
	if i, ok := s.index[v.axis]; ok && v.axis != "step" {
		x = s.columns[i]
	}
	first := lo + sort.Search(hi-lo, func(i int) bool { return x[lo+i] >= v.from })
	last := lo + sort.Search(hi-lo, func(i int) bool { return x[lo+i] > v.to })
	return max(lo, first-1), min(hi, max(first, last)+1)
}

func encode(kind string, v any) message {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers are finite, see finite
	}
	return message{kind, data}
}

// encodeRows is a message of rows, all that the page has of the run or some more.
func encodeRows(name string, all bool, names []string, steps []float64, columns [][]float64, total int) message {
	b := append([]byte(`{"name":`), quote(name)...)
	b = strconv.AppendBool(append(b, `,"all":`...), all)
	b = strconv.AppendInt(append(b, `,"rows":`...), int64(total), 10)
	b = appendNumbers(append(b, `,"steps":`...), steps, -1)
	b = append(b, `,"columns":{`...)
	first := true
	for i, c := range columns {
		if !slices.ContainsFunc(c, func(x float64) bool { return !isMissing(x) }) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		precision := digits
		if names[i] == "time" || names[i] == "tokens" {
			precision = -1
		}
		b = append(append(b, quote(names[i])...), ':')
		b = appendNumbers(b, c, precision)
	}
	return message{"rows", append(b, "}}"...)}
}

// quote is a string in JSON.
func quote(text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // of a string, never
	}
	return b
}
