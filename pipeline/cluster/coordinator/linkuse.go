package coordinator

import (
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// linkReports are what members report of their links.
type linkReports struct {
	changed func() // is called after each report; nil: nothing is

	mu     sync.Mutex
	newest map[string][]protocol.LinkUse // by member
}

// set keeps the report of a member.
func (r *linkReports) set(member string, links []protocol.LinkUse) {
	r.mu.Lock()
	if r.newest == nil {
		r.newest = map[string][]protocol.LinkUse{}
	}
	r.newest[member] = links
	r.mu.Unlock()
	if r.changed != nil {
		r.changed()
	}
}

// of returns the newest report of a member; nil: there is none.
func (r *linkReports) of(member string) []protocol.LinkUse {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest[member]
}

// receiveLinks keeps the newest report of a member's links.
func (p *Pipeline) receiveLinks(from string, payload [][]byte) error {
	most, neighbor := len(p.group.members)+1, func(string) bool { return false }
	if p.replica != nil {
		most, neighbor = most+2*reach, p.replica.neighbor
	}
	links, err := protocol.DecodeLinks(payload, most)
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Peer != identity.CoordinatorID && !p.group.has(l.Peer) && !neighbor(l.Peer) {
			return fmt.Errorf("a report of a link to %.60q, which is not a member", l.Peer)
		}
	}
	p.reports.set(from, links)
	return nil
}

// LinkValues are the totals of each link since the epoch began, for metrics.jsonl: link/FROM/TO/bytes, /wait_s,
// /resent. FROM has reported them at most two seconds ago.
func (p *Pipeline) LinkValues() (values []metrics.Value) {
	add := func(from, to, what string, value float64) {
		values = append(values, metrics.Value{Name: fmt.Sprintf("link/%s/%s/%s", from, to, what), Value: value})
	}
	for _, member := range p.group.members {
		for _, l := range p.reports.of(member) {
			add(member, l.Peer, "bytes", float64(l.Sent))
			add(member, l.Peer, "wait_s", l.Wait)
			add(member, l.Peer, "resent", float64(l.Resent))
			if l.Peer == identity.CoordinatorID {
				add(l.Peer, member, "bytes", float64(l.Received))
			}
		}
	}
	return values
}

// linkUses are what a member has reported of its links.
func (p *Pipeline) linkUses(member string) []protocol.LinkUse { return p.reports.of(member) }

// LinkState is the link of a member to another process: what was measured before the newest epoch, and what it has
// carried in it.
type LinkState struct {
	protocol.LinkUse
	Latency   float64 `json:"latency_s,omitempty"`   // seconds in this direction; 0: not measured
	Bandwidth float64 `json:"bytes_per_s,omitempty"` // in this direction; 0: not measured
}

// linkStates describes the links of a member.
func (h *Host) linkStates(member string) (all []LinkState) {
	if p := h.running(); p != nil {
		for _, u := range p.linkUses(member) {
			all = append(all, LinkState{LinkUse: u})
		}
	}
	for _, l := range h.links.from(member) {
		if i := slices.IndexFunc(all, func(s LinkState) bool { return s.Peer == l.Peer }); i >= 0 {
			all[i].Latency, all[i].Bandwidth = l.Latency, l.Bandwidth
		} else {
			all = append(all, l)
		}
	}
	return all
}
