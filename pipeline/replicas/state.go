package replicas

import (
	"fmt"
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
	Count   int      `json:"count"`             // of replicas
	Without []int    `json:"without,omitempty"` // the numbers of those that are away, and have no state
	Flights []Flight `json:"flights"`
}

// has reports whether there is a state of a replica.
func (p *Position) has(replica int) bool {
	return p != nil && replica < p.Count && !slices.Contains(p.Without, replica)
}

// Kind is a kind of variables that a replica has for its exchanges.
type Kind string

// The kinds of variables.
const (
	Base    Kind = "base"
	Residue Kind = "residue"
	Sent    Kind = "sent"
)

// Holder has the variables of a replica.
type Holder interface {
	Weights
	ReadState(name string) (device.Pending, error)
	WriteState(name string, data []byte) error
	ReadExchange(k Kind, param string) (device.Pending, error)
	WriteExchange(k Kind, param string, data []byte) error
	// Begin makes data the base of a parameter and all versions of its weights.
	Begin(param string, data []byte) error
}

// Variable is a tensor of the state of replicas.
type Variable struct {
	Name  string
	Type  graph.Type
	Read  func() (device.Pending, error)
	write func(data []byte) error
	// A restored checkpoint may lack the variable, which is zero then.
	optional bool
	Replica  int // that has it; Shared: the outer optimizer
}

// Shared is the Replica of the variables of the outer optimizer.
const Shared = -1

// The names of tensors in checkpoints never change.
func ofReplica(replica int, name string) string { return fmt.Sprintf("replicas/%d/%s", replica, name) }

// Position is where replicas are after their last step. Holders that are nil are away.
func (o *Owner) Position(holders []Holder) *Position {
	at := &Position{Count: len(holders), Flights: o.flights.list()}
	for i, h := range holders {
		if h == nil {
			at.Without = append(at.Without, i)
		}
	}
	return at
}

// State lists the state beside the outer weights: momentum and base, and of each replica its weights, the state of its
// optimizer, its residue, and what it has sent that has not landed. Holders that are nil are away.
func (o *Owner) State(holders []Holder) (vs []Variable) {
	for f, fragment := range o.fragments {
		for _, s := range fragment.params {
			vs = append(vs, s.inHost("outer/momentum/", o.momentum[f]), s.inHost("outer/base/", o.base[f]))
		}
	}
	for i, h := range holders {
		if h != nil {
			vs = append(vs, o.stateOf(i, h)...)
		}
	}
	return vs
}

// stateOf lists the state of a replica.
func (o *Owner) stateOf(i int, h Holder) (vs []Variable) {
	for f, fragment := range o.fragments {
		_, flying := o.flights[f]
		for _, s := range fragment.params {
			vs = append(vs, s.weights(i, "weights/", h, engine.Newest))
			if h.Delayed() {
				vs = append(vs, s.weights(i, "older/", h, engine.Older))
			}
			if !o.config.Exact() {
				residue := s.exchanged(i, h, Residue)
				residue.optional = true
				vs = append(vs, residue)
			}
			if flying {
				vs = append(vs, s.exchanged(i, h, Sent))
			}
		}
	}
	for _, v := range o.settings.Optimizer.State() {
		vs = append(vs, Variable{Name: ofReplica(i, v.ID), Type: v.Type, Replica: i, optional: v.ID == optim.HaltedVariable,
			Read:  func() (device.Pending, error) { return h.ReadState(v.ID) },
			write: func(data []byte) error { return h.WriteState(v.ID, data) }})
	}
	return vs
}

// inHost is a parameter's place in a matrix of the owner, as a variable.
func (s span) inHost(prefix string, matrix []byte) Variable {
	data := matrix[s.from:s.to]
	return Variable{Name: prefix + s.param.Name, Type: s.param.Type, Replica: Shared,
		Read:  func() (device.Pending, error) { return hostData(data), nil },
		write: func(x []byte) error { copy(data, x); return nil }}
}

