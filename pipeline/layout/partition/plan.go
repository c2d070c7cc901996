package partition

import (
	"fmt"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/unitname"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// plan is the Plan of a layout.
func (c *costs) plan(l layout) (Plan, error) {
	p := Plan{Cut: l.cut, CutNames: unitname.Points(c.names(), l.cut), Devices: l.order, SplitBackward: c.split,
		Depth: c.Schedule.Depth, Search: l.compare}
	for s, d := range l.order {
		chunks := c.chunksOf(l, s)
		x := c.stage(s, d, chunks)
		p.Recompute = append(p.Recompute, x.recompute)
		p.Stages = append(p.Stages, Stage{Chunks: chunks, Units: c.unitsText(chunks), Device: c.Devices[d].Name, Recompute: x.recompute,
			Forward: x.forward, Backward: x.backward, Update: x.update, Transfer: x.transfer, Exchange: x.exchange,
			Sent: c.sent(chunks), Seconds: x.seconds, Memory: x.memory, Available: c.available(d)})
	}
	return p, c.predict(&p, l)
}

// predict simulates the schedule at the plan's costs. A device is busy during its side of a transfer. Between machines
// tied embeddings pass over the network, too.
func (c *costs) predict(p *Plan, l layout) error {
	var virtualStages []schedule.Cost
	for k, q := range l.chunks(len(c.Units)) {
		s := k % c.Schedule.Stages
		t := c.chunkTime(l.order[s], q, p.Recompute[s])
		passing := c.transfer(l.order[s], q.First) + c.transfer(l.order[s], q.Last)
		virtualStages = append(virtualStages, schedule.Cost{Forward: t.Forward + passing, Backward: t.Backward + passing,
			InputGrad: t.InputGrad + passing, WeightGrad: t.WeightGrad, Update: t.Update})
	}
	s := c.Schedule
	if s.Copies == nil {
		var err error
		tied := c.Network != nil && c.Units[len(c.Units)-1].Shared > 0
		if s, err = schedule.Communicate(s, schedule.Copies{Tied: tied}); err != nil { // updates wait for the gradient norms of all stages
			return fielderror.Wrap("schedule", err)
		}
	}
	r, err := schedule.Simulate(s, schedule.Costs{VirtualStages: virtualStages, Network: c.network(l)})
	if err != nil {
		return fielderror.Wrap("schedule", err)
	}
	period := r.Makespan / float64(s.Batches)
	if r.Steady != nil {
		period = r.Steady.Period
	}
	p.StepSeconds, p.Bubble = c.bounded(p, period)
	p.FillSeconds = max(0, r.Makespan-float64(s.Batches)*p.StepSeconds)
	if p.StepSeconds > 0 {
		p.TokensPerSec = float64(c.Tokens) / p.StepSeconds
	}
	return nil
}

// bounded is the time of a batch and the share of it in which the devices are idle. period is the time of the
// computation alone, with a device for every stage. Stages on one device take turns, unless it is parallel, and all
// that compute on a machine share its cores. Without delay a batch waits for its exchange; with a delay only the next
// exchange does.
func (c *costs) bounded(p *Plan, period float64) (seconds, idle float64) {
	busy, cores, exchange := map[string]float64{}, map[int]float64{}, 0.0 // cores by machine
	for i, s := range p.Stages {
		d := p.Devices[i]
		name, others := s.Device, float64(c.devices[d].ranks)/float64(c.devices[d].stages) // replicas work as much
		if c.Devices[d].Parallel {
			name, others = fmt.Sprint(name, " for stage ", i), 1
		}
		own := float64(c.Schedule.Microbatches)*(s.Forward+s.Backward+s.Transfer) + s.Update
		busy[name] += others * own
		machine := 0
		if c.Network != nil {
			machine = c.Network.Machines[d]
		}
		cores[machine] += c.Devices[d].Cores * own * float64(max(c.devices[d].stages, c.Devices[d].Ranks)) / float64(c.devices[d].stages)
		exchange = max(exchange, s.Exchange)
	}
	seconds = period
	for _, b := range busy {
		seconds = max(seconds, b)
	}
	for _, b := range cores {
		seconds = max(seconds, b)
	}
	if c.Schedule.Delay > 0 {
		seconds = max(seconds, exchange)
	} else {
		seconds += exchange
	}
	if seconds == 0 {
		return 0, 0
	}
	work := 0.0
	for _, b := range busy {
		work += b
	}
	return seconds, max(0, 1-work/(seconds*float64(len(busy))))
}

// Compare describes the difference between a measured step and the prediction.
func (p Plan) Compare(measured float64) string {
	if p.StepSeconds <= 0 || measured <= 0 {
		return "no prediction to compare with"
	}
	off := 100 * (p.StepSeconds/measured - 1)
	return fmt.Sprintf("%.4g s a step measured, %.4g s predicted (%+.0f %%)", measured, p.StepSeconds, off)
}
