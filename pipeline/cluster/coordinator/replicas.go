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

// Replicas is replicas that train on their own, each a Pipeline on members of its own. It is a train.Pipeline. It owns the
// outer weights: replicas send it how far they have moved, and it sends back what all have learned, see package replicas.
// None of them waits for another, as long as messages arrive by the step at which they land.
type Replicas struct {
	options  ReplicaOptions
	owner    *replicas.Owner
	device   device.Device // of the outer optimizer
	failing  chan struct{} // closed when no replica is left, or Abort is called
	stepping sync.WaitGroup
	closing  sync.WaitGroup // of replicas that are lost
	wake     chan struct{}  // has room for one: an exchange may be complete
	fills    sync.Once
	filling  sync.WaitGroup // fillAll
	vacant   chan struct{}  // has room for one: a replica is away
	changed  chan struct{}  // has room for one: other replicas are here
	spread   spread
	outgoing *transport.Pacer[outgoing]
	owning   sync.Mutex // the state of the owner; locked before mu

	mu        sync.Mutex
	tracer    engine.Tracer
	slots     []*slot // by number; nil: the replica is away
	joining   *slot   // a replica that is about to begin; nil: none is
	fill      filling
	round     *round     // in progress; nil: none is
	limit     *commonEnd // of the newest round; nil: there was none
	exchanges exchanges
	lacks     map[lack]protocol.Lack // that are not answered
	met       map[string]bool        // members that have, or had, neighbors
	events    []event                // that are not recorded yet
	failure   error                  // why failing is closed
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
	// Failed is called when a replica has failed before it took part in an exchange, so that other members are offered
	// before the replica's own. It may be nil.
	Failed func(replica int)
	// OpenTimeout is how long members of a replica that joins may take to plan and load it; 0: 10 minutes and pipeline.watchdog.
	OpenTimeout time.Duration
	Execute     engine.Executor // of the outer optimizer; nil: runtime/exec
	Direct      *Direct         // nil: replicas pass nothing on to each other
}

// slot is a replica that is here.
type slot struct {
	number   int
	pipeline *Pipeline
	from     int                // the step after which it has begun: it is in the exchanges after later ones
	last     replicas.Exchange  // the newest that it has sent all of
	heard    time.Time          // when it has last measured something, or bytes went to or came from it
	carried  int64              // see carriedOf
	flights  *[]replicas.Flight // for its first segment; nil: it has begun that
	follows  bool               // it gets changes of the base, though it has not begun
	waits    bool               // it begins with the next round
}

