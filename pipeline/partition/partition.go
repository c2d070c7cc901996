// Package partition decides where a model is cut into pipeline stages and which device takes which stage, given what each unit
// costs on each device and what fits into its memory. Nothing here touches a device.
//
// A pipeline is as fast as its slowest stage, so that is what a cut minimises (Harlap et al., arXiv 1806.03377, §3.1;
// Narayanan et al., arXiv 2006.09503, §4): compute, plus the recomputation that memory forces on it, plus its transfers.
package partition

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Unit is what the model cannot be cut within: the embedding (unit 0), a layer, the head. Activations are of one microbatch.
type Unit struct {
	Name       string `json:"name"`       // "embed", "layers.0", …, "head"
	Parameters int64  `json:"parameters"` // bytes of the weights that it owns
	// Shared is the bytes of unit 0's weights that it uses too, as a tied head does. On another stage than unit 0 it works on a
	// copy, and its gradient of them travels to unit 0's stage; on the same, they have a second gradient.
	Shared  int64 `json:"shared,omitempty"`
	State   int64 `json:"state"`    // bytes of the optimizer's state
	Kept    int64 `json:"kept"`     // bytes kept from forward to backward, besides the activation that it is given
	Given   int64 `json:"given"`    // bytes of a microbatch's data that it is given, recomputing or not
	KeptW   int64 `json:"kept_w"`   // bytes kept besides when the backward runs in two halves
	Working int64 `json:"working"`  // bytes that its programs use while they run
	Out     int64 `json:"boundary"` // bytes of the activation that it hands on; the gradient that comes back is as large
}

// Time is what a unit costs on a device, in seconds.
type Time struct {
	Forward  float64 `json:"forward"`  // of a microbatch
	Backward float64 `json:"backward"` // of a microbatch: the gradients of what enters and of the weights
	// The halves of the backward, where a schedule takes them apart. The first part of a model has no gradient to pass on:
	// its WeightGrad is all of Backward.
	InputGrad  float64 `json:"input_grad"`
	WeightGrad float64 `json:"weight_grad"`
	Update     float64 `json:"update"` // of a batch, votes included
}

func (t Time) plus(o Time) Time {
	return Time{t.Forward + o.Forward, t.Backward + o.Backward, t.InputGrad + o.InputGrad, t.WeightGrad + o.WeightGrad, t.Update + o.Update}
}

func (t Time) minus(o Time) Time {
	return Time{t.Forward - o.Forward, t.Backward - o.Backward, t.InputGrad - o.InputGrad, t.WeightGrad - o.WeightGrad, t.Update - o.Update}
}

// Link is the way between a device's memory and the host's, over which activations pass to the next device.
type Link struct {
	Latency   float64 `json:"latency"`   // seconds a transfer
	Bandwidth float64 `json:"bandwidth"` // bytes a second; 0: not known, transfers cost their latency only
}

// Seconds is how long n bytes take.
func (l Link) Seconds(n int64) float64 {
	s := l.Latency
	if l.Bandwidth > 0 {
		s += float64(n) / l.Bandwidth
	}
	return s
}

// Device is the place of one stage. Places of one name are one device: their stages share its time and its memory.
type Device struct {
	Name   string `json:"name"`
	Times  []Time `json:"-"`      // by unit
	Memory int64  `json:"memory"` // bytes; 0: not known, everything fits
	Link   Link   `json:"link"`
	// Lines is how many stages of all replicas take turns on the device, where that is more than the places of its name.
	Lines int `json:"lines,omitempty"`
}

// Recompute says when a stage's backward computes the forward's results again instead of keeping them.
type Recompute string

// The ways to decide on recomputation.
const (
	Auto   Recompute = "auto" // where memory is too small otherwise
	Always Recompute = "always"
	Never  Recompute = "never"
)

// Problem is what there is to partition.
type Problem struct {
	Units     []Unit
	Devices   []Device           // as many as the schedule has stages
	KeepOrder bool               // stage s stays on device s, even where another order were faster
	Schedule  *schedule.Schedule // computation only, of Batches batches
	Replicas  int                // copies of the pipeline that share a batch, each on devices like these; 0 is 1
	Tokens    int                // of a batch, over all replicas
	Given     int64              // bytes of a microbatch's data that every part is given, besides what its units are
	Recompute Recompute
	// Cut, when not empty, is the first unit of each part but the first: the given cut is checked instead of searched for.
	Cut []int
}

// Part is a contiguous piece of the model: units First to before Last.
type Part struct {
	First int `json:"first"`
	Last  int `json:"last"`
}

// Plan is a partition: the Problem's answer.
type Plan struct {
	Cut          []int   `json:"cut"`       // first unit of each part but the first
	Recompute    []bool  `json:"recompute"` // by stage
	Halved       bool    `json:"halved"`    // backwards are in two halves
	Devices      []int   `json:"devices"`   // by stage: index of Problem.Devices
	Stages       []Stage `json:"stages"`
	StepSeconds  float64 `json:"step_seconds"` // predicted, of a batch in the steady state
	TokensPerSec float64 `json:"tokens_per_s"`
	// Bubble is the predicted share of the stages' time in which a stage that has a device of its own waits.
	Bubble float64 `json:"bubble"`
	Search string  `json:"search"` // what was compared: how far the plan is known to be the best
}

// Stage is one stage of a plan.
type Stage struct {
	Parts     []Part  `json:"parts"` // one a chunk
	Device    string  `json:"device"`
	Recompute bool    `json:"recompute"`
	Forward   float64 `json:"forward"` // seconds a microbatch
	Backward  float64 `json:"backward"`
	Update    float64 `json:"update"`   // seconds a batch
	Transfer  float64 `json:"transfer"` // seconds a microbatch, sending and receiving
	Exchange  float64 `json:"exchange"` // seconds a batch, gradients and weights of copies
	// Seconds is what a microbatch takes in the steady state, the batch's update and exchange shared out; on a device that
	// several stages share, with their part of its time only.
	Seconds   float64 `json:"seconds"`
	Memory    Memory  `json:"memory"`
	Available int64   `json:"available"` // bytes of the device's memory that are this stage's; 0: not known
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

// Choose returns the partition whose slowest stage is the fastest, and among those the most even one. A cut that cannot be is
// a *fielderror.Error, a model that does not fit an *InfeasibleError.
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
		panic(fmt.Sprintf("partition: %d units, %d lines", len(p.Units), len(s.Actions)))
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
		return fielderror.New("stages", p.Schedule.Stages, "at most %d chunks: the embedding, %d layers and the head; %d stages of %d chunks have %d",
			len(p.Units), len(p.Units)-2, p.Schedule.Stages, p.Schedule.Chunks, s.VirtualStages())
	}
	return p.checkCut()
}

func (p *Problem) checkCut() error {
	if len(p.Cut) == 0 {
		return nil
	}
	last := len(p.Units) - 1
	if n := p.Schedule.VirtualStages() - 1; len(p.Cut) != n {
		return fielderror.New("cut", p.Cut, "the first unit of each chunk except the first: %d units", n)
	}
	before := 0
	for _, u := range p.Cut {
		if u <= before || u > last {
			return fielderror.New("cut", p.Cut, "ascending units from 1 to %d (0 is the embedding, 1 to %d the layers, %d the head)", last, last-1, last)
		}
		before = u
	}
	return nil
}
