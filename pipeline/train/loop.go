package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// loop runs the remaining steps, evaluates and saves at their intervals and at the end, and stops early when ctx ends,
// at Options.StopAfter, or when a hook asks for it. The pipeline stays full between two evaluations or checkpoints.
//
// A step passes through four states. t.step counts the steps that have left the first:
//
//	trained    its update is enqueued and its loss has been read (segment)
//	pending    its report waits for an evaluation that may follow (recorder.pending)
//	reported   metrics.jsonl, TensorBoard and hooks have it (recorder.flush)
//	saved      a checkpoint has it (checkpoints.saved)
//
// An interruption between two states leaves a checkpoint from which a resumed run takes the missing ones: it evaluates
// and reports a step that was saved while pending (postpone, finishPending), and trains again the steps that no
// checkpoint has. An error of a hook ends the run at the step before it (saveBefore).
func (t *trainer) loop(ctx context.Context) error {
	c := t.job.config.Train
	t.recorder.pace.start()
	t.tuning.start(t.deployment)
	if err := t.finishPending(ctx); err != nil {
		return t.postpone(ctx, err)
	}
	for t.step < t.job.lastStep() && ctx.Err() == nil && t.recorder.stopped == "" {
		if err := t.segment(ctx); err != nil {
			return t.saveBefore(ctx, err)
		}
		if err := t.timeKernels(ctx); err != nil {
			return err
		}
		if t.evaluationDue() {
			if err := t.evaluate(ctx); err != nil {
				return t.postpone(ctx, err)
			}
		}
		if t.step < c.Steps { // the last step is reported after the final evaluation
			if err := t.recorder.ask(ctx); err != nil {
				return err
			}
			if t.recorder.stopped != "" {
				break
			}
			if err := t.recorder.flush(ctx); err != nil {
				return err
			}
		}
		if asked := t.asksToSave(); asked || t.due(c.SaveEvery) || t.checkpoints.improves(t.step) {
			save := t.saveMeanwhile
			if ctx.Err() == nil && t.adoptKernels() {
				save = t.switchKernels
			}
			if err := save(ctx); err != nil {
				return err
			}
		}
		if t.resizes() && ctx.Err() == nil {
			if err := t.resize(ctx); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(t.deployment.settle(), t.awaitSave()); err != nil {
		return err
	}
	t.result.Interrupted = t.step < c.Steps && t.recorder.stopped == ""
	evaluated := t.recorder.stopped != "" && t.recorder.pending == nil
	if !t.result.Interrupted && !evaluated && t.step > 0 && t.job.evaluates() {
		if err := t.evaluate(ctx); err != nil {
			return t.postpone(ctx, err)
		}
	}
	if err := t.recorder.flush(ctx); err != nil || t.checkpoints.saved == t.step && !t.checkpoints.unreported {
		return err
	}
	return t.save(ctx)
}

// segment trains up to the next step after which something else is due.
func (t *trainer) segment(ctx context.Context) (err error) {
	c, h := t.job.config.Train, t.job.hooks
	to := min(t.job.lastStep(), t.job.lastOfSize(t.step))
	for _, every := range []int{c.EvalEvery, c.SaveEvery, h.Metrics.StopInterval(), h.Rate.Interval(), h.Scalars.Interval()} {
		if every > 0 {
			to = min(to, (t.step/every+1)*every)
		}
	}
	if err := errors.Join(h.Rate.Advance(ctx, to), h.Scalars.Advance(ctx, t.step, to)); err != nil {
		return &sourceError{err}
	}
	if ctx.Err() != nil { // the hooks may not have reached the last step
		return nil
	}
	if to, err = t.awaitText(ctx, to); err != nil || ctx.Err() != nil {
		return err
	}
	from, began := t.step, time.Now()
	until, end := context.WithCancel(ctx)
	defer end()
	t.step, err = t.deployment.engine.Train(until, t.loader.source, t.step, to, func(m engine.Measured) error {
		if t.askedToSave() || t.tuning.due() {
			end()
		}
		return t.measured(ctx, m)
	})
	var batch *hooks.BatchError
	if errors.As(err, &batch) {
		err = &sourceError{err}
	}
	t.recorder.trace.Complete(trace.RunTrack, trace.Run, trace.TrainEvent, began, time.Since(began),
		map[string]any{"from": from, "to": t.step, "staleness": t.job.config.Staleness()})
	return t.blameLoss(ctx, err)
}

// measured takes the measurements of a step. The step before is reported only now, when no evaluation has followed it.
func (t *trainer) measured(ctx context.Context, m engine.Measured) error {
	if err := t.deployment.settle(); err != nil {
		return err
	}
	if t.checkpoints.failed() {
		if err := t.awaitSave(); err != nil {
			return err
		}
	}
	if err := errors.Join(t.recorder.flush(ctx), t.deployment.profiling.write(m.Batch, false)); err != nil {
		return err
	}
	if err := t.keepSuspectedBatch(m); err != nil {
		return err
	}
	t.loader.feeder.Release(m.Batch + 1)
	t.recorder.trace.Counter(trace.LossCounter, trace.LossUnit, time.Now(), m.Loss)
	p, err := t.progress(m)
	t.recorder.pending = &p
	return err
}

// progress returns the report of a step. A loss or gradient that is not finite ends the run, unless such batches are
// skipped; the update was not applied. An overflow caused only by the loss scale does not count.
func (t *trainer) progress(m engine.Measured) (pendingStep, error) {
	c, step := t.job.config, m.Batch+1
	next, _ := t.loader.feeder.Cursor(step)
	tokens := t.job.corpus.train.Tokens(next - 1)
	t.job.tokens += tokens
	p := pendingStep{Progress: Progress{Step: step, Steps: c.Train.Steps, Tokens: t.job.tokens, Routing: m.Routing,
		Update: Update{Loss: m.Loss, LR: t.job.optimizer.LR(m.Batch), GradNorm: m.GradNorm, Staleness: c.Staleness(), LossScale: m.Scale}}}
	for _, r := range m.Replicas {
		i := r.Replica
		for len(p.ReplicaLosses) < i { // those before are away
			p.ReplicaLosses = append(p.ReplicaLosses, metrics.Number(math.NaN()))
		}
		p.ReplicaLosses = append(p.ReplicaLosses, metrics.Number(r.Loss))
		if r.Overflowed && !m.Overflowed {
			t.recorder.noteStep(eventSkipped, step, "step %d: the gradient of replica %d is too large for f16 with a loss scale of %.0f: it skipped its share of the batch, and halves its scale", step, i, r.Scale)
		}
	}
	skips := c.Train.Nonfinite == config.Skip
	if m.Overflowed {
		p.Skipped = true
		t.recorder.noteStep(eventSkipped, step, "step %d: the gradient is too large for f16 with a loss scale of %.0f: the batch was skipped, and the scale is halved", step, m.Scale)
	} else if m.OK && (skips || metrics.Finite(m.Loss) && metrics.Finite(m.GradNorm)) {
		t.skipped, t.firstUpdate = 0, cmp.Or(t.firstUpdate, step)
	} else if t.skipped++; !skips || t.skipped > maxSkipped {
		return p, t.diverged(p.Progress)
	} else {
		p.Skipped = true
		t.recorder.noteStep(eventSkipped, step, "step %d: the loss is %v and the norm of its gradient %v: the batch was skipped", step,
			p.Loss, p.GradNorm)
	}
	pace := &t.recorder.pace
	p.TokensPerSec, p.Left = pace.step(tokens, t.job.tokensLeft(step))
	p.system = t.recorder.system.measure(pace.recent[len(pace.recent)-1].at, p.TokensPerSec)
	return p, nil
}

// maxSkipped is how many batches in a row may be skipped before training stops all the same.
const maxSkipped = 10

// adviceOnDivergence says what may help if the loss of the batch after some steps is not finite, or that of an
// evaluation there. No learning rate does before an update has changed the weights that they read: the newest ones,
// unless all microbatches are stale.
func (t *trainer) adviceOnDivergence(steps int) string {
	c, delay := t.job.config, t.job.config.Pipeline.Delay
	if c.PartlyStale() {
		delay = 0
	}
	advice := "no update has changed the weights yet, so it is not the learning rate: check the initial weights, the data and the hooks"
	switch {
	case t.start.step > 0 || t.firstUpdate > 0 && t.firstUpdate+delay <= steps:
		advice = "a smaller learning rate or a longer warm-up may help"
	case c.Train.ScalesLoss():
		advice += ". The numbers of f16 end at 65504, whatever the loss scale: train.precision: bf16 goes as far as f32"
	}
	return "(" + advice + ")"
}

func (t *trainer) diverged(p Progress) error {
	scale := ""
	if p.LossScale > 0 {
		scale = fmt.Sprintf(" with a loss scale of %.0f", p.LossScale)
	}
	return fmt.Errorf("step %d: the loss is %v and the norm of its gradient %v%s: the update was not applied and %w; %s %s",
		p.Step, p.Loss, p.GradNorm, scale, ErrDiverged, t.checkpoints.kept(), t.adviceOnDivergence(p.Step-1))
}

// askedToSave reports whether a checkpoint was asked for that is not saved yet.
func (t *trainer) askedToSave() bool {
	asked := t.job.options.Saves
	return asked != nil && asked.Load() > t.asked
}

// asksToSave is askedToSave, and takes the requests as met: the caller saves. The end of the run saves anyway.
func (t *trainer) asksToSave() bool {
	if !t.askedToSave() {
		return false
	}
	t.asked = t.job.options.Saves.Load()
	return t.step < t.job.config.Train.Steps && t.step > t.checkpoints.saved
}

// due reports whether something done every n steps is due after this one.
func (t *trainer) due(n int) bool { return n > 0 && t.step%n == 0 && t.step < t.job.config.Train.Steps }

// evaluationDue reports whether the run evaluates after this step, before its last: at an interval, or at
// Options.StopAfter.
func (t *trainer) evaluationDue() bool {
	c := t.job.config.Train
	stops := t.step == t.job.lastStep() && t.step < c.Steps
	return (stops || t.due(c.EvalEvery)) && t.job.evaluates()
}

// evaluate adds the validation loss and the results of tasks to the report of the last step. If interrupted, it returns
// the error of ctx.
func (t *trainer) evaluate(ctx context.Context) error {
	began := time.Now()
	e, err := t.measure(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return evaluating(fmt.Sprintf("evaluating after step %d", t.step), err)
	}
	if e.ValLoss != nil && !metrics.Finite(*e.ValLoss) {
		return fmt.Errorf("step %d: the validation loss after it is %v: %w; %s %s", t.step, *e.ValLoss, ErrDiverged, t.checkpoints.kept(),
			t.adviceOnDivergence(t.step))
	}
	if t.result.ValLoss = e.ValLoss; e.ValLoss != nil {
		if err := t.awaitSave(); err != nil { // it decides which checkpoint is the best so far
			return err
		}
		t.checkpoints.measured = &Best{t.step, *e.ValLoss}
	}
	return t.recorder.evaluated(ctx, e, began)
}

// measure evaluates the current weights.
func (t *trainer) measure(ctx context.Context) (e Evaluation, err error) {
	if t.job.corpus.val != nil {
		loss, p, err := t.validationLoss(ctx)
		if err != nil {
			return e, err
		}
		if e.ValLoss = &loss; !metrics.Finite(loss) {
			return e, nil
		}
		e.BitsPerByte = p.bitsPerByte(loss)
	}
	e.Tasks, err = t.answer(ctx)
	return e, err
}

// finishPending evaluates and reports the step of the checkpoint, if an interruption prevented that.
func (t *trainer) finishPending(ctx context.Context) error {
	c := t.job.config.Train
	if !t.checkpoints.unreported || t.step == c.Steps { // the last step is evaluated at the end
		return nil
	}
	if t.evaluationDue() {
		if err := t.evaluate(ctx); err != nil {
			return err
		}
	}
	if err := t.deployment.settle(); err != nil {
		return err
	}
	if err := t.recorder.flush(ctx); err != nil {
		return err
	}
	return t.save(ctx)
}

// postpone saves the step whose evaluation was interrupted, without reporting it: the resumed run evaluates it. A step
// after which a hook ends the run is reported, since the resumed run goes on. Other errors stay as they are.
func (t *trainer) postpone(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	t.result.Interrupted = true
	if t.recorder.stopped != "" {
		if err := t.recorder.flush(ctx); err != nil {
			return err
		}
	}
	if err := t.awaitSave(); err != nil || t.checkpoints.saved == t.step {
		return err
	}
	return t.save(ctx)
}

// awaitText waits for the text of the next step, and returns the last step up to one whose text is there. While it
// waits, a checkpoint that was asked for is saved, and one that cannot be written ends the run.
func (t *trainer) awaitText(ctx context.Context, to int) (int, error) {
	b, began := t.job.corpus.train, time.Now()
	defer func() { t.recorder.pace.pause(time.Since(began)) }()
	wait := func(each func(data.Waiting) error) error { return b.Await(ctx, int64(t.step), each) }
	err := t.job.await(wait, t.saveDue)
	for ; errors.Is(err, errSaveDue); err = t.job.await(wait, t.saveDue) {
		if err := t.awaitSave(); err != nil {
			return t.step, err
		}
		if t.asksToSave() {
			if err := t.saveMeanwhile(ctx); err != nil {
				return t.step, err
			}
		}
	}
	if err != nil && ctx.Err() != nil { // the loop ends, and saves
		return t.step, nil
	}
	if err != nil {
		return t.step, &sourceError{err}
	}
	ready, err := b.Ready()
	return int(min(int64(to), ready)), err
}

// errSaveDue ends a wait for text.
var errSaveDue = errors.New("a checkpoint is asked for, or could not be written")

// saveDue returns errSaveDue if a checkpoint is asked for, or could not be written.
func (t *trainer) saveDue() error {
	if t.askedToSave() || t.checkpoints.failed() {
		return errSaveDue
	}
	return nil
}

// sourceError is an error of a hook, or of text that was not read yet, while no batch is on the devices.
type sourceError struct{ error }

func (s *sourceError) Unwrap() error { return s.error }

// saveBefore saves the steps before one that a sourceError prevents. Other errors stay as they are.
func (t *trainer) saveBefore(ctx context.Context, err error) error {
	var s *sourceError
	if !errors.As(err, &s) {
		return err
	}
	failed := t.awaitSave()
	if t.step > max(t.checkpoints.saved, 0) {
		failed = errors.Join(failed, t.recorder.flush(ctx), t.save(ctx))
	}
	return errors.Join(usererror.Errorf("%w; %s", err, t.checkpoints.kept()), failed)
}

// keepSuspectedBatch keeps a batch whose loss, written by a module, is not finite: the first one since the last
// blameLoss. The cause is not searched for if training reads segments and evaluations do not: without
// data.document_mask, segments are what a module makes of a batch. Nor is it of replicas that train on their own:
// others evaluate.
func (t *trainer) keepSuspectedBatch(m engine.Measured) error {
	task := t.job.task
	unlike := task.Inputs.Segments && !task.Inputs.EvalSegments || t.job.config.Pipeline.Independent()
	if task.Loss == nil || unlike || metrics.Finite(m.Loss) || t.suspected != nil || m.Batch < t.recorder.reported {
		return nil
	}
	b, err := t.loader.source.Batch(int64(m.Batch))
	if err != nil {
		return err
	}
	t.suspected = &suspectedBatch{m.Batch + 1, b}
	return nil
}

// blameLoss reports whether the module's loss is the cause of a loss that is not finite; ended is the error that may
// end the run. If the cross-entropy of the same batch is finite, so are the logits, and the model is not the cause. The
// weights are the current ones: a batch that is not finite has not changed them.
func (t *trainer) blameLoss(ctx context.Context, ended error) error {
	s := t.suspected
	if t.suspected = nil; s == nil || ended != nil && !errors.Is(ended, ErrDiverged) {
		return ended
	}
	began, loss := time.Now(), 0.0
	n := t.job.config.Train.Microbatches
	err := t.deployment.engine.Evaluate(ctx, microbatches{s.data, n}, n, func(m engine.Measured) error {
		loss += m.Loss / float64(n)
		return nil
	})
	t.recorder.pace.pause(time.Since(began))
	switch {
	case err != nil && ended != nil || err != nil && ctx.Err() != nil:
		return ended // the cause remains unknown
	case err != nil:
		return evaluating(fmt.Sprintf("evaluating the batch of step %d", s.step), err)
	case !metrics.Finite(loss):
		return ended
	}
	text := fmt.Sprintf("hook %s: %s: the loss of step %d is not finite, but the cross entropy of its batch is, %.4g: the loss is at fault, and not the model",
		t.job.task.Loss.File(), hook.BuildLoss, s.step, loss)
	if ended != nil {
		return fmt.Errorf("%w; %s", ended, text)
	}
	t.job.options.Report.Note("%s", text)
	return nil
}
