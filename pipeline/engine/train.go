package engine

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Train works on batches from a number on to before another, and tells of each in order, from the caller's goroutine. When stop
// ends, or each fails, the batches under way are finished; the result is the number of the first batch that was not done. When
// it returns without error of its own the pipeline is empty, and weights and states may be read; so too after an error of each, or of a
// Preparer.
func (e *Engine) Train(stop context.Context, source Source, from, to int, each func(Measured) error) (int, error) {
	r := newResults(from, e.Microbatches*e.Replicas, true)
	return e.deliver(stop, work{e.Schedule, source, e.Replicas, e.Microbatches, false}, from, to, r, each)
}

// evaluatedAtOnce is how many batches a stage are evaluated before all stages have to come to their end: a fast one may be as far ahead
// of a slow one, and what it sends waits in the host's memory.
const evaluatedAtOnce = 16

// Evaluate runs forwards on batches of one microbatch each, from a source of its own, on the first replica.
func (e *Engine) Evaluate(stop context.Context, source Source, batches int, each func(Measured) error) error {
	r := newResults(0, 1, false)
	for from, most := 0, evaluatedAtOnce*e.Stages; from < batches; from += most {
		to := min(from+most, batches)
		if _, err := e.deliver(stop, work{e.evaluations, source, 1, 1, true}, from, to, r, each); err != nil {
			return err
		}
		if stop.Err() != nil {
			return stop.Err()
		}
	}
	return nil
}

func (e *Engine) deliver(stop context.Context, w work, from, to int, r *results, each func(Measured) error) (int, error) {
	if from >= to || stop.Err() != nil {
		return from, nil
	}
	stop, cancel := context.WithCancel(stop)
	defer cancel()
	reached, failed := from, error(nil)
	ended := make(chan struct{})
	go func() {
		reached, failed = e.run(stop, w, from, to, r)
		close(ended)
	}()
	var refused error
	tell := func(m Measured) {
		if refused == nil {
			if refused = each(m); refused != nil {
				cancel()
			}
		}
	}
	for {
		select {
		case m := <-r.out:
			tell(m)
		case <-ended:
			for len(r.out) > 0 {
				tell(<-r.out)
			}
			return reached, errors.Join(failed, refused)
		}
	}
}

// evaluations is the schedule of forwards alone.
func (e *Engine) evaluations(batches int) (*schedule.Generator, error) {
	return schedule.New(schedule.Eval, schedule.Options{Stages: e.Stages, Chunks: e.Chunks, Microbatches: 1, Batches: batches})
}
