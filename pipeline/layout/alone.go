package layout

import (
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Alone is the speed of one machine of a network without the others.
type Alone struct {
	Devices      []string `json:"devices"` // of the machine
	TokensPerSec float64  `json:"tokens_per_s,omitempty"`
	Problem      string   `json:"problem,omitempty"` // why the model does not fit
}

// CompareAlone predicts the speed of each machine of a problem's network alone, on all of its devices.
func CompareAlone(c config.Config, p partition.Problem) (all []Alone) {
	if p.Network == nil {
		return nil
	}
	for machine := range slices.Max(p.Network.Machines) + 1 {
		own := p.Of(machine)
		if len(own.Devices) == 0 {
			continue
		}
		v := c
		own.Cut = nil
		v.Pipeline.Stages, v.Pipeline.Replicas, v.Pipeline.Chunks = min(len(own.Devices), len(p.Units)), 1, 1
		v.Pipeline.Depth, v.Pipeline.StaleMicrobatches = config.DepthAuto, config.StaleAuto
		if v.Pipeline.Stages == 1 {
			v.Pipeline.Delay = 0
		}
		v.Pipeline.Schedule = schedule.ForDelay(v.Pipeline.Delay)
		own.Devices = own.Devices[:v.Pipeline.Stages]
		a := Alone{}
		for _, d := range own.Devices {
			a.Devices = append(a.Devices, d.Name)
		}
		if plan, err := choosePlan(v, own); err != nil {
			a.Problem = err.Error()
		} else {
			a.TokensPerSec = plan.TokensPerSec
		}
		all = append(all, a)
	}
	return all
}

// Fastest returns the fastest machine that is faster alone than a number of tokens a second; nil: none is.
func Fastest(all []Alone, tokensPerSec float64) (best *Alone) {
	for i, a := range all {
		if a.TokensPerSec > tokensPerSec {
			best, tokensPerSec = &all[i], a.TokensPerSec
		}
	}
	return best
}
