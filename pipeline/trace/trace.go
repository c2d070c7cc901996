// Package trace writes timelines in Chrome's trace event format, as Perfetto and chrome://tracing read it, and sums them up: how
// long each stage of a pipeline computed, waited and transferred.
package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
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

// MostBytes is how large a file becomes: larger ones no viewer opens.
const MostBytes = 256 << 20

// Writer writes one trace, a JSON array of events. It is safe for concurrent use. Events go to the file when
// 64 KiB or a second have gathered, each time with the array's end, which the next ones overwrite: the file is
// valid at any moment, also after a kill. (The format calls that end optional; not every version of Perfetto
// agrees.) A file ends at 256 MiB; an event says so. The first error of the disk is kept for Close, and stops the writing.
type Writer struct {
	mu      sync.Mutex
	file    *os.File
	start   time.Time
	flushed time.Time
	size    int64        // of the file without the array's end
	buf     bytes.Buffer // whole events only
	tracks  map[string]int
	events  int
	most    int64 // bytes
	full    bool
	err     error
}

// Create makes or empties the file at path. Times are shown relative to now; process is the title of the whole.
func Create(path, process string) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	w := &Writer{file: f, start: now, flushed: now, tracks: map[string]int{}, most: MostBytes}
	w.metadata(0, "process_name", "name", process)
	w.flush()
	if w.err != nil {
		f.Close()
		return nil, w.err
	}
	return w, nil
}

// event is one entry of the array; times are in microseconds.
type event struct {
	Name  string          `json:"name"`
	Cat   Category        `json:"cat,omitempty"`
	Color string          `json:"cname,omitempty"`
	Phase string          `json:"ph"`
	PID   int             `json:"pid"`
	TID   int             `json:"tid"`
	Start json.Number     `json:"ts"`
	Dur   json.Number     `json:"dur,omitempty"`
	Args  json.RawMessage `json:"args,omitempty"`
}

// Tracks says in which order the rows of the picture come; others follow in the order of first use. A nil Writer writes nothing.
func (w *Writer) Tracks(names ...string) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, track := range names {
		w.track(track)
	}
}

// Complete records that name ran on a track (a stage, the run) from start for dur. A track is a row of the picture.
// Arguments that JSON cannot hold are shown as Go prints them. A nil Writer writes nothing.
func (w *Writer) Complete(track string, what Category, name string, start time.Time, dur time.Duration, args map[string]any) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || w.full {
		return
	}
	if w.full = w.size+int64(w.buf.Len()) > w.most; w.full {
		what, name, args = "", fmt.Sprintf("%s, at %d bytes", fullEvent, w.size+int64(w.buf.Len())), nil
	}
	w.add(event{Name: name, Cat: what, Color: what.colour(), Phase: "X", PID: processID, TID: w.track(track), Start: micros(start.Sub(w.start)),
		Dur: micros(max(dur, 0)), Args: encodeArgs(args)})
	if w.buf.Len() >= flushBytes || time.Since(w.flushed) >= flushEvery {
		w.flush()
	}
}

// track is the number of a row.
func (w *Writer) track(name string) int {
	tid, known := w.tracks[name]
	if !known {
		tid = len(w.tracks) + 1
		w.tracks[name] = tid
		w.metadata(tid, "thread_name", "name", name)
		w.metadata(tid, "thread_sort_index", "sort_index", tid)
	}
	return tid
}

func (w *Writer) metadata(tid int, kind, key string, value any) {
	w.add(event{Name: kind, Phase: "M", PID: processID, TID: tid, Start: "0", Args: encodeArgs(map[string]any{key: value})})
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

// micros writes a duration as microseconds, exact to the nanosecond.
func micros(d time.Duration) json.Number {
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

// Flush writes out what was recorded so far.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
	return w.err
}

// Close writes out the rest and returns the first error since Create. Later calls of Complete do nothing.
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
