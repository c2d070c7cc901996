package train

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// resizes reports whether the next batch has another size than those before.
func (t *trainer) resizes() bool {
	c := t.job.config
	return t.step < t.job.lastStep() && c.At(t.step).Train.BatchSize != c.Train.BatchSize
}

// resize goes on with batches of another size. A resumed run takes the same path, to the same bits.
func (t *trainer) resize(ctx context.Context) error {
	began := time.Now()
	if err := t.reopen(ctx); err != nil {
		return err
	}
	c := t.job.config.Train
	t.job.journal.noteEvent(eventNote, t.step, "batches of %d sequences in %d microbatches after step %d", c.BatchSize, c.Microbatches, t.step)
	t.recorder.trace.Complete(trace.RunTrack, trace.Run, trace.RestartEvent, began, time.Since(began), map[string]any{"batch_size": c.BatchSize, "step": t.step})
	return nil
}

// reopen saves a checkpoint and opens everything that depends on the size of batches and on kernels again from there:
// programs, schedule and optimizer are made for a number of microbatches.
func (t *trainer) reopen(ctx context.Context) error {
	if err := t.awaitSave(); err != nil {
		return err
	}
	if t.checkpoints.saved != t.step || t.checkpoints.unreported {
		if err := t.save(ctx); err != nil {
			return err
		}
	}
	t.loader.close()
	if err := errors.Join(t.session.reset(), t.start.weights.Close()); err != nil {
		return err
	}
	t.loader, t.start = &loader{}, start{}
	if err := t.do(ctx, t.job.rewind, t.findStart, t.job.openScalars, t.openLoader, t.openSession, t.loadSession, t.firstBatch, t.openFolder); err != nil {
		return err
	}
	t.recorder.pace.start()
	t.tuning.start(t.session)
	return nil
}

// reset closes the session so that it can be opened again with another layout.
func (s *session) reset() error {
	err := s.close()
	s.engine, s.devices, s.layout = nil, nil, nil
	return err
}

// checkLargest refuses a run whose largest batches will not fit the devices, before it starts. Members of a cluster
// check the memory when they plan.
func (t *trainer) checkLargest(ctx context.Context) error {
	j, c := t.job, t.job.config.Largest()
	if j.options.Remote != nil || c.Train.BatchSize <= j.config.Train.BatchSize {
		return nil
	}
	task := j.layoutTask()
	c.Pipeline.Cut = task.Config.Pipeline.Cut
	task.Config = c.Alone()
	optimizer, err := layout.NewOptimizer(task.Config, j.model, nil)
	if err != nil {
		return err
	}
	e, _, err := task.Choose(ctx, optimizer, t.session.devices, layout.Options{Execute: j.options.Execute, Tune: t.session.tune, Costs: j.options.Costs,
		Resumed: t.checkpoints.any(), Measuring: j.options.Report.Measuring, Note: func(string, ...any) {}})
	if err != nil {
		return fmt.Errorf("train.batch_schedule: batches of %d sequences: %w", c.Train.BatchSize, err)
	}
	return e.Close()
}
