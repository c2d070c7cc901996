package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/partition"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/pipeline/weights"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Options describe where a pipeline is opened.
type Options struct {
	Control  Control
	Node     Node
	Epoch    uint64           // greater than that of any pipeline before
	Places   []protocol.Place // by rank
	Peers    []protocol.Peer  // of the members of Places, and of the coordinator
	Modelled bool             // cut by estimated times: nothing is measured
	// Opened is given the pipeline before any member may speak to it. Its Receive and Lost are called from then on.
	Opened func(*Pipeline)
}

// Open plans a task's pipeline on members. The user's errors are marked by usererror; those of a lost member wrap
// device.ErrLost.
func Open(ctx context.Context, t train.RemoteTask, o Options) (*Pipeline, error) {
	c := t.Config
	if c.Pipeline.HasScheduleFile() {
		return nil, usererror.Errorf("pipeline.schedule: found the file %s, expected the name of a schedule: files are for one machine", c.Pipeline.Schedule)
	}
	p := &Pipeline{control: o.Control, node: o.Node, epoch: o.Epoch, places: o.Places, replies: map[string]*planned{}, written: map[string]int64{}, reads: map[uint64]*reads{},
		failed: make(chan struct{}), optimizer: t.Optimizer, microbatches: c.Train.Microbatches, stages: c.Pipeline.Stages}
	p.second = weights.SecondOf(c.Pipeline.Delay, c.PartlyStale())
	for _, param := range t.Model.Parameters() {
		p.parameters = append(p.parameters, param.Name)
	}
	for _, place := range o.Places {
		if !slices.Contains(p.members, place.Member) {
			p.members = append(p.members, place.Member)
			p.replies[place.Member] = &planned{}
		}
	}
	task := describe(t)
	plan, err := p.partition(ctx, t, task, o.Modelled)
	if err != nil {
		return nil, err
	}
	if err := p.planLayout(t, plan); err != nil {
		return nil, err
	}
	return p, p.planMembers(ctx, task, plan, o)
}

// describe describes a task to members.
func describe(t train.RemoteTask) protocol.Task {
	d := protocol.Task{Config: string(t.Config.YAML()), Modules: t.Modules, Added: t.Inputs}
	d.Added.Aligned, d.Added.Scalars = nil, 0
	for _, a := range t.Aligned {
		d.Aligned = append(d.Aligned, protocol.Aligned{Name: a.Name, DType: a.DType, Shape: a.Shape})
	}
	return d
}

// partition decides where the model is cut, by what members measure on their devices.
func (p *Pipeline) partition(ctx context.Context, t train.RemoteTask, task protocol.Task, modelled bool) (partition.Plan, error) {
	costs := make(map[string]protocol.Costs, len(p.members))
	ranks := map[string][]int{}
	for rank, place := range p.places {
		ranks[place.Member] = append(ranks[place.Member], rank)
	}
	for _, member := range p.members { // one by one: members of one machine would slow each other down
		q := protocol.MeasureRequest{Task: task, Modelled: modelled}
		for _, rank := range ranks[member] {
			q.Devices = append(q.Devices, p.places[rank].Device)
		}
		t.Report.Measuring(member+"/"+strings.Join(q.Devices, ", "), "the model's units")
		var a protocol.Costs
		if err := p.request(ctx, member, protocol.Measure, q, &a); err != nil {
			return partition.Plan{}, err
		}
		if err := a.Check(len(q.Devices)); err != nil {
			return partition.Plan{}, fmt.Errorf("%s: %w", member, err)
		}
		costs[member] = a
	}
	problem := partition.Problem{Units: costs[p.members[0]].Units, Given: costs[p.members[0]].Given, Devices: make([]partition.Device, len(p.places))}
	for member, c := range costs {
		if len(c.Units) != len(problem.Units) {
			return partition.Plan{}, fmt.Errorf("%s: costs of %d units, expected %d", member, len(c.Units), len(problem.Units))
		}
		for u := range c.Units {
			problem.Units[u].Working = max(problem.Units[u].Working, c.Units[u].Working)
		}
		for i, rank := range ranks[member] {
			d := c.Devices[i]
			d.Name, d.Times = member+"/"+d.Name, c.Times[i]
			problem.Devices[rank] = d
		}
	}
	if t.Config.Pipeline.Stages*t.Config.Pipeline.Chunks == 1 {
		return partition.Plan{Recompute: []bool{t.Config.Pipeline.Recompute == "always"}}, nil
	}
	return t.Solve(problem)
}

// planLayout plans an engine that has no rank in this process.
func (p *Pipeline) planLayout(t train.RemoteTask, plan partition.Plan) (err error) {
	o := t.Engine(t.Optimizer, plan.Cut, plan.Recompute, plan.SplitBackward)
	o.Devices = make([]device.Device, len(p.places))
	p.layout, err = engine.New(o)
	return usererror.New(err)
}

// planMembers plans the ranks of all members at once.
func (p *Pipeline) planMembers(ctx context.Context, task protocol.Task, plan partition.Plan, o Options) error {
	var peers []transport.Peer
	for _, peer := range o.Peers {
		peers = append(peers, transport.Peer{ID: peer.ID, Addresses: peer.Addresses})
	}
	o.Opened(p)
	if err := p.node.Connect(p.epoch, peers); err != nil {
		return err
	}
	err := p.each(ctx, func(ctx context.Context, member string) error {
		q := protocol.PlanRequest{Task: task, Epoch: p.epoch, Cut: plan.Cut, Recompute: plan.Recompute, Split: plan.SplitBackward, Ranks: p.places, Peers: o.Peers}
		var a protocol.PlanReply
		err := p.request(ctx, member, protocol.Plan, q, &a)
		if err == nil {
			p.replies[member].plan = a
			p.note(member, a.Notes)
		}
		return err
	})
	if err != nil {
		return errors.Join(err, p.Close())
	}
	return nil
}
