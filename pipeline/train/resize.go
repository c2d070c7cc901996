package train

import (
	"context"
	"errors"
	"time"

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
	t.job.journal.noteEvent(eventNote, t.step, "batches of %d sequences in %d microbatches after step %d", c.BatchSize, c.Microbatches,
		t.step)
	t.recorder.trace.Complete(trace.RunTrack, trace.Run, trace.RestartEvent, began, time.Since(began),
		map[string]any{"batch_size": c.BatchSize, "step": t.step})
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
	if err := errors.Join(t.deployment.reset(), t.start.weights.Close()); err != nil {
		return err
	}
	t.loader, t.start = &loader{}, start{}
	if err := t.do(ctx, t.job.rewind, t.findStart, t.job.openScalars, t.openLoader, t.openDeployment, t.loadDeployment, t.firstBatch,
		t.openFolder); err != nil {
		return err
	}
	t.recorder.pace.start()
	t.tuning.start(t.deployment)
	return nil
}

// reset closes the deployment so that it can be opened again with another layout.
func (d *deployment) reset() error {
	err := d.close()
	d.engine, d.devices, d.layout = nil, nil, nil
	return err
}
