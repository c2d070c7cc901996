package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// variables are the variables that travel between the coordinator and members.
type variables struct {
	mu      sync.Mutex
	written map[string]int64  // by member
	asked   uint64            // number of the newest reads
	pending map[uint64]*reads // that are not complete, by number
	idle    *reads            // since the last segment, of the run's goroutine; nil: none
}

// beginSegment ends the reads between two segments. It returns how many variables were written to each member.
func (v *variables) beginSegment() map[string]int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.idle = nil
	return maps.Clone(v.written)
}

// before returns how many variables were written to a member, and the number of the newest reads.
func (v *variables) before(member string) (writes int64, read uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.written[member], v.asked
}

// reads are the variables that members send since the last segment. The first read asks each member for all that its
// ranks own, so that a checkpoint does not wait for a round trip for each variable.
type reads struct {
	number   uint64
	expected map[protocol.Variable]owned // have not arrived
	arrived  map[protocol.Variable][]byte
	changed  chan struct{} // closed and replaced when one arrives
}

// owned is a variable of a member's rank.
type owned struct {
	protocol.Variable
	member string
	bytes  int64
}

// snapshot is a copy of all variables, which members send while training goes on.
type snapshot struct {
	pipeline *Pipeline
	reads    *reads
}

// Snapshot implements train.Snapshotter.
func (p *Pipeline) Snapshot() train.Variables { return snapshot{p, p.ask()} }

// Evaluated implements train.Variables.
func (s snapshot) Evaluated() engine.Version { return s.pipeline.Evaluated() }

// ReadWeights implements train.Variables.
func (s snapshot) ReadWeights(param string, v engine.Version) (device.Pending, error) {
	return &pendingVariable{s.pipeline, s.reads, protocol.Variable{Name: param, Version: v}}, nil
}

// ReadState implements train.Variables.
func (s snapshot) ReadState(name string) (device.Pending, error) {
	return &pendingVariable{s.pipeline, s.reads, protocol.Variable{Name: name, State: true}}, nil
}

// ReadWeights implements train.Pipeline.
func (p *Pipeline) ReadWeights(param string, v engine.Version) (device.Pending, error) {
	if _, err := p.plan.layout.Owner(param); err != nil {
		return nil, err
	}
	return p.read(protocol.Variable{Name: param, Version: v}), nil
}

// ReadState implements train.Pipeline.
func (p *Pipeline) ReadState(name string) (device.Pending, error) {
	if _, err := p.plan.layout.StateOwner(name); err != nil {
		return nil, err
	}
	return p.read(protocol.Variable{Name: name, State: true}), nil
}

// read asks for all variables, unless this one is on its way.
func (p *Pipeline) read(v protocol.Variable) device.Pending {
	if p.variables.idle == nil || !p.variables.has(p.variables.idle, v) {
		p.variables.idle = p.ask()
	}
	return &pendingVariable{p, p.variables.idle, v}
}

// has reports whether a variable has arrived, and has not been taken, or will arrive.
func (v *variables) has(r *reads, x protocol.Variable) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, expected := r.expected[x]
	_, arrived := r.arrived[x]
	return expected || arrived
}

// ask asks each member for the variables that its ranks own, in the order in which checkpoints write them.
func (p *Pipeline) ask() *reads {
	r := &reads{expected: map[protocol.Variable]owned{}, arrived: map[protocol.Variable][]byte{}, changed: make(chan struct{})}
	lists := map[string][]protocol.Variable{}
	for _, v := range p.owned() {
		r.expected[v.Variable] = v
		lists[v.member] = append(lists[v.member], v.Variable)
	}
	p.variables.add(r)
	for _, member := range p.group.members {
		writes, _ := p.variables.before(member)
		p.send(member, transport.Hot, protocol.Read{Number: r.number, Writes: writes}, protocol.EncodeList(lists[member]))
	}
	return r
}

// add numbers reads and keeps them until they are complete.
func (v *variables) add(r *reads) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked++
	r.number = v.asked
	v.pending[r.number] = r
}

