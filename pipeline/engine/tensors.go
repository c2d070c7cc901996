package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Version selects a version of the weights.
type Version int

const (
	Older  Version = iota // the weights that the stale microbatches of the next batch read
	Newest                // the weights with the updates of all batches; without delay there is one version
)

func (r *rank) version(v Version) exec.Binding {
	if v == Newest {
		return exec.Binding{weightsClass: r.roles.Newest}
	}
	return exec.Binding{weightsClass: r.roles.Older}
}

// Evaluated is the version that evaluations read: the one of the last microbatch of the next batch.
func (e *Engine) Evaluated() Version {
	if e.stale < e.options.Microbatches {
		return Newest
	}
	return Older
}

// Delayed reports whether there are two versions of the weights.
func (e *Engine) Delayed() bool { return e.options.Layout.Delay > 0 }

// Owner is the rank that owns a parameter.
func (e *Engine) Owner(param string) (int, error) {
	for _, r := range e.ranks {
		for _, h := range r.holdings {
			if h.param == param && h.owner == r.index {
				return r.index, nil
			}
		}
	}
	return 0, fmt.Errorf("unknown parameter %q", param)
}

// ReadWeights enqueues a read of a parameter at its owner.
func (e *Engine) ReadWeights(param string, v Version) (device.Pending, error) {
	owner, err := e.Owner(param)
	if err != nil {
		return nil, err
	}
	r := e.ranks[owner]
	if !r.local() {
		return nil, fmt.Errorf("parameter %q is on %s, in another process", param, r.name())
	}
	return r.session.ReadAt(param, r.version(v))
}

// WriteWeights uploads a parameter to all ranks of this process that hold it.
func (e *Engine) WriteWeights(param string, v Version, data []byte) error {
	known := false
	for _, r := range e.ranks {
		for _, h := range r.holdings {
			if h.param != param {
				continue
			}
			known = true
			if !r.local() {
				continue
			}
			held := data
			if h.owner != r.index {
				held = e.options.Wire.copied(data)
			}
			if err := r.session.WriteAt(param, r.version(v), held); err != nil {
				return r.fault(err)
			}
		}
	}
	if !known {
		return fmt.Errorf("unknown parameter %q", param)
	}
	return nil
}

// StateOwner is the first rank that holds one of the optimizer's variables, as Optimizer.State lists them.
func (e *Engine) StateOwner(name string) (int, error) {
	for _, r := range e.stateRanks(name) {
		return r.index, nil
	}
	return 0, fmt.Errorf("unknown optimizer state %q", name)
}

// Holders lists the ranks that hold a parameter.
func (e *Engine) Holders(param string) (ranks []int) {
	for _, r := range e.ranks {
		if slices.ContainsFunc(r.holdings, func(h holding) bool { return h.param == param }) {
			ranks = append(ranks, r.index)
		}
	}
	return ranks
}

// StateHolders lists the ranks that hold one of the optimizer's variables.
func (e *Engine) StateHolders(name string) (ranks []int) {
	for _, r := range e.stateRanks(name) {
		ranks = append(ranks, r.index)
	}
	return ranks
}

// ReadState enqueues a read of one of the optimizer's variables.
func (e *Engine) ReadState(name string) (device.Pending, error) {
	owner, err := e.StateOwner(name)
	if err != nil {
		return nil, err
	}
	r := e.ranks[owner]
	if !r.local() {
		return nil, fmt.Errorf("optimizer state %q is on %s, in another process", name, r.name())
	}
	state := r.stateAt(name)
	return r.session.ReadAt(state.name, state.at)
}

// WriteState uploads one of the optimizer's variables to all ranks of this process that hold it.
func (e *Engine) WriteState(name string, data []byte) error {
	for _, r := range e.stateRanks(name) {
		if !r.local() {
			continue
		}
		r.initialized = r.initialized && name != optim.InitializedVariable
		state := r.stateAt(name)
		if err := r.session.WriteAt(state.name, state.at, data); err != nil {
			return r.fault(err)
		}
	}
	return nil
}

// stateAt is the variable and buffer of a state on a rank. The loss scale has versions, as weights have.
func (r *rank) stateAt(name string) tensor {
	switch name {
	case optim.ScaleVariable:
		return r.scaleAt(r.roles.Older)
	case optim.NextScaleVariable:
		return r.scaleAt(r.roles.Newest)
	}
	return tensor{name: name}
}

// stateRanks are the ranks that hold a state. Most states have one; the loss scale and the flags that training has
// halted or that an update was applied are on several.
func (e *Engine) stateRanks(name string) (ls []*rank) {
	if name == optim.ScaleVariable || name == optim.NextScaleVariable {
		return slices.DeleteFunc(slices.Clone(e.ranks), func(r *rank) bool { return !r.scales() })
	}
	for _, i := range e.owners {
		r := e.ranks[i]
		if name == optim.HaltedVariable || name == optim.InitializedVariable || slices.ContainsFunc(r.optimizer.State(),
			func(v graph.Named) bool { return v.ID == name }) {
			ls = append(ls, r)
		}
	}
	return ls
}
