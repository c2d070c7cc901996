package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Options describe where a pipeline is opened.
type Options struct {
	Control Control
	Node    Node
	Epoch   uint64           // greater than any earlier pipeline's
	Places  []protocol.Place // by rank
	Peers   []protocol.Peer  // of the members of Places, and of the coordinator
	// PeersOf returns Peers as a member reaches them in an epoch; nil: at their addresses.
	PeersOf  func(epoch uint64, member string, peers []protocol.Peer) []protocol.Peer
	Modelled bool   // cut by estimated times: devices are not measured
	Links    *Links // measured links; nil: all members are taken to be on one machine. The epoch before Epoch is used to measure
	// Opened is given the pipeline before any member may speak to it. Its Receive and Lost are called from then on.
	Opened func(*Pipeline)
	// Measured takes what was measured; nil: nothing does.
	Measured func(partition.Measured)
	// Expel ends a member for good that has sent what no member of this build sends. The pipeline is lost then.
	Expel func(member, reason string)
	// replica is set of a replica that trains on its own.
	replica *ofReplica
}

// peersOf is Peers as a member reaches them in an epoch.
func (o Options) peersOf(epoch uint64, member string) []protocol.Peer {
	if o.PeersOf == nil {
		return o.Peers
	}
	return o.PeersOf(epoch, member, o.Peers)
}

// Open plans a task's pipeline on members. The user's errors are marked by usererror; errors of a lost member wrap
// device.ErrLost.
func Open(ctx context.Context, t train.RemoteTask, o Options) (*Pipeline, error) {
	c := t.Config
	if c.Pipeline.HasScheduleFile() {
		return nil, usererror.Errorf("pipeline.schedule: found the file %s, expected the name of a schedule: files are for one machine",
			c.Pipeline.Schedule)
	}
	p := &Pipeline{group: newGroup(o), placement: placement{o.Places, c.Pipeline.Stages}, replies: map[string]*planned{},
		variables: variables{written: map[string]int64{}, pending: map[uint64]*reads{}}, replica: o.replica,
		plan: plan{optimizer: t.Optimizer, parameters: t.Model.Parameters(), inputs: t.Inputs,
			second: weights.SecondOf(c.Pipeline.Delay, c.PartlyStale()), microbatches: c.Train.Microbatches, rows: c.Rows()}}
	for _, member := range p.group.members {
		p.replies[member] = &planned{}
	}
	o.Opened(p)
	ctx, cancel := p.group.untilFailure(ctx)
	defer cancel()
	problem, err := p.problem(ctx, t, o)
	if err != nil {
		return nil, errors.Join(p.group.failing(), err)
	}
	chosen, plan, err := p.choose(t, problem, o)
	if err != nil {
		return nil, err
	}
	p.plan.optimizer, p.links = chosen.Optimizer, o.Links
	p.plan.settings = trace.Settings{Schedule: chosen.Config.Pipeline.Schedule, Asynchronous: chosen.Config.Pipeline.Delay > 0,
		Depth: chosen.Config.Pipeline.Depth.Number(), Wire: chosen.Config.Pipeline.Wire.Activations}
	if err := p.planLayout(chosen, plan); err != nil {
		return nil, err
	}
	return p, p.planMembers(ctx, p.describe(chosen), plan, o)
}

// describe describes a task to members.
func (p *Pipeline) describe(t train.RemoteTask) protocol.Task {
	d := protocol.Task{Config: string(t.Config.Here().YAML()), Modules: t.Modules, Added: t.Inputs}
	if p.replica != nil {
		d.Config, d.Replica = string(p.replica.whole.Here().YAML()), p.replica.number
	}
	d.Added.Aligned, d.Added.Scalars = nil, 0
	for _, a := range t.Aligned {
		d.Aligned = append(d.Aligned, protocol.Aligned{Name: a.Name, DType: a.DType, Shape: a.Shape})
	}
	return d
}

// problem is what decides where the model is cut: what members measure on their devices and of their links.
func (p *Pipeline) problem(ctx context.Context, t train.RemoteTask, o Options) (problem partition.Problem, err error) {
	costs, err := p.measure(ctx, t, o.Modelled)
	if err != nil {
		return problem, err
	}
	first := costs[p.group.members[0]]
	problem = partition.Problem{Units: slices.Clone(first.Units), Given: first.Given,
		Devices: make([]partition.Device, len(p.placement.ranks))}
	next := map[string]int{} // device, by member
	for rank, place := range p.placement.ranks {
		i := next[place.Member]
		next[place.Member]++
		d := costs[place.Member].Devices[i]
		d.Name, d.Times = place.Member+"/"+d.Name, costs[place.Member].Times[i]
		problem.Devices[rank] = d
	}
	for member, c := range costs {
		if len(c.Units) != len(problem.Units) {
			return problem, p.group.malformed(member, fmt.Errorf("costs of %d units, expected %d", len(c.Units), len(problem.Units)))
		}
		for u := range c.Units {
			problem.Units[u].Scratch = problem.Units[u].Widest(c.Units[u].Scratch)
		}
	}
	if o.Links != nil && len(p.group.members) > 1 {
		if err := p.measureLinks(ctx, o, t.Report.Measuring); err != nil {
			return problem, err
		}
		problem.Network = p.placement.network(o.Links)
	}
	if o.Measured != nil {
		o.Measured(problem.Measured(first.Modelled))
	}
	return problem, nil
}

