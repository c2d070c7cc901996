package trace

import (
	"fmt"
	"math"
)

const (
	noticeableWait = 0.05 // share of the time
	unevenCut      = 1.15 // the busiest stage's time, as a multiple of the mean
	bound          = 0.5  // share of the time that the busiest stage computes if a cut matters
)

// Advice says in plain sentences what makes a run over machines slow, and what would help. It is nil for other
// runs. Of replicas that train on their own it says whether exchanges were waited for.
func (s Summary) Advice() []string {
	exchanges := s.Exchanges.advice()
	m := s.Machines
	if m == nil {
		return exchanges
	}
	set := m.Settings
	slowest, mean := s.stage(m.Slowest), 0.0
	for _, t := range s.Stages {
		mean += t.busy() / float64(len(s.Stages))
	}
	all := append(exchanges, fmt.Sprintf("slowest rank: %s on %s, computing %.0f %% of the time; the mean is %.0f %%", slowest.Name,
		slowest.Member, 100*slowest.busy(), 100*mean))
	uneven := slowest.busy() > max(bound, unevenCut*mean)
	if len(m.Links) == 0 {
		return all
	}
	l := m.Links[0]
	all = append(all, fmt.Sprintf("slowest link: %s to %s, %.3g ms a transfer; ranks waited for it %.0f %% of the time", l.From, l.To,
		1e3*l.Seconds, 100*l.Wait))
	switch {
	case l.Wait >= noticeableWait && l.latencyBound():
		all = append(all, set.hideLatency(s.depth(l, slowest)))
	case l.Wait >= noticeableWait:
		all = append(all, set.fewerBytes())
	}
	switch {
	case uneven:
		all = append(all, fmt.Sprintf("another cut would help, by at most %.0f %%: see gpupipe plan --members",
			100*(slowest.busy()/mean-1)))
	case l.Wait < noticeableWait && slowest.busy() > 0.9:
		all = append(all, "the devices are busy: only faster devices, or more of them, would help")
	case l.Wait < noticeableWait && !set.Asynchronous:
		all = append(all, fmt.Sprintf("ranks wait for the ends of batches: pipeline.schedule: 2bw, or more microbatches than now with %s",
			set.schedule()))
	}
	return all
}

// latencyBound reports whether most of a transfer's time is latency. Without a measured link it is taken to be so if
// the payload is small.
func (l LinkUse) latencyBound() bool {
	if l.Bandwidth > 0 {
		return l.Latency >= l.Seconds-l.Latency
	}
	const small = 64 << 10 // bytes
	return l.Bytes < small
}

func (s Summary) stage(name string) Stage {
	for _, t := range s.Stages {
		if t.Name == name {
			return t
		}
	}
	return Stage{}
}

// depth is the number of microbatches in flight, beyond what the schedule needs, that hides a link: the time of a
// microbatch there and back through all stages, in microbatches of the slowest stage.
func (s Summary) depth(l LinkUse, slowest Stage) int {
	microbatch := slowest.Means["F"] + slowest.Means["B"] + slowest.Means["I"] + slowest.Means["W"]
	if microbatch <= 0 {
		return 1
	}
	return max(1, int(math.Ceil(2*float64(len(s.Stages)-1)*l.Seconds/microbatch)))
}

func (set Settings) schedule() string {
	if set.Schedule == "" {
		return "this schedule"
	}
	return set.Schedule
}

// hideLatency is what helps against latency.
func (set Settings) hideLatency(depth int) string {
	switch {
	case !set.Asynchronous:
		return fmt.Sprintf("latency limits: %s waits for it in every batch; pipeline.schedule: 2bw with pipeline.depth: %d would hide it",
			set.schedule(), depth)
	case set.Depth < depth:
		return fmt.Sprintf("latency limits: pipeline.depth: %d instead of %d would hide it, with at least as many more microbatches",
			depth, set.Depth)
	}
	return "latency limits, although pipeline.depth is large enough for its mean: larger microbatches would help"
}

// fewerBytes is what helps against a low bandwidth.
func (set Settings) fewerBytes() string {
	switch set.Wire {
	case "int8":
		return "bandwidth limits, and pipeline.wire is int8 already: a cut with fewer stages behind this link would help"
	case "bf16":
		return "bandwidth limits: pipeline.wire: int8 halves the bytes again"
	}
	return "bandwidth limits: pipeline.wire: bf16 halves the bytes, int8 quarters them; gpupipe study shows what that costs in loss"
}
