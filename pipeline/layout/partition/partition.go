// Package partition plans where a model is cut into pipeline stages, and which device runs which stage, from the costs
// of each unit of the model on each device and from the devices' memory. Nothing here touches a device.
//
// A Problem holds the units, the devices with the times of each unit, and a schedule. Package measure fills in the
// units and the devices. Choose searches cuts and orders of the devices and returns a Plan: the cut, the device of each
// stage, where activations are recomputed, the memory of each stage, and the predicted time of a batch, from a
// simulation of the schedule. Recommend compares the plans of several schedules. An InfeasibleError names the stage
// that lacks most memory.
//
// A pipeline is as fast as its slowest stage, so a cut minimizes the time of the slowest stage (Harlap et al., arXiv
// 1806.03377, §3.1; Narayanan et al., arXiv 2006.09503, §4): its computation, the recomputation that its memory
// requires, and its transfers.
package partition

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/unitname"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Unit is a piece of the model that cannot be cut: the embedding (unit 0), the attention or the feed-forward layer of a
// layer, the head. The sizes of activations are for one microbatch.
type Unit struct {
	Name       string `json:"name"`            // "embed", "layers.0.self_attn", "layers.0.mlp", …, "head"
	Layer      string `json:"layer,omitempty"` // "layers.0": that it is a part of
	Parameters int64  `json:"parameters"`      // bytes of its own weights
	// Shared is the bytes of unit 0's weights that it uses too, as a tied head does. On another stage than unit 0 it
	// uses a copy and sends its gradient to the stage of unit 0. On the same stage it has a second gradient.
	Shared int64 `json:"shared,omitempty"`
	State  int64 `json:"state"`      // bytes of the optimizer's state
	Kept   int64 `json:"kept"`       // bytes kept from forward to backward, besides the activation that enters
	Always int64 `json:"always"`     // bytes of Kept that are kept with recomputation, too: which experts were chosen
	Enters int64 `json:"enters"`     // bytes of the activation that enters, if the backward reads it
	Given  int64 `json:"given"`      // bytes of a microbatch's data that it reads, with or without recomputation
	KeptW  int64 `json:"kept_w"`     // bytes kept besides between input gradient and weight gradients
	Out    int64 `json:"activation"` // bytes of its output activation, and of that activation's gradient
	Scratch
}

// Scratch is the scratch memory of a unit's programs, in bytes. One program runs at a time.
type Scratch struct {
	Working  int64 `json:"working"`          // of all programs but backward passes
	Backward int64 `json:"working_backward"` // of the whole backward pass
	Split    int64 `json:"working_split"`    // of the larger program of a split backward pass
	// of the whole backward pass with recomputation, including the activations that it computes again
	Recomputing int64 `json:"working_recomputing"`
}

// Widest is the larger scratch memory of each program.
func (s Scratch) Widest(o Scratch) Scratch {
	return Scratch{max(s.Working, o.Working), max(s.Backward, o.Backward), max(s.Split, o.Split), max(s.Recomputing, o.Recomputing)}
}

// Time is the cost of a unit on a device, in seconds.
type Time struct {
	Forward  float64 `json:"forward"`  // of a microbatch
	Backward float64 `json:"backward"` // of a microbatch: the gradients of what enters and of the weights
	// The two parts of the backward in schedules that split it. Unit 0 has no input gradient: its WeightGrad is all of
	// Backward.
	InputGrad  float64 `json:"input_grad"`
	WeightGrad float64 `json:"weight_grad"`
	Update     float64 `json:"update"` // of a batch, gradient norms included
}

func (t Time) plus(o Time) Time {
	return Time{t.Forward + o.Forward, t.Backward + o.Backward, t.InputGrad + o.InputGrad, t.WeightGrad + o.WeightGrad, t.Update + o.Update}
}

func (t Time) minus(o Time) Time {
	return Time{t.Forward - o.Forward, t.Backward - o.Backward, t.InputGrad - o.InputGrad, t.WeightGrad - o.WeightGrad, t.Update - o.Update}
}

