package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	flushBytes = 64 << 10
	flushEvery = time.Second
	processID  = 1

	fullEvent = "the trace ends here"
)

// MaxSize is the largest size of a file, in bytes. Viewers do not open larger ones.
const MaxSize = 256 << 20

// Writer writes one trace, a JSON array of events. It is safe for concurrent use.
//
// Events go to the file when 64 KiB or a second have gathered. Each time the array's end goes with them, and the next
// events overwrite it, so the file is valid at any moment, also after a kill. (The format calls that end optional; some
// versions of Perfetto require it.) A file ends at [MaxSize] with an event that says so. The first disk error stops the
// writing; Close returns it.
type Writer struct {
	mu      sync.Mutex
	file    *os.File
	start   time.Time
	flushed time.Time
	size    int64        // of the file without the array's end
	buf     bytes.Buffer // whole events only
	tracks  map[string]place
	next    int            // number of the next track
	hosts   map[string]int // processes of the viewer
	events  int
	flows   int
	maxSize int64 // bytes
	full    bool
	err     error
}

// place is a track's place in the viewer, and its number.
type place struct{ process, track int }

// Create creates or truncates the file at path. Times are relative to now. The viewer shows process as the title.
func Create(path, process string) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	w := &Writer{file: f, start: now, flushed: now, tracks: map[string]place{}, next: 1, hosts: map[string]int{"": processID},
		maxSize: MaxSize}
	w.describe(place{processID, 0}, "process_name", "name", process)
	w.flush()
	if w.err != nil {
		f.Close()
		return nil, w.err
	}
	return w, nil
}

// event is one entry of the array. Times are in microseconds.
type event struct {
	Name         string          `json:"name"`
	Category     Category        `json:"cat,omitempty"`
	Color        string          `json:"cname,omitempty"`
	Phase        phase           `json:"ph"`
	PID          int             `json:"pid"`
	TID          int             `json:"tid"`
	ID           int             `json:"id,omitempty"` // joins the two ends of a flow
	BindingPoint string          `json:"bp,omitempty"` // of a flow's end
	Start        json.Number     `json:"ts"`
	Duration     json.Number     `json:"dur,omitempty"`
	Args         json.RawMessage `json:"args,omitempty"`
}

// phase is the type of an event, a letter of the format.
type phase string

const (
	complete  phase = "X" // a slice: something that ran on a track from Start for Duration
	metadata  phase = "M" // the name or the place of a track
	flowStart phase = "s" // an arrow leaves the slice of its track that contains Start
	flowEnd   phase = "f" // the arrow with the same ID, name and category enters a slice
	counter   phase = "C" // new values of a chart
)

// enclosing, as the binding point of a flow's end, is the slice that contains its time. The default is the next slice.
const enclosing = "e"

// Tracks sets the order of the tracks. Other tracks follow in the order of first use. A nil Writer writes nothing.
func (w *Writer) Tracks(names ...string) {
	w.record(func() {
		for _, track := range names {
			w.track(track)
		}
	})
}

// Process puts tracks under the title of a process, such as a member of a run over machines. A track that is under
// another title already gets a new row, for the events that follow. The process "" is the run itself. A nil Writer
// writes nothing.
func (w *Writer) Process(process string, tracks ...string) {
	w.record(func() {
		pid, known := w.hosts[process]
		if !known {
			pid = processID + len(w.hosts)
			w.hosts[process] = pid
			w.describe(place{pid, 0}, "process_name", "name", process)
		}
		for _, name := range tracks {
			if p, ok := w.tracks[name]; !ok || p.process != pid {
				w.open(name, pid)
			}
		}
	})
}

// Complete records a slice: name ran on a track (a stage, the run) from start for dur. A track is a row of the picture.
// Arguments that JSON cannot hold are written as Go prints them. A nil Writer writes nothing.
func (w *Writer) Complete(track string, c Category, name string, start time.Time, dur time.Duration, args map[string]any) {
	w.record(func() {
		w.slice(track, c, name, start, dur, args)
	})
}

