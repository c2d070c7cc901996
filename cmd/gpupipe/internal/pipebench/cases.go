package pipebench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// sleeping measures a pipeline of stages with exactly equal times: a forward takes f, a backward 2f, the optimizer
// nothing. The rest of the time is bubble, transfers and the host's overhead.
func sleeping(ctx context.Context, o Options) (Result, error) {
	const stages = 16
	forward := 20 * time.Millisecond
	if o.Quick {
		forward /= 2
	}
	backward := 2 * forward
	r := Result{About: fmt.Sprintf("%d stages of equal times on devices that sleep: F %v, B %v; %d microbatches", stages, forward,
		backward, stages)}
	p := o.asleep(stages, stages, forward, backward, 0)
	t, err := o.measure(ctx, p.of(schedule.TwoBW, 1), p, p.of(schedule.OneF1B, stages))
	if err != nil {
		return r, err
	}
	one, async, sync := t[0], t[1], t[2]
	m := float64(stages)
	r.add(Measure{What: "one stage alone, a batch", Value: one.batch, Unit: "s", AtLeast: bound(m * (forward + backward).Seconds())})
	r.add(Measure{What: "2bw, a batch", Value: async.batch, Unit: "s"})
	r.add(Measure{What: fmt.Sprintf("2bw, of %d × one stage's throughput", stages), Value: 100 * one.batch / async.batch, Unit: "%",
		AtLeast: bound(97)})
	r.add(Measure{What: "2bw, busy in the idlest stage", Value: 100 * slices.Min(async.busy), Unit: "%"})
	r.add(Measure{What: "1f1b, a batch", Value: sync.batch, Unit: "s"})
	closed := m / (m + m - 1)
	r.add(Measure{What: fmt.Sprintf("1f1b, of %d × one stage's throughput; m/(m+p−1) is %.1f %%", stages, 100*closed),
		Value: 100 * one.batch / sync.batch, Unit: "%"}.within(0.05, 100*closed))
	return r, nil
}

// asleep is a 2bw pipeline on devices that sleep for the given times. Its model is small and has a unit for each stage.
func (o Options) asleep(stages, microbatches int, forward, backward, update time.Duration) pipe {
	small := model.Defaults()
	small.VocabSize, small.DModel, small.NLayers, small.NHeads, small.NKVHeads, small.FFN.DFF, small.SeqLen = 16, 4, stages-2, 1, 1, 4, 4
	return pipe{schedule: schedule.TwoBW, stages: stages, microbatches: microbatches, rows: 1, model: small, batches: 5,
		open: o.sleepers(func(int) (time.Duration, time.Duration) { return forward, backward }, update)}
}

// sleepers opens devices that sleep for a stage's forward and backward, and for an update.
func (o Options) sleepers(times func(stage int) (forward, backward time.Duration), update time.Duration) func(int) (device.Device, error) {
	return func(stage int) (device.Device, error) {
		forward, backward := times(stage)
		return o.Sleeper(func(program string) time.Duration {
			switch {
			case program == "F":
				return forward
			case program == "B", program == "B+", stage == 0 && (program == "W" || program == "W+"): // stage 0 has no input gradient
				return backward
			case program == "I", program == "W", program == "W+":
				return backward / 2
			case program == "update":
				return update
			}
			return 0
		}), nil
	}
}

// devices measures the speedup of two logical devices of one adapter over one. It is meaningful if each device has a
// processor of its own, as two devices of a software adapter that compute on one thread each.
func devices(ctx context.Context, o Options) (Result, error) {
	const microbatches = 4
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF, c.SeqLen = 256, 128, 8, 4, 4, 352, 128
	p := pipe{schedule: schedule.TwoBW, stages: 2, microbatches: microbatches, rows: 4, model: c, warm: 2, batches: 8,
		open: func(int) (device.Device, error) { return o.Open() }, execute: o.Execute}
	if o.Quick {
		p.rows, p.batches = 2, 5
	}
	r := Result{About: fmt.Sprintf("%d parameters, %d layers, %d tokens a microbatch, %d microbatches", c.Count(), c.NLayers,
		p.rows*c.SeqLen, microbatches)}
	t, err := o.measure(ctx, p.of(schedule.TwoBW, 1), p, p.of(schedule.OneF1B, 2))
	if err != nil {
		return r, err
	}
	one, async, sync := t[0], t[1], t[2]
	r.add(Measure{What: "one device, a batch", Value: one.batch, Unit: "s"})
	r.add(Measure{What: "2bw on two, a batch", Value: async.batch, Unit: "s"})
	r.add(Measure{What: "1f1b on two, a batch", Value: sync.batch, Unit: "s"})
	r.add(Measure{What: "balance of the stages: mean work over the most", Value: 100 * mean(async.work) / slices.Max(async.work),
		Unit: "%"})
	r.add(Measure{What: "2bw on two over one device", Value: one.batch / async.batch, AtLeast: bound(1.85)})
	r.add(Measure{What: "2bw over 1f1b; (m+p−1)/m is 1.25", Value: sync.batch / async.batch}.within(0.05, 1.25))
	for i, busy := range async.busy {
		r.add(Measure{What: fmt.Sprintf("2bw, busy in stage %d", i), Value: 100 * busy, Unit: "%", AtLeast: bound(95)})
	}
	return r, nil
}

// of is the same pipeline with another schedule and number of stages.
func (p pipe) of(name string, stages int) pipe {
	p.schedule, p.stages = name, stages
	return p
}

// measure measures pipelines one after the other.
func (o Options) measure(ctx context.Context, pipes ...pipe) (ts []timing, err error) {
	for _, p := range pipes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if o.Progress != nil {
			o.Progress("measuring %v", p)
		}
		t, err := p.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", p, err)
		}
		ts = append(ts, t)
	}
	return ts, nil
}

func mean(xs []float64) (m float64) {
	for _, x := range xs {
		m += x / float64(len(xs))
	}
	return m
}
