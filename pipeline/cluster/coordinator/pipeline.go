// Package coordinator trains on ranks that members on several machines host.
//
// Open measures the members' devices, decides where the model is cut, and plans the ranks. The Pipeline that it returns
// is a train.Pipeline: it gives members data and permission to begin batches, collects what their ranks measure, and
// reads and writes their variables. A lost member ends it with an error that wraps device.ErrLost; the run then opens
// another on the members that are left.
package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/pipeline/weights"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Control is what the coordinator needs of control.Server.
type Control interface {
	Request(ctx context.Context, member, name string, request []byte) ([]byte, error)
	Clock(ctx context.Context, member string) (control.Clock, error)
}

// Node is what the coordinator needs of transport.Node.
type Node interface {
	Connect(epoch uint64, peers []transport.Peer) error
	Send(to string, m transport.Message) error
}

// releaseTimeout is how long members may take to end their ranks. A run waits a little longer for that.
const releaseTimeout = 7 * time.Second

// Pipeline is a pipeline over members.
type Pipeline struct {
	control   Control
	node      Node
	epoch     uint64
	places    []protocol.Place
	members   []string            // each once, in the order of Options.Places
	replies   map[string]*planned // by member
	layout    *engine.Engine      // without ranks in this process: it knows which rank holds what
	optimizer *optim.Optimizer

	parameters   []model.Parameter
	second       weights.Second
	microbatches int // per batch, of all replicas
	stages       int
	settings     trace.Settings
	links        *Links // measured; nil: none is
	reports      linkReports
	rows         int                         // sequences of a microbatch
	granting     sync.WaitGroup              // goroutines that grant batches
	expel        func(member, reason string) // nil: members stay
	variables    variables

	mu      sync.Mutex
	tracing *tracing // nil: none
	notes   []string
	segment *segment      // in progress; nil: none
	last    uint64        // number of the newest segment
	failure error         // the first
	failed  chan struct{} // closed by it
}

// planned is what a member has replied.
type planned struct {
	plan protocol.PlanReply
	load protocol.LoadReply
}

// Load implements train.Pipeline: it loads all members at once.
func (p *Pipeline) Load() error {
	return p.each(context.Background(), func(ctx context.Context, member string) error {
		var a protocol.LoadReply
		err := p.request(ctx, member, protocol.Load, struct{}{}, &a)
		if err == nil {
			p.replies[member].load = a
			p.note(member, a.Notes)
		}
		return err
	})
}

// note keeps the notes of a member.
func (p *Pipeline) note(member string, notes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range notes {
		p.notes = append(p.notes, fmt.Sprintf("%s: %s", member, printable.Text(n)))
	}
}

// each calls f for all members at once and waits for all.
func (p *Pipeline) each(ctx context.Context, f func(ctx context.Context, member string) error) error {
	ctx, cancel := p.untilFailure(ctx)
	defer cancel()
	errs := make([]error, len(p.members))
	var working sync.WaitGroup
	for i, member := range p.members {
		working.Go(func() { errs[i] = f(ctx, member) })
	}
	working.Wait()
	if err := p.failing(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// untilFailure returns a context that also ends when the pipeline fails.
func (p *Pipeline) untilFailure(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.failed:
			cancel(p.failing())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// request makes a request of a member.
func (p *Pipeline) request(ctx context.Context, member, name string, q, a any) error {
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	reply, err := p.control.Request(ctx, member, name, text)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil { // the member is not at fault
			return fmt.Errorf("%s: %s: %w", member, name, cause)
		}
		return memberError(member, name, err)
	}
	if err := json.Unmarshal(reply, a); err != nil {
		return p.malformed(member, fmt.Errorf("reply to %s: %w", name, err))
	}
	return nil
}

// memberError is the error of a request. Errors that the member knows to be the user's stay so. Otherwise the member, or
// one of its devices, is lost.
func memberError(member, name string, err error) error {
	if remote := (*control.RemoteError)(nil); errors.As(err, &remote) && remote.Kind == control.RemoteUser {
		return fmt.Errorf("%s: %w", member, err)
	}
	if lost := (*control.LostError)(nil); errors.As(err, &lost) {
		return fmt.Errorf("%s: %s (%w)", member, lost.Reason, device.ErrLost)
	}
	return fmt.Errorf("%s: %s: %w (%w)", member, name, err, device.ErrLost)
}

// Ranks implements train.Pipeline.
func (p *Pipeline) Ranks() (all []engine.RankPlan) {
	for rank, place := range p.places {
		plan, reply := p.layout.Rank(rank), p.replies[place.Member]
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
func (p *Pipeline) Notes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.notes)
}

// Evaluated implements train.Pipeline.
func (p *Pipeline) Evaluated() engine.Version { return p.layout.Evaluated() }

// SetProfile implements train.Pipeline. Kernels of members are not measured.
func (p *Pipeline) SetProfile(engine.Profiler) {}

// Abort makes the work in progress and all later work fail.
func (p *Pipeline) Abort(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		p.failure = cause
		close(p.failed)
	}
}

// failing is the first failure, or nil.
func (p *Pipeline) failing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// Close releases the ranks of all members that still answer. Nothing that waits for a batch of a source may go on waiting.
func (p *Pipeline) Close() error {
	p.SetTrace(nil)
	p.Abort(device.ErrClosed)
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	var closing sync.WaitGroup
	for _, member := range p.members {
		closing.Go(func() {
			var a struct{}
			_ = p.request(ctx, member, protocol.Release, struct{}{}, &a) // a lost member has nothing to release
		})
	}
	closing.Wait()
	p.granting.Wait()
	return nil
}

// Lost ends the pipeline: a member is gone. The node and the control server call it.
func (p *Pipeline) Lost(member string, err error) {
	if slices.Contains(p.members, member) {
		p.traced().lose(member)
		p.Abort(fmt.Errorf("%s: %w (%w)", member, err, device.ErrLost))
	}
}

// Receive takes a message of a member.
func (p *Pipeline) Receive(from string, m transport.Message) {
	if m.Epoch != p.epoch {
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
		p.Abort(p.malformed(from, err))
	}
}

// malformed expels a member that has sent what no member of this build sends. It returns the error of a lost member.
func (p *Pipeline) malformed(member string, err error) error {
	if p.expel != nil && slices.Contains(p.members, member) {
		p.expel(member, "it sent a malformed message: "+printable.Text(err.Error()))
	}
	return fmt.Errorf("%s: %w (%w)", member, err, device.ErrLost)
}

// fault is the failure that a member reports, of its ranks or of what another member has sent it.
func (p *Pipeline) fault(from string, h protocol.Fault) error {
	text := printable.Text(h.Error)
	switch {
	case h.Malformed != "" && h.Malformed != from && slices.Contains(p.members, h.Malformed):
		p.traced().lose(h.Malformed)
		return p.malformed(h.Malformed, fmt.Errorf("%s: %s", from, text))
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
	case protocol.Result:
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
