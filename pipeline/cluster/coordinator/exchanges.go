package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// moved takes what a member has sent of how far its replica has moved. An error means that the message is malformed.
func (r *Replicas) moved(s *slot, from string, h protocol.Move, payload [][]byte) error {
	x := replicas.Exchange{Step: h.Step, Fragment: h.Fragment}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots[s.number] != s {
		return nil // it is lost
	}
	if h.Step <= s.from || h.Step <= r.stepped[h.Fragment] {
		return fmt.Errorf("fragment %d after step %d: it was exchanged before", h.Fragment, h.Step)
	}
	a := r.arrivals[x][s.number]
	if a == nil {
		a = &arrival{}
	}
	var err error
	if a.message, a.complete, err = r.owner.Arrived(a.message, x, s.pipeline.owns(from), payload); err != nil {
		return err
	}
	if r.arrivals[x] == nil {
		r.arrivals[x] = map[int]*arrival{}
	}
	r.arrivals[x][s.number] = a
	if s.heard = time.Now(); a.complete {
		s.last = x
	}
	signal(r.wake)
	return nil
}

// stepAll takes outer steps as their exchanges are complete, until the replicas are closed.
func (r *Replicas) stepAll() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.wake:
		case <-tick.C:
			r.loseHung()
		case <-r.failing:
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
	}
}

// sent is the message of a replica.
type sent struct {
	replica int
	message replicas.Message
}

// due returns the first exchange that is complete: all replicas that were there have sent. nil: there is none.
func (r *Replicas) due() (x replicas.Exchange, all []sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, arrived := range r.arrivals {
		if all != nil && x.Before(other) {
			continue
		}
		if complete := r.complete(other, arrived); complete != nil {
			x, all = other, complete
		}
	}
	delete(r.arrivals, x)
	return x, all
}

// complete are the messages of an exchange in the order of replicas; nil: some have not arrived. The caller holds the lock.
func (r *Replicas) complete(x replicas.Exchange, arrived map[int]*arrival) (all []sent) {
	for number, s := range r.slots {
		a := arrived[number]
		switch {
		case a != nil && a.complete:
			all = append(all, sent{number, *a.message})
		case s != nil && s.from < x.Step:
			return nil
		}
	}
	return all
}

// plausible are the messages of an exchange without those that no honest replica sends. Their members are expelled.
func (r *Replicas) plausible(x replicas.Exchange, all []sent) (messages []replicas.Message) {
	for _, s := range all {
		messages = append(messages, s.message)
	}
	for i := r.owner.Outlier(x.Fragment, messages); i >= 0; i = r.owner.Outlier(x.Fragment, messages) {
		r.mu.Lock()
		s := r.slots[all[i].replica]
		r.mu.Unlock()
		if s != nil {
			err := fmt.Errorf("it has moved %s much farther than the other replicas", r.owner.Name(x.Fragment))
			for _, member := range s.pipeline.group.members {
				s.pipeline.Abort(s.pipeline.group.malformed(member, err))
			}
		}
		messages, all = slices.Delete(messages, i, i+1), slices.Delete(all, i, i+1)
	}
	return messages
}

// loseHung goes on without replicas for which others wait, and that have shown no progress for pipeline.watchdog.
func (r *Replicas) loseHung() {
	timeout, err := r.options.Task.Config.Pipeline.Processes.WatchdogTimeout()
	if err != nil {
		panic(err) // of a config that was not validated
	}
	r.mu.Lock()
	var hung []*slot
	for x, arrived := range r.arrivals {
		for number, s := range r.slots {
			waits := arrived[number] == nil || !arrived[number].complete
			if s != nil && s.from < x.Step && waits && time.Since(s.heard) > timeout && !slices.Contains(hung, s) {
				hung = append(hung, s)
			}
		}
	}
	r.mu.Unlock()
	for _, s := range hung {
		s.pipeline.Abort(fmt.Errorf("no progress for %v (pipeline.watchdog) (%w)", timeout, device.ErrLost))
	}
}

// progressed notes that a replica has measured or sent something.
func (r *Replicas) progressed(s *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.heard = time.Now()
}

// step takes an outer step and sends the change to all replicas.
func (r *Replicas) step(x replicas.Exchange, messages []replicas.Message) error {
	r.owning.Lock()
	defer r.owning.Unlock()
	began := time.Now()
	change, err := r.owner.Step(x.Fragment, x.Step, messages)
	if err != nil {
		return err
	}
	r.mu.Lock()
	tracer, joining := r.tracer, r.joining
	r.mu.Unlock()
	r.owner.Trace(tracer, x.Fragment, x.Step, began)
	all := r.present()
	if joining != nil && joining.follows {
		all = append(all, joining)
	}
	for _, s := range all {
		r.sendChange(s, protocol.Change{Step: x.Step, Fragment: x.Fragment, Before: s.follows}, change)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stepped[x.Fragment] = x.Step
	r.advance()
	return nil
}

// advance wakes those who wait for exchanges. The caller holds the lock.
func (r *Replicas) advance() {
	close(r.progress)
	r.progress = make(chan struct{})
}

// sendChange sends the members of a replica what they own of a change. To a replica that has not begun, it counts as a
// variable.
func (r *Replicas) sendChange(s *slot, h protocol.Change, change replicas.Message) {
	p := s.pipeline
	for _, member := range p.group.members {
		payload := r.owner.Encode(change, h.Fragment, p.owns(member))
		if payload == nil {
			continue
		}
		if h.Before {
			p.variables.count([]string{member})
		}
		p.send(member, transport.Bulk, h, payload)
	}
}

// settle waits until all exchanges up to a step are done.
func (r *Replicas) settle(step int) error {
	planned := r.owner.Planned(0, step)
	for {
		r.mu.Lock()
		progress, err := r.progress, r.failure
		done := !slices.ContainsFunc(planned, r.comes)
		r.mu.Unlock()
		if done || err != nil {
			return errors.Join(err)
		}
		select {
		case <-progress:
		case <-r.failing:
		}
	}
}

// comes reports whether an exchange is yet to be done: a replica that is here takes part in it, or all of one has arrived. The
// caller holds the lock.
func (r *Replicas) comes(x replicas.Exchange) bool {
	if r.stepped[x.Fragment] >= x.Step {
		return false
	}
	for y, arrived := range r.arrivals {
		if y.Fragment == x.Fragment && y.Step <= x.Step && r.complete(y, arrived) != nil {
			return true
		}
	}
	return slices.ContainsFunc(r.slots, func(s *slot) bool { return s != nil && s.from < x.Step })
}