// owned lists the variables of all ranks.
func (p *Pipeline) owned() (all []owned) {
	add := func(rank int, v protocol.Variable, bytes int64) {
		all = append(all, owned{v, p.placement.ranks[rank].Member, bytes})
	}
	versions := []engine.Version{p.plan.layout.Evaluated()}
	if p.plan.second != weights.OneVersion {
		versions = append(versions, p.plan.second.Version())
	}
	for _, v := range versions {
		for _, param := range p.plan.parameters {
			rank, err := p.plan.layout.Owner(param.Name)
			if err != nil {
				panic(err) // of the model's own parameter
			}
			add(rank, protocol.Variable{Name: param.Name, Version: v}, param.Type.Bytes())
		}
	}
	for _, state := range p.plan.optimizer.State() {
		rank, err := p.plan.layout.StateOwner(state.ID)
		if err != nil {
			panic(err) // of the optimizer's own state
		}
		add(rank, protocol.Variable{Name: state.ID, State: true}, state.Type.Bytes())
	}
	for _, param := range p.plan.parameters {
		rank, _ := p.plan.layout.Owner(param.Name) // is known, see above
		for _, k := range p.replica.kinds(param.Name) {
			add(rank, protocol.Variable{Name: param.Name, Exchange: k}, param.Type.Bytes())
		}
	}
	return all
}

// reading reports whether variables are on their way from members.
func (v *variables) reading() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.pending) > 0
}

// received keeps a variable that its owner has sent.
func (v *variables) received(from string, h protocol.Tensor, payload [][]byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.pending[h.Number]
	if r == nil {
		return fmt.Errorf("variable %q of read %d: nothing of that was asked for", h.Variable.Name, h.Number)
	}
	expected, ok := r.expected[h.Variable]
	switch {
	case !ok || expected.member != from:
		return fmt.Errorf("variable %q of read %d: it was not asked for, or has arrived before", h.Variable.Name, h.Number)
	case len(payload) != 1 || int64(len(payload[0])) != expected.bytes:
		return fmt.Errorf("variable %q: found %d tensors, expected one of %d bytes", h.Variable.Name, len(payload), expected.bytes)
	}
	delete(r.expected, h.Variable)
	r.arrived[h.Variable] = payload[0]
	close(r.changed)
	r.changed = make(chan struct{})
	if len(r.expected) == 0 {
		delete(v.pending, r.number)
	}
	return nil
}

// pendingVariable is a variable on its way.
type pendingVariable struct {
	pipeline *Pipeline
	reads    *reads
	variable protocol.Variable
}

// Wait implements device.Pending. A variable can be waited for once.
func (w *pendingVariable) Wait() ([]byte, error) {
	p := w.pipeline
	for {
		data, ok, changed := p.variables.take(w.reads, w.variable)
		if ok {
			return data, nil
		}
		select {
		case <-changed:
		case <-p.group.failure.happened:
			return nil, p.lost()
		}
	}
}

// take takes a variable if it has arrived. The channel is closed when another one arrives.
func (v *variables) take(r *reads, x protocol.Variable) (data []byte, ok bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	data, ok = r.arrived[x]
	delete(r.arrived, x)
	return data, ok, r.changed
}

// WriteWeights implements train.Pipeline.
func (p *Pipeline) WriteWeights(param string, v engine.Version, data []byte) error {
	if _, err := p.plan.layout.Owner(param); err != nil {
		return err
	}
	return p.write(p.plan.layout.Holders(param), protocol.Write{Variable: protocol.Variable{Name: param, Version: v}}, data)
}

// WriteState implements train.Pipeline.
func (p *Pipeline) WriteState(name string, data []byte) error {
	if _, err := p.plan.layout.StateOwner(name); err != nil {
		return err
	}
	return p.write(p.plan.layout.StateHolders(name), protocol.Write{Variable: protocol.Variable{Name: name, State: true}}, data)
}

// write sends a variable to the members of some ranks.
func (p *Pipeline) write(ranks []int, w protocol.Write, data []byte) error {
	var members []string
	for _, rank := range ranks {
		if m := p.placement.ranks[rank].Member; !slices.Contains(members, m) {
			members = append(members, m)
		}
	}
	p.variables.count(members)
	for _, m := range members {
		p.send(m, transport.Bulk, w, [][]byte{data})
	}
	return p.group.failing()
}

// count counts a variable that is written to some members.
func (v *variables) count(members []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range members {
		v.written[m]++
	}
}
