// Package metrics records the measurements of a run and draws them.
//
// [Log] appends each step's values to metrics.jsonl, and [Events] to a TensorBoard event file. [Read] reads
// metrics.jsonl back, and [PlotLoss] draws the loss from it. [Draw] and [Bars] draw other series in the same style.
// Measurements of many numbers each, such as one for each expert, have a log of their own: see [Array].
package metrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

// Value is one measurement. Whole numbers are exact up to 2⁵³.
type Value struct {
	Name  string
	Value float64
}

// Record is one step's measurements.
type Record struct {
	Step   int
	Values map[string]float64
}

// Sorted returns the measurements by name.
func (r Record) Sorted() []Value {
	var values []Value
	for _, name := range slices.Sorted(maps.Keys(r.Values)) {
		values = append(values, Value{name, r.Values[name]})
	}
	return values
}

// Log appends to metrics.jsonl: one object per step, "step" first. JSON has no non-finite numbers. The log writes them
// as the strings "NaN", "Infinity" and "-Infinity", which float() in Python and Number() in JavaScript parse. Each
// record is in the file when Append returns, so it survives a crash of the process; after Sync it survives a crash of
// the machine. A Log is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	file *os.File
}

// Create starts a log. It is an error if the file exists: it belongs to another run.
func Create(path string) (*Log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s belongs to an earlier run: resume that run or choose another folder: %w", path, os.ErrExist)
	}
	if err != nil {
		return nil, err
	}
	if err := atomicfile.SyncDir(filepath.Dir(path)); err != nil {
		f.Close()
		return nil, err
	}
	return &Log{file: f}, nil
}

// Resume continues a log from the checkpoint of a step. It removes the records of later steps and an incomplete last
// line, and replaces the file atomically. It creates a file that does not exist.
func Resume(path string, step int) (*Log, error) {
	kept, text, err := upTo(path, step)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Create(path)
	case err != nil:
		return nil, err
	}
	if !bytes.Equal(kept, text) {
		if err := atomicfile.WriteBytes(path, kept); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	return &Log{file: f}, nil
}

// Copy writes the records of a log up to a step into another file, which appears whole or not at all. It copies nothing
// if the log does not exist.
func Copy(from, to string, step int) error {
	kept, _, err := upTo(from, step)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.WriteBytes(to, kept)
}

// upTo returns the lines of the records up to a step, and the whole text.
func upTo(path string, step int) (kept, text []byte, err error) {
	text, err = scan(path, func(r Record, line []byte) {
		if r.Step <= step {
			kept = append(append(kept, line...), '\n')
		}
	})
	return kept, text, err
}

// Append writes a step's record. The values keep their order.
func (l *Log) Append(step int, values ...Value) error {
	r := newLine(step)
	for _, v := range values {
		if err := r.member(v.Name); err != nil {
			return err
		}
		r.text = appendNumber(r.text, v.Value)
	}
	return l.write(r)
}

// line is a record under construction.
type line struct {
	step int
	text []byte
	seen map[string]bool
}

func newLine(step int) *line {
	return &line{step, strconv.AppendInt([]byte(`{"step":`), int64(step), 10), map[string]bool{"step": true}}
}

// member begins a member, whose value follows.
func (l *line) member(name string) error {
	if l.seen[name] {
		return fmt.Errorf("metrics of step %d: %q is given twice", l.step, name)
	}
	l.seen[name] = true
	text, err := json.Marshal(name)
	l.text = append(append(append(l.text, ','), text...), ':')
	return err
}

func (l *Log) write(r *line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.file.Write(append(r.text, "}\n"...)) // one call, so that a kill does not leave half a line
	return err
}

// Number is a measurement that encodes in JSON as it does in the log.
type Number float64

// MarshalJSON never fails.
func (n Number) MarshalJSON() ([]byte, error) { return appendNumber(nil, float64(n)), nil }

// UnmarshalJSON is the inverse of MarshalJSON.
func (n *Number) UnmarshalJSON(b []byte) error {
	text := string(b)
	if slices.Contains([]string{`"NaN"`, `"Infinity"`, `"-Infinity"`}, text) {
		text = strings.Trim(text, `"`)
	}
	x, err := strconv.ParseFloat(text, 64)
	*n = Number(x)
	return err
}

func appendNumber(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(b, `"-Infinity"`...)
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// Sync makes the records so far durable. Call it before writing a checkpoint of their step.
func (l *Log) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Sync()
}

// Close syncs and closes.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.file.Sync(), l.file.Close())
}

// Read returns all records of a log. It ignores an incomplete last line; any other invalid line is an error that names
// it. It skips members that are not numbers.
func Read(path string) ([]Record, error) {
	var out []Record
	_, err := scan(path, func(r Record, _ []byte) { out = append(out, r) })
	return out, err
}

// scan calls each for every record, with its line, and returns the whole text.
func scan(path string, each func(r Record, line []byte)) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rest := text
	for n := 1; len(rest) > 0; n++ {
		line, after, terminated := bytes.Cut(rest, []byte("\n"))
		rest = after
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		r, err := Parse(line)
		if err != nil && !terminated {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		each(r, line)
	}
	return text, nil
}

// Parse reads one line of a log. It skips members that are not numbers.
func Parse(line []byte) (Record, error) {
	var members map[string]any
	if err := json.Unmarshal(line, &members); err != nil {
		return Record{}, err
	}
	r := Record{Values: map[string]float64{}}
	for name, v := range members {
		switch v := v.(type) {
		case float64:
			r.Values[name] = v
		case string:
			switch v {
			case "NaN", "Infinity", "-Infinity":
				r.Values[name], _ = strconv.ParseFloat(v, 64)
			}
		}
	}
	step, ok := r.Values["step"]
	if !ok || step != math.Trunc(step) || math.Abs(step) >= 1<<53 {
		return Record{}, fmt.Errorf("found step %v, expected a whole number", members["step"])
	}
	delete(r.Values, "step")
	r.Step = int(step)
	return r, nil
}