// exchanged is a parameter in a variable for exchanges of a replica.
func (s span) exchanged(i int, h Holder, k Kind) Variable {
	name := s.param.Name
	return Variable{Name: ofReplica(i, string(k)+"/"+name), Type: s.param.Type, Replica: i,
		Read:  func() (device.Pending, error) { return h.ReadExchange(k, name) },
		write: func(data []byte) error { return h.WriteExchange(k, name, data) }}
}

// weights is a version of a parameter of a replica, as a variable.
func (s span) weights(i int, prefix string, h Holder, v engine.Version) Variable {
	name := s.param.Name
	return Variable{Name: ofReplica(i, prefix+name), Type: s.param.Type, Replica: i,
		Read:  func() (device.Pending, error) { return h.ReadWeights(name, v) },
		write: func(data []byte) error { return h.WriteWeights(name, v, data) }}
}

// hostData is data in host memory.
type hostData []byte

// Wait implements device.Pending.
func (d hostData) Wait() ([]byte, error) { return d, nil }

// Saved is the state in a checkpoint.
type Saved interface {
	// Tensor returns the bytes of a tensor, padded to whole words, or nil if there is none. A tensor of another type is
	// an error.
	Tensor(name string, t graph.Type) ([]byte, error)
}

// Restore writes the state of a checkpoint, after WriteWeights has written its outer weights. A replica that the
// checkpoint lacks begins at the base with a fresh optimizer: all of them, if at is nil. Restore returns how many do.
func (o *Owner) Restore(s Saved, at *Position, holders []Holder) (fresh int, err error) {
	if at != nil {
		if err := o.restoreFlights(at.Flights); err != nil {
			return 0, err
		}
	}
	for _, v := range o.State(nil) {
		if at != nil {
			if err := v.restore(s); err != nil {
				return 0, err
			}
		}
	}
	for i, h := range holders {
		switch {
		case h == nil:
		case at.has(i):
			err = o.restoreReplica(i, h, s)
		default:
			fresh++
			err = o.Begin(h)
		}
		if err != nil {
			return 0, err
		}
	}
	return fresh, nil
}

// restoreFlights takes over the exchanges that have not landed.
func (o *Owner) restoreFlights(all []Flight) error {
	for _, flight := range all {
		if f := flight.Fragment; f < 0 || f >= len(o.fragments) {
			return usererror.Errorf("state.json: found an exchange of fragment %d, expected 0 to %d", f, len(o.fragments)-1)
		}
		o.flights[flight.Fragment] = flight.Lands
	}
	return nil
}

// restoreReplica writes the state of a replica.
func (o *Owner) restoreReplica(i int, h Holder, s Saved) error {
	err := o.params(func(f int, p span) error { return h.WriteExchange(Base, p.param.Name, o.base[f][p.from:p.to]) })
	if err != nil {
		return err
	}
	for _, v := range o.stateOf(i, h) {
		if err := v.restore(s); err != nil {
			return err
		}
	}
	return nil
}

// restore writes a variable as it is saved.
func (v Variable) restore(s Saved) error {
	data, err := s.Tensor(v.Name, v.Type)
	switch {
	case err != nil:
		return err
	case data == nil && !v.optional:
		return usererror.Errorf("the checkpoint has no tensor %q, expected %v", v.Name, v.Type)
	case data == nil:
		return nil
	}
	return v.write(data)
}

// Begin starts a replica without a state at the base.
func (o *Owner) Begin(h Holder) error {
	return o.params(func(f int, p span) error { return h.Begin(p.param.Name, o.base[f][p.from:p.to]) })
}

