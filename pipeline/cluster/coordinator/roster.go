package coordinator

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// roster is the members of a host: which there are, whether they answer, and which ranks they have.
type roster struct {
	note     func(format string, args ...any)
	grace    time.Duration               // how long a member may be unreachable
	gone     func(id, reason string)     // is called for a member that is removed, with the lock
	drop     func(id, reason string)     // ends the session of a member
	expelled func(id string) bool        // reports whether a member is expelled, though it may still be here
	known    func(id string) bool        // reports whether a member has a session, though its end may not be announced yet
	links    func(id string) []LinkState // of a member
	measured *Links                      // what is known of the links between members
	announce func()                      // is called after each change, with the lock
	unwatch  func()                      // ends calls of memberChanged

	mu      sync.Mutex
	members []*hostMember    // in the order in which they joined
	changed chan struct{}    // closed and replaced at each change
	placed  []protocol.Place // of the newest epoch, by rank
}

// hostMember is a member as the host knows it.
type hostMember struct {
	MemberState
	lost     *time.Timer // declares the member lost; nil: it is connected
	failures int         // replicas on it that have failed before they took part in an exchange
}

// MemberState describes a member.
type MemberState struct {
	ID    string        `json:"id"`
	Info  protocol.Info `json:"info"`
	State string        `json:"state"` // idle, working, unreachable, ended
	Ranks []int         `json:"ranks"` // in the newest epoch
	Links []LinkState   `json:"links,omitempty"`
}

// The states of a member.
const (
	Idle        = "idle"
	Working     = "working"
	Unreachable = "unreachable"
	Ended       = "ended" // the coordinator is closed; Ranks and Links are the last ones
)

// memberChanged follows the members.
func (r *roster) memberChanged(c control.MemberChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.find(c.Member.ID)
	if c.Change == control.Joined || c.Change == control.Returned { // maybe at another place
		r.measured.forget(c.Member.ID)
	}
	switch {
	case c.Change == control.Joined:
		if m != nil {
			r.remove(m, "the member has joined again")
		}
		m = &hostMember{MemberState: MemberState{ID: c.Member.ID, State: Idle}}
		if err := json.Unmarshal(c.Member.Info, &m.Info); err != nil {
			r.note("%s: the description that it has sent: %v", m.ID, err)
			r.change()
			return
		}
		m.Info = m.Info.Printable()
		r.members = append(r.members, m)
		for _, gone := range r.members {
			if gone.lost != nil && r.replaces(m, gone) {
				gone.lost.Reset(0)
			}
		}
		r.note("%s joined from %s (%s) with %s", m.ID, m.Info.Host, m.Info.System, m.Info.DeviceNames())
	case m == nil:
		return
	case c.Change == control.Lost:
		wait := max(0, r.grace-transport.DefaultSilence)
		if slices.ContainsFunc(r.members, func(other *hostMember) bool { return r.replaces(other, m) }) {
			wait = 0
		}
		m.lost = time.AfterFunc(wait, func() { r.declareLost(m.ID) })
		r.note("%s does not answer", m.ID)
	case c.Change == control.Returned:
		if m.lost != nil {
			m.lost.Stop()
			m.lost = nil
		}
		r.note("%s answers again", m.ID)
	case c.Change == control.Left:
		r.note("%s has left", m.ID)
		r.remove(m, "the member has left")
	default: // its session has ended for another reason
		if !r.expelled(m.ID) { // which is noted already
			r.note("%s has left: %s", m.ID, c.Reason)
		}
		r.remove(m, c.Reason)
	}
	r.change()
}

// replaces reports whether a member is the process of another that was started again: it answers, it has no rank, and
// its computer and devices are the other's. It need not be waited for, then. The caller holds the lock.
func (r *roster) replaces(m, other *hostMember) bool {
	placed := slices.ContainsFunc(r.placed, func(p protocol.Place) bool { return p.Member == m.ID })
	return m != other && m.lost == nil && !placed && m.Info.SameComputer(other.Info) && m.Info.DeviceNames() == other.Info.DeviceNames()
}

// declareLost removes a member that has not come back.
func (r *roster) declareLost(id string) {
	r.mu.Lock()
	m := r.find(id)
	if m == nil || m.lost == nil {
		r.mu.Unlock()
		return
	}
	const reason = "it does not answer"
	r.remove(m, reason)
	r.change()
	r.mu.Unlock()
	r.note("%s is lost", id)
	r.drop(id, reason)
}

