// Package measure determines the costs of a model's units on devices, as package partition needs them. It takes the
// memory of a unit from its graphs, and its times from running its programs one by one, or from a model of the device.
// Of units that are alike, such as layers, it measures one. Kernels span units only in the middle of a layer that is
// not cut, where that hardly counts, so the costs of a stage are the sums of its units' costs.
//
// Target.Problem measures all devices of a run, each kind of device once, and returns the units and devices of a
// partition.Problem. A Cache keeps measurements in a file, by device, driver and the source of the kernels.
package measure

import (
	"context"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Target is the model to train.
type Target struct {
	Model     model.Model
	Batch     int              // sequences per microbatch
	Optimizer *optim.Optimizer // of all parameters
	Loss      model.Loss       // nil: cross-entropy
	Inputs    model.Inputs     // of training
}

// Options of a measurement.
type Options struct {
	Tune     exec.Chooser    // nil: the static choice
	Cache    *Cache          // nil: no cache
	Modelled bool            // run nothing, and estimate times from arithmetic and memory traffic
	GPU      *GPU            // the card that the devices, which run nothing, stand for; nil: estimates are for their kind of device
	Staged   bool            // transfers use the memory of each device even if they can share host memory
	Between  *partition.Link // between the devices, as if each were in a machine of its own; nil: they are in this one
	// Place replaces the devices by others, or puts them into machines. nil: they are what was measured, on one
	// machine.
	Place    func(p *partition.Problem) error
	Progress func(device, what string)
}

// Costs are the costs of a model on one device.
type Costs struct {
	Units    []partition.Unit // of the whole model
	Times    []partition.Time // by unit
	Link     partition.Link
	Modelled bool // the times are estimates
	Cached   bool // the times are from the cache
}

// Problem returns the measured fields of a partition.Problem: the units, and a device for each stage. Devices with the
// same adapter and driver are measured once.
func (t Target) Problem(ctx context.Context, devices []device.Device, o Options) (p partition.Problem, modelled bool, err error) {
	known := map[device.Info]Costs{}
	for _, dev := range devices {
		info := kindOf(dev)
		c, ok := known[info]
		if !ok {
			if c, err = t.On(ctx, dev, o, devices...); err != nil {
				return p, false, fmt.Errorf("%s: %w", dev.Info().Name, err)
			}
			known[info] = c
		}
		modelled = modelled || c.Modelled
		p.Units = widest(p.Units, c.Units)
		p.Devices = append(p.Devices, partition.Device{Name: dev.Info().Name, Times: c.Times, Memory: device.Budget(dev), Link: c.Link,
			Parallel: dev.Info().Kind == device.CPU, Cores: coresOf(dev.Info())})
	}
	if o.Between != nil {
		p.Network = partition.Uniform(len(devices), *o.Between)
		for i := range p.Devices {
			p.Devices[i].Name += fmt.Sprint(" of machine ", i)
		}
	}
	if t.Inputs.Segments {
		p.Given = t.ids()
	}
	if o.Place != nil {
		err = o.Place(&p)
	}
	return p, modelled, err
}

// coresOf returns the part of the host's cores that a device computes on. A software adapter computes on all of them.
func coresOf(info device.Info) float64 {
	switch info.Kind {
	case device.CPU:
		return min(1, float64(info.Threads)/float64(host.ThisProcess().Cores()))
	case device.Software:
		return 1
	}
	return 0
}

// ids is the size of a microbatch's tokens in bytes.
func (t Target) ids() int64 { return graph.T(graph.U32, t.Batch, t.Model.Size().SeqLen).Bytes() }

// kindOf is the part of a device's info that equal devices have in common.
func kindOf(dev device.Device) device.Info {
	info := dev.Info()
	info.Name = ""
	return info
}

// widest takes the larger scratch memory of each unit, in which alone units differ by device.
func widest(a, b []partition.Unit) []partition.Unit {
	if a == nil {
		return b
	}
	for i := range a {
		a[i].Scratch = a[i].Widest(b[i].Scratch)
	}
	return a
}

// On returns the costs on one device. It measures transfers between the device and its peers, which may include the
// device. If the device shares host memory with only some of them, On assumes that it shares it with none. On runs
// nothing on a device of kind Null, and stops between runs when ctx ends.
func (t Target) On(ctx context.Context, dev device.Device, o Options, peers ...device.Device) (c Costs, err error) {
	if c.Modelled = o.Modelled || dev.Info().Kind == device.Null; c.Modelled {
		o.Tune = nil // it would time kernels
	}
	var kinds []kind
	at := map[int]int{} // kind by unit
	for u := range t.Model.Units() {
		if t.Model.Like(u) != u {
			at[u] = at[t.Model.Like(u)]
			continue
		}
		k, err := t.kind(dev, u, o.Tune)
		if err != nil {
			return c, fmt.Errorf("%s: %w", t.Model.UnitName(u), err)
		}
		k.unit.Name = t.Model.UnitName(u)
		at[u], kinds = len(kinds), append(kinds, k)
	}
	var known record
	switch {
	case c.Modelled:
		v := speedOf(dev)
		if o.GPU != nil {
			v = o.GPU.speed()
		}
		known = guess(v, kinds)
	default:
		if o.Cache == nil {
			o.Cache = NewCache()
		}
		if known, c.Cached, err = t.measured(ctx, dev, kinds, peers, o); err != nil {
			return c, err
		}
	}
	c.Link = known.link
	for u := range t.Model.Units() {
		i := at[u]
		unit := kinds[i].unit
		unit.Name, unit.Layer = t.Model.UnitName(u), t.Model.UnitScope(u)
		c.Units, c.Times = append(c.Units, unit), append(c.Times, known.times[i])
	}
	return c, nil
}

// The programs of a unit. The programs of the update are numbered.
const (
	forwardProgram    = "F"
	backwardProgram   = "B"
	inputGradProgram  = "I"
	weightGradProgram = "W"
	evalProgram       = "E"
	normsProgram      = "norms"
)

func updateProgram(variant int) string { return fmt.Sprint("update ", variant) }

// kind is a unit that represents all units like it, planned for a device.
type kind struct {
	unit     partition.Unit
	plan     *exec.Plan
	programs []string  // in an order in which each finds its inputs
	shares   []float64 // by variant of the update: how often it runs
}

// someMicrobatches stands for any number of microbatches but one.
const someMicrobatches = 2

func (t Target) options(unit int) model.StageOptions {
	return model.StageOptions{First: unit, Last: unit + 1, Batch: t.Batch, Microbatches: someMicrobatches, Loss: t.Loss, Inputs: t.Inputs}
}

func (t Target) kind(dev device.Device, unit int, tune exec.Chooser) (k kind, err error) {
	s, err := t.Model.Stage(t.options(unit))
	if err != nil {
		return k, err
	}
	graphs := map[string]*graph.Graph{forwardProgram: s.Forward, backwardProgram: s.BackwardNext}
	k.programs = []string{forwardProgram, backwardProgram}
	if s.InputGrad != nil {
		graphs[inputGradProgram], graphs[weightGradProgram] = s.InputGrad, s.WeightGradNext
		k.programs = append(k.programs, inputGradProgram, weightGradProgram)
	}
	k.unit = t.unit(unit, s)
	shard := t.shard(unit)
	k.unit.State = bytes(shard.State())
	if graphs[normsProgram], err = shard.NormSquares(); err != nil {
		return k, err
	}
	k.programs = append(k.programs, normsProgram)
	k.shares = t.shares()
	for v := range k.shares {
		if graphs[updateProgram(v)], err = shard.Update(v); err != nil {
			return k, err
		}
		k.programs = append(k.programs, updateProgram(v))
	}
	if k.plan, err = exec.NewPlan(dev, graphs, exec.Options{Tune: tune}); err != nil {
		return k, err
	}
	k.unit.Scratch, k.unit.Always, err = t.scratch(dev, unit, k.plan, graphs)
	return k, err
}

// scratch returns the scratch memory of a unit's programs, and the bytes that are kept even with recomputation.
func (t Target) scratch(dev device.Device, unit int, p *exec.Plan, graphs map[string]*graph.Graph) (s partition.Scratch, always int64,
	err error) {
	o := t.options(unit)
	o.Recompute = true
	again, err := t.Model.Stage(o)
	if err != nil {
		return s, 0, err
	}
	// Nothing here is timed: these programs have the static choice of kernels.
	others, err := exec.NewPlan(dev, map[string]*graph.Graph{backwardProgram: again.BackwardNext, evalProgram: again.Eval}, exec.Options{})
	if err != nil {
		return s, 0, err
	}
	m := p.Memory()
	fixed := m.Inputs + m.Outputs + m.Constants
	s = partition.Scratch{Working: others.Arena(evalProgram), Backward: p.Arena(backwardProgram), Recomputing: fixed +
		others.Arena(backwardProgram)}
	for name := range graphs {
		switch name {
		case backwardProgram:
		case inputGradProgram, weightGradProgram:
			s.Split = max(s.Split, p.Arena(name))
		default:
			s.Working = max(s.Working, p.Arena(name))
		}
	}
	if graphs[inputGradProgram] == nil {
		s.Split = s.Backward
	}
	s.Working, s.Backward, s.Split = fixed+s.Working, fixed+s.Backward, fixed+s.Split
	return s, bytes(again.Stash), nil
}

// shard is the optimizer of the parameters that a unit owns.
func (t Target) shard(unit int) *optim.Shard {
	var own []string
	for _, p := range t.Model.Parameters() {
		if p.Unit == t.Model.UnitName(unit) {
			own = append(own, p.Name)
		}
	}
	return t.Optimizer.Shard(own, unit == t.Model.Units()-1)
}

// unit is the memory of a unit, from its graphs.
func (t Target) unit(unit int, s *model.Stage) (u partition.Unit) {
	u.Kept, u.KeptW = bytes(s.Stash), bytes(s.WeightStash)
	for _, v := range s.Backward.Sources("variable") {
		if v.Node.Op.(graph.Source).Label() == model.ActIn {
			u.Enters = v.Type.Bytes()
		}
	}
	for _, p := range s.Parameters {
		if p.Unit == t.Model.UnitName(unit) {
			u.Parameters += p.Type.Bytes()
		} else {
			u.Shared += p.Type.Bytes()
		}
	}
	if unit == 0 {
		u.Given = t.ids() // tokens
	}
	if unit == t.Model.Units()-1 {
		for _, v := range t.Model.Variables(t.Inputs, t.Batch) {
			if v.ID != model.TokensInput && v.ID != model.SegmentsInput {
				u.Given += v.Type.Bytes()
			}
		}
	} else {
		u.Out = t.ids() * int64(t.Model.Size().DModel)
	}
	return u
}

func bytes(vs []graph.Named) (n int64) {
	for _, v := range vs {
		n += v.Type.Bytes()
	}
	return n
}

// shares is how often each variant of the update runs.
func (t Target) shares() []float64 {
	const steps = 1000
	shares := make([]float64, t.Optimizer.Variants())
	for step := range steps {
		shares[t.Optimizer.Variant(step, step > 0)] += 1. / steps
	}
	return shares
}
