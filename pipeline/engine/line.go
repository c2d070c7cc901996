package engine

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/stage"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// rank is one stage of one replica on its device.
type rank struct {
	e              *Engine
	index          int
	stage, replica int
	dev            device.Device
	holdings       []holding
	optimizer      *optim.Shard    // of the parameters that it owns, and of the loss; it may have neither. nil: of a further replica
	slots          int             // microbatches that a chunk may have in flight
	runs           map[string]bool // by program; the first part has no input gradient to compute
	reads          [][]graph.Named // by chunk: variables that its programs find a microbatch's data in
	planned        Planned
	session        Session
	roles          stage.Roles
	begun          bool // an update was applied; where that is asked, see hasBegun
}

func (l *rank) name() string {
	if l.e.Replicas == 1 {
		return fmt.Sprintf("stage %d", l.stage)
	}
	return fmt.Sprintf("replica %d stage %d", l.replica, l.stage)
}

// prepare builds the line's programs and plans its memory.
func (l *rank) prepare() error {
	l.holdings = l.e.Options.holdings(l.index)
	var own []string
	for _, h := range l.holdings {
		if h.owner == l.index {
			own = append(own, h.param)
		}
	}
	if l.replica == 0 { // schedules have each stage vote and update, though it may own nothing
		l.optimizer = l.e.Optimizer.Shard(own, l.stage == l.e.Stages-1)
	}
	p, err := l.buildPrograms()
	if err != nil {
		return err
	}
	l.runs = map[string]bool{}
	for name := range p.graphs {
		l.runs[name] = true
	}
	l.planned, err = l.e.Execute(l.dev, p.graphs, p.pools)
	return err
}

// load brings the programs to the device.
func (l *rank) load() (err error) {
	if l.session, err = l.planned.Load(); err != nil {
		return err
	}
	l.roles = stage.Roles{Current: 0, Next: l.e.Delay, Gradients: 1 + l.e.Delay}
	if !l.scales() {
		return nil
	}
	for _, v := range []Version{Current, Next} {
		if err := l.session.WriteAt(optim.ScaleVariable, l.version(v), exec.F32Bytes(l.e.Optimizer.InitialScale())); err != nil {
			return err
		}
	}
	return nil
}

// scales tells whether a line holds the loss scale: to divide its own gradients by it, or to multiply the loss with it.
func (l *rank) scales() bool {
	return l.e.Optimizer.Scaled() && (l.optimizer != nil || l.stage == l.e.Stages-1)
}

// sampleBatches is how many batches show all that a schedule ever does.
const sampleBatches = 4
