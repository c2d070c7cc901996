// Package layout turns a config into what trains it: the model in its precision, the optimizer, the options of the
// pipeline's engine, and the layout of the model on devices. The layout is where the model is cut into chunks, which
// stages recompute their activations, and which kernels fit.
package layout

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// Task is the training for which a layout is made.
type Task struct {
	Config config.Config
	Model  model.Model  // in the config's precision
	Loss   model.Loss   // nil: cross-entropy
	Inputs model.Inputs // the data of a batch that the loss and the model read besides tokens and targets
	// RankPrefix precedes the names of ranks, see engine.Options.
	RankPrefix string
}

// Options are what a layout depends on besides the task and the devices.
type Options struct {
	Execute   engine.Executor                  // nil: runtime/exec
	Tune      *tune.Cache                      // kernels chosen by timing; nil: the static choice
	Costs     *measure.Cache                   // measured times of units, by device; nil: modelled times
	Resumed   bool                             // the run continues from a checkpoint
	Measuring func(device, what string)        // reports which unit is being timed; nil: not reported
	Note      func(format string, args ...any) // messages for the user
}

// Layout is a pipeline planned for devices.
type Layout struct {
	Engine     engine.Options  // to plan the same pipeline again on reopened devices
	Static     bool            // the static choice of kernels was used because tuned kernels did not fit
	Prediction *partition.Plan // of the time of a step; nil without measured times
}

// EngineOptions are the engine's options that follow from the config alone, without devices and cut.
func EngineOptions(c config.Config, m model.Model) engine.Options {
	p := c.Pipeline
	recompute := make([]bool, p.Stages)
	for i := range recompute {
		recompute[i] = p.Recompute == config.RecomputeAlways
	}
	activations, exchange := p.Wire.Formats()
	return engine.Options{
		Wire:   engine.Wire{Activations: activations, Exchange: exchange, Seed: c.Init.Seed},
		Layout: engine.Layout{Stages: p.Stages, Chunks: p.Chunks, Replicas: p.SyncReplicas(), Delay: p.Delay, Recompute: recompute},
		Model:  m, MicrobatchSize: c.Rows(), Microbatches: c.MicrobatchesPerReplica(), Schedule: c.Schedule,
	}
}

// splitsBackward reports whether backward passes are split into the gradient of the activations and the gradients of
// the weights. With a delay, a stage waits only for transfers, and each activation and gradient is needed as soon as it
// is there. The first half computes the gradient to send, and the second half runs while it is transferred.
func splitsBackward(c config.Config) bool {
	p := c.Pipeline
	return p.Delay > 0 && p.Stages > 1 && !p.HasScheduleFile()
}

// splitBackward is the config's schedule with split backward passes.
func splitBackward(c config.Config) engine.Schedule {
	return func(batches int) (*schedule.Generator, error) {
		g, err := c.Schedule(batches)
		if err != nil {
			return nil, err
		}
		return g.SplitBackward(), nil
	}
}

// scheduleOf is the schedule that a plan was made for. split reports whether the plan's has split backward passes.
func scheduleOf(c config.Config, split bool) engine.Schedule {
	if split && splitsBackward(c) { // other schedules split their backward passes themselves
		return splitBackward(c)
	}
	return c.Schedule
}

// Engine returns the task's engine, without devices, for a model that is cut as in a partition.Plan.
func (t Task) Engine(optimizer *optim.Optimizer, cut []int, recompute []bool, splitBackward bool) engine.Options {
	e := EngineOptions(t.Config, t.Model)
	e.Optimizer, e.Loss, e.Inputs, e.RankPrefix = optimizer, t.Loss, t.Inputs, t.RankPrefix
	if recompute == nil {
		return e
	}
	return t.with(e, cut, recompute, splitBackward)
}

// with returns an engine's options with the results of a plan.
func (t Task) with(e engine.Options, cut []int, recompute []bool, splitBackward bool) engine.Options {
	e.Layout.Cut, e.Layout.Recompute, e.Schedule = cut, recompute, scheduleOf(t.Config, splitBackward)
	return e
}

// Choose plans the task's pipeline on devices, one per rank. A model in one chunk recomputes activations only if it
// does not fit otherwise. For more chunks, times and memory of the units decide where the model is cut and which stages
// recompute. Errors of a model that does not fit are marked by usererror.
func (t Task) Choose(ctx context.Context, optimizer *optim.Optimizer, devices []device.Device, o Options) (*engine.Engine, *Layout, error) {
	c := t.Config
	e := t.Engine(optimizer, nil, nil, false)
	e.Devices, e.Execute = devices, o.Execute
	if e.Execute == nil {
		e.Execute = engine.Execute(chooser(o.Tune), c.Pipeline.MemoryBytes())
	}
	l := &Layout{}
	var plan partition.Plan
	if c.Pipeline.Stages*c.Pipeline.Chunks > 1 {
		var err error
		m := measure.Options{Tune: chooser(o.Tune), Cache: o.Costs, Modelled: o.Costs == nil, Progress: o.Measuring}
		if plan, err = t.Partition(ctx, devices, m); err != nil {
			return nil, nil, err
		}
		e = t.with(e, plan.Cut, plan.Recompute, plan.SplitBackward)
		if o.Costs != nil {
			l.Prediction = &plan
		}
	}
	if c.Pipeline.HasScheduleFile() { // read it once: the file may change during the run
		file, err := c.ScheduleFile()
		if err != nil {
			return nil, nil, usererror.New(err)
		}
		e.Schedule = func(batches int) (*schedule.Generator, error) { return schedule.Repeat(file, batches) }
	}
	f := fitter{config: c, options: o}
	planned, err := f.fit(&e, plan)
	if err != nil {
		return nil, nil, MarkTooLarge(err)
	}
	l.Engine, l.Static = e, f.static
	return planned, l, nil
}

// MarkTooLarge marks the error of a model that does not fit, which the user can fix, by usererror. Errors of failing
// devices stay as they are.
func MarkTooLarge(err error) error {
	if errors.Is(err, exec.ErrTooLarge) || errors.Is(err, device.ErrOutOfMemory) {
		return usererror.New(err)
	}
	return err
}

// chooser is nil without a cache, and not an interface that holds a nil pointer.
func chooser(c *tune.Cache) exec.Chooser {
	if c == nil {
		return nil
	}
	return c
}
