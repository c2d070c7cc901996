package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/measure"
	"github.com/gpupipe/gpupipe/pipeline/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// PlanOptions are what PlanPipeline needs besides a config.
type PlanOptions struct {
	OpenDevice OpenDevice
	Measure    measure.Options
}

// PipelinePlan is how a config's model can be spread over its devices, by schedule.
type PipelinePlan struct {
	Parameters     int64                 `json:"parameters"`
	Precision      string                `json:"precision,omitempty"` // how devices compute, if not in f32
	Units          []string              `json:"units"`               // by name
	Sequences      int                   `json:"sequences"`           // a microbatch
	Microbatches   int                   `json:"microbatches"`
	Tokens         int                   `json:"tokens"` // a batch
	Replicas       int                   `json:"replicas"`
	Devices        []PlannedDevice       `json:"devices"`  // one a line
	Lines          []string              `json:"lines"`    // names of their devices, as configured: stage after stage of one replica after the other
	Modelled       bool                  `json:"modelled"` // times are guesses
	Schedules      []partition.Candidate `json:"schedules"`
	Recommended    string                `json:"recommended,omitempty"`
	Recommendation int                   `json:"-"` // index of Schedules, −1: none
	Reason         string                `json:"reason"`
}

// DevicesOf are the names of the lines' devices with a plan's order of the stages, as pipeline.devices has them.
func (p *PipelinePlan) DevicesOf(plan *partition.Plan) (names []string) {
	for replica := range p.Replicas {
		for _, d := range plan.Devices {
			names = append(names, p.Lines[replica*len(plan.Devices)+d])
		}
	}
	return names
}

// PlannedDevice is the place of a stage of one replica, and what the units cost there in seconds.
type PlannedDevice struct {
	device.Info
	Memory int64          `json:"memory"` // bytes; 0: not known
	Units  []PlannedUnit  `json:"units"`
	Link   partition.Link `json:"link"`
}

// PlannedUnit is the time of a unit, and how many are like it.
type PlannedUnit struct {
	Name  string `json:"name"`
	Alike int    `json:"alike"` // itself included
	partition.Time
}

// PlanPipeline compares the schedules for a config's model, batch, stages and devices. Replicas run at a time, but take turns where
// they share a device. A schedule that cannot be says why; it is no error when none can.
func PlanPipeline(ctx context.Context, c config.Config, o PlanOptions) (p *PipelinePlan, err error) {
	h, err := openHooks(c.Hooks, savedModules(c.Hooks, c.Run.Dir, Silent{}.Note), "", hook.BuildModel, hook.BuildLoss, hook.MapBatch, hook.TokenWeights)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := h.close(); err == nil {
			err = e
		}
	}()
	m, err := openModel(c, h)
	if err != nil {
		return nil, err
	}
	aligned, err := data.ReadAligned(c.Data.Aligned)
	if err != nil {
		return nil, usererror.New(err)
	}
	t, err := newTask(ctx, c, h, m, aligned)
	if err != nil {
		return nil, err
	}
	devices, err := openPlaces(o.OpenDevice, c.Pipeline)
	defer func() {
		if e := closeAll(devices); err == nil {
			err = e
		}
	}()
	if err != nil {
		return nil, err
	}
	if o.Measure.Cache == nil { // the schedules share forwards and backwards
		o.Measure.Cache = measure.NewCache()
	}
	p = &PipelinePlan{Parameters: m.Count(), Precision: precisionOn(c.Train.DType(), devices), Sequences: c.Rows(), Microbatches: c.MicrobatchesPerReplica(),
		Tokens: c.Train.BatchSize * c.Model.SeqLen, Replicas: c.Pipeline.Replicas}
	for u := range m.Units() {
		p.Units = append(p.Units, m.UnitScope(u))
	}
	for _, dev := range devices {
		p.Lines = append(p.Lines, dev.Info().Name)
	}
	known := map[int]partition.Problem{} // by delay: the optimizer differs
	for _, v := range variants(c) {
		problem, ok := known[v.Pipeline.Delay]
		if !ok {
			if problem, p.Modelled, err = costs(ctx, v, m, t, devices, o.Measure); err != nil {
				return nil, err
			}
			known[v.Pipeline.Delay] = problem
		}
		candidate := partition.Candidate{Schedule: v.Pipeline.Schedule, Chunks: v.Pipeline.Chunks, Delay: v.Pipeline.Delay}
		if plan, err := choosePlan(v, problem); err == nil {
			candidate.Plan = &plan
		} else {
			candidate.Problem = err.Error()
		}
		p.Schedules = append(p.Schedules, candidate)
		p.Devices = places(m, devices, problem)
	}
	if p.Recommendation, p.Reason = partition.Recommend(p.Schedules); p.Recommendation >= 0 {
		p.Recommended = p.Schedules[p.Recommendation].Schedule
	}
	return p, nil
}

