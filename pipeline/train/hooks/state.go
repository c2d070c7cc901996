package hooks

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/gpupipe/gpupipe/wasm/hook"
)

// State is what a checkpoint keeps of one module.
type State struct {
	Hook   string `json:"hook"`
	SHA256 string `json:"sha256"` // of the module
	Config string `json:"config"` // as the module gets it
	Seed   uint64 `json:"seed"`
	State  []byte `json:"state,omitempty"`
}

func (m *module) identity() State {
	return State{Hook: m.config.Hook, SHA256: m.SHA256, Config: string(m.config.Config.JSON()), Seed: m.config.Seed}
}

// sameHook reports whether both are of the same module with the same config and seed.
func (s State) sameHook(o State) bool {
	s.State, o.State = nil, nil
	return reflect.DeepEqual(s, o)
}

func (s State) String() string {
	return fmt.Sprintf("%s by module %.12s with config %s and seed %d", s.Hook, s.SHA256, s.Config, s.Seed)
}

// onlyObserves reports whether the hook affects nothing that is computed.
func (s State) onlyObserves() bool { return s.Hook == hook.OnMetrics }

// changesBatches reports whether the hook's state belongs to the Feeder.
func (s State) changesBatches() bool { return s.Hook == hook.MapBatch || s.Hook == hook.TokenWeights }

// BatchStates are states of the modules of a Feeder.
type BatchStates map[*module][]byte

// State is what a checkpoint keeps of all modules; batches are the states of the Feeder's.
func (s *Set) State(ctx context.Context, batches BatchStates) ([]State, error) {
	saved, err := s.Metrics.states(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(saved, batches)
	var states []State
	for _, m := range s.modules {
		state := m.identity()
		state.State = saved[m]
		states = append(states, state)
	}
	return states, nil
}

// BatchStates returns the states for a Feeder from a checkpoint of the same modules (see Differences).
func (s *Set) BatchStates(saved []State) BatchStates {
	saved = slices.DeleteFunc(slices.Clone(saved), func(s State) bool { return !s.changesBatches() })
	states := BatchStates{}
	for _, m := range s.modules {
		if m.identity().changesBatches() {
			states[m], saved = saved[0].State, saved[1:]
		}
	}
	return states
}

// Differences describes how the modules of a checkpoint differ from the modules of this set. Modules that only observe
// may differ.
func (s *Set) Differences(saved []State) (differences []string) {
	was := slices.DeleteFunc(slices.Clone(saved), State.onlyObserves)
	var is []State
	for _, m := range s.modules {
		is = append(is, m.identity())
	}
	is = slices.DeleteFunc(is, State.onlyObserves)
	for i := range max(len(was), len(is)) {
		old, now := "nothing", "nothing"
		if i < len(was) {
			old = was[i].String()
		}
		if i < len(is) {
			now = is[i].String()
		}
		if old != now || !was[i].sameHook(is[i]) {
			differences = append(differences, fmt.Sprintf("hooks: the checkpoint has %s, the config %s", old, now))
		}
	}
	return differences
}