// AtSpeed are the times on a device that is so many times as fast.
func AtSpeed(times []Time, speed float64) (all []Time) {
	for _, t := range times {
		all = append(all, Time{t.Forward / speed, t.Backward / speed, t.InputGrad / speed, t.WeightGrad / speed, t.Update / speed})
	}
	return all
}

// Link is the connection between the memory of a device and the host's memory, over which activations pass to the next
// device, or the connection from one machine to another.
type Link struct {
	Latency   float64 `json:"latency"`   // seconds per transfer
	Bandwidth float64 `json:"bandwidth"` // bytes per second; 0: unknown, and transfers cost only their latency
}

// Seconds is the time of a transfer of n bytes.
func (l Link) Seconds(n int64) float64 {
	s := l.Latency
	if l.Bandwidth > 0 {
		s += float64(n) / l.Bandwidth
	}
	return s
}

// Device is the device of one stage. Entries with the same name are one device: their stages share its time, unless it
// is Parallel, and its memory.
type Device struct {
	Name   string `json:"name"`
	Times  []Time `json:"-"`      // by unit
	Memory int64  `json:"memory"` // bytes; 0: unknown, everything fits
	Link   Link   `json:"link"`
	// Ranks is the number of ranks of all replicas on the device, if that is more than the entries with its name.
	Ranks int `json:"ranks,omitempty"`
	// Parallel devices compute for all of their ranks at the same time, such as a CPU whose cores they divide. Times
	// are for one rank's part of the device.
	Parallel bool `json:"parallel,omitempty"`
	// Cores is the part of the host's cores that a rank on the device keeps busy while it computes. Devices that
	// compute on the host share its cores, whatever their names.
	Cores float64 `json:"cores,omitempty"`
}

// Recompute says when the backward of a stage recomputes activations instead of keeping them.
type Recompute string

// The values of Recompute.
const (
	Auto   Recompute = "auto" // where memory is too small otherwise
	Always Recompute = "always"
	Never  Recompute = "never"
)

// Problem is the input of Choose.
type Problem struct {
	Units     []Unit
	Devices   []Device           // as many as the schedule has stages
	KeepOrder bool               // stage s stays on device s, even if another order is faster
	Schedule  *schedule.Schedule // computation only, of schedule.PatternBatches batches; with a Network, of schedule.Options.SteadyBatches
	Network   *Network           // the machines of the devices; nil: all are in one
	Replicas  int                // copies of the pipeline that share a batch, each on devices like these; 0: one
	Tokens    int                // per batch, over all replicas
	Given     int64              // bytes of a microbatch's data that every model chunk reads, besides what its units read
	Wire      Wire               // formats between stages; the zero value is f32
	Recompute Recompute
	// Cut, if not empty, is the first unit of each virtual stage but the first. Choose checks it instead of searching
	// for a cut.
	Cut []int
}

// Chunk is a model chunk, the units of one virtual stage: First (included) to Last (excluded).
type Chunk struct {
	First int `json:"first"`
	Last  int `json:"last"`
}

// Plan is the solution of a Problem.
type Plan struct {
	Cut           []int    `json:"-"`              // the first unit of each virtual stage but the first
	CutNames      []string `json:"cut"`            // the same by name
	Recompute     []bool   `json:"recompute"`      // by stage
	SplitBackward bool     `json:"split_backward"` // the schedule has split backwards
	Depth         int      `json:"depth"`          // of the schedule
	Devices       []int    `json:"devices"`        // by stage: index of Problem.Devices
	Stages        []Stage  `json:"stages"`
	StepSeconds   float64  `json:"step_seconds"` // predicted, per batch in the steady state
	FillSeconds   float64  `json:"fill_seconds"` // what batches take longer after which the pipeline is empty
	TokensPerSec  float64  `json:"tokens_per_s"`
	// Bubble is the predicted share of the time in which a stage with a device of its own waits.
	Bubble float64 `json:"bubble"`
	Search string  `json:"search"` // the cuts and orders that were compared
}