// partitionModel is where the config's model is cut, and which stages recompute, on the devices of the lines in their order. A cut that is
// given is kept.
func partitionModel(ctx context.Context, c config.Config, m model.Model, t task, devices []device.Device, o measure.Options) (partition.Plan, error) {
	problem, _, err := costs(ctx, c, m, t, devices, o)
	if err != nil {
		return partition.Plan{}, err
	}
	problem.KeepOrder = true
	plan, err := choosePlan(c, problem)
	return plan, usererror.New(err)
}

// costs are the units and the devices of a partition.Problem, one device a line.
func costs(ctx context.Context, c config.Config, m model.Model, t task, devices []device.Device, o measure.Options) (partition.Problem, bool, error) {
	optimizer, err := newOptimizer(c, m, nil)
	if err != nil {
		return partition.Problem{}, false, usererror.New(err)
	}
	o.Staged = c.Pipeline.Isolate == config.IsolateProcess // processes share no memory of which devices know
	target := measure.Target{Model: m, Batch: c.Rows(), Optimizer: optimizer, Loss: t.build(), Inputs: t.inputs}
	p, modelled, err := target.Problem(ctx, devices, o)
	for i := range p.Devices {
		p.Devices[i].Memory = cmp.Or(c.Pipeline.MemoryBytes(), p.Devices[i].Memory)
	}
	return p, modelled, planError(err)
}

// choosePlan partitions what costs gives; all its errors are the user's. Backwards in two halves take memory, and are not for devices that are
// short of it.
func choosePlan(c config.Config, p partition.Problem) (partition.Plan, error) {
	p.Devices = asOneReplica(p.Devices, c.Pipeline.Stages)
	if halvable(c) {
		if plan, err := chooseFor(c, p, halved(c)); err == nil && !slices.Contains(plan.Recompute, true) {
			return plan, nil
		}
	}
	return chooseFor(c, p, c.Schedule)
}

func chooseFor(c config.Config, p partition.Problem, s engine.Schedule) (partition.Plan, error) {
	g, err := s(partition.Batches)
	if err != nil {
		return partition.Plan{}, err
	}
	if p.Schedule, err = g.Schedule(); err != nil {
		return partition.Plan{}, err
	}
	p.Replicas, p.Tokens, p.Cut = c.Pipeline.Replicas, c.Train.BatchSize*c.Model.SeqLen, c.Pipeline.Cut
	p.Recompute = partition.Recompute(c.Pipeline.Recompute)
	return partition.Choose(p)
}

// variants are the config with each schedule that can be asked for, its own among them.
func variants(c config.Config) (vs []config.Config) {
	names := []string{"gpipe", "1f1b", "interleaved", "zb-h1", config.Schedule2BW}
	if c.Pipeline.Stages == 1 {
		names = []string{"1f1b", config.Schedule2BW} // one stage computes the same in any order, but for the delay
	}
	for _, name := range names {
		v := c
		v.Pipeline.Schedule, v.Pipeline.Chunks, v.Pipeline.Delay = name, 1, 0
		switch name {
		case "interleaved":
			v.Pipeline.Chunks = max(2, c.Pipeline.Chunks)
		case config.Schedule2BW:
			v.Pipeline.Delay = 1
		}
		if v.Pipeline.Delay == 0 {
			v.Pipeline.Correction, v.Pipeline.ErrorFeedback = config.CorrectionNone, false
		}
		vs = append(vs, v)
	}
	if c.Pipeline.HasScheduleFile() {
		vs = append(vs, c)
	}
	return vs
}

// openPlaces opens the device of each line; lines whose devices have one name have one.
func openPlaces(open OpenDevice, p config.Pipeline) (devices []device.Device, err error) {
	byName := map[string]device.Device{}
	for i := range p.Stages * p.Replicas {
		name := ""
		if len(p.Devices) > 0 {
			name = p.Devices[i%len(p.Devices)]
		}
		if byName[name] == nil {
			if byName[name], err = open(name); err != nil {
				return devices, usererror.New(fmt.Errorf("pipeline.devices: %w", err))
			}
		}
		devices = append(devices, byName[name])
	}
	return devices, nil
}

// closeAll closes devices, each once.
func closeAll(devices []device.Device) (err error) {
	for i, dev := range devices {
		if !slices.Contains(devices[:i], dev) {
			err = errors.Join(err, dev.Close())
		}
	}
	return err
}

// places describes the devices.
func places(m model.Model, devices []device.Device, p partition.Problem) (ps []PlannedDevice) {
	alike := map[int]int{}
	for u := range m.Units() {
		alike[m.Like(u)]++
	}
	for i, d := range p.Devices {
		place := PlannedDevice{Info: devices[i].Info(), Memory: d.Memory, Link: d.Link}
		for u := range m.Units() {
			if n := alike[u]; n > 0 {
				place.Units = append(place.Units, PlannedUnit{m.UnitScope(u), n, d.Times[u]})
			}
		}
		ps = append(ps, place)
	}
	return ps
}
