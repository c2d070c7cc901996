package layout

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Microbatching is a division of a batch into microbatches under a schedule with a delay. More and smaller microbatches
// take less memory and make a smaller part of the batch stale, but their kernels may be slower.
type Microbatching struct {
	Microbatches int     `json:"microbatches"` // of all replicas, as train.microbatches
	Depth        int     `json:"depth,omitempty"`
	Stale        int     `json:"stale"`     // in each replica
	Staleness    float64 `json:"staleness"` // mean age of the gradients in steps
	TokensPerSec float64 `json:"tokens_per_s"`
	Largest      int64   `json:"largest"` // bytes of the stage that takes most
	Recommended  bool    `json:"recommended"`
}

// Bounds of the divisions that are compared: the config's own is halved and doubled a few times.
const (
	fewerMicrobatches = 2    // halvings
	moreMicrobatches  = 3    // doublings
	slowestShare      = 0.97 // of the tokens a second of the fastest division, which the recommended one has at least
)

// compareMicrobatches plans the schedule of a candidate with several numbers of microbatches. It returns none for
// schedules without delay and for a config that sets the number of stale microbatches.
func (t Task) compareMicrobatches(ctx context.Context, devices []device.Device, o measure.Options,
	with partition.Candidate) ([]Microbatching, error) {
	c := t.Config
	if with.Delay == 0 || c.Pipeline.StaleMicrobatches != config.StaleAuto || c.Pipeline.HasScheduleFile() {
		return nil, nil
	}
	c.Pipeline.Schedule, c.Pipeline.Chunks, c.Pipeline.Delay = with.Schedule, with.Chunks, with.Delay
	var all []Microbatching
	for _, m := range divisions(c) {
		v := t
		v.Config = c
		v.Config.Train.Microbatches = m
		problem, _, err := v.Problem(ctx, devices, o)
		if errors.Is(err, exec.ErrTooLarge) {
			continue // a microbatch is larger than the devices can bind
		}
		if err != nil {
			return nil, err
		}
		deep, plan, _, err := ChooseDepth(v.Config, problem)
		if err != nil {
			continue // it does not fit the devices
		}
		all = append(all, Microbatching{Microbatches: m, Depth: deep.Pipeline.Depth.Number(), Stale: deep.Stale(),
			Staleness: deep.Staleness(), TokensPerSec: plan.TokensPerSec, Largest: plan.Largest()})
	}
	recommendMicrobatches(all)
	return all, nil
}

// divisions are the possible numbers of microbatches around the config's number, in ascending order.
func divisions(c config.Config) (ms []int) {
	own := c.Train.Microbatches
	for range fewerMicrobatches {
		if own%2 == 0 {
			own /= 2
		}
	}
	for m := own; m <= c.Train.Microbatches<<moreMicrobatches; m *= 2 {
		if c.Train.BatchSize%m == 0 && m%c.Pipeline.Replicas == 0 && m/c.Pipeline.Replicas >= c.Pipeline.Stages+c.Pipeline.Depth.Number() {
			ms = append(ms, m)
		}
	}
	return ms
}

// recommendMicrobatches marks the division with the least staleness among the divisions that are nearly as fast as the
// fastest.
func recommendMicrobatches(all []Microbatching) {
	fastest, best := 0.0, -1
	for _, m := range all {
		fastest = max(fastest, m.TokensPerSec)
	}
	for i, m := range all {
		if m.TokensPerSec >= slowestShare*fastest && (best < 0 || m.Staleness < all[best].Staleness) {
			best = i
		}
	}
	if best >= 0 {
		all[best].Recommended = true
	}
}
