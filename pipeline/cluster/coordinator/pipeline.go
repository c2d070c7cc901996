// Package coordinator trains on ranks that members on several machines host.
//
// Open measures the members' devices, decides where the model is cut, and plans the ranks. The Pipeline that it returns
// is a train.Pipeline: it gives members data and permission to begin batches, collects what their ranks measure, and
// reads and writes their variables. A lost member ends it with an error that wraps device.ErrLost; the run then opens
// another on the members that are left.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Control is what the coordinator needs of control.Server.
type Control interface {
	Request(ctx context.Context, member, name string, request []byte) ([]byte, error)
	Clock(ctx context.Context, member string) (transport.Clock, error)
}

// Node is what the coordinator needs of transport.Node.
type Node interface {
	Connect(epoch uint64, peers []transport.Peer) error
	Send(to string, m transport.Message) error
	Flush(ctx context.Context, peer string) error
	Links() []transport.Link
}

// releaseTimeout is how long members may take to end their ranks. A run waits a little longer for that.
const releaseTimeout = 7 * time.Second

// Pipeline is a pipeline over members.
type Pipeline struct {
	group     *group
	placement placement
	plan      plan
	replies   map[string]*planned // by member
	variables variables
	links     *Links // measured; nil: none is
	reports   linkReports
	replica   *ofReplica     // nil: replicas do not train on their own
	granting  sync.WaitGroup // goroutines that grant batches

	mu      sync.Mutex
	tracing *tracing // nil: none
	segment *segment // in progress; nil: none
	last    uint64   // number of the newest segment
}

// plan is what the pipeline trains, as it is laid out.
type plan struct {
	layout       *engine.Engine // without ranks in this process: it knows which rank holds what
	optimizer    *optim.Optimizer
	parameters   []model.Parameter
	inputs       model.Inputs
	second       weights.Second
	microbatches int // per batch, of all replicas
	rows         int // sequences of a microbatch
	settings     trace.Settings
}

// planned is what a member has replied.
type planned struct {
	plan protocol.PlanReply
	load protocol.LoadReply
}

// Load implements train.Pipeline: it loads all members at once.
func (p *Pipeline) Load() error {
	return p.group.each(context.Background(), func(ctx context.Context, member string) error {
		var a protocol.LoadReply
		err := p.group.request(ctx, member, protocol.Load, p.group.ofEpoch(), &a)
		if err == nil {
			p.replies[member].load = a
			p.group.note(member, a.Notes)
		}
		return err
	})
}

// Ranks implements train.Pipeline.
func (p *Pipeline) Ranks() (all []engine.RankPlan) {
	for rank, place := range p.placement.ranks {
		plan, reply := p.plan.layout.Rank(rank), p.replies[place.Member]
		theirs := reply.plan.Ranks[rank]
		plan.Device, plan.Memory, plan.Kernels, plan.Shared = theirs.Device, theirs.Memory, theirs.Kernels, theirs.Shared
		plan.Member = place.Member
		plan.Device.Name = place.Member + "/" + plan.Device.Name
		plan.Allocated, plan.Staging = reply.load.Allocated[rank], reply.load.Staging[rank]
		all = append(all, plan)
	}
	return all
}

// Notes implements train.Pipeline.
func (p *Pipeline) Notes() []string { return p.group.allNotes() }

// Evaluated implements train.Pipeline.
func (p *Pipeline) Evaluated() engine.Version { return p.plan.layout.Evaluated() }

// SetProfile implements train.Pipeline. Kernels of members are not measured.
func (p *Pipeline) SetProfile(engine.Profiler) {}

// Abort makes the work in progress and all later work fail.
func (p *Pipeline) Abort(cause error) { p.group.failure.set(cause) }

// Close releases the ranks of all members that still answer. Nothing may go on waiting for a batch of a source.
func (p *Pipeline) Close() error {
	p.SetTrace(nil)
	p.Abort(device.ErrClosed)
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	var closing sync.WaitGroup
	for _, member := range p.group.members {
		closing.Go(func() {
			var a struct{}
			_ = p.group.request(ctx, member, protocol.Release, p.group.ofEpoch(), &a) // a lost member has nothing to release
		})
	}
	closing.Wait()
	p.granting.Wait()
	return nil
}

// lost is the failure of the pipeline. Any failure of a replica is the loss of it: the others go on.
func (p *Pipeline) lost() error {
	err := p.group.failing()
	if p.replica != nil && !errors.Is(err, device.ErrLost) {
		return fmt.Errorf("%w (%w)", err, device.ErrLost)
	}
	return err
}

// Lost ends the pipeline: a member is gone.
func (p *Pipeline) Lost(member string, err error) {
	if p.group.has(member) {
		p.traced().lose(member)
		p.Abort(fmt.Errorf("%s: %w (%w)", member, err, device.ErrLost))
	}
}

// Receive takes a message of a member. No member without ranks sends one in the epoch, and none can end the pipeline.
func (p *Pipeline) Receive(from string, m transport.Message) {
	if m.Epoch != p.group.epoch {
		return
	}
	if !p.group.has(from) {
		_ = p.group.malformed(from, errors.New("it has no ranks in the epoch")) // the pipeline goes on
		return
	}
	h, err := protocol.Decode(m.Header)
	if fault, ok := h.(protocol.Fault); ok && err == nil {
		p.Abort(p.fault(from, fault))
		return
	}
	if err == nil {
		err = p.receive(from, h, m.Payload)
	}
	if err != nil {
		p.traced().lose(from)
		p.Abort(p.group.malformed(from, err))
	}
}

// fault is the failure that a member reports, of its ranks or of what another member has sent it.
func (p *Pipeline) fault(from string, h protocol.Fault) error {
	text := printable.Text(h.Error)
	switch {
	case h.Malformed != "" && h.Malformed != from && p.group.has(h.Malformed):
		p.traced().lose(h.Malformed)
		return p.group.malformed(h.Malformed, fmt.Errorf("%s: %s", from, text))
	case h.Lost:
		return fmt.Errorf("%s: %s (%w)", from, text, device.ErrLost)
	}
	return fmt.Errorf("%s: %s", from, text)
}

// receive takes a message that reports no failure. An error means that the message is malformed.
func (p *Pipeline) receive(from string, h protocol.Header, payload [][]byte) error {
	switch h := h.(type) {
	case protocol.Events:
		return p.traced().receive(from, h, payload)
	case protocol.LinkReport:
		return p.receiveLinks(from, payload)
	case protocol.Tensor:
		return p.variables.received(from, h, payload)
	case protocol.Move:
		if p.replica == nil {
			return errors.New("a move of a replica that does not train on its own")
		}
		return p.replica.moved(from, h, payload)
	case protocol.Missing:
		if p.replica == nil {
			return errors.New("a request for a change of a replica that does not train on its own")
		}
		return p.replica.missing(from, h)
	case protocol.Result:
		if p.replica != nil {
			p.replica.progressed()
		}
		if s := p.inProgress(h.Segment); s != nil {
			return s.receive(from, h, payload)
		}
		return nil
	case protocol.Ended:
		if s := p.inProgress(h.Segment); s != nil {
			return s.memberEnded(from, h.Limit)
		}
		return nil
	}
	return fmt.Errorf("a %T, which only the coordinator and ranks send", h)
}

// inProgress returns a segment, or nil if it has ended.
func (p *Pipeline) inProgress(number uint64) *segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segment == nil || p.segment.number != number {
		return nil
	}
	return p.segment
}
