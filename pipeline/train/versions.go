package train

import (
	"fmt"
	"path/filepath"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/layout"
)

// Weights is a version of a run's weights at a step t. Without delay both are the same.
type Weights string

const (
	// WeightsX are x_t, at which the gradient of batch t is taken. With a delay they lack the update of batch t−1, and may
	// anticipate others.
	WeightsX Weights = "x"
	// WeightsY are y_t, which hold the updates of all t batches just once, and anticipate nothing.
	WeightsY Weights = "y"
)

// Choose takes a version of the weights, "" being x, before the model is loaded. note is told what the user should know: of
// damaged checkpoints that were passed over, and where the choice makes no difference.
func (src *Source) Choose(w Weights, note func(format string, args ...any)) error {
	for _, problem := range src.passed {
		note("%v: passed over", problem)
	}
	switch {
	case w == "" || w == WeightsX:
		return nil
	case w != WeightsY:
		return usererror.Errorf("weights: found %q, expected x or y", string(w))
	case src.checkpoint == nil:
		return usererror.Errorf("weights: found y, but %s is no checkpoint of a run and holds one version of its weights: expected x", src.Dir)
	case src.config.Pipeline.Delay == 0:
		note("%s is of a run without delay: its weights x and y are the same", src.Dir)
		return nil
	}
	return usererror.New(src.settle())
}

// settle makes the weights y of those that are pending and of what the correction remembers.
func (src *Source) settle() error {
	o, err := layout.NewOptimizer(*src.config, src.Model, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(src.Dir, keptConfig), err)
	}
	w := src.weights
	if w.state, err = src.checkpoint.Optimizer(); err != nil {
		return err
	}
	want := map[string]graph.Type{}
	for _, p := range w.params {
		want[pendingName(p.Name)] = p.Type
		if ahead := o.Ahead(p.Name); ahead != "" {
			want[ahead] = p.Type
		}
	}
	if err := checkPresent(src.Dir, w.state, want); err != nil {
		return err
	}
	w.settled = func(param string) (ahead []float32, err error) {
		newest, err := w.state.Float32(pendingName(param))
		if err != nil {
			return nil, err
		}
		if name := o.Ahead(param); name != "" {
			if ahead, err = w.state.Float32(name); err != nil {
				return nil, err
			}
		}
		return optim.Settled(newest, ahead), nil
	}
	return nil
}
