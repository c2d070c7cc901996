package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Metrics passes each step's metrics to the on_metrics modules.
type Metrics struct {
	modules   []*module
	listeners []*listener
}

// listener is an instance of a module.
type listener struct {
	*hook.Listener
	module *module
}

// stopInterval is the number of steps after which a run with on_metrics modules pauses, so that a module can end it.
const stopInterval = 20

// Open opens the modules in the states that a checkpoint saved.
func (m *Metrics) Open(ctx context.Context, saved []State) error {
	for _, mod := range m.modules {
		var state []byte
		for _, s := range saved {
			if s.sameHook(mod.identity()) {
				state = s.State
			}
		}
		l, err := mod.Listener(ctx, state)
		if err != nil {
			return usererror.New(err)
		}
		m.listeners = append(m.listeners, &listener{l, mod})
	}
	return nil
}

// StopInterval is the number of steps after which training drains the pipeline so that a module can end the run; 0
// without modules.
func (m *Metrics) StopInterval() int {
	if len(m.listeners) == 0 {
		return 0
	}
	return stopInterval
}

// Observe passes a step's metrics, which must marshal to JSON, to the modules. It returns the file of a module that
// ends the run, or "".
func (m *Metrics) Observe(ctx context.Context, step int, metrics any) (stoppedBy string, err error) {
	if len(m.listeners) == 0 {
		return "", nil
	}
	text, err := json.Marshal(metrics)
	if err != nil {
		return "", err
	}
	for _, l := range m.listeners {
		stop, err := l.Observe(uninterrupted(ctx), step, text)
		if err != nil {
			return "", usererror.New(err)
		}
		if stop {
			stoppedBy = l.module.config.File
		}
	}
	return stoppedBy, nil
}

// maxState is the most bytes of a module's state that a checkpoint keeps.
const maxState = 1 << 20

// states returns the modules' states.
func (m *Metrics) states(ctx context.Context) (map[*module][]byte, error) {
	states := map[*module][]byte{}
	for _, l := range m.listeners {
		state, err := l.Save(uninterrupted(ctx))
		if err == nil && len(state) > maxState {
			err = fmt.Errorf("hook %s: its state has %d bytes, expected at most %d", l.module.config.File, len(state), maxState)
		}
		if err != nil {
			return nil, usererror.New(err)
		}
		states[l.module] = state
	}
	return states, nil
}

// Close closes the modules' instances. The Metrics can be opened again.
func (m *Metrics) Close() error {
	var errs []error
	for _, l := range m.listeners {
		errs = append(errs, l.Close())
	}
	m.listeners = nil
	return errors.Join(errs...)
}