// Stage is one stage of a plan.
type Stage struct {
	Chunks    []Chunk `json:"chunks"` // by chunk of the stage
	Units     string  `json:"units"`  // of the chunks, by name
	Device    string  `json:"device"`
	Recompute bool    `json:"recompute"`
	Forward   float64 `json:"forward"` // seconds per microbatch
	Backward  float64 `json:"backward"`
	Update    float64 `json:"update"`   // seconds per batch
	Transfer  float64 `json:"transfer"` // seconds per microbatch, sending and receiving
	Exchange  float64 `json:"exchange"` // seconds per batch, gradients and weights of copies
	Sent      int64   `json:"sent"`     // bytes on the wire to other stages per batch, in the formats of Problem.Wire
	// Seconds is the time of a microbatch in the steady state, including its share of the batch's update and exchange
	// and, on a device that several stages share, the time of the others.
	Seconds   float64 `json:"seconds"`
	Memory    Memory  `json:"memory"`
	Available int64   `json:"available"` // bytes of the device's memory for this stage; 0: unknown
}

// Memory is the bytes of a stage on its device.
type Memory struct {
	Weights     int64 `json:"weights"` // all versions
	Gradients   int64 `json:"gradients"`
	Optimizer   int64 `json:"optimizer"`
	Activations int64 `json:"activations"` // of all microbatches in flight
	Working     int64 `json:"working"`
}

// Total is the sum.
func (m Memory) Total() int64 {
	return m.Weights + m.Gradients + m.Optimizer + m.Activations + m.Working
}

// Choose returns the partition whose slowest stage is the fastest, and among those the most even one. A cut that cannot
// be is a *fielderror.Error, a model that does not fit an *InfeasibleError.
func Choose(p Problem) (Plan, error) {
	if err := p.check(); err != nil {
		return Plan{}, err
	}
	c := newCosts(p)
	var l layout
	var err error
	switch {
	case len(p.Cut) > 0:
		l, err = c.given()
	case p.Schedule.Chunks > 1:
		l, err = c.searchChunks()
	default:
		l, err = c.search()
	}
	if err != nil {
		return Plan{}, err
	}
	return c.plan(l)
}

func (p *Problem) check() error {
	s := p.Schedule
	if len(p.Units) == 0 || len(s.Actions) != s.Stages || s.Stages < 1 {
		panic(fmt.Sprintf("partition: %d units, action lists of %d stages", len(p.Units), len(s.Actions)))
	}
	if len(p.Devices) != s.Stages {
		panic(fmt.Sprintf("partition: %d devices for %d stages", len(p.Devices), s.Stages))
	}
	for _, d := range p.Devices {
		if len(d.Times) != len(p.Units) {
			panic(fmt.Sprintf("partition: %s has times of %d units of %d", d.Name, len(d.Times), len(p.Units)))
		}
	}
	p.Replicas = max(p.Replicas, 1)
	if p.Recompute == "" {
		p.Recompute = Auto
	}
	if !slices.Contains([]Recompute{Auto, Always, Never}, p.Recompute) {
		return fielderror.New("recompute", string(p.Recompute), "%s, %s or %s", Auto, Always, Never)
	}
	if err := checkSchedule(s); err != nil {
		return err
	}
	if s.VirtualStages() > len(p.Units) {
		return fielderror.New("stages", p.Schedule.Stages, "at most one chunk per unit: the model has %d; %d stages of %d chunks have %d",
			len(p.Units), p.Schedule.Stages, p.Schedule.Chunks, s.VirtualStages())
	}
	return p.checkCut()
}

func (p *Problem) checkCut() error {
	if len(p.Cut) == 0 {
		return nil
	}
	last, before := len(p.Units)-1, 0
	for _, u := range p.Cut {
		if u <= before || u > last {
			return fielderror.New("cut", p.Cut, "ascending units from 1 to %d (0 is the embedding, %d the head)", last, last)
		}
		before = u
	}
	if n := p.Schedule.VirtualStages() - 1; len(p.Cut) != n {
		return fielderror.New("cut", unitname.Points(p.names(), p.Cut), "the first unit of each chunk except the first: %d units", n)
	}
	return nil
}
