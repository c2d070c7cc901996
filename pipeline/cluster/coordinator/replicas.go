package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Replicas is replicas that train on their own, each a Pipeline on members of its own. It is a train.Pipeline. It owns
// the outer weights: replicas send it how far they have moved, and it sends back what all have learned, see package
// replicas. None of them waits for another, as long as messages arrive by the step at which they land.
type Replicas struct {
	options  ReplicaOptions
	owner    owner // locked before mu
	relay    *relay
	filler   filler
	events   events
	failure  *failure       // no replica is left, or Abort was called
	stepping sync.WaitGroup // outer steps, and their messages
	changed  chan struct{}  // has room for one: other replicas are here

	mu        sync.Mutex
	places    places
	rounds    rounds
	exchanges exchanges
}

// owner has the outer weights, and steps them.
type owner struct {
	mu     sync.Mutex
	outer  *replicas.Owner
	device device.Device // of the outer optimizer
	tracer engine.Tracer
}

// places are the replicas.
type places struct {
	slots   []*slot // by number; nil: the replica is away
	joining *slot   // a replica that is about to begin; nil: none is
}

// rounds are the trainings of all replicas, one after the other.
type rounds struct {
	current *round     // nil: none is in progress
	limit   *commonEnd // of the newest; nil: there was none
}

// ReplicaOptions describe where replicas are opened.
type ReplicaOptions struct {
	Task train.RemoteTask
	// Open opens a replica's pipeline; nil: there are no members for it yet.
	// opened is given the pipeline before any member may speak to it.
	Open func(ctx context.Context, t train.RemoteTask, of *ofReplica, opened func(*Pipeline)) (*Pipeline, error)
	// Opened is given the replicas before any member may speak to them. Their Receive and Lost are called from then on.
	Opened func(*Replicas)
	// Device opens the device of the outer optimizer.
	Device func() (device.Device, error)
	// Offer waits for members that can be one of some replicas that are away; nil: there will be none.
	Offer func(ctx context.Context, away []int) (replica int, err error)
	// Failed is called when a replica has hung, or has failed before it took part in an exchange, so that other members
	// are offered before the replica's own. It may be nil.
	Failed func(replica int)
	// OpenTimeout is how long members may take to plan a replica, and to load it; of one that joins, both together.
	// 0: 10 minutes and pipeline.watchdog.
	OpenTimeout time.Duration
	Execute     engine.Executor // of the outer optimizer; nil: runtime/exec
	Direct      *Direct         // nil: members have no neighbors
}

// slot is a replica that is here.
type slot struct {
	number   int
	pipeline *Pipeline
	from     int                // the step after which it has begun: it is in the exchanges after later ones
	last     replicas.Exchange  // the newest that it has sent all of
	counted  replicas.Exchange  // the newest that it was a part of
	heard    time.Time          // when it has last measured something, or bytes went to or came from it
	awaited  bool               // somebody waits for it, as loseHung has last found
	carried  int64              // see carriedOf
	flights  *[]replicas.Flight // for its first segment; nil: it has begun that
	follows  bool               // it gets changes of the base, though it has not begun
	waits    bool               // it begins with the next round
	settles  bool               // it waits for the exchanges before its beginning
	measures bool               // it evaluates
	hangs    bool               // it was waited for in vain
}

