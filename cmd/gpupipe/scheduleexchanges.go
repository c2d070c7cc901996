package main

import (
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/schedule/draw"
)

// replicaFlags are the flags of gpupipe schedule for replicas that train on their own.
type replicaFlags struct {
	Replicas   int     `help:"Replicas that train on their own, each by this schedule; see --local-steps." default:"1" placeholder:"K"`
	LocalSteps int     `help:"With --replicas: steps between two exchanges of a fragment, as pipeline.local_steps." placeholder:"H"`
	Late       *int    `help:"With --replicas: steps from sending a fragment until its exchange lands. Default: as few as nothing waits for." placeholder:"D"`
	Fragments  int     `help:"With --replicas: fragments of the model: the embedding, the layers and the head." default:"6" placeholder:"F"`
	Message    float64 `help:"With --replicas: time in which a replica's connection carries all fragments once, and again as long for the answers." default:"0" placeholder:"TIME"`
}

// mostReplicas and mostLocalSteps bound what a simulation takes.
const (
	mostReplicas   = 64
	mostLocalSteps = 1024
)

// exchangesView is what the command says of exchanges.
type exchangesView struct {
	schedule.Exchanges
	Replicas int                      `json:"replicas"`
	Result   *schedule.ExchangeResult `json:"result"`
	step     float64                  // without exchanges
	waited   float64                  // the largest share of its time that a replica waits
	busy     float64                  // the share of its time that a connection sends
}

// simulate simulates the exchanges of replicas whose steps take as long as a schedule's batches; nil: there are none.
func (c replicaFlags) simulate(r *schedule.Result, batches int) (*exchangesView, error) {
	if c.Replicas == 1 && c.LocalSteps == 0 {
		return nil, nil
	}
	for _, n := range []struct {
		flag         string
		found, least int
		most         int
	}{{"replicas", c.Replicas, 2, mostReplicas}, {"local-steps", c.LocalSteps, 1, mostLocalSteps}, {"fragments", c.Fragments, 1, mostLocalSteps}} {
		if n.found < n.least || n.found > n.most {
			return nil, fmt.Errorf("--%s: found %d, expected %d to %d", n.flag, n.found, n.least, n.most)
		}
	}
	if !(c.Message >= 0 && c.Message <= mostCost) {
		return nil, fmt.Errorf("--message: found %v, expected a number from 0 to 1e12", graph.Real(c.Message))
	}
	v := &exchangesView{Replicas: c.Replicas, step: r.Makespan / float64(batches)}
	if r.Steady != nil {
		v.step = r.Steady.Period
	}
	if v.step == 0 {
		return nil, errors.New("--replicas: found steps that take no time, expected --costs greater than 0")
	}
	v.Exchanges = schedule.Exchanges{Fragments: c.Fragments, Period: c.LocalSteps, Late: c.LocalSteps, Last: schedule.Endless}
	costs := schedule.ExchangeCosts{Sites: []schedule.Site{{}}, Replicas: []schedule.ReplicaCost{{Share: 1}}}
	for i := range c.Replicas {
		site := schedule.Site{}
		if c.Message > 0 {
			site = schedule.Site{Up: 1 / c.Message, Down: 1 / c.Message}
		}
		costs.Sites = append(costs.Sites, site)
		costs.Replicas = append(costs.Replicas, schedule.ReplicaCost{Step: v.step, Site: i + 1})
	}
	for range c.Fragments {
		costs.Bytes = append(costs.Bytes, 1/float64(c.Fragments))
	}
	steps := 4 * c.LocalSteps
	free, err := schedule.SimulateExchanges(v.Exchanges, costs, steps)
	if err != nil {
		return nil, err
	}
	if v.Late = min(c.LocalSteps, free.Lateness); c.Late != nil {
		v.Late = *c.Late
	}
	if v.Result, err = schedule.SimulateExchanges(v.Exchanges, costs, steps); err != nil {
		return nil, err
	}
	v.Result.Replicas[0].Begins = []float64{} // of the owner, for JSON
	for i := 1; i <= c.Replicas; i++ {
		v.waited = max(v.waited, v.Result.Replicas[i].Waited/v.Result.Makespan)
	}
	v.busy = c.Message / (v.Result.Step * float64(c.LocalSteps))
	v.Result.Lateness = free.Lateness
	return v, nil
}

// shown are the first periods.
func (v *exchangesView) shown() *schedule.ExchangeResult {
	return draw.Shown(v.Result, 2*v.Period+v.Late)
}

func (v *exchangesView) title() string {
	return fmt.Sprintf("%d replicas: %d fragments, %d local steps, %d late", v.Replicas, v.Fragments, v.Period, v.Late)
}

// figures are the rows of the command's figures.
func (v *exchangesView) figures() [][]string {
	verdict := "the connections are never waited for"
	if v.waited > 0 {
		verdict = fmt.Sprintf("replicas wait %s of the time; with --late %d they would not", percent(v.waited), v.Result.Lateness)
		if v.Result.Lateness > v.Period {
			verdict = fmt.Sprintf("replicas wait %s of the time: the connections carry less than that; more local steps would help", percent(v.waited))
		}
	}
	return [][]string{{"# exchanges", fmt.Sprintf("every %d steps, %d late", v.Period, v.Late), verdict},
		{"# connection", percent(min(1, v.busy)) + " busy", fmt.Sprintf("%.6g a step", v.Result.Step)}}
}
