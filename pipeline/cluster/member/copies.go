package member

import (
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
)

// copies are the copies of parameters that other members' ranks hold. It implements replicas.Copies.
type copies struct {
	epoch *epoch

	mu      sync.Mutex
	arrived map[protocol.Copy]chan []byte
}

// mostCopies bounds the copies of a version of a parameter that have not been taken: an exchange sends two at most.
const mostCopies = 4

// holders are the other members whose ranks hold a parameter.
func (c *copies) holders(param string) (members []string) {
	e := c.epoch
	for _, rank := range e.engine.Holders(param) {
		if m := e.plan.Ranks[rank].Member; m != e.member.options.ID && !slices.Contains(members, m) {
			members = append(members, m)
		}
	}
	return members
}

// Sends implements replicas.Copies.
func (c *copies) Sends(param string) bool { return c.epoch.owns(param) && len(c.holders(param)) > 0 }

// Receives implements replicas.Copies.
func (c *copies) Receives(param string) bool {
	return !c.epoch.owns(param) &&
		slices.ContainsFunc(c.epoch.engine.Holders(param), func(rank int) bool { return c.epoch.devices[rank] != nil })
}

// Send implements replicas.Copies.
func (c *copies) Send(param string, v engine.Version, data []byte) {
	for _, m := range c.holders(param) {
		c.epoch.send(m, transport.Bulk, protocol.Copy{Param: param, Version: v}, [][]byte{data})
	}
}

// Receive implements replicas.Copies.
func (c *copies) Receive(param string, v engine.Version, stopped <-chan struct{}) ([]byte, error) {
	select {
	case data := <-c.queue(protocol.Copy{Param: param, Version: v}):
		return data, nil
	case <-stopped:
		return nil, replicas.ErrStopped
	}
}

// queue is where the copies of a version of a parameter arrive.
func (c *copies) queue(h protocol.Copy) chan []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.arrived[h] == nil {
		c.arrived[h] = make(chan []byte, mostCopies)
	}
	return c.arrived[h]
}

// take takes a copy of the member that owns the parameter.
func (c *copies) take(from string, h protocol.Copy, payload [][]byte) error {
	owner, err := c.epoch.engine.Owner(h.Param)
	switch {
	case err != nil:
		return err
	case c.epoch.replica == nil || c.epoch.plan.Ranks[owner].Member != from || !c.Receives(h.Param):
		return fmt.Errorf("a copy of parameter %q, which it does not own or no rank here holds", h.Param)
	case h.Version != engine.Older && h.Version != engine.Newest || len(payload) != 1:
		return fmt.Errorf("a copy of parameter %q in version %d and %d tensors", h.Param, h.Version, len(payload))
	}
	params := c.epoch.work.task.Model.Parameters()
	p := params[slices.IndexFunc(params, func(p model.Parameter) bool { return p.Name == h.Param })]
	if int64(len(payload[0])) != p.Type.Bytes() {
		return fmt.Errorf("a copy of %s has %d bytes, expected %d", h.Param, len(payload[0]), p.Type.Bytes())
	}
	select {
	case c.queue(h) <- payload[0]:
		return nil
	default:
		return fmt.Errorf("more than %d copies of parameter %q before they are needed", mostCopies, h.Param)
	}
}
