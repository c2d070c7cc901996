//go:build !js

package control

import (
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// watchLeases finds the members whose lease is over.
func (s *Server) watchLeases() {
	tick := max(s.o.Lease/20, time.Millisecond)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ticker.C:
		case <-s.done:
			return
		}
		stall := time.Since(last) - tick
		last = time.Now()
		s.checkLeases(stall)
	}
}

// checkLeases finds the members whose lease is over, and those that are back. If this process itself has stood still,
// all leases are extended by that time: their renewals could not be read.
func (s *Server) checkLeases(stall time.Duration) {
	for _, m := range s.all() {
		if stall > s.o.Lease/5 {
			m.extend(stall)
		}
		silent := m.silent()
		if silent > s.o.Lease+s.o.Retain {
			reason := fmt.Sprintf("no sign of life for %v", silent.Round(time.Second))
			s.drop(m, Dropped, reason)
			m.session.End(transport.Forgotten, reason)
			continue
		}
		s.setLost(m, silent > s.o.Lease)
	}
}

func (m *memberSession) extend(stall time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = m.seen.Add(stall)
}

// silent renews the lease if the member has been heard. It returns for how long it has not.
func (m *memberSession) silent() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if heard := m.session.Heard(); heard.After(m.heard) {
		m.heard, m.seen = heard, later(m.seen, heard)
	}
	return time.Since(m.seen)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// setLost reports a member that is lost or has returned.
func (s *Server) setLost(m *memberSession, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.mu.Lock()
	changed := m.lost != lost
	m.lost = lost
	m.mu.Unlock()
	if !changed || s.sessions[m.id] != m {
		return
	}
	if lost {
		s.notify(MemberChange{Change: Lost, Member: m.member()})
	} else {
		s.notify(MemberChange{Change: Returned, Member: m.member()})
	}
}
