package pipebench

import (
	"context"
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// halves measures pipelines whose stages have no whole number of layers, on devices that sleep for what their units
// take. Attention and feed-forward layers take equal times, the embedding and the head none, so that every stage can
// have the same work. The planner gives the cut and the predicted time.
func halves(ctx context.Context, o Options) (Result, error) {
	forward := 40 * time.Millisecond // of a layer
	if o.Quick {
		forward /= 4
	}
	r := Result{About: fmt.Sprintf("stages with no whole number of layers on devices that sleep: F %v, B %v a layer; 2bw, a microbatch a stage",
		forward, 2*forward)}
	for _, c := range []struct{ layers, stages int }{{10, 4}, {24, 16}} {
		whole := o.asleep(c.stages, c.stages, 0, 0, 0)
		whole.model.NLayers = c.layers
		cut, err := whole.partitioned(forward)
		if err != nil {
			return r, err
		}
		share := time.Duration(c.layers) * forward / time.Duration(c.stages) // of a stage
		one := o.asleep(c.stages, c.stages, share, 2*share, 0).of(schedule.TwoBW, 1)
		t, err := o.measure(ctx, one, whole.cutAs(o, cut))
		if err != nil {
			return r, err
		}
		what := fmt.Sprintf("%d layers on %d stages", c.layers, c.stages)
		r.add(Measure{What: what + ", a batch", Value: t[1].batch, Unit: "s"})
		r.add(Measure{What: fmt.Sprintf("%s, of %d × one stage's throughput at the ideal balance", what, c.stages),
			Value: 100 * t[0].batch / t[1].batch, Unit: "%", AtLeast: bound(98)})
		r.add(Measure{What: what + ", predicted over measured", Value: cut.StepSeconds / t[1].batch}.within(0.03, 1))
	}
	return r, nil
}

// partitioned plans a pipeline whose layers take a time forward and twice the time backward.
func (p pipe) partitioned(forward time.Duration) (partition.Plan, error) {
	g, err := p.generate(schedule.PatternBatches)
	if err != nil {
		return partition.Plan{}, err
	}
	problem := partition.Problem{Tokens: p.microbatches * p.rows * p.model.SeqLen}
	if problem.Schedule, err = g.Schedule(); err != nil {
		return partition.Plan{}, err
	}
	half := forward.Seconds() / 2
	var times []partition.Time
	for _, u := range model.UnitNames(p.model) {
		problem.Units = append(problem.Units, partition.Unit{Name: u.Name, Layer: u.Layer})
		times = append(times, partition.Time{Forward: half, Backward: 2 * half, InputGrad: half, WeightGrad: half})
	}
	times[0], times[len(times)-1] = partition.Time{}, partition.Time{}
	for stage := range p.stages {
		problem.Devices = append(problem.Devices, partition.Device{Name: fmt.Sprint("sleeper ", stage), Times: times})
	}
	return partition.Choose(problem)
}

// cutAs is the pipeline with a plan's cut on devices that sleep as long as their stages' layers take.
func (p pipe) cutAs(o Options, plan partition.Plan) pipe {
	p.cut = plan.Cut
	p.open = o.sleepers(func(stage int) (time.Duration, time.Duration) {
		f := time.Duration(plan.Stages[stage].Forward * float64(time.Second)).Round(time.Microsecond)
		return f, 2 * f
	}, 0)
	return p
}
