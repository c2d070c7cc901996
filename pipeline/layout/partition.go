package layout

import (
	"cmp"
	"context"
	"slices"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Partition decides where the model is cut and which stages recompute, on the devices of the ranks in their order. It
// keeps a cut that the config sets.
func (t Task) Partition(ctx context.Context, devices []device.Device, o measure.Options) (partition.Plan, error) {
	problem, _, err := t.Problem(ctx, devices, o)
	if err != nil {
		return partition.Plan{}, err
	}
	problem.KeepOrder = true
	plan, err := choosePlan(t.Config, problem)
	return plan, usererror.New(err)
}

// Solve decides where the model is cut, which stages recompute and, over a network, the depth: see ChooseDepth. It
// returns the config at that depth.
func (t Task) Solve(p partition.Problem) (config.Config, partition.Plan, []Depth, error) {
	cut, err := t.Config.Pipeline.CutUnits(t.Model)
	if err != nil {
		return t.Config, partition.Plan{}, nil, usererror.New(err)
	}
	p.Cut = cut
	c, plan, depths, err := ChooseDepth(t.Config, p)
	return c, plan, depths, usererror.New(err)
}

// Problem measures the units on the devices, one device per rank. It reports whether times are modelled.
func (t Task) Problem(ctx context.Context, devices []device.Device, o measure.Options) (partition.Problem, bool, error) {
	c := t.Config
	optimizer, err := NewOptimizer(c, t.Model, nil)
	if err != nil {
		return partition.Problem{}, false, usererror.New(err)
	}
	// Devices in different processes share no memory, and tensors that are rounded do not pass through it.
	activations, _ := c.Pipeline.Wire.Formats()
	o.Staged = c.Pipeline.Processes.Isolated() || activations != wire.F32
	target := measure.Target{Model: t.Model, Batch: c.Rows(), Optimizer: optimizer, Loss: t.Loss, Inputs: t.Inputs}
	p, modelled, err := target.Problem(ctx, devices, o)
	for i := range p.Devices {
		p.Devices[i].Memory = cmp.Or(c.Pipeline.MemoryBytes(), p.Devices[i].Memory)
	}
	if err != nil {
		return p, modelled, MarkTooLarge(err)
	}
	p.Cut, err = c.Pipeline.CutUnits(t.Model)
	return p, modelled, usererror.New(err)
}

// choosePlan solves a problem for the config's schedule. All its errors are the user's. Split backward passes take more
// memory, and are not chosen where devices are short of it.
func choosePlan(c config.Config, p partition.Problem) (partition.Plan, error) {
	p.Devices, p.Network = asOneReplica(p.Devices, c.Pipeline.Stages), p.Network.OneReplica(c.Pipeline.Stages)
	if splitsBackward(c) {
		if plan, err := chooseFor(c, p, splitBackward(c)); err == nil && !slices.Contains(plan.Recompute, true) {
			return plan, nil
		}
	}
	return chooseFor(c, p, c.Schedule)
}

func chooseFor(c config.Config, p partition.Problem, s engine.Schedule) (partition.Plan, error) {
	g, err := s(simulatedBatches(c, p))
	if err != nil {
		return partition.Plan{}, err
	}
	if p.Schedule, err = g.Schedule(); err != nil {
		return partition.Plan{}, err
	}
	p.Replicas, p.Tokens = c.Pipeline.Replicas, c.Train.BatchSize*c.Model.SeqLen
	p.Recompute = partition.Recompute(c.Pipeline.Recompute)
	p.Wire.Activations, p.Wire.Exchange = c.Pipeline.Wire.Formats()
	plan, err := partition.Choose(p)
	return plan, fielderror.In("pipeline", err)
}