// params visits all parameters.
func (o *Owner) params(visit func(f int, p span) error) error {
	for f, fragment := range o.fragments {
		for _, s := range fragment.params {
			if err := visit(f, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadWeights returns the outer weights of a parameter; they have one version.
func (o *Owner) ReadWeights(param string, _ engine.Version) (device.Pending, error) {
	f, s, ok := place(o.fragments, param)
	if !ok {
		return nil, fmt.Errorf("unknown parameter %q", param)
	}
	return hostData(o.outer[f][s.from:s.to]), nil
}

// WriteWeights writes a parameter of the outer weights and of the base. Restore brings it to the replicas.
func (o *Owner) WriteWeights(param string, _ engine.Version, data []byte) error {
	f, s, ok := place(o.fragments, param)
	if !ok {
		return fmt.Errorf("unknown parameter %q", param)
	}
	copy(o.outer[f][s.from:s.to], data)
	copy(o.base[f][s.from:s.to], data)
	return nil
}

// ReadState refuses: each replica has a state of its own, see State.
func (o *Owner) ReadState(name string) (device.Pending, error) {
	return nil, fmt.Errorf("optimizer state %q: each replica has its own", name)
}

// matrix is where a replica has a parameter for its exchanges; nil: it has none of the kind.
func (r *replica) matrix(k Kind, f int) *[]byte {
	switch k {
	case Base:
		return &r.base[f]
	case Residue:
		return &r.residue[f]
	case Sent:
		return &r.sent[f]
	}
	return nil
}

// ReadExchange returns a parameter in a variable for exchanges.
func (r *replica) ReadExchange(k Kind, param string) (device.Pending, error) {
	f, s, ok := place(r.fragments, param)
	if ok {
		if m := r.matrix(k, f); m != nil && *m != nil {
			return hostData((*m)[s.from:s.to]), nil
		}
	}
	return nil, fmt.Errorf("no %s of parameter %q", k, param)
}

// WriteExchange writes a parameter in a variable for exchanges.
func (r *replica) WriteExchange(k Kind, param string, data []byte) error {
	f, s, ok := place(r.fragments, param)
	m := (*[]byte)(nil)
	if ok {
		m = r.matrix(k, f)
	}
	if m == nil || int64(len(data)) != s.param.Type.Bytes() {
		return fmt.Errorf("%s of parameter %q in %d bytes: there is no such variable", k, param, len(data))
	}
	if *m == nil {
		*m = r.fragments[f].zeros()
	}
	copy((*m)[s.from:s.to], data)
	return nil
}

// Begin makes data the base of a parameter and all versions of its weights.
func (r *replica) Begin(param string, data []byte) error {
	if err := r.WriteExchange(Base, param, data); err != nil {
		return err
	}
	for _, v := range r.versions() {
		if err := r.weights.WriteWeights(param, v, data); err != nil {
			return err
		}
	}
	return nil
}

// versions are the versions of the weights that the replica has.
func (r *replica) versions() []engine.Version {
	if r.weights.Delayed() {
		return []engine.Version{engine.Newest, engine.Older}
	}
	return []engine.Version{engine.Newest}
}

// The weights and the state of a replica in one process are those of its engine.

func (l local) Delayed() bool { return l.engine.Delayed() }

func (l local) Evaluated() engine.Version { return l.engine.Evaluated() }

func (l local) ReadWeights(param string, v engine.Version) (device.Pending, error) {
	return l.engine.ReadWeights(param, v)
}

func (l local) WriteWeights(param string, v engine.Version, data []byte) error {
	return l.engine.WriteWeights(param, v, data)
}

func (l local) ReadState(name string) (device.Pending, error) { return l.engine.ReadState(name) }

func (l local) WriteState(name string, data []byte) error { return l.engine.WriteState(name, data) }

// holders are the replicas of this process.
func (p *Pipeline) holders() (all []Holder) {
	for _, r := range p.replicas {
		all = append(all, r)
	}
	return all
}

// Position is where the replicas are after their last step.
func (p *Pipeline) Position() *Position { return p.Owner.Position(p.holders()) }

// State lists the state beside the outer weights, see Owner.State.
func (p *Pipeline) State() []Variable { return p.Owner.State(p.holders()) }

// Restore brings the weights that were written, and the state of a checkpoint, to the replicas, see Owner.Restore.
func (p *Pipeline) Restore(s Saved, at *Position) (fresh int, err error) {
	fresh, err = p.Owner.Restore(s, at, p.holders())
	for f := range p.flights {
		for _, r := range p.replicas {
			if r.sent[f] == nil { // it begins at the base
				r.sent[f] = p.base[f]
			}
		}
	}
	return fresh, err
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

// Evaluated is the version of the first replica's weights in whose place the outer weights are evaluated.
func (p *Pipeline) Evaluated() engine.Version { return p.replicas[0].engine.Evaluated() }
