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

func (e *event) code(c *coder) {
	c.u8((*byte)(&e.kind)).u64(&e.id)
	switch e.kind {
	case evReady:
		text := ""
		if !c.reads {
			text = e.describe()
		}
		if c.failure(&e.err).text(&text); c.reads && c.err == nil && e.err == nil {
			e.ready = c.description(text)
		}
	case evState:
		c.u64(&e.accepted).u64(&e.moves).size(&e.fresh).size(&e.staging)
	case evDone:
		c.failure(&e.err)
		list(c, 8, &e.times, func(t *time.Duration) { c.size((*int64)(t)) })
	case evData:
		c.size(&e.at).size(&e.n).size(&e.end).flag(&e.last)
	case evFailed:
		if c.failure(&e.err); c.reads && e.err == nil {
			c.fail(errors.New("found a failure without an error"))
		}
	default:
		c.fail(fmt.Errorf("unknown event %d", e.kind))
	}
}

// describe is the text of the device's description.
func (e *event) describe() string {
	text, err := json.Marshal(e.ready)
	if e.err == nil {
		e.err = err
	}
	return string(text)
}

// description parses a description, and refuses limits that would divide by zero.
func (c *coder) description(text string) *description {
	var x description
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		c.fail(fmt.Errorf("the device's description: %w", err))
		return nil
	}
	l := x.Limits
	if slices.Min([]int64{l.MaxBindingSize, l.MaxBufferSize, l.OffsetAlignment, int64(l.MaxBindings), int64(l.MaxWorkgroupMemory),
		int64(l.MaxInvocations), int64(slices.Min(l.MaxWorkgroupSize[:])), int64(l.MaxDispatchDimension)}) < 1 || x.Budget < 0 {
		c.fail(fmt.Errorf("the device's description: found invalid limits %+v or budget %d", l, x.Budget))
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

// failure is an error or none: its text, its cause, and what a *device.Error names.
func (c *coder) failure(err *error) *coder {
	failed := *err != nil
	if c.flag(&failed); !failed {
		return c
	}
	var is byte
	var text string
	var named device.Error
	if !c.reads {
		is = byte(max(0, slices.IndexFunc(causes, func(cause error) bool { return cause != nil && errors.Is(*err, cause) })))
		if x, ok := (*err).(*device.Error); ok {
			named = *x
		} else {
			named.Cause = *err
		}
		text = named.Cause.Error()
		text = strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "?")
	}
	if c.u8(&is); int(is) >= len(causes) {
		c.fail(fmt.Errorf("unknown cause %d", is))
		return c
	}
	if c.text(&named.Op).text(&named.Object).text(&named.Device).text(&text); !c.reads {
		return c
	}
	*err = &remote{text: text, is: causes[is]}
	if named.Op != "" {
		named.Cause = *err
		*err = &named
	}
	return c
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
