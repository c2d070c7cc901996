package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// exchanges tracks the messages and the steps of the exchanges of replicas.
type exchanges struct {
	arrivals map[replicas.Exchange]map[*slot]*arrival
	settling map[int]int   // by step: how many wait until the exchanges up to it are done
	taken    map[int]int   // by fragment: the step of its newest exchange that is complete
	stepped  map[int]int   // by fragment: the step of its newest exchange that is done
	progress chan struct{} // closed and replaced when that changes
	wake     chan struct{} // has room for one: an exchange may be complete, or a member has requested a change
}

func newExchanges() exchanges {
	return exchanges{arrivals: map[replicas.Exchange]map[*slot]*arrival{}, settling: map[int]int{}, taken: map[int]int{},
		stepped: map[int]int{}, progress: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// arrival is what a replica has sent for an exchange.
type arrival struct {
	message  *replicas.Message
	complete bool
}

// forget drops what a replica that is lost has sent a part of; all that it has sent, if a member of it is expelled.
func (e *exchanges) forget(s *slot, all bool) {
	for x, arrived := range e.arrivals {
		if all || !arrived[s].done() {
			delete(arrived, s)
		}
		if len(arrived) == 0 {
			delete(e.arrivals, x)
		}
	}
}

// begin notes that replicas begin after a step: what was sent before is done.
func (e *exchanges) begin(step, fragments int) {
	for f := range fragments {
		e.taken[f], e.stepped[f] = max(e.taken[f], step), max(e.stepped[f], step)
	}
}

// advance wakes those who wait for exchanges.
func (e *exchanges) advance() {
	close(e.progress)
	e.progress = make(chan struct{})
}

// moved takes what a member has sent of how far its replica has moved. An error means that the message is malformed.
func (r *Replicas) moved(s *slot, from string, h protocol.Move, payload [][]byte) error {
	x := replicas.Exchange{Step: h.Step, Fragment: h.Fragment}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places.slots[s.number] != s {
		return nil // it is lost
	}
	if err := r.owner.outer.Expect(x, max(s.from, r.exchanges.taken[x.Fragment])); err != nil {
		return err
	}
	if begun := r.rounds.limit.first(); x.Step > begun {
		return fmt.Errorf("fragment %d after step %d: only %d steps have begun", x.Fragment, x.Step, begun)
	}
	a := r.exchanges.arrivals[x][s]
	if a == nil {
		a = &arrival{}
	}
	var err error
	if a.message, a.complete, err = r.owner.outer.Arrived(a.message, x, s.pipeline.owns(from), payload); err != nil {
		return err
	}
	if r.exchanges.arrivals[x] == nil {
		r.exchanges.arrivals[x] = map[*slot]*arrival{}
	}
	r.exchanges.arrivals[x][s] = a
	if s.heard = time.Now(); a.complete && s.last.Before(x) {
		if s.last == (replicas.Exchange{}) {
			r.filler.took()
		}
		s.last = x
	}
	signal(r.exchanges.wake)
	return nil
}

// stepAll takes outer steps as their exchanges are complete, until the replicas are closed.
func (r *Replicas) stepAll() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.exchanges.wake:
		case <-r.changed:
			r.relay.neighbors.connect(r.present())
		case <-tick.C:
			r.loseHung()
		case <-r.failure.happened:
			return
		}
		for {
			x, sent := r.due()
			if sent == nil {
				break
			}
			if err := r.step(x, r.plausible(x, sent)); err != nil {
				r.Abort(err)
				return
			}
		}
		r.relay.answer()
	}
}

// sent is the message of a replica, which may be lost by now.
type sent struct {
	*slot
	message replicas.Message
	before  replicas.Exchange // slot.counted without this one
}

// due returns the first exchange that is complete: all replicas that were there have sent. nil: there is none.
func (r *Replicas) due() (x replicas.Exchange, all []sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &r.exchanges
	for other, arrived := range e.arrivals {
		if all != nil && x.Before(other) {
			continue
		}
		if complete := r.complete(other, arrived); complete != nil {
			x, all = other, complete
		}
	}
	if all != nil {
		delete(e.arrivals, x)
		e.taken[x.Fragment] = x.Step
	}
	for i, s := range all {
		if all[i].before = s.counted; s.counted.Before(x) {
			s.counted = x
		}
	}
	return x, all
}

// complete are the messages of an exchange by replica; nil: some have not arrived. The caller holds the lock.
func (r *Replicas) complete(x replicas.Exchange, arrived map[*slot]*arrival) (all []sent) {
	for _, s := range r.places.slots {
		if s != nil && s.from < x.Step && !arrived[s].done() {
			return nil
		}
	}
	for s, a := range arrived {
		if a.complete {
			all = append(all, sent{slot: s, message: *a.message})
		}
	}
	slices.SortFunc(all, func(a, b sent) int { return cmp.Compare(a.number, b.number) })
	return all
}

// done reports whether all of a message has arrived; nil: nothing has.
func (a *arrival) done() bool { return a != nil && a.complete }

