package watch

import (
	"math"
	"strconv"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// State is whether a run goes on.
type State string

const (
	Running  State = "running"
	Finished State = "finished"
	Stopped  State = "stopped" // before its last step
)

// Summary is a run in the list.
type Summary struct {
	Name    string          `json:"name"`
	State   State           `json:"state"`
	Step    int             `json:"step"`
	Steps   int             `json:"steps"` // 0: not known
	Loss    *metrics.Number `json:"loss"`  // nil: none
	ValLoss *metrics.Number `json:"val_loss"`
	Rate    *float64        `json:"tokens_per_s"`
	Left    *float64        `json:"left_s"`
	Written float64         `json:"written"` // seconds since 1970
	Problem string          `json:"problem,omitempty"`
}

// summary describes the run at a time.
func (r *run) summary(now time.Time) Summary {
	step, loss, rate, val := r.tail.step, r.tail.loss, r.tail.rate, missing
	if r.loaded {
		step = 0
		if n := len(r.contents.series.steps); n > 0 {
			step = r.contents.series.steps[n-1]
		}
		loss, rate, val = r.contents.series.last("loss"), r.contents.series.last("tokens_per_s"), r.contents.series.last("val_loss")
	}
	s := Summary{Name: r.name, Step: int(step), Steps: max(r.config.Steps, r.contents.start.Steps), Loss: measured(loss),
		ValLoss: measured(val), Rate: finite(rate), Written: float64(r.active.UnixMilli()) / 1e3, Problem: r.trouble()}
	s.State = r.state(s, now)
	if tokens := r.contents.series.tokensPerStep(); s.State == Running && tokens > 0 && rate > 0 && s.Steps > s.Step {
		s.Left = finite(float64(s.Steps-s.Step) * tokens / rate)
	}
	return s
}

// trouble describes the parts of the run's files that cannot be read.
func (r *run) trouble() string {
	bad := r.contents.badLines
	for _, f := range r.contents.files {
		bad += f.skipped
	}
	switch {
	case r.problem != "":
		return r.problem
	case bad == 1:
		return "1 line cannot be read"
	case bad > 1:
		return strconv.Itoa(bad) + " lines cannot be read"
	}
	return ""
}

// state follows from the steps of the run, else from its last event, else from the time of its newest line.
func (r *run) state(s Summary, now time.Time) State {
	if s.Steps > 0 && s.Step >= s.Steps || s.Steps == 0 && r.ended {
		return Finished
	}
	for i := len(r.contents.events) - 1; i >= 0; i-- {
		switch r.contents.events[i].Kind {
		case "end":
			return Stopped
		case "start", "restart":
			i = 0
		}
	}
	if now.Sub(r.active) > restsAfter {
		return Stopped
	}
	return Running
}

// measured is a value for JSON; nil if it is missing.
func measured(x float64) *metrics.Number {
	if isMissing(x) {
		return nil
	}
	n := metrics.Number(x)
	return &n
}

// finite is a number for JSON; nil if it is not finite.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}
