package member

import (
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// Status describes the work of a member.
type Status struct {
	Epoch        uint64 // 0: there is none
	Ranks        []int  // in the epoch
	Stages       int
	Begun        bool // the ranks have begun to work
	Steps        int  // of training that are finished, as far as the member knows; without an epoch, in the one before
	Microbatches int  // of a step, for each rank
}

// Status describes the member's work.
func (m *Member) Status() Status {
	e := m.current.get()
	if e == nil {
		return Status{Steps: m.current.stepsBefore()}
	}
	c := e.work.task.Config
	s := Status{Epoch: e.plan.Epoch, Ranks: e.ranks(), Stages: c.Pipeline.Stages, Microbatches: c.MicrobatchesPerReplica()}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Begun, s.Steps = e.segments.newest() > 0, e.steps
	return s
}

// stepsBefore is the number of steps that were finished when the last epoch ended.
func (s *state) stepsBefore() int {
	s.Lock()
	defer s.Unlock()
	return s.steps
}

// finished notes that the steps before a number are finished.
func (e *epoch) finished(steps int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.steps = max(e.steps, steps)
}

// Status describes the work of the process's member.
func (p *Process) Status() Status { return p.member.Status() }

// Links describes the connections to the coordinator and to other members in the epoch.
func (p *Process) Links() []transport.Link { return p.node.Links() }

// Devices describes the devices that the process offers.
func (p *Process) Devices() []protocol.Device { return p.devices }
