// Package member hosts ranks of a pipeline for a coordinator in another process.
//
// A Member answers the coordinator's requests and takes the messages of coordinator and other members, as package
// protocol describes them. It holds one epoch at a time: an engine with the ranks that the coordinator has assigned to
// it, on devices of this machine. A failure of a device, of a rank or of the connection to another member ends the
// epoch; the coordinator then releases it and plans another.
package member

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
)

// Node is what a member needs of transport.Node.
type Node interface {
	Connect(epoch uint64, peers []transport.Peer) error
	Neighbors(all []transport.Neighbor) error
	Send(to string, m transport.Message) error
	Flush(ctx context.Context, peer string) error
	Links() []transport.Link
}

// Options describe a member.
type Options struct {
	ID          string
	Coordinator string // its ID
	OpenDevice  layout.OpenDevice
	Costs       *measure.Cache                   // measured times of units; nil: none are kept
	HookCache   string                           // folder for compiled hooks; "" keeps none
	Note        func(format string, args ...any) // messages for the user of this machine
	Local       bool                             // the coordinator is in this process: it reports failures of epochs
	// ChangeTimeout is how long a replica waits for a change before it requests it; 0: 5 s.
	ChangeTimeout time.Duration
}

// Member is safe for concurrent use.
type Member struct {
	options Options
	node    Node
	mu      sync.Mutex // requests are served one by one
	current state
}

// state is the epoch and the request in progress.
type state struct {
	sync.Mutex
	epoch  *epoch                  // nil: none
	steps  int                     // that were finished when the epoch before ended
	cancel context.CancelCauseFunc // of the request; nil: none
}

func (s *state) get() *epoch {
	s.Lock()
	defer s.Unlock()
	return s.epoch
}

func (s *state) set(e *epoch) (before *epoch) {
	s.Lock()
	defer s.Unlock()
	before, s.epoch = s.epoch, e
	if before != nil {
		before.mu.Lock()
		s.steps = before.steps
		before.mu.Unlock()
	}
	return before
}

// setCancel notes how the request in progress is canceled.
func (s *state) setCancel(cancel context.CancelCauseFunc) {
	s.Lock()
	defer s.Unlock()
	s.cancel = cancel
}

// interrupt cancels the request in progress and returns the epoch.
func (s *state) interrupt(cause error) *epoch {
	s.Lock()
	defer s.Unlock()
	if s.cancel != nil {
		s.cancel(cause)
	}
	return s.epoch
}

// New makes a member that has no ranks yet. Use must be called before anything else.
func New(o Options) *Member { return &Member{options: o} }

// Use sets the node through which the member speaks. The node calls Receive and Lost.
func (m *Member) Use(n Node) { m.node = n }

// Request answers a request of the coordinator.
func (m *Member) Request(ctx context.Context, name string, request []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m.current.setCancel(cancel)
	defer m.current.setCancel(nil)
	answer := m.answers()[name]
	if answer == nil {
		return nil, fmt.Errorf("unknown request %q", name)
	}
	return answer(ctx, request)
}

// answers is the table of requests.
func (m *Member) answers() map[string]control.Handler {
	return map[string]control.Handler{
		protocol.Measure: answer(m.measure), protocol.Connect: answer(m.connect), protocol.Probe: answer(m.probe),
		protocol.Plan: answer(m.plan), protocol.Load: answer(m.load), protocol.Release: answer(m.release),
		protocol.Lend: answer(m.lend), protocol.Return: answer(m.returnLent),
	}
}

// answer decodes a request, serves it and encodes the reply.
func answer[Q, A any](serve func(context.Context, Q) (A, error)) control.Handler {
	return func(ctx context.Context, request []byte) ([]byte, error) {
		var q Q
		if err := json.Unmarshal(request, &q); err != nil {
			return nil, fmt.Errorf("request: %w", err)
		}
		a, err := serve(ctx, q)
		if err != nil {
			return nil, err
		}
		return json.Marshal(a)
	}
}

