package train

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// usage adds up how long each rank computes, from the events that it passes on to the trace. Events come when they are
// known, so nothing waits for a device.
type usage struct {
	trace *trace.Writer

	mu   sync.Mutex
	busy map[string]time.Duration // by rank
}

// Complete implements engine.Tracer.
func (u *usage) Complete(track string, c trace.Category, name string, start time.Time, dur time.Duration, args map[string]any) {
	if c.Computes() && c != trace.Evaluate {
		u.mu.Lock()
		u.busy[track] += dur
		u.mu.Unlock()
	}
	u.trace.Complete(track, c, name, start, dur, args)
}

// Flow implements engine.Tracer.
func (u *usage) Flow(name, from string, sent time.Time, to string, received time.Time) {
	u.trace.Flow(name, from, sent, to, received)
}

// of are the times of some ranks so far.
func (u *usage) of(ranks []string) []time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]time.Duration, len(ranks))
	for i, name := range ranks {
		all[i] = u.busy[name]
	}
	return all
}

// system measures how a run uses its machines: the values of system.jsonl. They depend on the clock. The values of
// metrics.jsonl do not, except for the speed.
type system struct {
	usage   usage
	ranks   []string // their names
	planned []int64  // bytes of ranks in other processes
	devices []device.Device
	peak    float64 // FLOP/s of all devices; 0: not known
	flops   float64 // of a token; 0: not known
	recent  []usedTime
}

// timeName is the name of the time of a step, in seconds since 1970, in system.jsonl.
const timeName = "time"

// usedTime is how long ranks had computed at a time of training.
type usedTime struct {
	at   time.Duration
	busy []time.Duration
}

// open prepares for the ranks of a deployment.
func (s *system) open(ranks []engine.RankPlan, devices []device.Device) {
	s.ranks, s.planned, s.devices, s.recent = nil, nil, devices, nil
	for _, r := range ranks {
		s.ranks = append(s.ranks, r.Name)
		s.planned = append(s.planned, r.Allocated+r.Staging)
	}
}

// measure returns the values of a step that has just ended: at is the time of training so far. The shares of ranks are
// taken over the last steps, as the speed is.
func (s *system) measure(at time.Duration, tokensPerSec float64) []metrics.Value {
	values := []metrics.Value{{Name: timeName, Value: unixSeconds(time.Now())}}
	if s.peak > 0 && s.flops > 0 && tokensPerSec > 0 {
		values = append(values, metrics.Value{Name: "system/mfu", Value: tokensPerSec * s.flops / s.peak})
	}
	now := usedTime{at, s.usage.of(s.ranks)}
	if s.recent = append(s.recent, now); len(s.recent) > paceSteps {
		s.recent = s.recent[1:]
	}
	first := s.recent[0]
	for i := range s.ranks {
		if now.at > first.at {
			values = append(values, metrics.Value{Name: fmt.Sprintf("system/ranks.%d/busy", i),
				Value: min(1, (now.busy[i]-first.busy[i]).Seconds()/(now.at-first.at).Seconds())})
		}
		bytes := s.planned[i]
		if i < len(s.devices) {
			buffers, staging := s.devices[i].Allocated()
			bytes = buffers + staging
		}
		values = append(values, metrics.Value{Name: fmt.Sprintf("system/ranks.%d/memory", i), Value: float64(bytes)})
	}
	return values
}
