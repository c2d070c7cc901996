package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/measure"
	"github.com/gpupipe/gpupipe/pipeline/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// OpenDevice opens a device by the name that users write; only cmd knows the backends.
type OpenDevice func(name string) (device.Device, error)

// chooser is nil without a cache, and not an interface that holds none.
func chooser(c *tune.Cache) exec.Chooser {
	if c == nil {
		return nil
	}
	return c
}

// engineOptions are what the config says of the pipeline, without devices and cut.
func engineOptions(c config.Config, m model.Model) engine.Options {
	p := c.Pipeline
	recompute := make([]bool, p.Stages)
	for i := range recompute {
		recompute[i] = p.Recompute == config.RecomputeAlways
	}
	return engine.Options{
		Layout: engine.Layout{Stages: p.Stages, Chunks: p.Chunks, Replicas: p.Replicas, Delay: p.Delay, Recompute: recompute},
		Model:  m, MicrobatchSize: c.Rows(), Microbatches: c.MicrobatchesPerReplica(), Schedule: c.Schedule,
	}
}

// halvable tells whether backwards should be in two halves: with a delay, stages never wait but for each other's transfers, since
// each activation and each gradient is wanted the moment it is there. The first half gives the gradient that is sent; transfers
// then take the time of the second.
func halvable(c config.Config) bool {
	p := c.Pipeline
	return p.Delay > 0 && p.Stages > 1 && !p.HasScheduleFile()
}

// halved is the schedule with backwards in two halves.
func halved(c config.Config) engine.Schedule {
	return func(batches int) (*schedule.Generator, error) {
		g, err := c.Schedule(batches)
		if err != nil {
			return nil, err
		}
		return g.Halved(), nil
	}
}

// computation is the schedule as a plan has it.
func computation(c config.Config, p partition.Plan) engine.Schedule {
	if p.Halved && halvable(c) { // others have their halves already
		return halved(c)
	}
	return c.Schedule
}

// newEngine plans the pipeline, the first time where and how.
func (r *run) newEngine(ctx context.Context) (err error) {
	if r.layout != nil {
		o := *r.layout
		o.Optimizer, o.Devices = r.optimizer, r.devices
		r.engine, err = engine.New(o)
		return planError(err)
	}
	return r.layOut(ctx)
}

// layOut plans the pipeline. One part on one device recomputes activations only if it does not fit otherwise; where there
// are more, times and memory of the units decide where the model is cut and which stages recompute.
func (r *run) layOut(ctx context.Context) (err error) {
	o := engineOptions(r.Config, r.model)
	o.Optimizer, o.Devices, o.Execute = r.optimizer, r.devices, r.Execute
	o.Loss, o.Inputs = r.task.build(), r.inputs
	if o.Execute == nil {
		o.Execute = engine.Execute(chooser(r.Tune), r.Pipeline.MemoryBytes())
	}
	var plan partition.Plan
	if p := r.Pipeline; p.Stages*p.Chunks > 1 {
		m := measure.Options{Tune: chooser(r.Tune), Cache: r.Costs, Modelled: r.Costs == nil, Progress: r.Report.Measuring}
		if plan, err = partitionModel(ctx, r.Config, r.model, r.task, r.devices, m); err != nil {
			return err
		}
		o.Cut, o.Recompute, o.Schedule = plan.Cut, plan.Recompute, computation(r.Config, plan)
		if r.Costs != nil {
			r.prediction = &plan
		}
	}
	if r.Pipeline.HasScheduleFile() { // read once, whatever becomes of it during the run
		file, err := r.ScheduleFile()
		if err != nil {
			return usererror.New(err)
		}
		o.Schedule = func(batches int) (*schedule.Generator, error) { return schedule.Repeat(file, batches) }
	}
	r.engine, err = r.fittingTuned(&o)
	if errors.Is(err, exec.ErrTooLarge) {
		if smaller, note := r.smaller(o, plan); note != "" {
			switch e, retried := r.fittingTuned(&smaller); {
			case retried == nil:
				r.Report.Note("%s", note)
				r.engine, o, err = e, smaller, nil
			case !errors.Is(retried, exec.ErrTooLarge): // whether it fits is not known
				err = retried
			}
		}
	}
	if err == nil {
		r.layout = &o
	}
	return planError(err)
}

// smaller is a pipeline that takes less memory, and what to say of it; nothing, if there is none.
func (r *run) smaller(o engine.Options, plan partition.Plan) (engine.Options, string) {
	switch {
	case plan.Halved && halvable(r.Config):
		o.Schedule = r.Schedule
		return o, "gradients are sent when the whole backward is done: in two halves it does not fit the devices"
	case r.Pipeline.Stages*r.Pipeline.Chunks == 1 && r.Pipeline.Recompute == config.RecomputeAuto:
		o.Recompute = []bool{true}
		return o, "activations are computed a second time in the backward pass: kept, they do not fit the device"
	}
	return o, ""
}

// openDevices opens a device for each line: those that are named in turn, or the default. A name may come several times; each
// time it is a logical device of its own. again tells that they were open before.
func openDevices(open OpenDevice, p config.Pipeline, again bool) (devices []device.Device, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, dev := range devices {
			err = errors.Join(err, dev.Close())
		}
		devices = nil
	}()
	for i := range p.Stages * p.Replicas {
		name := ""
		if len(p.Devices) > 0 {
			name = p.Devices[i%len(p.Devices)]
		}
		dev, err := open(name)
		if err != nil {
			return devices, usererror.New(fmt.Errorf("%s: %w", opening(name, again), err))
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

// opening is where a device is asked for that cannot be opened: once it could, the config is not at fault.
func opening(name string, again bool) string {
	switch {
	case !again:
		return "pipeline.devices"
	case name == "":
		return "opening the default device again"
	}
	return fmt.Sprintf("opening %s again", name)
}
