package engine

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Train trains on the batches from (included) to to (excluded) and calls each with the result of every batch, in order,
// from the caller's goroutine. It returns the first batch that was not done. When stop ends, or each or a Preparer
// returns an error, it finishes the batches in progress. Then, as after success, the pipeline is empty, and weights and
// states may be read. Any other error loses them.
func (e *Engine) Train(stop context.Context, source Source, from, to int, each func(Measured) error) (int, error) {
	return e.deliver(stop, e.training(source), from, to, e.newResults(from, true), each)
}

// evaluatedAtOnce is the number of batches per stage that an evaluation runs before all stages must be done. It bounds
// how far a fast stage runs ahead of a slow one, because its messages wait in host memory.
const evaluatedAtOnce = 16

// EvaluationSegments calls run with each range of an evaluation's batches, from (included) to to (excluded), after
// which all stages must be done. It stops at the first error, and when stop ends, whose error it returns.
func EvaluationSegments(stop context.Context, batches, stages int, run func(from, to int) error) error {
	for from, most := 0, evaluatedAtOnce*stages; from < batches; from += most {
		if err := run(from, min(from+most, batches)); err != nil {
			return err
		}
		if stop.Err() != nil {
			return stop.Err()
		}
	}
	return nil
}

// Evaluate runs forwards on batches of one microbatch each, on the first replica. Batches of the source count from 0.
func (e *Engine) Evaluate(stop context.Context, source Source, batches int, each func(Measured) error) error {
	r := e.newResults(0, false)
	return EvaluationSegments(stop, batches, e.options.Layout.Stages, func(from, to int) error {
		_, err := e.deliver(stop, e.evaluation(source), from, to, r, each)
		return err
	})
}

// training is the work of Train.
func (e *Engine) training(source Source) work {
	return work{schedule: e.options.Schedule, source: source, replicas: e.options.Layout.Replicas, microbatches: e.options.Microbatches,
		hyperparameters: func(batch int, initialized bool) []float32 {
			return e.options.Optimizer.Hyperparameters(batch, initialized).Float32s()
		}}
}

// evaluation is the work of Evaluate.
func (e *Engine) evaluation(source Source) work {
	return work{schedule: e.evaluations, source: source, replicas: 1, microbatches: 1, evaluates: true}
}

func (e *Engine) newResults(from int, trains bool) *results {
	if !trains {
		return newResults(from, 1, false, nil)
	}
	return newResults(from, e.options.Microbatches*e.options.Layout.Replicas, true, e.Routers())
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
	report := func(m Measured) {
		if refused == nil {
			if refused = each(m); refused != nil {
				cancel()
			}
		}
	}
	for {
		select {
		case m := <-r.out:
			report(m)
		case <-ended:
			for len(r.out) > 0 {
				report(<-r.out)
			}
			return reached, errors.Join(failed, refused)
		}
	}
}

// evaluations is the schedule of forwards only.
func (e *Engine) evaluations(batches int) (*schedule.Generator, error) {
	return schedule.New(schedule.Eval, schedule.Options{Stages: e.options.Layout.Stages, Chunks: e.options.Layout.Chunks, Microbatches: 1,
		Batches: batches})
}
