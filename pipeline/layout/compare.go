package layout

import (
	"context"
	"errors"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Comparison is how a task's model can be spread over its devices, by schedule.
type Comparison struct {
	Subject
	Batch
	Devices   []Device              `json:"devices"`  // one per rank
	Ranks     []string              `json:"ranks"`    // device names by rank, as configured: the stages of one replica after another
	Modelled  bool                  `json:"modelled"` // times are estimates
	Schedules []partition.Candidate `json:"schedules"`
	Recommendation
	Microbatching []Microbatching `json:"microbatching,omitempty"` // if the recommended schedule has a delay
	Depths        []Depth         `json:"depths,omitempty"`        // of the recommended schedule, over a network
	Alone         []Alone         `json:"alone,omitempty"`         // each machine of a network
}

// Subject is the model that a Comparison spreads.
type Subject struct {
	Parameters int64    `json:"parameters"`
	Active     int64    `json:"active_parameters"`   // the parameters that a token uses
	Precision  string   `json:"precision,omitempty"` // how devices compute, if not in f32
	Wire       string   `json:"wire,omitempty"`      // how tensors travel between stages, if not in f32
	Units      []string `json:"units"`               // by name
}

// Batch is how a batch is divided.
type Batch struct {
	Sequences    int `json:"sequences"`    // per microbatch
	Microbatches int `json:"microbatches"` // per replica
	Tokens       int `json:"tokens"`       // per batch
	Replicas     int `json:"replicas"`
}

// Recommendation is one of the schedules of a Comparison.
type Recommendation struct {
	Recommended      string `json:"recommended,omitempty"` // its name; "": none
	RecommendedIndex int    `json:"-"`                     // in Schedules; −1: none
	Reason           string `json:"reason"`
}

// DevicesOf returns the ranks' device names in a plan's order of the stages, as in pipeline.devices.
func (p *Comparison) DevicesOf(plan *partition.Plan) (names []string) {
	for replica := range p.Replicas {
		for _, d := range plan.Devices {
			names = append(names, p.Ranks[replica*len(plan.Devices)+d])
		}
	}
	return names
}

// Device is the device of one rank, and the times of the model's units on it.
type Device struct {
	device.Info
	Memory int64          `json:"memory"` // bytes; 0: not known
	Units  []Unit         `json:"units"`
	Link   partition.Link `json:"link"`
}

// Unit is the time of a unit in seconds, and the number of units of its kind.
type Unit struct {
	Name  string `json:"name"`
	Alike int    `json:"alike"` // itself included
	partition.Time
}

// Compare plans the task with each schedule. Replicas run in parallel, but take turns on shared devices. A schedule
// that is not possible says why; Compare returns no error if none is possible.
func (t Task) Compare(ctx context.Context, open OpenDevice, o measure.Options) (p *Comparison, err error) {
	c, m := t.Config, t.Model
	devices, err := openOnce(open, c.Pipeline, o.Between != nil || o.Place != nil)
	defer func() {
		if e := closeAll(devices); err == nil {
			err = e
		}
	}()
	if err != nil {
		return nil, err
	}
	if o.Cache == nil { // the schedules share forward and backward passes
		o.Cache = measure.NewCache()
	}
	p = &Comparison{
		Subject: Subject{Parameters: m.Count(), Active: m.ActiveCount(), Precision: DescribePrecision(c.Train.DType(), devices),
			Wire: c.Pipeline.Wire.Describe()},
		Batch: Batch{c.Rows(), c.MicrobatchesPerReplica(), int(c.BatchTokens()), c.Pipeline.Replicas}}
	for u := range m.Units() {
		p.Units = append(p.Units, m.UnitName(u))
	}
	for i, dev := range devices {
		p.Ranks = append(p.Ranks, configuredName(c.Pipeline, i, dev))
	}
	depths, known := map[string][]Depth{}, map[int]partition.Problem{} // by schedule, and by delay: the optimizer differs
	for _, v := range variants(c) {
		variant := t
		variant.Config = v
		problem, ok := known[v.Pipeline.Delay]
		if !ok {
			if problem, p.Modelled, err = variant.Problem(ctx, devices, o); err != nil {
				return nil, err
			}
			known[v.Pipeline.Delay] = problem
		}
		v, plan, compared, err := ChooseDepth(v, problem)
		candidate := partition.Candidate{Schedule: v.Pipeline.Schedule, Chunks: v.Pipeline.Chunks, Delay: v.Pipeline.Delay,
			Microbatches: v.MicrobatchesPerReplica(), Stale: v.Stale(), Staleness: v.Staleness(), Depth: v.Pipeline.Depth.Number()}
		if err == nil {
			candidate.Plan = &plan
		} else {
			candidate.Problem = v.ScheduleProblem(err).Error()
		}
		p.Schedules, depths[candidate.Schedule] = append(p.Schedules, candidate), compared
		p.Devices, p.Alone = describeDevices(m, devices, problem), CompareAlone(c, problem)
	}
	if p.RecommendedIndex, p.Reason = partition.Recommend(p.Schedules); p.RecommendedIndex >= 0 {
		p.Recommended = p.Schedules[p.RecommendedIndex].Schedule
		p.Depths = depths[p.Recommended]
		if p.Microbatching, err = t.compareMicrobatches(ctx, devices, o, p.Schedules[p.RecommendedIndex]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// variants are the config with each possible schedule, its own included.
func variants(c config.Config) (vs []config.Config) {
	for _, f := range schedule.Trainable() {
		if c.Pipeline.Stages == 1 && f.Name != schedule.ForDelay(f.Delay) {
			continue // with one stage, schedules of the same delay compute the same
		}
		v := c
		v.Pipeline.Schedule, v.Pipeline.Chunks, v.Pipeline.Delay = f.Name, f.Chunks, f.Delay
		if f.ManyChunks {
			v.Pipeline.Chunks = max(f.Chunks, c.Pipeline.Chunks)
		}
		if !f.Deep {
			v.Pipeline.Depth = config.DepthAuto
		}
		if v.Pipeline.Delay == 0 {
			v.Pipeline.StaleMicrobatches = config.StaleAuto
			v.Pipeline.Correct(optim.CorrectionNone)
		}
		vs = append(vs, v)
	}
	if c.Pipeline.HasScheduleFile() {
		vs = append(vs, c)
	}
	return vs
}

// openOnce opens the device of each rank. Ranks whose devices have the same name share one. If they are apart, in
// machines of their own, each has all cores of its machine.
func openOnce(open OpenDevice, p config.Pipeline, apart bool) (devices []device.Device, err error) {
	byName := map[string]device.Device{}
	names := Names(p, 1)
	if apart {
		names = configuredNames(p)
	}
	for _, name := range names {
		if byName[name] == nil {
			if byName[name], err = open(name); err != nil {
				return devices, usererror.Errorf("pipeline.devices: %w", err)
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

// describeDevices lists the devices with the times of the model's units.
func describeDevices(m model.Model, devices []device.Device, p partition.Problem) (all []Device) {
	alike := map[int]int{}
	for u := range m.Units() {
		alike[m.Like(u)]++
	}
	for i, d := range p.Devices {
		dev := Device{Info: devices[i].Info(), Memory: d.Memory, Link: d.Link}
		for u := range m.Units() {
			if n := alike[u]; n > 0 {
				dev.Units = append(dev.Units, Unit{m.UnitName(u), n, d.Times[u]})
			}
		}
		all = append(all, dev)
	}
	return all
}
