package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
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
	if r.arrivals[x] == nil {
		r.arrivals[x] = map[int]*arrival{}
	}
	a := r.arrivals[x][s.number]
	if a == nil {
		a = &arrival{}
	}
	var err error
	if a.message, a.complete, err = r.owner.Arrived(a.message, replicas.Sender{Replica: s.number, Owns: s.pipeline.owns(from)}, x,
		payload); err != nil {
		return err
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
	for {
		select {
		case <-r.wake:
		case <-r.failing:
			return
		}
		for {
			x, messages := r.due()
			if messages == nil {
				break
			}
			if err := r.step(x, messages); err != nil {
				r.Abort(err)
				return
			}
		}
	}
}

// due returns the first exchange that is complete: all replicas that were there have sent. nil: there is none.
func (r *Replicas) due() (x replicas.Exchange, messages []replicas.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, arrived := range r.arrivals {
		if messages != nil && x.Before(other) {
			continue
		}
		if all := r.complete(other, arrived); all != nil {
			x, messages = other, all
		}
	}
	delete(r.arrivals, x)
	return x, messages
}

// complete are the messages of an exchange in the order of replicas; nil: some have not arrived. The caller holds the lock.
func (r *Replicas) complete(x replicas.Exchange, arrived map[int]*arrival) (messages []replicas.Message) {
	for number, s := range r.slots {
		a := arrived[number]
		switch {
		case a != nil && a.complete:
			messages = append(messages, *a.message)
		case s != nil && s.from < x.Step:
			return nil
		}
	}
	return messages
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