// measure measures the model on devices of this machine.
func (m *Member) measure(ctx context.Context, q protocol.MeasureRequest) (_ protocol.Costs, err error) {
	w, err := m.open(ctx, q.Task)
	if err != nil {
		return protocol.Costs{}, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	devices, err := m.openDevices(ctx, q.Devices)
	if err != nil {
		return protocol.Costs{}, err
	}
	defer func() { err = errors.Join(err, closeDevices(devices)) }()
	p, modelled, err := w.task.Problem(ctx, devices, measure.Options{Cache: m.options.Costs, Modelled: q.Modelled})
	if err != nil {
		return protocol.Costs{}, err
	}
	if m.options.Costs != nil {
		if err := m.options.Costs.Save(); err != nil {
			m.options.Note("%v", err)
		}
	}
	return protocol.CostsOf(p, modelled), nil
}

// plan plans the ranks that the coordinator assigns to this member.
func (m *Member) plan(ctx context.Context, q protocol.PlanRequest) (protocol.PlanReply, error) {
	if err := m.end(); err != nil {
		return protocol.PlanReply{}, err
	}
	e, err := m.newEpoch(ctx, q)
	if err != nil {
		return protocol.PlanReply{}, err
	}
	m.current.set(e)
	if err := m.node.Connect(q.Epoch, TransportPeers(q.Peers)); err != nil {
		return protocol.PlanReply{}, errors.Join(err, m.end())
	}
	e.lifetime.reporting.Go(e.reportLinks)
	if e.replica != nil {
		e.lifetime.reporting.Go(func() { e.replica.neighbors.outgoing.Run(e.lifetime.over) })
	}
	return e.describe(), nil
}

// load allocates the memory of the ranks and compiles their kernels.
func (m *Member) load(ctx context.Context, q protocol.OfEpoch) (protocol.LoadReply, error) {
	e, err := m.planned(q)
	if err != nil {
		return protocol.LoadReply{}, err
	}
	stop := context.AfterFunc(ctx, func() { e.engine.Abort(ctx.Err()) })
	defer stop()
	return e.load()
}

// planned is the epoch that a request is for.
func (m *Member) planned(q protocol.OfEpoch) (*epoch, error) {
	e := m.current.get()
	if e == nil || e.plan.Epoch != q.Epoch {
		return nil, fmt.Errorf("nothing is planned for epoch %d", q.Epoch)
	}
	return e, nil
}

// release ends the epoch that the request names. If another one is planned by now, that goes on.
func (m *Member) release(_ context.Context, q protocol.OfEpoch) (struct{}, error) {
	if _, err := m.planned(q); err != nil {
		return struct{}{}, nil // it has ended
	}
	return struct{}{}, m.end()
}

// lend keeps the evaluated weights while others are in their place.
func (m *Member) lend(ctx context.Context, q protocol.AtRest) (struct{}, error) {
	return struct{}{}, m.atRest(ctx, q, func(c *replicas.Course, _ *epoch) error { return c.Lend() })
}

// returnLent puts the weights back that lend has kept.
func (m *Member) returnLent(ctx context.Context, q protocol.AtRest) (struct{}, error) {
	return struct{}{}, m.atRest(ctx, q, func(c *replicas.Course, e *epoch) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-e.lifetime.over:
				cancel()
			case <-ctx.Done():
			}
		}()
		return c.Return(ctx.Done())
	})
}

// atRest does something with a replica that trains on its own, while its ranks are at rest.
func (m *Member) atRest(ctx context.Context, q protocol.AtRest, do func(*replicas.Course, *epoch) error) error {
	e, err := m.planned(q.OfEpoch)
	if err != nil {
		return err
	}
	if e.replica == nil {
		return errors.New("no replica that trains on its own is planned")
	}
	done := func(written int64, read uint64) bool { return written >= q.Writes && read >= q.Read }
	if !e.segments.await(ctx.Done(), e.lifetime.over, done) {
		return cmp.Or(context.Cause(ctx), errors.New("the epoch has ended"))
	}
	e.lifetime.pending.Wait()
	return do(e.replica.course, e)
}

// Interrupt cancels a request in progress and makes the work of the epoch fail.
func (m *Member) Interrupt() {
	if e := m.current.interrupt(errInterrupted); e != nil {
		e.engine.Abort(errInterrupted)
	}
}

var errInterrupted = errors.New("interrupted")

// end ends the epoch, if there is one, and closes its devices.
func (m *Member) end() error {
	if e := m.current.set(nil); e != nil {
		return e.close()
	}
	return nil
}

// Close ends the epoch.
func (m *Member) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end()
}

// Receive takes a message of the coordinator or of another member.
func (m *Member) Receive(from string, msg transport.Message) {
	e := m.current.get()
	if e == nil || !e.lifetime.using.TryRLock() {
		return // an epoch that has ended
	}
	defer e.lifetime.using.RUnlock()
	if msg.Epoch != e.plan.Epoch {
		e.receiveOther(from, msg)
		return
	}
	h, err := protocol.Decode(msg.Header)
	if err == nil {
		err = e.receive(from, h, msg.Payload)
	}
	if err != nil {
		e.fail(&messageError{from, err})
	}
}

// messageError is the error of receiving a message. One from another member was malformed. One from the coordinator may
// also have failed on this machine's devices.
type messageError struct {
	from string
	error
}

func (m *messageError) Error() string { return fmt.Sprintf("from %s: %v", m.from, m.error) }

func (m *messageError) Unwrap() error { return m.error }

// Lost ends the work of the epoch: another process is gone.
func (m *Member) Lost(peer string, err error) {
	if e := m.current.get(); e != nil {
		e.fail(&lostError{peer, err})
	}
}

// lostError is the loss of another process.
type lostError struct {
	peer string
	error
}

func (l *lostError) Error() string { return fmt.Sprintf("%s: %v", l.peer, l.error) }

func (l *lostError) Unwrap() error { return l.error }
