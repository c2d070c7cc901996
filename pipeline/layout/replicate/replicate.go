// Package replicate plans replicas that train on their own over machines that slow links connect: which machines make a
// pipeline, how many replicas train, and how seldom they exchange what they have learned so that no link is waited for.
//
// A Problem has the machines, the sites whose connections they share, and a function that predicts the speed of a
// pipeline. Machines of one site may make a pipeline, since their links are fast; machines of different sites are
// different replicas. All replicas have equally many stages and make the same number of steps on equal shares of a
// batch, so the slowest one sets the pace. For each number of stages, Choose takes the replicas that train most tokens
// a second together. Then it finds the shortest period whose exchanges fit the links, and the least lateness at which
// nobody waits, by schedule.SimulateExchanges.
package replicate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Machine is a machine with a device.
type Machine struct {
	Name         string
	Site         int
	TokensPerSec float64 // alone, if its memory sufficed; 0: it does not compute
	Fits         bool    // the model fits it
}

// Site is a place whose machines share a connection to other places.
type Site struct {
	Name string
	schedule.Site
	Port float64 // bytes a second that a machine sends to others of the site; 0: any
}

// Pipeline is the predicted speed of a pipeline on machines of a site.
type Pipeline struct {
	StepSeconds  float64 `json:"step_seconds"`
	FillSeconds  float64 `json:"fill_seconds"`     // that it loses where it is empty for an exchange
	HostRate     float64 `json:"bytes_per_second"` // between the host and the first device; 0: any
	TokensPerSec float64 `json:"tokens_per_s"`
	Stages       int     `json:"stages"`
}

// Problem is the input of Choose.
type Problem struct {
	Machines []Machine
	Sites    []Site
	Owner    int       // the site of the coordinator, which takes the means of all replicas
	Direct   bool      // replicas reach each other, and may pass results on
	Messages []float64 // by fragment: bytes of a message
	Weights  []float64 // by fragment: bytes of its weights in f32
	Tokens   int       // of a replica's share of a batch
	// Pipeline predicts a pipeline of machines of one site. It returns an error if the model does not fit them.
	Pipeline   func(machines []int) (Pipeline, error)
	MostStages int // of a pipeline
	Period     int // steps between two exchanges of a fragment; 0: to be chosen
	Late       int // steps that an exchange takes, if Period is given
}

// Plan is the solution of a Problem.
type Plan struct {
	Replicas []Replica `json:"replicas"`
	LeftOut  []LeftOut `json:"left_out,omitempty"`
	Exchange
	TokensPerSec float64 `json:"tokens_per_s"`
	// Pace is the replica that the others wait for, if some are more than a few percent faster; −1: none.
	Pace  int    `json:"pace"`
	Alone *Alone `json:"alone,omitempty"` // the fastest machine that the model fits; nil: it fits none
}

// Replica is a replica of a plan.
type Replica struct {
	Machines []string `json:"machines"`
	Site     string   `json:"site"`
	Pipeline
	machines []int
	site     int
}

// LeftOut is a machine without work.
type LeftOut struct {
	Machine string `json:"machine"`
	Why     string `json:"why"`
}

// Alone is a machine without the others.
type Alone struct {
	Machine      string  `json:"machine"`
	TokensPerSec float64 `json:"tokens_per_s"`
}

const (
	// enough is the share of the most tokens a second with which a plan of fewer replicas is preferred: a mean of fewer
	// replicas learns more from the same tokens.
	enough = 0.95
	// uneven is the speed of a replica over the slowest one's from which its waiting is worth a word.
	uneven = 1.05
)

// ErrTooLarge says that the machines of no site hold the model.
var ErrTooLarge = errors.New("the model fits the machines of no site")

// Choose plans replicas.
func Choose(p Problem) (Plan, error) {
	var plans []Plan
	most := 0.0
	for stages := 1; stages <= p.MostStages; stages++ {
		replicas := fastest(p.replicas(stages))
		if len(replicas) == 0 || tokensPerSec(replicas) < enough*most {
			continue
		}
		plan, err := p.plan(replicas)
		if err != nil {
			return Plan{}, err
		}
		plans, most = append(plans, plan), max(most, plan.TokensPerSec)
	}
	if len(plans) == 0 {
		return Plan{}, ErrTooLarge
	}
	plans = slices.DeleteFunc(plans, func(q Plan) bool { return q.TokensPerSec < enough*most })
	best := slices.MinFunc(plans, func(a, b Plan) int {
		return cmp.Or(cmp.Compare(len(a.Replicas), len(b.Replicas)), cmp.Compare(b.TokensPerSec, a.TokensPerSec))
	})
	best.Alone = p.fastestAlone()
	p.explain(&best)
	return best, nil
}