// OpenReplicas plans the replicas of a task.
func OpenReplicas(ctx context.Context, o ReplicaOptions) (*Replicas, error) {
	c := o.Task.Config
	if o.Execute == nil {
		o.Execute = engine.Execute(nil, c.Pipeline.MemoryBytes())
	}
	r := &Replicas{options: o, owner: owner{outer: replicas.NewOwner(o.Task.Replicas)}, failure: newFailure(),
		changed: make(chan struct{}, 1), places: places{slots: make([]*slot, c.Pipeline.Replicas)}, exchanges: newExchanges()}
	r.relay = newRelay(o.Direct, r.owner.outer, r.present, r.events.add, r.exchanges.wake)
	r.filler = newFiller(r)
	o.Opened(r)
	errs := make([]error, c.Pipeline.Replicas)
	var opening sync.WaitGroup
	for i := range errs {
		opening.Go(func() { errs[i] = r.open(ctx, i) })
	}
	opening.Wait()
	if err := r.planned(ctx, errs); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// planned goes on without the replicas that could not be planned, if there are others.
func (r *Replicas) planned(ctx context.Context, errs []error) error {
	all, err := r.present(), errors.Join(errs...)
	if len(all) == 0 && err == nil {
		return fmt.Errorf("the members of all replicas have left (%w)", device.ErrLost)
	}
	if ctx.Err() == nil && slices.ContainsFunc(all, func(s *slot) bool { return errs[s.number] == nil }) {
		return r.each(func(s *slot) error { return errs[s.number] })
	}
	return err
}

// open opens a replica, if there are members for it.
func (r *Replicas) open(ctx context.Context, number int) error {
	s := &slot{number: number}
	ctx, opened := r.filler.within(ctx, s, r.filler.openTimeout(), "to plan it")
	defer opened()
	return r.openSlot(ctx, s, func(s *slot) { r.places.slots[number] = s })
}

// openSlot opens the pipeline of a replica. keep is called with the lock, before any member may speak to it.
func (r *Replicas) openSlot(ctx context.Context, s *slot, keep func(*slot)) error {
	t := r.options.Task
	of := &ofReplica{number: s.number, whole: t.Config, owner: r.owner.outer}
	t.Config, t.RankPrefix = t.Config.OfReplica(), replicas.RankPrefix(s.number)
	of.moved = func(from string, h protocol.Move, payload [][]byte) error { return r.moved(s, from, h, payload) }
	of.missing = func(from string, h protocol.Missing) error { return r.relay.request(s, from, h) }
	of.progressed = func() { r.progressed(s) }
	of.neighbor = r.relay.neighbors.recent.has
	_, err := r.options.Open(ctx, t, of, func(p *Pipeline) {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.pipeline = p
		keep(s)
	})
	if err != nil && s.pipeline != nil {
		s.pipeline.Abort(err)
	}
	return err
}

// close releases the programs of the outer optimizer, and its device.
func (o *owner) close() error {
	err := o.outer.Close()
	if o.device != nil {
		err = errors.Join(err, o.device.Close())
		o.device = nil
	}
	return err
}

// present are the replicas that are here.
func (r *Replicas) present() (all []*slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.places.slots {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// known are the replicas that are here, and the one that joins.
func (r *Replicas) known() []*slot {
	all := r.present()
	r.mu.Lock()
	defer r.mu.Unlock()
	if joining := r.places.joining; joining != nil {
		all = append(all, joining)
	}
	return all
}

// each calls f for all replicas at once and waits for all. A replica that fails does not count, unless it is the last.
func (r *Replicas) each(f func(*slot) error) error {
	var working sync.WaitGroup
	for _, s := range r.present() {
		working.Go(func() {
			if err := f(s); err != nil {
				s.pipeline.Abort(err)
			}
			if err := s.failing(); err != nil {
				r.lose(s, err)
			}
		})
	}
	working.Wait()
	return r.Failed()
}

// failing is why the replica has failed, so that the others go on without it; nil: it has not.
func (s *slot) failing() error { return s.pipeline.group.failing() }

// Load implements train.Pipeline.
func (r *Replicas) Load() (err error) {
	if r.owner.device, err = r.options.Device(); err != nil {
		return fmt.Errorf("the device of the outer optimizer: %w", err)
	}
	if err := r.owner.outer.Load(r.owner.device, r.options.Execute); err != nil {
		return fmt.Errorf("the outer optimizer: %w", err)
	}
	err = r.each(func(s *slot) error {
		_, loaded := r.filler.within(context.Background(), s, r.filler.openTimeout(), "to load it")
		defer loaded()
		return s.pipeline.Load()
	})
	if err != nil {
		return err
	}
	for _, s := range r.present() {
		go r.watch(s)
	}
	r.stepping.Go(r.stepAll)
	r.stepping.Go(func() { r.relay.outgoing.Run(r.failure.happened) })
	signal(r.changed)
	return nil
}

// watch waits until a replica fails.
func (r *Replicas) watch(s *slot) {
	<-s.pipeline.group.failure.happened
	r.lose(s, s.failing())
}

// lose goes on without a replica. The exchanges that wait for it take place without it. Without any replica there is no
// more work.
func (r *Replicas) lose(s *slot, err error) {
	r.mu.Lock()
	over := r.failure.get() != nil // Close closes all pipelines
	if r.places.joining == s && s.waits && !over {
		r.places.joining = nil
		r.filler.end(s)
	}
	if r.places.slots[s.number] != s || over {
		r.mu.Unlock()
		return
	}
	err = fmt.Errorf("%s: %w", name(s.number), err)
	others := slices.ContainsFunc(r.places.slots, func(other *slot) bool { return other != nil && other != s })
	if others {
		r.places.slots[s.number] = nil
		r.filler.end(s)
	} else {
		r.failure.set(err)
	}
	last, distrusted := s.last, errors.As(err, new(*malformedError))
	if distrusted {
		last = s.counted
	}
	r.exchanges.forget(s, distrusted)
	r.exchanges.advance()
	r.mu.Unlock()
	if others {
		r.events.add(last.Step, fmt.Sprintf("%v; the others go on without it; %s", err, r.describeLast(last)))
	}
	signal(r.exchanges.wake)
	signal(r.changed)
}

// events are what has happened to replicas, until the goroutine of the run records it.
type events struct {
	mu  sync.Mutex
	all []event
}

type event struct {
	step int
	text string
}

// add adds an event.
func (e *events) add(step int, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event{step, text})
}

// take returns the events since it was last called.
func (e *events) take() []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	return all
}

// Record records the events so far. The goroutine of the run calls it.
func (r *Replicas) Record() {
	for _, e := range r.events.take() {
		r.options.Task.Event(train.EventReplica, e.step, "%s", e.text)
	}
}

// describeLast describes the last exchange that a replica has taken part in.
func (r *Replicas) describeLast(x replicas.Exchange) string {
	if x == (replicas.Exchange{}) {
		return "it took part in no exchange"
	}
	return fmt.Sprintf("its last exchange was that of %s after step %d", r.owner.outer.Name(x.Fragment), x.Step)
}

// Failed is why no work goes on; nil: it does.
func (r *Replicas) Failed() error { return r.failure.get() }

// Ranks implements train.Pipeline.
func (r *Replicas) Ranks() (all []engine.RankPlan) {
	for _, s := range r.present() {
		all = append(all, s.pipeline.Ranks()...)
	}
	return all
}

// Notes implements train.Pipeline.
func (r *Replicas) Notes() (all []string) {
	for _, s := range r.present() {
		all = append(all, s.pipeline.Notes()...)
	}
	return all
}

// LinkValues are what each link carries, by their names in metrics.jsonl.
func (r *Replicas) LinkValues() (all []metrics.Value) {
	for _, s := range r.present() {
		all = append(all, s.pipeline.LinkValues()...)
	}
	return all
}

// linkUses implements running.
func (r *Replicas) linkUses(member string) []protocol.LinkUse {
	for _, s := range r.known() {
		if s.pipeline.group.has(member) {
			return s.pipeline.linkUses(member)
		}
	}
	return nil
}

// SetTrace implements train.Pipeline.
func (r *Replicas) SetTrace(t engine.Tracer) {
	r.owner.mu.Lock()
	r.owner.tracer = t
	r.owner.mu.Unlock()
	_ = r.each(func(s *slot) error { // no error
		s.pipeline.SetTrace(t)
		return nil
	})
}

// SetProfile implements train.Pipeline. Kernels of members are not measured.
func (r *Replicas) SetProfile(engine.Profiler) {}

// Abort implements train.Pipeline.
func (r *Replicas) Abort(cause error) {
	r.failure.set(cause)
	for _, s := range r.known() {
		s.pipeline.Abort(cause)
	}
}

// Close implements train.Pipeline.
func (r *Replicas) Close() error {
	r.Abort(device.ErrClosed)
	for _, s := range r.present() {
		r.filler.closing.Go(func() { _ = s.pipeline.Close() }) // it always succeeds
	}
	r.filler.filling.Wait()
	r.mu.Lock()
	joining := r.places.joining
	r.mu.Unlock()
	if joining != nil { // it waits for the next round
		_ = joining.pipeline.Close()
	}
	r.stepping.Wait()
	r.filler.closing.Wait()
	return r.owner.close()
}

// Lost ends the replica that a member has ranks of.
func (r *Replicas) Lost(member string, err error) {
	for _, s := range r.known() {
		s.pipeline.Lost(member, err)
	}
}

// Receive takes a message of a member.
func (r *Replicas) Receive(from string, m transport.Message) {
	for _, s := range r.known() {
		if s.pipeline.group.epoch == m.Epoch {
			s.pipeline.Receive(from, m)
		}
	}
}
