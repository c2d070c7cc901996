package layout

import (
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Depth is a depth of a schedule over a network. More microbatches in flight take more memory, and a schedule with a
// delay has more stale ones.
type Depth struct {
	Depth        int     `json:"depth"`
	Stale        int     `json:"stale"`     // in each replica
	Staleness    float64 `json:"staleness"` // mean age of the gradients in steps
	TokensPerSec float64 `json:"tokens_per_s"`
	Largest      int64   `json:"largest"` // bytes of the stage that takes most
	Chosen       bool    `json:"chosen"`
}

// fastEnough is the share of the tokens a second of the fastest depth that the chosen one has at least.
const fastEnough = 0.99

// ChooseDepth plans the config's schedule for a problem with the devices of all ranks, and returns the config at the
// chosen depth. If pipeline.depth is auto and the problem has a network, it chooses the least depth that is nearly as
// fast as the fastest depth that fits the devices, and lists the depths that it compared. All errors are the user's.
func ChooseDepth(c config.Config, p partition.Problem) (config.Config, partition.Plan, []Depth, error) {
	plan, err := choosePlan(c, p)
	if err != nil || c.Pipeline.Depth != config.DepthAuto || p.Network == nil {
		return c, plan, nil, err
	}
	plans := map[int]partition.Plan{0: plan}
	compared := []Depth{describeDepth(c, plan)}
	for _, k := range depths(c) {
		v := c
		v.Pipeline.Depth = config.DepthNumber(k)
		deeper, err := chooseLike(v, p, plan)
		if err != nil {
			continue // it does not fit the devices
		}
		plans[k] = deeper
		compared = append(compared, describeDepth(v, deeper))
	}
	chosen := markChosen(compared)
	c.Pipeline.Depth = config.DepthNumber(chosen)
	return c, plans[chosen], compared, nil
}

// chooseLike plans a deeper schedule with the cut and the order of the devices of another plan, or with others if that
// does not fit.
func chooseLike(c config.Config, p partition.Problem, like partition.Plan) (partition.Plan, error) {
	if c.Pipeline.Replicas == 1 {
		same := p
		same.Cut, same.KeepOrder, same.Devices, same.Network = like.Cut, true, nil, p.Network.Reordered(like.Devices)
		for _, d := range like.Devices {
			same.Devices = append(same.Devices, p.Devices[d])
		}
		if plan, err := choosePlan(c, same); err == nil && !slices.Contains(plan.Recompute, true) {
			plan.Devices, plan.Search = like.Devices, like.Search
			return plan, nil
		}
	}
	return choosePlan(c, p)
}

// mostDepths is how many depths are compared at most.
const mostDepths = 32

// depths lists the depths to compare besides 0, in ascending order: all if they are few, otherwise the smallest, the
// depths that give every link the same share, and the largest.
func depths(c config.Config) (ks []int) {
	most, links := c.MostDepth(), c.Pipeline.Stages-1
	for k := 1; k <= most; k++ {
		if most <= mostDepths || k <= links || k%links == 0 || k == most {
			ks = append(ks, k)
		}
	}
	for len(ks) > mostDepths { // the fewer, the larger
		for i := len(ks) - 2; i >= mostDepths/2; i -= 2 {
			ks = slices.Delete(ks, i, i+1)
		}
	}
	return ks
}

func describeDepth(c config.Config, p partition.Plan) Depth {
	return Depth{Depth: c.Pipeline.Depth.Number(), Stale: c.Stale(), Staleness: c.Staleness(), TokensPerSec: p.TokensPerSec,
		Largest: p.Largest()}
}

// markChosen marks the least depth that is nearly as fast as the fastest, and returns it.
func markChosen(all []Depth) int {
	fastest := 0.0
	for _, d := range all {
		fastest = max(fastest, d.TokensPerSec)
	}
	i := slices.IndexFunc(all, func(d Depth) bool { return d.TokensPerSec >= fastEnough*fastest })
	all[i].Chosen = true
	return all[i].Depth
}

// mostListed bounds the actions of a schedule that is simulated over a network.
const mostListed = 1 << 16

// simulatedBatches is how many batches of a schedule are simulated: over a network as many as make its steady state
// exact, if they are not too many.
func simulatedBatches(c config.Config, p partition.Problem) int {
	if p.Network == nil {
		return schedule.PatternBatches
	}
	o := schedule.Options{Stages: c.Pipeline.Stages, Microbatches: c.MicrobatchesPerReplica(), Depth: c.Pipeline.Depth.Number()}
	return max(schedule.PatternBatches, min(o.SteadyBatches(), mostListed/(o.Stages*c.Pipeline.Chunks*o.Microbatches)))
}
