package partition

import (
	"fmt"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// plan writes a layout out, with what its schedule makes of it.
func (c *costs) plan(l layout) (Plan, error) {
	p := Plan{Cut: l.cut, Devices: l.order, Halved: c.halves, Search: l.compare}
	for s, d := range l.order {
		x := c.stage(s, d, c.parts(l, s))
		p.Recompute = append(p.Recompute, x.recompute)
		p.Stages = append(p.Stages, Stage{Parts: c.parts(l, s), Device: c.Devices[d].Name, Recompute: x.recompute,
			Forward: x.forward, Backward: x.backward, Update: x.update, Transfer: x.transfer, Exchange: x.exchange,
			Seconds: x.seconds, Memory: x.memory, Available: c.available(d)})
	}
	return p, c.predict(&p, l)
}

// predict runs the schedule on the plan's costs. A device is busy while it takes its part in a transfer.
func (c *costs) predict(p *Plan, l layout) error {
	var parts []schedule.Cost
	for k, q := range l.parts(len(c.Units)) {
		s := k % c.Schedule.Stages
		t := c.part(l.order[s], q, p.Recompute[s])
		passing := c.transfer(l.order[s], q.First) + c.transfer(l.order[s], q.Last)
		parts = append(parts, schedule.Cost{Forward: t.Forward + passing, Backward: t.Backward + passing,
			InputGrad: t.InputGrad + passing, WeightGrad: t.WeightGrad, Update: t.Update})
	}
	s := c.Schedule
	if s.Links == nil {
		var err error
		if s, err = schedule.Communicate(s, schedule.Links{}); err != nil { // updates wait for the votes of all stages
			return fielderror.Wrap("schedule", err)
		}
	}
	r, err := schedule.Simulate(s, schedule.Costs{VirtualStages: parts})
	if err != nil {
		return fielderror.Wrap("schedule", err)
	}
	period := r.Makespan / float64(s.Batches)
	if r.Steady != nil {
		period = r.Steady.Period
	}
	p.StepSeconds, p.Bubble = c.bounded(p, period)
	if p.StepSeconds > 0 {
		p.TokensPerSec = float64(c.Tokens) / p.StepSeconds
	}
	return nil
}

// bounded is the time of a batch given what its computation alone takes when every stage has a device of its own, and the share
// of the devices' time in it that is idle. Stages on one device take turns, without delay an exchange is waited for, with it
// the next one cannot begin before it is over.
func (c *costs) bounded(p *Plan, period float64) (seconds, idle float64) {
	busy, exchange := map[string]float64{}, 0.0
	for i, s := range p.Stages {
		d := p.Devices[i]
		others := float64(c.turns[d]) / float64(c.share[d]) // replicas work as much
		busy[s.Device] += others * (float64(c.Schedule.Microbatches)*(s.Forward+s.Backward+s.Transfer) + s.Update)
		exchange = max(exchange, s.Exchange)
	}
	seconds = period
	for _, b := range busy {
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

// Compare says how far a measured run was from the prediction, for the end of a run.
func (p Plan) Compare(measured float64) string {
	if p.StepSeconds <= 0 || measured <= 0 {
		return "no prediction to compare with"
	}
	off := 100 * (p.StepSeconds/measured - 1)
	return fmt.Sprintf("%.4g s a step measured, %.4g s predicted (%+.0f %%)", measured, p.StepSeconds, off)
}
