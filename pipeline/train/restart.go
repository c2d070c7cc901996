package train

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// restartOnFailure restarts a run that has lost a device in a process of its own: from the newest checkpoint, as a
// resumed run does, or from the beginning without one. Other errors stay as they are.
func (t *trainer) restartOnFailure(ctx context.Context, err error) error {
	for errors.Is(err, device.ErrLost) && !t.deployment.canceled(ctx, err) {
		if !t.deployment.isolated() {
			return fmt.Errorf("%w; %s; with pipeline.isolate: %s a run goes on by itself", err, t.checkpoints.kept(), config.IsolateProcess)
		}
		began := time.Now()
		_ = t.awaitSave() // of the same fault, or of none
		if err := t.countFault(err); err != nil {
			return err
		}
		fault := t.deployment.faults.last()
		if ctx.Err() == nil {
			t.noteFault(fault)
			err = t.restart(ctx)
		}
		switch {
		case ctx.Err() != nil && (err == nil || errors.Is(err, device.ErrLost)):
			t.job.options.Report.Note("%s; it is not started again", fault)
			return t.endAtCheckpoint(ctx)
		case err == nil:
			t.noteRestart(began, fault)
			err = t.loop(ctx)
		}
	}
	if t.deployment.canceled(ctx, err) {
		t.abandoned, t.result.Idle = true, !t.folder.begun || t.checkpoints.saved <= t.folder.begunAt
		return t.endAtCheckpoint(ctx)
	}
	return err
}

// countFault counts the faults since the newest checkpoint. It returns an error if there are too many.
func (t *trainer) countFault(fault error) error {
	p, f := t.job.config.Pipeline.Processes, &t.deployment.faults
	f.add(describeFault(fault, t.deployment.ranks()), t.checkpoints.saved)
	if len(f.causes) <= p.Restarts {
		return nil
	}
	again := "the same command goes on from there"
	if !t.checkpoints.any() {
		again = "the same command begins again"
	}
	if !t.job.options.Resume { // a study has no such flag
		again = "with --resume " + again
	}
	return fmt.Errorf("%w %d times in a row, and pipeline.restarts is %d: %s; %s: %s", device.ErrLost, len(f.causes), p.Restarts,
		strings.Join(f.causes, "; "), t.checkpoints.kept(), again)
}

// restart closes the devices and everything that depends on the step, and opens it again at the newest checkpoint. An
// error in opening what worked before is one more fault of the devices.
func (t *trainer) restart(ctx context.Context) error {
	if err := t.shutDown(); err != nil {
		return err
	}
	t.step, t.skipped, t.firstUpdate, t.suspected = 0, t.checkpoints.skipped, 0, nil
	t.recorder.rewind()
	if err := t.do(ctx, t.job.rewind, t.job.makeOptimizer, t.findStart, t.job.openScalars, t.openLoader); err != nil {
		return err
	}
	if !t.backOff(ctx) {
		return nil
	}
	switch err := t.do(ctx, t.openDeployment, t.loadDeployment); {
	case errors.Is(err, device.ErrLost), errors.Is(err, ErrTooFewDevices):
		return err
	case err != nil:
		return fmt.Errorf("%w (%w)", err, device.ErrLost)
	}
	return t.do(ctx, t.firstBatch, t.openFolder, t.announce)
}

// shutDown closes everything that a restart opens again.
func (t *trainer) shutDown() (err error) {
	t.loader.close() // ends ranks that wait for a batch
	if t.deployment.shutDown() {
		err = fmt.Errorf("%s; a device is still busy after %v; %s", t.deployment.faults.last(), shutdownTimeout, t.checkpoints.kept())
	}
	err = errors.Join(err, t.start.weights.Close())
	t.loader, t.start = &loader{}, start{}
	return err
}

// backOff gives a device time to come back, the more the more often it was lost. It reports whether the run goes on.
func (t *trainer) backOff(ctx context.Context) bool {
	wait := time.Duration(0)
	if n := len(t.deployment.faults.causes); n > 1 {
		wait = min(time.Second<<min(n-2, 10), 30*time.Second)
	}
	return sleep.For(wait, ctx.Done())
}

// endAtCheckpoint ends an interrupted run at its newest checkpoint. A run that has written nothing returns the error of
// ctx.
func (t *trainer) endAtCheckpoint(ctx context.Context) error {
	if !t.checkpoints.any() && !t.folder.begun {
		return ctx.Err()
	}
	t.result.Interrupted, t.step = true, max(t.checkpoints.saved, 0)
	return nil
}

// noteFault reports a fault at once: the restart may take long.
func (t *trainer) noteFault(fault string) {
	from := "the beginning"
	if t.checkpoints.any() {
		from = fmt.Sprintf("the checkpoint of step %d", t.checkpoints.saved)
	}
	t.job.journal.noteEvent(eventFault, t.step, "%s; restarting from %s, attempt %d of %d", fault, from, len(t.deployment.faults.causes),
		t.job.config.Pipeline.Processes.Restarts)
}

// noteRestart reports that a restart, which began with a fault, is done.
func (t *trainer) noteRestart(began time.Time, fault string) {
	t.job.journal.noteEvent(eventRestart, t.step, "restarted, going on from step %d", t.step)
	t.recorder.trace.Complete(trace.RunTrack, trace.Run, trace.RestartEvent, began, time.Since(began),
		map[string]any{"fault": fault, "step": t.step})
}
