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

// event is what a worker tells its host.
type event struct {
	kind kind
	id   uint64 // of the call that is meant

	// evState:
	accepted uint64 // commands carried out so far: the device has them in its queue, or did them
	moves    uint64 // grows with whatever shows that the device is at work
	fresh    int64  // kernels under way that never ran before: drivers compile them at their first run
	staging  int64  // bytes

	at, n, end int64 // evData: n bytes at a place in the ring, and what to return for it
	last       bool  // evData: with them the call is done

	ready *description    // evReady
	times []time.Duration // evDone, of a measured program
	err   error           // evReady, evDone: nil if all went well; evFailed
}

// description is what a worker tells of its device.
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
			d.fail(errors.New("a failure without a cause"))
		}
	default:
		return nil, fmt.Errorf("an unknown event, %d", e.kind)
	}
	return e, d.end()
}

// description reads one, and refuses limits that would divide by zero.
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
		d.fail(fmt.Errorf("the device's description: limits of %+v, a budget of %d", l, x.Budget))
		return nil
	}
	return &x
}

// causes are those that callers tell apart, by their number in a frame.
var causes = []error{nil, device.ErrLost, device.ErrOutOfMemory, device.ErrValidation, device.ErrClosed, device.ErrNoTimestamps}

const maxErrorText = 16 << 10 // bytes of an error's text

// remote is an error that was a worker's.
type remote struct {
	text string
	is   error // one of causes
}

func (r *remote) Error() string { return r.text }
func (r *remote) Unwrap() error { return r.is }

// appendError adds an error as its text, what it is, and what a *device.Error names.
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
		d.fail(fmt.Errorf("an unknown cause, %d", is))
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

// maxFresh bounds what a worker may ask time for.
const maxFresh = 1000

// longestCompile is what a driver may take for a kernel that it has not met, at most.
const longestCompile = 10 * time.Second

// longestBreath is how long a process may say nothing at all, however slow its device is: it beats beside its work.
const longestBreath = time.Minute

// progressTimeout is how long a worker may work without a sign of its device: a driver may compile a kernel for a sixth of a silence, if that is less
// than ten seconds. Who sets a long silence for programs that take long is to hear of a hang in the first step too.
func progressTimeout(silence time.Duration, fresh int64) time.Duration {
	return silence + min(silence/6, longestCompile)*time.Duration(min(fresh, maxFresh))
}