// replicas are pipelines of so many stages on the machines of each site, of machines that are about as fast.
func (p Problem) replicas(stages int) (all []Replica) {
	for site := range p.Sites {
		machines := p.at(site)
		if stages == 1 {
			machines = slices.DeleteFunc(machines, func(m int) bool { return !p.Machines[m].Fits })
		}
		for group := range slices.Chunk(machines, stages) {
			if len(group) < stages {
				break
			}
			speed, err := p.Pipeline(group)
			if err != nil {
				continue // the model does not fit them
			}
			r := Replica{Pipeline: speed, Site: p.Sites[site].Name, machines: group, site: site}
			for _, m := range group {
				r.Machines = append(r.Machines, p.Machines[m].Name)
			}
			all = append(all, r)
		}
	}
	return all
}

// at lists the machines of a site that compute, the fastest first.
func (p Problem) at(site int) (machines []int) {
	for i, m := range p.Machines {
		if m.Site == site && m.TokensPerSec > 0 {
			machines = append(machines, i)
		}
	}
	slices.SortStableFunc(machines, func(a, b int) int { return cmp.Compare(p.Machines[b].TokensPerSec, p.Machines[a].TokensPerSec) })
	return machines
}

// fastest returns the replicas that train most tokens a second: all but those whose pace costs the others more than
// they add.
func fastest(replicas []Replica) []Replica {
	slices.SortStableFunc(replicas, func(a, b Replica) int { return cmp.Compare(b.TokensPerSec, a.TokensPerSec) })
	best := 0
	for n := range replicas {
		if tokensPerSec(replicas[:n+1]) >= tokensPerSec(replicas[:best]) {
			best = n + 1
		}
	}
	return replicas[:best]
}

// tokensPerSec is the speed of replicas, the slowest of which is last.
func tokensPerSec(replicas []Replica) float64 {
	if len(replicas) == 0 {
		return 0
	}
	return float64(len(replicas)) * replicas[len(replicas)-1].TokensPerSec
}

// plan plans the exchanges of replicas. While they need too long a period, it leaves out the replicas of the site with
// the slowest connection, or, where the coordinator's is the slowest, the slowest replica.
func (p Problem) plan(replicas []Replica) (plan Plan, err error) {
	limit := -1
	for {
		x, ok, err := p.exchange(replicas)
		if err != nil {
			return plan, err
		}
		if ok {
			plan.Replicas, plan.Exchange = slices.Clone(replicas), x
			plan.Limit = limit
			break
		}
		if limit = x.Limit; limit == p.Owner || limit < 0 {
			replicas = replicas[:len(replicas)-1]
		} else {
			replicas = slices.DeleteFunc(replicas, func(r Replica) bool { return r.site == limit })
		}
	}
	slow := plan.Replicas[len(plan.Replicas)-1]
	plan.TokensPerSec, plan.Pace = float64(len(plan.Replicas)*p.Tokens)/plan.StepSeconds, -1
	slices.SortFunc(plan.Replicas, func(a, b Replica) int { return cmp.Compare(a.machines[0], b.machines[0]) })
	for i, r := range plan.Replicas {
		if r.TokensPerSec > uneven*slow.TokensPerSec {
			plan.Pace = slices.IndexFunc(plan.Replicas, func(r Replica) bool { return r.machines[0] == slow.machines[0] })
		}
		slices.Sort(plan.Replicas[i].machines)
	}
	return plan, nil
}

func (p Problem) fastestAlone() (best *Alone) {
	for _, m := range p.Machines {
		if m.Fits && (best == nil || m.TokensPerSec > best.TokensPerSec) {
			best = &Alone{m.Name, m.TokensPerSec}
		}
	}
	return best
}

// explain lists the machines that a plan leaves out.
func (p Problem) explain(plan *Plan) {
	used, trains := map[int]bool{}, map[int]bool{} // machines, sites
	slowest := plan.Replicas[0].TokensPerSec
	for _, r := range plan.Replicas {
		trains[r.site], slowest = true, min(slowest, r.TokensPerSec)
		for _, m := range r.machines {
			used[m] = true
		}
	}
	for i, m := range p.Machines {
		if used[i] || m.TokensPerSec == 0 {
			continue
		}
		why := fmt.Sprintf("too few at their site for a pipeline of %d stages", plan.Replicas[0].Stages)
		switch {
		case plan.Replicas[0].Stages > 1:
		case !m.Fits:
			why = "the model does not fit"
		case m.TokensPerSec < slowest:
			why = "too slow: all others would wait"
		case !trains[m.Site] && plan.Limit != p.Owner:
			why = "connection too slow"
		default:
			why = "the coordinator's connection is too slow for more replicas"
		}
		plan.LeftOut = append(plan.LeftOut, LeftOut{m.Name, why})
	}
}
