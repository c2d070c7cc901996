package replicas

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Flight is a fragment that was sent and has not landed.
type Flight struct {
	Fragment int `json:"fragment"` // its number: of the embedding, a layer or the head
	Lands    int `json:"lands"`    // step
}

// Position is the part of a run's position that replicas have, for checkpoints.
type Position struct {
	Count   int      `json:"count"` // of replicas
	Flights []Flight `json:"flights"`
}

// Position is where the replicas are after their last step.
func (p *Pipeline) Position() *Position {
	at := &Position{Count: len(p.replicas), Flights: []Flight{}}
	for _, f := range slices.Sorted(maps.Keys(p.flights)) {
		at.Flights = append(at.Flights, Flight{f, p.flights[f]})
	}
	return at
}

// Variable is a tensor of the state of replicas.
type Variable struct {
	Name  string
	Type  graph.Type
	Read  func() (device.Pending, error)
	write func(data []byte) error
	// A restored checkpoint may lack the variable, which is zero then.
	optional bool
	replica  int // that has it; shared: the outer optimizer
}

const shared = -1

// The names of tensors in checkpoints never change.
func ofReplica(replica int, name string) string { return fmt.Sprintf("replicas/%d/%s", replica, name) }

// State lists the state beside the outer weights: momentum and base, and of each replica its weights, the state of its
// optimizer, its residue, and what it has sent that has not landed.
func (p *Pipeline) State() (vs []Variable) {
	for f, fragment := range p.fragments {
		for _, s := range fragment.params {
			vs = append(vs, s.inHost("outer/momentum/", shared, p.momentum[f]), s.inHost("outer/base/", shared, p.base[f]))
		}
	}
	for i, r := range p.replicas {
		for f, fragment := range p.fragments {
			_, flying := p.flights[f]
			for _, s := range fragment.params {
				vs = append(vs, r.weights(i, "weights/", s, engine.Newest))
				if r.engine.Delayed() {
					vs = append(vs, r.weights(i, "older/", s, engine.Older))
				}
				if !p.config.Exact() {
					residue := s.inHost(ofReplica(i, "residue/"), i, r.residue[f])
					residue.optional = true
					vs = append(vs, residue)
				}
				if flying {
					vs = append(vs, s.inHost(ofReplica(i, "sent/"), i, r.sent[f]))
				}
			}
		}
		for _, v := range p.options.Optimizer.State() {
			vs = append(vs, Variable{Name: ofReplica(i, v.ID), Type: v.Type, replica: i, optional: v.ID == optim.HaltedVariable,
				Read:  func() (device.Pending, error) { return r.engine.ReadState(v.ID) },
				write: func(data []byte) error { return r.engine.WriteState(v.ID, data) }})
		}
	}
	return vs
}

// inHost is a parameter's place in a matrix, as a variable.
func (s span) inHost(prefix string, replica int, matrix []byte) Variable {
	data := matrix[s.from:s.to]
	return Variable{Name: prefix + s.param.Name, Type: s.param.Type, replica: replica,
		Read:  func() (device.Pending, error) { return hostData(data), nil },
		write: func(x []byte) error { copy(data, x); return nil }}
}

// weights is a version of a parameter of a replica, as a variable.
func (r *replica) weights(i int, prefix string, s span, v engine.Version) Variable {
	name := s.param.Name
	return Variable{Name: ofReplica(i, prefix+name), Type: s.param.Type, replica: i,
		Read:  func() (device.Pending, error) { return r.engine.ReadWeights(name, v) },
		write: func(data []byte) error { return r.engine.WriteWeights(name, v, data) }}
}

// hostData is data in host memory.
type hostData []byte

// Wait implements device.Pending.
func (d hostData) Wait() ([]byte, error) { return d, nil }

// Saved is the state in a checkpoint.
type Saved interface {
	// Tensor returns the bytes of a tensor, padded to whole words, or nil if there is none. A tensor of another type is an
	// error.
	Tensor(name string, t graph.Type) ([]byte, error)
}

// Restore writes the state of a checkpoint, after WriteWeights has written its outer weights. A replica that the checkpoint
// lacks begins at the base with a fresh optimizer. Restore returns how many do.
func (p *Pipeline) Restore(s Saved, at Position) (fresh int, err error) {
	if err := p.restoreFlights(at); err != nil {
		return 0, err
	}
	for _, v := range p.State() {
		if v.replica >= at.Count {
			continue
		}
		data, err := s.Tensor(v.Name, v.Type)
		switch {
		case err != nil:
			return 0, err
		case data == nil && !v.optional:
			return 0, usererror.Errorf("the checkpoint has no tensor %q, expected %v", v.Name, v.Type)
		case data != nil:
			if err := v.write(data); err != nil {
				return 0, err
			}
		}
	}
	for i := at.Count; i < len(p.replicas); i++ {
		fresh++
		if err := p.begin(p.replicas[i]); err != nil {
			return 0, err
		}
	}
	return fresh, nil
}

// restoreFlights prepares for the exchanges that have not landed.
func (p *Pipeline) restoreFlights(at Position) error {
	for _, flight := range at.Flights {
		f := flight.Fragment
		if f < 0 || f >= len(p.fragments) {
			return usererror.Errorf("state.json: found an exchange of fragment %d, expected 0 to %d", f, len(p.fragments)-1)
		}
		p.flights[f] = flight.Lands
		for _, r := range p.replicas {
			r.sent[f] = p.fragments[f].zeros()
		}
	}
	return nil
}

// begin starts a replica without a state at the base.
func (p *Pipeline) begin(r *replica) error {
	versions := []engine.Version{engine.Newest}
	if r.engine.Delayed() {
		versions = append(versions, engine.Older)
	}
	for _, v := range versions {
		if err := r.writeAll(p.fragments, p.base, v); err != nil {
			return err
		}
	}
	for f := range p.flights {
		r.sent[f] = p.base[f]
	}
	return nil
}

// Evaluated is the version of the first replica's weights in whose place the outer weights are evaluated.
func (p *Pipeline) Evaluated() engine.Version { return p.replicas[0].engine.Evaluated() }

// ReadWeights returns the outer weights of a parameter; they have one version.
func (p *Pipeline) ReadWeights(param string, _ engine.Version) (device.Pending, error) {
	f, s, ok := place(p.fragments, param)
	if !ok {
		return nil, fmt.Errorf("unknown parameter %q", param)
	}
	return hostData(p.outer[f][s.from:s.to]), nil
}

// WriteWeights writes a parameter: of the outer weights, of the base, and, in a version, of each replica.
func (p *Pipeline) WriteWeights(param string, v engine.Version, data []byte) error {
	f, s, ok := place(p.fragments, param)
	if !ok {
		return fmt.Errorf("unknown parameter %q", param)
	}
	copy(p.outer[f][s.from:s.to], data)
	copy(p.base[f][s.from:s.to], data)
	for _, r := range p.replicas {
		if err := r.engine.WriteWeights(param, v, data); err != nil {
			return err
		}
	}
	return nil
}

// ReadState refuses: each replica has a state of its own, see State.
func (p *Pipeline) ReadState(name string) (device.Pending, error) {
	return nil, fmt.Errorf("optimizer state %q: each replica has its own", name)
}

// WriteState writes one of the optimizer's variables to all replicas.
func (p *Pipeline) WriteState(name string, data []byte) error {
	for _, r := range p.replicas {
		if err := r.engine.WriteState(name, data); err != nil {
			return err
		}
	}
	return nil
}