func (r *roster) find(id string) *hostMember {
	for _, m := range r.members {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// remove forgets a member, for a reason. The caller holds the lock.
func (r *roster) remove(gone *hostMember, reason string) {
	var kept []*hostMember
	for _, m := range r.members {
		if m != gone {
			kept = append(kept, m)
		}
	}
	r.members = kept
	r.gone(gone.ID, reason)
}

// change announces a change. The caller holds the lock.
func (r *roster) change() {
	close(r.changed)
	r.changed = make(chan struct{})
	r.announce()
}

// states describes the members. The caller holds the lock.
func (r *roster) states() (all []MemberState) {
	for _, m := range r.members {
		s := m.MemberState
		s.Ranks = nil
		for rank, p := range r.placed {
			if p.Member == m.ID {
				s.State, s.Ranks = Working, append(s.Ranks, rank)
			}
		}
		if m.lost != nil {
			s.State = Unreachable
		}
		for _, l := range r.links(m.ID) {
			if l.Peer == identity.CoordinatorID || r.find(l.Peer) != nil {
				s.Links = append(s.Links, l)
			}
		}
		all = append(all, s)
	}
	return all
}

// all describes the members, in the order in which they joined.
func (r *roster) all() []MemberState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.states()
}

// devices is the number of devices of all members that answer.
func (r *roster) devices() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.offers())
}

// wait waits until a condition on the number of devices and members holds, or ctx ends.
func (r *roster) wait(ctx context.Context, enough func(devices, members int) bool) error {
	return r.waitOffers(ctx, func(offers []protocol.Place) bool { return enough(len(offers), len(r.members)) })
}

// waitOffers waits until a condition on the devices that are offered holds, or ctx ends. It is called with the lock,
// after each change and, since unreachable members are tried again after a time, every unreachableLasts.
func (r *roster) waitOffers(ctx context.Context, enough func(offers []protocol.Place) bool) error {
	for {
		r.mu.Lock()
		done, changed := enough(r.offers()), r.changed
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(unreachableLasts):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// offers lists the devices of the members that answer, in the order in which they joined, but those last on which
// replicas have failed. The caller holds the lock.
func (r *roster) offers() (all []protocol.Place) {
	members := slices.Clone(r.members)
	slices.SortStableFunc(members, func(a, b *hostMember) int { return cmp.Compare(a.failures, b.failures) })
	for _, m := range members {
		if m.lost != nil || r.expelled(m.ID) || !r.known(m.ID) {
			continue
		}
		for _, d := range m.Info.Devices {
			all = append(all, protocol.Place{Member: m.ID, Device: d.Name})
		}
	}
	return all
}

// place assigns ranks to devices. It returns the devices by rank, fewer than ranks if there are too few, and the
// members that have ranks.
func (r *roster) place(ranks int) (places []protocol.Place, members []protocol.Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.placed = place(r.placed, r.offers(), ranks)
	r.change()
	for _, m := range r.members {
		if slices.ContainsFunc(r.placed, func(p protocol.Place) bool { return p.Member == m.ID }) {
			members = append(members, protocol.Peer{ID: m.ID, Addresses: m.Info.Addresses})
		}
	}
	return r.placed, members
}

// placeGroups assigns the ranks of replicas that are away to devices, see groupPlaces.
func (r *roster) placeGroups(stages, replicas int, away func(int) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	placed := make([]protocol.Place, stages*replicas)
	for i, g := range groupPlaces(r.placed, r.offers(), stages, replicas, away, r.measured.unreachable) {
		copy(placed[i*stages:], g)
	}
	r.placed = placed
	r.change()
}

// group returns the devices of a replica, by rank, and the members that have them; none, if it has no devices.
func (r *roster) group(replica, stages int) (places []protocol.Place, members []protocol.Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	places = slices.Clone(r.placed[replica*stages : (replica+1)*stages])
	if places[0] == (protocol.Place{}) {
		return nil, nil
	}
	for _, m := range r.members {
		if slices.ContainsFunc(places, func(p protocol.Place) bool { return p.Member == m.ID }) {
			members = append(members, protocol.Peer{ID: m.ID, Addresses: m.Info.Addresses})
		}
	}
	return places, members
}

// setGroup notes the devices of a replica.
func (r *roster) setGroup(replica, stages int, places []protocol.Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	copy(r.placed[replica*stages:(replica+1)*stages], places)
	r.change()
}

// failed notes that a replica has failed before it took part in an exchange: other members are offered before its own.
func (r *roster) failed(replica, stages int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.placed[replica*stages : (replica+1)*stages]
	for _, m := range r.members {
		if slices.ContainsFunc(of, func(p protocol.Place) bool { return p.Member == m.ID }) {
			m.failures++
		}
	}
	clear(of)
	r.change()
}

// setPlaces notes that ranks are in another order than place has returned.
func (r *roster) setPlaces(places []protocol.Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.placed = places
	r.change()
}

// info is the description of a member. It reports whether there is such a member.
func (r *roster) info(id string) (protocol.Info, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.find(id)
	if m == nil {
		return protocol.Info{}, false
	}
	return m.Info, true
}

// infos are the descriptions of the members, by ID.
func (r *roster) infos() map[string]protocol.Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]protocol.Info{}
	for _, m := range r.members {
		all[m.ID] = m.Info
	}
	return all
}
