package inference

import (
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/layout"
)

// Version is a version of a run's weights at a step t. Without delay both are the same.
type Version string

const (
	// VersionX are x_t, at which the gradient of batch t is taken. If its first microbatches are stale, only the
	// gradients of the others are taken at x_t. If all are stale, x_t lack the update of batch t−1. A correction may
	// have added estimates of updates to come.
	VersionX Version = "x"
	// VersionY are y_t, which contain the updates of all t batches exactly once, and no estimates.
	VersionY Version = "y"
)

// Choose selects a version of the weights, "" being x, before the model is loaded. It reports to note which damaged
// checkpoints were passed over, and if the choice makes no difference.
func (src *Source) Choose(v Version, note func(format string, args ...any)) error {
	for _, problem := range src.damaged {
		note("%v: passed over", problem)
	}
	if src.assumed != "" {
		note("%s", src.assumed)
	} else {
		for _, s := range tokenizer.Notes(src.Tokenizer) {
			note("tokenizer %s: %s", src.Tokenizer.Name(), s)
		}
	}
	switch {
	case v == "" || v == VersionX:
		return nil
	case v != VersionY:
		return usererror.Errorf("weights: found %q, expected x or y", string(v))
	case src.checkpoint == nil:
		return usererror.Errorf("weights: found y, but %s is no checkpoint of a run and holds one version of its weights: expected x",
			src.Dir)
	case src.config.Pipeline.Delay == 0:
		note("%s is of a run without delay: its weights x and y are the same", src.Dir)
		return nil
	case src.config.Pipeline.Independent():
		note("%s has the outer weights of replicas: its weights x and y are the same", src.Dir)
		return nil
	}
	o, err := layout.NewOptimizer(*src.config, src.Model, nil)
	if err != nil {
		return usererror.Errorf("%s: %w", filepath.Join(src.Dir, config.SavedFile), err)
	}
	if src.config.PartlyStale() && o.Ahead(src.Model.Parameters()[0].Name) == "" {
		note("%s is of a run that evaluates the newest weights: its weights x and y are the same", src.Dir)
		return nil
	}
	return usererror.New(src.weights.Settle(src.checkpoint, o, weights.SecondOf(src.config.Pipeline.Delay, src.config.PartlyStale())))
}
