package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// Event is what a member has recorded for a trace: a slice of a track of one of its ranks or, with From, an arrow that
// ends there. Times are Unix nanoseconds of the clock of the member that has the track.
type Event struct {
	Track    string           `json:"t"`
	Category trace.Category   `json:"c,omitempty"` // of a slice
	Name     string           `json:"n"`
	Start    int64            `json:"s"`           // of an arrow: its end
	Duration int64            `json:"d,omitempty"` // nanoseconds
	Args     map[string]int64 `json:"a,omitempty"`
	From     string           `json:"f,omitempty"` // the track where an arrow begins
	Sent     int64            `json:"x,omitempty"` // when it begins, by the clock of the member that has that track
}

// TimestampError is how far a member's time stamps may be from its clock.
const TimestampError = 20 * time.Microsecond

// Limits of a message of Events.
const (
	MaxEvents     = 64 << 10 // bytes of its payload
	maxEventText  = 100      // bytes of a name
	maxEventArgs  = 4
	maxEventTimes = int64(1) << 62 // nanoseconds
)

// Check checks an event, except that its tracks exist.
func (e Event) Check() error {
	switch {
	case len(e.Name) > maxEventText || len(e.Args) > maxEventArgs:
		return fmt.Errorf("event %.40q: found a name of %d bytes and %d arguments, expected at most %d and %d", e.Name, len(e.Name),
			len(e.Args), maxEventText, maxEventArgs)
	case e.Start <= 0 || e.Start > maxEventTimes || e.Duration < 0 || e.Duration > maxEventTimes || e.Sent < 0 || e.Sent > maxEventTimes:
		return fmt.Errorf("event %q: found the times %d, %d and %d, expected Unix nanoseconds", e.Name, e.Start, e.Duration, e.Sent)
	case e.From == "" && !e.Category.OfRank():
		return fmt.Errorf("event %q: found category %.40q, expected one of a rank", e.Name, e.Category)
	}
	for k := range e.Args {
		if len(k) > maxEventText {
			return fmt.Errorf("event %q: found an argument of %d bytes, expected at most %d", e.Name, len(k), maxEventText)
		}
	}
	return nil
}

// Encode encodes an event. EncodeEvents joins them.
func (e Event) Encode() []byte {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // numbers and strings
	}
	return text
}

// EncodeEvents returns the payload of encoded events.
func EncodeEvents(all [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(all, []byte{','})...), ']')
}

// DecodeEvents decodes and checks the payload of a message of Events.
func DecodeEvents(payload [][]byte) (all []Event, err error) {
	if len(payload) != 1 || len(payload[0]) > MaxEvents {
		return nil, fmt.Errorf("events in %d tensors, expected one of at most %d bytes", len(payload), MaxEvents)
	}
	d := json.NewDecoder(bytes.NewReader(payload[0]))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	for _, e := range all {
		if err := e.Check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
