package sidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// event is what a worker reports to its host.
type event struct {
	kind kind
	id   uint64 // of the call

	// evState:
	accepted uint64 // commands carried out so far, or in the queue of the device
	moves    uint64 // grows with every sign of progress
	fresh    int64  // kernels in progress that run for the first time: drivers may compile them then
	staging  int64  // bytes

	at, n, end int64 // evData: n bytes at a position of the ring, and the position to return
	last       bool  // evData: the call is complete

	ready *description    // evReady
	times []time.Duration // evDone, of a measured program
	err   error           // evReady, evDone: nil if all went well; evFailed
}

// description is what a worker reports about its device.
type description struct {
	Info   device.Info   `json:"info"`
	Limits target.Limits `json:"limits"`
	Budget int64         `json:"budget"` // bytes; 0: none
	Timer  bool          `json:"timer"`  // it implements device.Timer
}

func (e *event) append(b []byte) []byte {
	b = appendU64(append(b, byte(e.kind)), e.id)
	switch e.kind {
	case evReady:
		text, err := json.Marshal(e.ready)
		if e.err == nil {
			e.err = err
		}
		b = appendText(appendError(b, e.err), string(text))
	case evState:
		b = appendI64(appendI64(appendU64(appendU64(b, e.accepted), e.moves), e.fresh), e.staging)
	case evDone:
		b = appendInt(appendError(b, e.err), len(e.times))
		for _, t := range e.times {
			b = appendI64(b, int64(t))
		}
	case evData:
		b = appendFlag(appendI64(appendI64(appendI64(b, e.at), e.n), e.end), e.last)
	case evFailed:
		b = appendError(b, e.err)
	}
	return b
}

func decodeEvent(b []byte) (*event, error) {
	d := decoder{b: b}
	e := &event{kind: kind(d.u8()), id: d.u64()}
	switch e.kind {
	case evReady:
		e.err = d.failure()
		e.ready = d.description(e.err == nil)
	case evState:
		e.accepted, e.moves, e.fresh, e.staging = d.u64(), d.u64(), d.size(), d.size()
	case evDone:
		e.err = d.failure()
		for range d.count(8) {
			e.times = append(e.times, time.Duration(d.size()))
		}
	case evData:
		e.at, e.n, e.end, e.last = d.size(), d.size(), d.size(), d.flag()
	case evFailed:
		if e.err = d.failure(); e.err == nil {
			d.fail(errors.New("found a failure without an error"))
		}
	default:
		return nil, fmt.Errorf("unknown event %d", e.kind)
	}
	return e, d.end()
}

// description decodes a description, and refuses limits that would divide by zero.
func (d *decoder) description(needed bool) *description {
	text := d.text()
	if d.err != nil || !needed {
		return nil
	}
	var x description
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		d.fail(fmt.Errorf("the device's description: %w", err))
		return nil
	}
	l := x.Limits
	if slices.Min([]int64{l.MaxBindingSize, l.MaxBufferSize, l.OffsetAlignment, int64(l.MaxBindings), int64(l.MaxWorkgroupMemory),
		int64(l.MaxInvocations), int64(slices.Min(l.MaxWorkgroupSize[:])), int64(l.MaxDispatchDimension)}) < 1 || x.Budget < 0 {
		d.fail(fmt.Errorf("the device's description: found invalid limits %+v or budget %d", l, x.Budget))
		return nil
	}
	return &x
}

// causes are the errors that callers distinguish, by their number in a frame.
var causes = []error{nil, device.ErrLost, device.ErrOutOfMemory, device.ErrValidation, device.ErrClosed, device.ErrNoTimestamps}

const maxErrorText = 16 << 10 // bytes of an error's text

// remote is an error of a worker.
type remote struct {
	text string
	is   error // one of causes
}

func (r *remote) Error() string { return r.text }
func (r *remote) Unwrap() error { return r.is }

// appendError appends an error: its text, its cause, and what a *device.Error names.
func appendError(b []byte, err error) []byte {
	if err == nil {
		return append(b, 0)
	}
	is := max(0, slices.IndexFunc(causes, func(c error) bool { return c != nil && errors.Is(err, c) }))
	named, ok := err.(*device.Error)
	if !ok {
		named = &device.Error{Cause: err}
	}
	text := named.Cause.Error()
	text = strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "?")
	return appendText(appendText(appendText(appendText(append(b, 1, byte(is)), named.Op), named.Object), named.Device), text)
}

func (d *decoder) failure() error {
	if !d.flag() || d.err != nil {
		return nil
	}
	is := int(d.u8())
	if is >= len(causes) {
		d.fail(fmt.Errorf("unknown cause %d", is))
		return nil
	}
	named := &device.Error{Op: d.text(), Object: d.text(), Device: d.text()}
	cause := &remote{text: d.text(), is: causes[is]}
	if named.Op == "" {
		return cause
	}
	named.Cause = cause
	return named
}

// maxFresh bounds the number of kernels for which a worker may take longer.
const maxFresh = 1000

// longestCompile is the most time that a driver may take to compile one kernel.
const longestCompile = 10 * time.Second

// maxQuiet is how long a worker may send nothing at all, however slow its device is: a goroutine of its own reports
// its state.
const maxQuiet = time.Minute

// progressTimeout returns how long a worker with work may show no progress of its device. For each kernel that runs for
// the first time a driver may compile for a sixth of the silence, at most ten seconds. So a hang in the first step is
// noticed early even if the silence is long.
func progressTimeout(silence time.Duration, fresh int64) time.Duration {
	return silence + min(silence/6, longestCompile)*time.Duration(min(fresh, maxFresh))
}
