package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Version says which of a parameter's weights are meant.
type Version int

const (
	Current Version = iota // x_t, which batch t reads
	Next                   // x_{t+1}: with a delay of one it exists already
)

func (l *rank) version(v Version) exec.Binding {
	if v == Next {
		return exec.Binding{weightsClass: l.roles.Next}
	}
	return exec.Binding{weightsClass: l.roles.Current}
}

// ReadWeights enqueues a read of a parameter at its owner.
func (e *Engine) ReadWeights(param string, v Version) (device.Pending, error) {
	for _, l := range e.ranks {
		for _, h := range l.holdings {
			if h.param == param && h.owner == l.index {
				return l.session.ReadAt(param, l.version(v))
			}
		}
	}
	return nil, fmt.Errorf("there is no parameter %q", param)
}

// WriteWeights uploads a parameter to all lines that hold it.
func (e *Engine) WriteWeights(param string, v Version, data []byte) error {
	known := false
	for _, l := range e.ranks {
		for _, h := range l.holdings {
			if h.param != param {
				continue
			}
			known = true
			if err := l.session.WriteAt(param, l.version(v), data); err != nil {
				return l.fault(err)
			}
		}
	}
	if !known {
		return fmt.Errorf("there is no parameter %q", param)
	}
	return nil
}

// ReadState enqueues a read of one of the optimizer's variables, as Optimizer.State lists them.
func (e *Engine) ReadState(name string) (device.Pending, error) {
	for _, l := range e.stateRanks(name) {
		return l.session.ReadAt(l.stateAt(name))
	}
	return nil, fmt.Errorf("there is no state %q", name)
}

// WriteState uploads one of the optimizer's variables.
func (e *Engine) WriteState(name string, data []byte) error {
	for _, l := range e.stateRanks(name) {
		l.begun = l.begun && name != optim.InitializedVariable
		variable, at := l.stateAt(name)
		if err := l.session.WriteAt(variable, at, data); err != nil {
			return l.fault(err)
		}
	}
	return nil
}

// stateAt is where a line has a state: the loss scale has versions, as weights have.
func (l *rank) stateAt(name string) (string, exec.Binding) {
	switch name {
	case optim.ScaleVariable:
		return name, l.version(Current)
	case optim.NextScaleVariable:
		return optim.ScaleVariable, l.version(Next)
	}
	return name, nil
}

// stateRanks are the lines with a state: one or, of the loss scale and of what tells that training has halted or begun, all that have it.
func (e *Engine) stateRanks(name string) (ls []*rank) {
	if name == optim.ScaleVariable || name == optim.NextScaleVariable {
		return slices.DeleteFunc(slices.Clone(e.ranks), func(l *rank) bool { return !l.scales() })
	}
	for _, i := range e.owners {
		l := e.ranks[i]
		if name == optim.HaltedVariable || name == optim.InitializedVariable || slices.ContainsFunc(l.optimizer.State(), func(v graph.Named) bool { return v.ID == name }) {
			ls = append(ls, l)
		}
	}
	return ls
}
