package coordinator

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Evaluated implements train.Pipeline. The outer weights have one version.
func (r *Replicas) Evaluated() engine.Version { return engine.Newest }

// ReadWeights implements train.Pipeline: it reads the outer weights.
func (r *Replicas) ReadWeights(param string, v engine.Version) (device.Pending, error) {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	return r.owner.outer.ReadWeights(param, v)
}

// WriteWeights implements train.Pipeline: it writes the outer weights, which Restore brings to the replicas.
func (r *Replicas) WriteWeights(param string, v engine.Version, data []byte) error {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	return r.owner.outer.WriteWeights(param, v, data)
}

// ReadState implements train.Pipeline. It refuses: each replica has a state of its own.
func (r *Replicas) ReadState(name string) (device.Pending, error) {
	return r.owner.outer.ReadState(name)
}

// WriteState implements train.Pipeline.
func (r *Replicas) WriteState(name string, data []byte) error {
	return r.each(func(s *slot) error { return s.pipeline.WriteState(name, data) })
}

// holders are the replicas by number; those that are away are nil.
func (r *Replicas) holders(of func(*Pipeline) replicas.Holder) []replicas.Holder {
	all := make([]replicas.Holder, len(r.places.slots))
	for _, s := range r.present() {
		all[s.number] = of(s.pipeline)
	}
	return all
}

func onMembers(p *Pipeline) replicas.Holder { return holder{p} }

// Position is where the replicas are after their last step.
func (r *Replicas) Position() *replicas.Position {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	return r.owner.outer.Position(r.holders(onMembers))
}

// State lists the state beside the outer weights.
func (r *Replicas) State() []replicas.Variable {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	return r.owner.outer.State(r.holders(onMembers))
}

// Restore brings the weights that were written, and the state of a checkpoint, to the replicas.
func (r *Replicas) Restore(s replicas.Saved, at *replicas.Position) (fresh int, err error) {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	if fresh, err = r.owner.outer.Restore(s, at, r.holders(onMembers)); err != nil {
		return fresh, err
	}
	for _, s := range r.present() {
		flights := r.owner.outer.Flights(0)
		s.flights = &flights
	}
	return fresh, nil
}

// Snapshot implements train.Snapshotter.
func (r *Replicas) Snapshot() train.Variables {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	copies := r.holders(func(p *Pipeline) replicas.Holder { return copied{snapshot: snapshot{p, p.ask()}, holder: holder{p}} })
	return &replicasSnapshot{r.owner.outer.Snapshot(), copies, r.owner.outer.Position(copies), r}
}

// replicasSnapshot is a copy of the state of all replicas.
type replicasSnapshot struct {
	*replicas.Owner
	copies   []replicas.Holder
	position *replicas.Position
	live     *Replicas
}

// Evaluated implements train.Variables.
func (s *replicasSnapshot) Evaluated() engine.Version { return engine.Newest }

// State lists the state beside the outer weights. The variables of a lost replica read as zeros.
func (s *replicasSnapshot) State() []replicas.Variable {
	all := s.Owner.State(s.copies)
	for i, v := range all {
		if v.Replica != replicas.Shared {
			all[i].Read = func() (device.Pending, error) {
				p, err := v.Read()
				return copiedVariable{p, v, s}, err
			}
		}
	}
	return all
}

// Position is where the replicas are after their last step. A replica that is lost before it has sent all of its state
// becomes one that is away.
func (s *replicasSnapshot) Position() *replicas.Position { return s.position }

// copiedVariable is a variable of a replica in a copy, on its way.
type copiedVariable struct {
	device.Pending
	variable replicas.Variable
	of       *replicasSnapshot
}

// Wait implements device.Pending. Without any replica left there is no checkpoint.
func (v copiedVariable) Wait() ([]byte, error) {
	s, replica := v.of, v.variable.Replica
	zeros := func() []byte { return make([]byte, v.variable.Type.Bytes()) }
	if slices.Contains(s.position.Without, replica) {
		return zeros(), nil
	}
	data, err := v.Pending.Wait()
	if !errors.Is(err, device.ErrLost) {
		return data, err
	}
	for _, r := range s.live.present() { // Failed knows of their losses only after lose
		if lost := r.failing(); lost != nil {
			s.live.lose(r, lost)
		}
	}
	if s.live.Failed() != nil {
		return nil, err
	}
	s.live.events.add(s.live.begun(), fmt.Sprintf("%s was lost while a checkpoint was written; the checkpoint lacks its state", name(replica)))
	s.position.Without = append(s.position.Without, replica)
	slices.Sort(s.position.Without)
	return zeros(), nil
}

// writeOuter writes the outer weights to a replica, for an evaluation.
func (r *Replicas) writeOuter(p *Pipeline) error {
	for _, param := range p.plan.parameters {
		read, err := r.ReadWeights(param.Name, p.Evaluated())
		if err != nil {
			return err
		}
		data, err := read.Wait()
		if err != nil {
			return err
		}
		if err := p.WriteWeights(param.Name, p.Evaluated(), data); err != nil {
			return err
		}
	}
	return nil
}