// Flow records an arrow from the slice that contains the time sent on one track to the slice that contains the time
// received on another. Both slices must have been recorded already. Both ends are written together, so no arrow lacks
// its end. A nil Writer writes nothing.
func (w *Writer) Flow(name, from string, sent time.Time, to string, received time.Time) {
	w.record(func() {
		w.flows++
		e := event{Name: name, Category: Transfer, ID: w.flows}.on(w.track(from))
		e.Phase, e.Start = flowStart, w.since(sent)
		w.add(e)
		e = e.on(w.track(to))
		e.Phase, e.Start, e.BindingPoint = flowEnd, w.since(received), enclosing
		w.add(e)
	})
}

// Counter records the value that a chart has from a time on. The viewer titles the chart with its name and unit. A
// value that is not finite is not recorded. A nil Writer writes nothing.
func (w *Writer) Counter(name, unit string, at time.Time, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	w.record(func() {
		w.add(event{Name: name, Phase: counter, PID: processID, Start: w.since(at), Args: encodeArgs(map[string]any{unit: value})})
	})
}

// record calls write with the lock held, unless the file is full, closed or failed. It writes a last event to a file
// that has just become full.
func (w *Writer) record(write func()) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || w.full {
		return
	}
	if size := w.size + int64(w.buf.Len()); size > w.maxSize {
		w.full = true
		w.slice(RunTrack, "", fmt.Sprintf("%s, at %d bytes", fullEvent, size), time.Now(), 0, nil)
	} else {
		write()
	}
	if w.buf.Len() >= flushBytes || time.Since(w.flushed) >= flushEvery {
		w.flush()
	}
}

func (w *Writer) slice(track string, c Category, name string, start time.Time, dur time.Duration, args map[string]any) {
	w.add(event{Name: name, Category: c, Color: c.color(), Phase: complete, Start: w.since(start), Duration: microseconds(max(dur, 0)),
		Args: encodeArgs(args)}.on(w.track(track)))
}

// on is the event on a track.
func (e event) on(p place) event {
	e.PID, e.TID = p.process, p.track
	return e
}

// track is the place of a track.
func (w *Writer) track(name string) place {
	if p, known := w.tracks[name]; known {
		return p
	}
	return w.open(name, processID)
}

// open gives a track a row. Numbers of tracks are unique in the file.
func (w *Writer) open(name string, process int) place {
	p := place{process, w.next}
	w.tracks[name] = p
	w.next++
	w.describe(p, "thread_name", "name", name)
	w.describe(p, "thread_sort_index", "sort_index", p.track)
	return p
}

func (w *Writer) describe(p place, kind, key string, value any) {
	w.add(event{Name: kind, Phase: metadata, Start: "0", Args: encodeArgs(map[string]any{key: value})}.on(p))
}

func (w *Writer) add(e event) {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // numbers, strings and what encodeArgs made
	}
	if w.events > 0 {
		w.buf.WriteByte(',')
	} else {
		w.buf.WriteByte('[')
	}
	w.buf.WriteByte('\n')
	w.buf.Write(text)
	w.events++
}

// since is a time as the trace counts it.
func (w *Writer) since(t time.Time) json.Number { return microseconds(t.Sub(w.start)) }

// microseconds formats a duration, exact to the nanosecond.
func microseconds(d time.Duration) json.Number {
	return json.Number(strconv.FormatFloat(float64(d.Nanoseconds())/1e3, 'f', 3, 64))
}

func encodeArgs(args map[string]any) json.RawMessage {
	if len(args) == 0 {
		return nil
	}
	if text, err := json.Marshal(args); err == nil {
		return text
	}
	plain := map[string]any{}
	for k, v := range args {
		if text, err := json.Marshal(v); err == nil {
			plain[k] = json.RawMessage(text)
		} else {
			plain[k] = fmt.Sprint(v)
		}
	}
	text, err := json.Marshal(plain)
	if err != nil {
		panic(err)
	}
	return text
}

func (w *Writer) flush() {
	if w.err == nil && w.buf.Len() > 0 {
		events := int64(w.buf.Len())
		w.buf.WriteString("\n]\n")
		_, w.err = w.file.WriteAt(w.buf.Bytes(), w.size)
		w.size += events
	}
	w.buf.Reset()
	w.flushed = time.Now()
}

// Flush writes out the events recorded so far.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
	return w.err
}

// Close writes out the rest and returns the first error since Create. Later calls record nothing.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	w.flush()
	err := w.err
	if cerr := w.file.Close(); err == nil {
		err = cerr
	}
	w.file, w.err = nil, os.ErrClosed
	return err
}
