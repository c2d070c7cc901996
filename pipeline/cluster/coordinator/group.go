package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// group is the members of a pipeline, until the first failure of one of them.
type group struct {
	control Control
	node    Node
	epoch   uint64
	members []string                    // in the order of their first ranks
	expel   func(member, reason string) // nil: members stay

	failure *failure

	mu    sync.Mutex
	notes []string // of members
}

func newGroup(o Options) *group {
	return &group{control: o.Control, node: o.Node, epoch: o.Epoch, members: placement{ranks: o.Places}.members(), expel: o.Expel,
		failure: newFailure()}
}

// ofEpoch is a request for the ranks of the pipeline.
func (g *group) ofEpoch() protocol.OfEpoch { return protocol.OfEpoch{Epoch: g.epoch} }

// has reports whether a member has ranks.
func (g *group) has(member string) bool { return slices.Contains(g.members, member) }

// note keeps the notes of a member.
func (g *group) note(member string, notes []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range notes {
		g.notes = append(g.notes, fmt.Sprintf("%s: %s", member, printable.Text(n)))
	}
}

// allNotes are the notes of members so far.
func (g *group) allNotes() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.notes)
}

// each calls f for all members at once and waits for all.
func (g *group) each(ctx context.Context, f func(ctx context.Context, member string) error) error {
	ctx, cancel := g.untilFailure(ctx)
	defer cancel()
	errs := make([]error, len(g.members))
	var working sync.WaitGroup
	for i, member := range g.members {
		working.Go(func() { errs[i] = f(ctx, member) })
	}
	working.Wait()
	if err := g.failing(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// untilFailure returns a context that also ends when the pipeline fails.
func (g *group) untilFailure(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-g.failure.happened:
			cancel(g.failing())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// request makes a request of a member.
func (g *group) request(ctx context.Context, member, name string, q, a any) error {
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	reply, err := g.control.Request(ctx, member, name, text)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil { // the member is not at fault
			return fmt.Errorf("%s: %s: %w", member, name, cause)
		}
		return memberError(member, name, err)
	}
	if err := json.Unmarshal(reply, a); err != nil {
		return g.malformed(member, fmt.Errorf("reply to %s: %w", name, err))
	}
	return nil
}

// memberError is the error of a request. Errors that the member knows to be the user's stay so. Otherwise the member,
// or one of its devices, is lost.
func memberError(member, name string, err error) error {
	var remote *control.RemoteError
	var lost *control.LostError
	switch {
	case errors.As(err, &lost):
		return fmt.Errorf("%s: %s (%w)", member, lost.Reason, device.ErrLost)
	case !errors.As(err, &remote):
		return fmt.Errorf("%s: %s: %w (%w)", member, name, err, device.ErrLost)
	case remote.Kind == control.RemoteUser:
		return err // it names the member
	}
	return fmt.Errorf("%w (%w)", err, device.ErrLost)
}

// failing is the first failure, or nil.
func (g *group) failing() error { return g.failure.get() }

// malformed expels a member that has sent what no member of this build sends. It returns the error of a lost member.
func (g *group) malformed(member string, err error) error {
	if g.expel != nil {
		g.expel(member, "it sent a malformed message: "+printable.Text(err.Error()))
	}
	return &malformedError{fmt.Errorf("%s: %w (%w)", member, err, device.ErrLost)}
}

// malformedError is the loss of a member that is expelled.
type malformedError struct{ error }

func (m *malformedError) Unwrap() error { return m.error }

// failure is an error that ends all work.
type failure struct {
	happened chan struct{} // closed by the first

	mu  sync.Mutex
	err error
}

func newFailure() *failure { return &failure{happened: make(chan struct{})} }

// set ends all work, unless an earlier error has.
func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		close(f.happened)
	}
}

// get returns the first error; nil: there was none.
func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
