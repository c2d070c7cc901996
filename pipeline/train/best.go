package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// Best is the step of a checkpoint and the validation loss of its weights.
type Best struct {
	Step    int     `json:"step"`
	ValLoss float64 `json:"val_loss"`
}

// BestCheckpoint finds the checkpoint with the lowest validation loss in a run folder: the loss that metrics.jsonl has
// for its step. Among equal losses the first counts.
func BestCheckpoint(run string) (Best, error) {
	steps, err := checkpoint.Steps(run)
	if err != nil {
		return Best{}, err
	}
	best, err := bestOf(run, steps)
	if err == nil && best == nil {
		err = fmt.Errorf("%s: no checkpoint was evaluated: found checkpoints of steps %s, expected one with a val_loss in %s", run,
			printable.List(steps), metricsFile)
	}
	if err != nil {
		return Best{}, err
	}
	return *best, nil
}

// bestOf returns the best of some steps, or nil if metrics.jsonl has a validation loss of none.
func bestOf(run string, steps []int) (best *Best, err error) {
	records, err := metrics.Read(filepath.Join(run, metricsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, r := range records {
		loss, ok := r.Values["val_loss"]
		if ok && metrics.Finite(loss) && slices.Contains(steps, r.Step) && (best == nil || loss < best.ValLoss) {
			best = &Best{r.Step, loss}
		}
	}
	return best, err
}

// findBest finds the best checkpoint of the run folder, if the run keeps it.
func (c *checkpoints) findBest() error {
	if !c.keepBest {
		return nil
	}
	steps, err := checkpoint.Steps(c.dir)
	if err != nil {
		return err
	}
	c.best, err = bestOf(c.dir, steps)
	return err
}

// improves reports whether a checkpoint of a step is the best one.
func (c *checkpoints) improves(step int) bool {
	m := c.measured
	return c.keepBest && m != nil && m.Step == step && (c.best == nil || m.ValLoss < c.best.ValLoss)
}
