package coordinator

import (
	"context"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// ofReplica is what a Pipeline of a replica that trains on its own has besides.
type ofReplica struct {
	number int
	whole  config.Config // of all replicas
	owner  *replicas.Owner
	// moved takes a message for an exchange. An error means that it is malformed.
	moved func(from string, h protocol.Move, payload [][]byte) error
	// missing takes a member's request for a change. An error means that the message is malformed.
	missing    func(from string, h protocol.Missing) error
	progressed func()                   // notes that the replica has measured something
	neighbor   func(member string) bool // reports whether a member may have neighbors
}

// kinds are the variables for exchanges that a replica has of a parameter.
func (r *ofReplica) kinds(param string) []replicas.Kind {
	if r == nil {
		return nil
	}
	return r.owner.Kinds(param)
}

// owns reports whether a member owns a parameter.
func (p *Pipeline) owns(member string) func(param string) bool {
	return func(param string) bool {
		rank, err := p.plan.layout.Owner(param)
		return err == nil && p.placement.ranks[rank].Member == member
	}
}

// lent does something while a replica has lent its evaluated weights. It gets them back even if that fails or is
// interrupted. A replica that does not lend them, or take them back, fails.
func (p *Pipeline) lent(do func() error) error {
	all := func(name string) error {
		err := p.group.each(context.Background(), func(ctx context.Context, member string) error {
			var a struct{}
			q := protocol.AtRest{OfEpoch: p.group.ofEpoch()}
			q.Writes, q.Read = p.variables.before(member)
			return p.group.request(ctx, member, name, q, &a)
		})
		if err != nil {
			p.Abort(err)
		}
		return err
	}
	if err := all(protocol.Lend); err != nil {
		return err
	}
	err := do()
	if returned := all(protocol.Return); err == nil {
		err = returned
	}
	return err
}

// holder has the variables of a replica on members.
type holder struct{ *Pipeline }

// Delayed implements replicas.Weights.
func (h holder) Delayed() bool { return h.plan.layout.Delayed() }

// written is the error of writing to a replica. One that has failed takes nothing, and the others go on.
func (h holder) written(err error) error {
	if h.group.failing() != nil {
		return nil
	}
	return err
}

// WriteWeights implements replicas.Weights.
func (h holder) WriteWeights(param string, v engine.Version, data []byte) error {
	return h.written(h.Pipeline.WriteWeights(param, v, data))
}

// WriteState implements replicas.Holder.
func (h holder) WriteState(name string, data []byte) error {
	return h.written(h.Pipeline.WriteState(name, data))
}

// ReadExchange implements replicas.Holder.
func (h holder) ReadExchange(k replicas.Kind, param string) (device.Pending, error) {
	return h.read(protocol.Variable{Name: param, Exchange: k}), nil
}

// WriteExchange implements replicas.Holder.
func (h holder) WriteExchange(k replicas.Kind, param string, data []byte) error {
	rank, err := h.plan.layout.Owner(param)
	if err != nil {
		return err
	}
	return h.written(h.write([]int{rank}, protocol.Write{Variable: protocol.Variable{Name: param, Exchange: k}}, data))
}

// Begin implements replicas.Holder.
func (h holder) Begin(param string, data []byte) error {
	rank, err := h.plan.layout.Owner(param)
	if err != nil {
		return err
	}
	return h.written(h.write([]int{rank}, protocol.Write{Variable: protocol.Variable{Name: param}, Begins: true}, data))
}

// copied has a copy of the variables of a replica on members.
type copied struct {
	snapshot
	holder
}

// Evaluated implements replicas.Weights.
func (c copied) Evaluated() engine.Version { return c.holder.Evaluated() }

// ReadWeights implements replicas.Weights.
func (c copied) ReadWeights(param string, v engine.Version) (device.Pending, error) {
	return c.snapshot.ReadWeights(param, v)
}

// ReadState implements replicas.Holder.
func (c copied) ReadState(name string) (device.Pending, error) { return c.snapshot.ReadState(name) }

// ReadExchange implements replicas.Holder.
func (c copied) ReadExchange(k replicas.Kind, param string) (device.Pending, error) {
	return &pendingVariable{c.snapshot.pipeline, c.snapshot.reads, protocol.Variable{Name: param, Exchange: k}}, nil
}

// name names a replica for messages.
func name(replica int) string { return fmt.Sprint("replica ", replica) }