// measure measures the model on the devices of each member, in the order of their ranks.
func (p *Pipeline) measure(ctx context.Context, t train.RemoteTask, modelled bool) (map[string]protocol.Costs, error) {
	costs, task := make(map[string]protocol.Costs, len(p.group.members)), p.describe(t)
	for _, member := range p.group.members { // one by one: members of one machine would slow each other down
		q := protocol.MeasureRequest{Task: task, Modelled: modelled}
		for _, place := range p.placement.ranks {
			if place.Member == member {
				q.Devices = append(q.Devices, place.Device)
			}
		}
		t.Report.Measuring(member+"/"+strings.Join(q.Devices, ", "), "the model's units")
		var a protocol.Costs
		if err := p.group.request(ctx, member, protocol.Measure, q, &a); err != nil {
			return nil, err
		}
		if err := a.Check(len(q.Devices)); err != nil {
			return nil, p.group.malformed(member, err)
		}
		costs[member] = a
	}
	return costs, nil
}

// choose decides where the model is cut, how many microbatches are in flight, and on which member each stage is. It
// returns the task at that depth.
func (p *Pipeline) choose(t train.RemoteTask, problem partition.Problem, o Options) (train.RemoteTask, partition.Plan, error) {
	if t.Config.Pipeline.Stages*t.Config.Pipeline.Chunks == 1 {
		return t, partition.Plan{}, nil // the config says whether it recomputes
	}
	if problem.Network != nil && t.Config.Pipeline.Depth == config.DepthAuto && p.messageSeconds(problem, o.Links) < noticeable {
		t.Config.Pipeline.Depth = config.DepthNumber(0)
	}
	c, plan, depths, err := p.solve(t, problem)
	if err != nil {
		return t, plan, err
	}
	if p.replica != nil {
		t.Config = c // at the depth of the config, which all replicas have
	} else if t, err = t.At(c); err != nil {
		return t, plan, err
	}
	if problem.Network != nil {
		t.Report.Note("%s", prediction(c, plan, depths, slowestLink(p.placement.neighbors(), o.Links)))
		if a := layout.Fastest(layout.CompareAlone(c, problem), plan.TokensPerSec); a != nil {
			t.Report.Note("%s alone would be faster: predicted %.0f tokens/s", strings.Join(a.Devices, ", "), a.TokensPerSec)
		}
	}
	return t, plan, nil
}

// noticeable is the time of a message below which pipeline.depth: auto is 0, so that a small model on one machine, or
// on fast links, has the bits of one process.
const noticeable = 1e-3

// messageSeconds is the time of an activation over the slowest link.
func (p *Pipeline) messageSeconds(problem partition.Problem, links *Links) (seconds float64) {
	slowest := slowestLink(p.placement.pairs(), links)
	for u := range problem.Units {
		seconds = max(seconds, slowest.Seconds(problem.Sent(u)))
	}
	return seconds
}

// prediction describes the speed of a plan over links, and why it has its depth.
func prediction(c config.Config, plan partition.Plan, depths []layout.Depth, slowest partition.Link) string {
	text := fmt.Sprintf("predicted: %.0f tokens/s; the slowest link has %.3g ms and %s", plan.TokensPerSec, slowest.Latency*1e3,
		InBits(slowest.Bandwidth))
	switch k := c.Pipeline.Depth.Number(); {
	case len(depths) == 0:
		text += fmt.Sprintf("; pipeline.depth: %d", k)
	case len(depths) > 0:
		text += fmt.Sprintf("; pipeline.depth: %d, the least within 1 %% of the fastest", k)
		if k > 0 {
			text += fmt.Sprintf("; with 0 it would be %.0f tokens/s", depths[0].TokensPerSec)
		}
	}
	return text
}

// planLayout plans an engine that has no rank in this process.
func (p *Pipeline) planLayout(t train.RemoteTask, plan partition.Plan) (err error) {
	o := t.Engine(t.Optimizer, plan.Cut, plan.Recompute, plan.SplitBackward)
	o.Devices = make([]device.Device, len(p.placement.ranks))
	p.plan.layout, err = engine.New(o)
	return usererror.New(err)
}

// planMembers plans the ranks of all members at once.
func (p *Pipeline) planMembers(ctx context.Context, task protocol.Task, plan partition.Plan, o Options) error {
	if err := p.group.node.Connect(p.group.epoch, member.TransportPeers(o.Peers)); err != nil {
		return err
	}
	err := p.group.each(ctx, func(ctx context.Context, member string) error {
		q := protocol.PlanRequest{Task: task, Epoch: p.group.epoch, Cut: plan.Cut, Recompute: plan.Recompute, Split: plan.SplitBackward,
			Ranks: p.placement.ranks, Peers: o.peersOf(p.group.epoch, member)}
		var a protocol.PlanReply
		if err := p.group.request(ctx, member, protocol.Plan, q, &a); err != nil {
			return err
		}
		for rank, place := range p.placement.ranks {
			if _, ok := a.Ranks[rank]; !ok && place.Member == member {
				return p.group.malformed(member, fmt.Errorf("reply to %s: found no rank %d", protocol.Plan, rank))
			}
		}
		p.replies[member].plan = a
		p.group.note(member, a.Notes)
		return nil
	})
	if err != nil {
		p.Abort(err)
		return errors.Join(err, p.Close())
	}
	return nil
}