// OpenReplicas plans the replicas of a task.
func OpenReplicas(ctx context.Context, o ReplicaOptions) (*Replicas, error) {
	c := o.Task.Config
	if o.Execute == nil {
		o.Execute = engine.Execute(nil, c.Pipeline.MemoryBytes())
	}
	r := &Replicas{options: o, owner: replicas.NewOwner(o.Task.Replicas), failing: make(chan struct{}), wake: make(chan struct{}, 1),
		vacant: make(chan struct{}, 1), changed: make(chan struct{}, 1), spread: newSpread(),
		lacks: map[lack]protocol.Lack{}, met: map[string]bool{},
		slots: make([]*slot, c.Pipeline.Replicas), exchanges: newExchanges(), fill: filling{closing: map[int]bool{}}}
	r.outgoing = r.newOutgoing()
	o.Opened(r)
	errs := make([]error, len(r.slots))
	var opening sync.WaitGroup
	for i := range r.slots {
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
	return r.openSlot(ctx, &slot{number: number}, func(s *slot) { r.slots[number] = s })
}

// openSlot opens the pipeline of a replica. keep is called with the lock, before any member may speak to it.
func (r *Replicas) openSlot(ctx context.Context, s *slot, keep func(*slot)) error {
	t := r.options.Task
	of := &ofReplica{number: s.number, whole: t.Config, owner: r.owner}
	t.Config, t.RankPrefix = t.Config.OfReplica(), replicas.RankPrefix(s.number)
	of.moved = func(from string, h protocol.Move, payload [][]byte) error { return r.moved(s, from, h, payload) }
	of.lacked = func(from string, h protocol.Lack) error { return r.lacked(s, from, h) }
	of.met = r.hasMet
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

// present are the replicas that are here.
func (r *Replicas) present() (all []*slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.slots {
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
	if r.joining != nil {
		all = append(all, r.joining)
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
	if r.device, err = r.options.Device(); err != nil {
		return fmt.Errorf("the device of the outer optimizer: %w", err)
	}
	if err := r.owner.Load(r.device, r.options.Execute); err != nil {
		return fmt.Errorf("the outer optimizer: %w", err)
	}
	if err := r.each(func(s *slot) error { return s.pipeline.Load() }); err != nil {
		return err
	}
	for _, s := range r.present() {
		go r.watch(s)
	}
	r.stepping.Go(r.stepAll)
	r.stepping.Go(func() { r.outgoing.Run(r.failing) })
	signal(r.changed)
	return nil
}

// watch waits until a replica fails.
func (r *Replicas) watch(s *slot) {
	<-s.pipeline.group.failed
	r.lose(s, s.failing())
}

// lose goes on without a replica. The exchanges that wait for it take place without it. Without any replica there is no
// more work.
func (r *Replicas) lose(s *slot, err error) {
	r.mu.Lock()
	if r.joining == s && s.waits {
		r.joining = nil
		r.end(s)
	}
	if r.slots[s.number] != s || r.failure != nil {
		r.mu.Unlock()
		return
	}
	err = fmt.Errorf("%s: %w", name(s.number), err)
	others := slices.ContainsFunc(r.slots, func(other *slot) bool { return other != nil && other != s })
	if others {
		r.slots[s.number] = nil
		r.end(s)
	} else {
		r.fail(err)
	}
	last := s.last
	r.exchanges.forget(s)
	r.exchanges.advance()
	r.mu.Unlock()
	if others {
		r.note(last.Step, fmt.Sprintf("%v; the others go on without it; %s", err, r.describeLast(last)))
	}
	signal(r.wake)
	signal(r.changed)
}

// event is what has happened to a replica.
type event struct {
	step int
	text string
}

// note keeps an event for the goroutine of the run.
func (r *Replicas) note(step int, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event{step, text})
}

// record records the events so far. The goroutine of the run calls it.
func (r *Replicas) record() {
	r.mu.Lock()
	all := r.events
	r.events = nil
	r.mu.Unlock()
	for _, e := range all {
		r.options.Task.Event(train.EventReplica, e.step, "%s", e.text)
	}
}

// describeLast describes the last exchange that a replica has taken part in.
func (r *Replicas) describeLast(x replicas.Exchange) string {
	if x == (replicas.Exchange{}) {
		return "it took part in no exchange"
	}
	return fmt.Sprintf("its last exchange was that of %s after step %d", r.owner.Name(x.Fragment), x.Step)
}

// fail ends all work. The caller holds the lock.
func (r *Replicas) fail(err error) {
	if r.failure == nil {
		r.failure = err
		close(r.failing)
	}
}

// Failed is why no work goes on; nil: it does.
func (r *Replicas) Failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

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
	r.mu.Lock()
	r.tracer = t
	r.mu.Unlock()
	_ = r.each(func(s *slot) error { // no error
		s.pipeline.SetTrace(t)
		return nil
	})
}

// SetProfile implements train.Pipeline. Kernels of members are not measured.
func (r *Replicas) SetProfile(engine.Profiler) {}

// Abort implements train.Pipeline.
func (r *Replicas) Abort(cause error) {
	r.mu.Lock()
	r.fail(cause)
	r.mu.Unlock()
	for _, s := range r.known() {
		s.pipeline.Abort(cause)
	}
}

// Close implements train.Pipeline.
func (r *Replicas) Close() error {
	r.Abort(device.ErrClosed)
	r.filling.Wait()
	var errs []error
	for _, s := range r.known() {
		r.closing.Go(func() { _ = s.pipeline.Close() }) // it always succeeds
	}
	r.stepping.Wait()
	r.closing.Wait()
	errs = append(errs, r.owner.Close())
	if r.device != nil {
		errs = append(errs, r.device.Close())
		r.device = nil
	}
	return errors.Join(errs...)
}

// Lost ends the replica that a member has ranks of.
func (r *Replicas) Lost(member string, err error) {
	for _, s := range r.known() {
		s.pipeline.Lost(member, err)
	}
}

// hasMet reports whether a member has, or had, links with those of other replicas.
func (r *Replicas) hasMet(member string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.met[member]
}

// Receive takes a message of a member.
func (r *Replicas) Receive(from string, m transport.Message) {
	for _, s := range r.known() {
		if s.pipeline.group.epoch == m.Epoch {
			s.pipeline.Receive(from, m)
		}
	}
}
