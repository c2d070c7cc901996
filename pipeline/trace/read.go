package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Event is a slice of a track. Times are in microseconds since the start of the trace.
type Event struct {
	Track      string
	Process    string // the member that recorded it; "": this one
	Row        int    // the track's place in the viewer
	Name       string
	Category   Category
	Start, End float64
	Args       Args
}

// Args are the arguments of events that Summarize needs. They are nil where an event has none.
type Args struct {
	Batch     *int     `json:"batch"`
	From      *int     `json:"from"`
	To        *int     `json:"to"`
	Staleness *float64 `json:"staleness"`
	Bytes     int64    `json:"bytes"`
	Step      *int     `json:"step"`  // of Exchange events
	Lands     *int     `json:"lands"` // of Exchange events
	// Of Clock and Network events.
	Offset    float64  `json:"offset_micros"`
	Error     *float64 `json:"error_micros"`
	Latency   float64  `json:"latency_micros"`
	Bandwidth float64  `json:"bytes_per_second"`
	Source    string   `json:"source"`
	Target    string   `json:"target"`
	Settings
}

// Arrow is a transfer from a Send to its Receive. Times are in microseconds since the start of the trace, when each of
// them began.
type Arrow struct {
	From, To       string // tracks
	Sent, Received float64
}

// Read calls each with the slices of a file, in the order in which they were written. It stops at the first error of
// each. It calls arrow, unless that is nil, with the arrows. It ignores counters. It reports whether the file is cut:
// the file of a killed run may end in the middle of an event. Errors name the file, the event and the fault.
func Read(path string, each func(Event) error, arrow func(Arrow)) (cut bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	r := reader{json: json.NewDecoder(bufio.NewReaderSize(f, 1<<20)), tracks: map[int]track{}, processes: map[int]string{},
		sent: map[int]Arrow{}, each: each, arrow: arrow}
	err = r.read()
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return false, nil
}

type reader struct {
	json      *json.Decoder
	tracks    map[int]track
	processes map[int]string
	sent      map[int]Arrow // whose end is still to come
	each      func(Event) error
	arrow     func(Arrow) // nil: none
}

// track is a row.
type track struct {
	name    string
	process string
}

func (r *reader) read() error {
	first, err := r.json.Token()
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the file is empty, expected a JSON array of trace events")
	case err != nil:
		return fmt.Errorf("expected a JSON array of trace events: %w", err)
	case first != json.Delim('['):
		return fmt.Errorf("found %v, expected a JSON array of trace events", first)
	}
	for i := 0; r.json.More(); i++ {
		var e written
		err := r.json.Decode(&e)
		if err == nil {
			err = r.take(e)
		}
		if err != nil {
			return fmt.Errorf("event %d, before byte %d: %w", i, r.json.InputOffset(), err)
		}
	}
	_, err = r.json.Token()
	return err
}

// written is an event of the file.
type written struct {
	Name     string          `json:"name"`
	Category Category        `json:"cat"`
	Phase    phase           `json:"ph"`
	PID      int             `json:"pid"`
	TID      int             `json:"tid"`
	ID       int             `json:"id"`
	Start    *float64        `json:"ts"`
	Dur      *float64        `json:"dur"`
	Args     json.RawMessage `json:"args"`
}

func (r *reader) take(e written) error {
	switch {
	case e.Phase == metadata && (e.Name == "thread_name" || e.Name == "process_name"):
		var args struct{ Name *string }
		if err := e.decode(&args); err != nil {
			return err
		}
		switch {
		case args.Name == nil:
			return fmt.Errorf("found no args.name, expected the name of track %d", e.TID)
		case e.Name == "thread_name":
			r.tracks[e.TID] = track{*args.Name, r.processes[e.PID]}
		case e.PID != processID:
			r.processes[e.PID] = *args.Name
		}
	case e.Phase == flowStart || e.Phase == flowEnd:
		return r.takeArrow(e)
	case e.Phase == complete:
		if e.Start == nil || e.Dur == nil || *e.Dur < 0 {
			return fmt.Errorf("%q has no ts or no dur, expected both in microseconds", e.Name)
		}
		track, ok := r.tracks[e.TID]
		if !ok {
			return fmt.Errorf("%q is on track %d, expected one that has been named", e.Name, e.TID)
		}
		if e.Category == legacyGradientNorm {
			e.Category = GradientNorm
		}
		event := Event{Track: track.name, Process: track.process, Row: e.TID, Name: e.Name, Category: e.Category, Start: *e.Start,
			End: *e.Start + *e.Dur}
		if err := e.decode(&event.Args); err != nil {
			return err
		}
		return r.each(event)
	}
	return nil
}

// takeArrow takes one end of an arrow. The other end may be missing in a file that is cut.
func (r *reader) takeArrow(e written) error {
	track, ok := r.tracks[e.TID]
	if !ok || e.Start == nil {
		return fmt.Errorf("the arrow %q has no ts or is on track %d, which has no name", e.Name, e.TID)
	}
	if e.Phase == flowStart {
		r.sent[e.ID] = Arrow{From: track.name, Sent: *e.Start}
		return nil
	}
	a, ok := r.sent[e.ID]
	delete(r.sent, e.ID)
	if ok && r.arrow != nil {
		a.To, a.Received = track.name, *e.Start
		r.arrow(a)
	}
	return nil
}

func (e written) decode(args any) error {
	if len(e.Args) == 0 {
		return nil
	}
	if err := json.Unmarshal(e.Args, args); err != nil {
		return fmt.Errorf("args of %q: %w", e.Name, err)
	}
	return nil
}