// plausible are the messages of an exchange without those that no honest replica sends. Their members are expelled.
func (r *Replicas) plausible(x replicas.Exchange, all []sent) (messages []replicas.Message) {
	for _, s := range all {
		messages = append(messages, s.message)
	}
	for i := r.owner.outer.Outlier(x.Fragment, messages); i >= 0; i = r.owner.outer.Outlier(x.Fragment, messages) {
		err := fmt.Errorf("it has moved %s much farther than the other replicas", r.owner.outer.Name(x.Fragment))
		p := all[i].pipeline
		for _, member := range p.group.members {
			p.Abort(p.group.malformed(member, err))
		}
		r.mu.Lock()
		all[i].counted = all[i].before
		r.mu.Unlock()
		r.lose(all[i].slot, all[i].failing()) // before the next exchange is due
		messages, all = slices.Delete(messages, i, i+1), slices.Delete(all, i, i+1)
	}
	return messages
}

// loseHung goes on without replicas that are waited for, and that have shown no progress for pipeline.watchdog
// meanwhile.
func (r *Replicas) loseHung() {
	timeout, err := r.options.Task.Config.Pipeline.Processes.WatchdogTimeout()
	if err != nil {
		panic(err) // of a config that was not validated
	}
	carried := carriedBytes(r.present())
	r.mu.Lock()
	var hung []*slot
	for _, s := range r.places.slots {
		if s == nil {
			continue
		}
		before := s.awaited
		s.awaited = r.waitedFor(s)
		if now := s.carriedOf(carried); s.awaited && !before || now < s.carried || now-s.carried >= leastCarried {
			s.carried, s.heard = now, time.Now()
		}
		if s.hangs = s.awaited && time.Since(s.heard) > timeout; s.hangs {
			hung = append(hung, s)
		}
	}
	r.mu.Unlock()
	for _, s := range hung {
		s.pipeline.Abort(fmt.Errorf("no progress for %v (pipeline.watchdog) (%w)", timeout, device.ErrLost))
	}
}

// waitedFor reports whether others wait for a replica, for an exchange or for the end of the round, or the run itself
// does. The caller holds the lock.
func (r *Replicas) waitedFor(s *slot) bool {
	e := &r.exchanges
	lacks := func(x replicas.Exchange) bool {
		return s.from < x.Step && e.taken[x.Fragment] < x.Step && !e.arrivals[x][s].done()
	}
	if s.settles {
		return false // it waits for others itself
	}
	waits := false // for others
	for x, arrived := range e.arrivals {
		if lacks(x) {
			return true
		}
		waits = waits || arrived[s].done()
	}
	for step := range e.settling {
		if !waits && slices.ContainsFunc(r.owner.outer.Planned(0, step), lacks) {
			return true
		}
	}
	return s.measures || r.rounds.current.waitsFor(s) || s.pipeline.variables.reading()
}

// leastCarried is how many bytes show progress: members that hang still report their links, in some hundred bytes.
const leastCarried = 1 << 20

// carriedBytes are the bytes to and from each member, without requests. All pipelines have the same node.
func carriedBytes(slots []*slot) map[string]int64 {
	all := map[string]int64{}
	if len(slots) == 0 {
		return all
	}
	for _, l := range slots[0].pipeline.group.node.Links() {
		if l.Class != transport.Urgent {
			all[l.Peer] += l.BytesSent + l.BytesReceived
		}
	}
	return all
}

// carriedOf is the sum over the replica's members. While it grows, weights or an exchange are on their way, which may
// take longer than pipeline.watchdog.
func (s *slot) carriedOf(all map[string]int64) (bytes int64) {
	for _, member := range s.pipeline.group.members {
		bytes += all[member]
	}
	return bytes
}

// progressed notes that a replica has measured or sent something.
func (r *Replicas) progressed(s *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.heard = time.Now()
}

// step takes an outer step and sends the change to all replicas.
func (r *Replicas) step(x replicas.Exchange, messages []replicas.Message) error {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	began := time.Now()
	change, err := r.owner.outer.Step(x.Fragment, x.Step, messages)
	if err != nil {
		return err
	}
	r.mu.Lock()
	joining := r.places.joining
	r.mu.Unlock()
	took := time.Since(began)
	all := r.present()
	if joining != nil && joining.follows {
		all = append(all, joining)
	}
	copies := r.relay.send(x, change, all)
	r.owner.outer.Trace(r.owner.tracer, x.Fragment, x.Step, began, took, copies)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exchanges.stepped[x.Fragment] = x.Step
	r.exchanges.advance()
	return nil
}

// settle waits until all exchanges up to a step are done.
func (r *Replicas) settle(step int) error {
	planned, settling := r.owner.outer.Planned(0, step), r.exchanges.settling
	r.mu.Lock()
	settling[step]++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if settling[step]--; settling[step] == 0 {
			delete(settling, step)
		}
	}()
	for {
		r.mu.Lock()
		progress, err := r.exchanges.progress, r.failure.get()
		done := !slices.ContainsFunc(planned, r.comes)
		r.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-progress:
		case <-r.failure.happened:
		}
	}
}

// comes reports whether an exchange is yet to be done: its outer step is being taken, a replica that is here takes part
// in it, or all of one has arrived. The caller holds the lock.
func (r *Replicas) comes(x replicas.Exchange) bool {
	e := &r.exchanges
	switch {
	case e.stepped[x.Fragment] >= x.Step:
		return false
	case e.taken[x.Fragment] > e.stepped[x.Fragment]:
		return true
	}
	for y, arrived := range e.arrivals {
		if y.Fragment == x.Fragment && y.Step <= x.Step && r.complete(y, arrived) != nil {
			return true
		}
	}
	return slices.ContainsFunc(r.places.slots, func(s *slot) bool { return s != nil && s.from < x.Step })
}
