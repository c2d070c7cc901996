package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/hooks"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// loop runs the remaining steps, saves at the end, and stops early when ctx ends. Between two evaluations or checkpoints the
// pipeline is never empty.
func (r *run) loop(ctx context.Context) error {
	r.pace.start()
	if err := r.catchUp(ctx); err != nil {
		return r.postpone(ctx, err)
	}
	for r.step < r.Train.Steps && ctx.Err() == nil && r.result.Stopped == "" {
		if err := r.segment(ctx); err != nil {
			return r.rescue(ctx, err)
		}
		if r.due(r.Train.EvalEvery) && r.data.val != nil {
			if err := r.evaluateNow(ctx); err != nil {
				return r.postpone(ctx, err)
			}
		}
		if r.step < r.Train.Steps { // the last one may yet be evaluated
			if err := r.tellLast(ctx); err != nil {
				return err
			}
		}
		if r.due(r.Train.SaveEvery) {
			if err := r.save(ctx); err != nil {
				return err
			}
		}
	}
	if err := r.settled(); err != nil {
		return err
	}
	r.result.Interrupted = ctx.Err() != nil && r.step < r.Train.Steps && r.result.Stopped == ""
	if !r.result.Interrupted && r.step > 0 && r.data.val != nil && r.Train.EvalEvery > 0 {
		if err := r.evaluateNow(ctx); err != nil {
			return r.postpone(ctx, err)
		}
	}
	if err := r.tellLast(ctx); err != nil || r.saved == r.step && !r.owed {
		return err
	}
	return r.save(ctx)
}

// catchUp does what an interruption kept from being done after the step of the checkpoint: the evaluation, and what follows from it.
func (r *run) catchUp(ctx context.Context) error {
	if !r.owed || r.step == r.Train.Steps { // the last step is evaluated in the end
		return nil
	}
	if r.due(r.Train.EvalEvery) && r.data.val != nil {
		if err := r.evaluateNow(ctx); err != nil {
			return err
		}
	}
	if err := r.settled(); err != nil {
		return err
	}
	if err := r.tellLast(ctx); err != nil {
		return err
	}
	return r.save(ctx)
}

// postpone saves the step after which an evaluation was interrupted, without telling of it: that is done when the run goes on. Other
// errors stay what they are.
func (r *run) postpone(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	r.result.Interrupted = true
	if r.saved == r.step {
		return nil
	}
	return r.save(ctx)
}

// segment trains up to the next step after which something else is to be done.
func (r *run) segment(ctx context.Context) (err error) {
	to := r.Train.Steps
	for _, every := range []int{r.Train.EvalEvery, r.Train.SaveEvery, r.hooks.Metrics.StopInterval()} {
		if every > 0 {
			to = min(to, (r.step/every+1)*every)
		}
	}
	if err := errors.Join(r.hooks.Rate.Advance(ctx, to), r.hooks.Scalars.Advance(ctx, r.step, to)); err != nil {
		return &broken{err}
	}
	if ctx.Err() != nil { // hooks may not have been asked for all
		return nil
	}
	from, began := r.step, time.Now()
	r.step, err = r.engine.Train(ctx, r.source, r.step, to, func(m engine.Measured) error {
		if err := r.settled(); err != nil {
			return err
		}
		if err := errors.Join(r.tellLast(ctx), r.writeProfile(m.Batch, false)); err != nil {
			return err
		}
		if err := r.suspects(m); err != nil {
			return err
		}
		r.feeder.Release(m.Batch + 1)
		r.trace.Counter(trace.LossCounter, trace.LossUnit, time.Now(), m.Loss)
		p, err := r.progress(m)
		r.last = &p
		return err
	})
	var hookError *hooks.BatchError
	if errors.As(err, &hookError) {
		err = &broken{err}
	}
	r.trace.Complete(trace.RunTrack, trace.Run, trace.TrainEvent, began, time.Since(began), map[string]any{"from": from, "to": r.step})
	return r.blamed(ctx, err)
}

// broken is what a hook did wrong while no batch was under way.
type broken struct{ error }

func (b *broken) Unwrap() error { return b.error }

// rescue saves the steps before one that a hook made impossible.
func (r *run) rescue(ctx context.Context, err error) error {
	var b *broken
	if !errors.As(err, &b) {
		return err
	}
	var failed error
	if r.step > max(r.saved, 0) {
		failed = errors.Join(r.tellLast(ctx), r.save(ctx))
	}
	return errors.Join(usererror.Errorf("%w; %s", err, r.kept()), failed)
}

// due tells whether something done every n steps is to be done after this one.
func (r *run) due(n int) bool { return n > 0 && r.step%n == 0 && r.step < r.Train.Steps }

// evaluateNow adds the validation loss to what is told of the last step. Interrupted, it gives the error of ctx.
func (r *run) evaluateNow(ctx context.Context) error {
	began := time.Now()
	loss, err := r.evaluate(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return evaluating(fmt.Sprintf("evaluating after step %d", r.step), err)
	}
	if !finite(loss) {
		return usererror.Errorf("step %d: the validation loss after it is %v: %w; %s %s", r.step, loss, ErrDiverged, r.kept(), calmer)
	}
	r.pace.pause(time.Since(began))
	r.trace.Complete(trace.RunTrack, trace.Run, trace.EvaluateEvent, began, time.Since(began), nil)
	r.result.ValLoss = &loss
	if r.last != nil {
		r.last.ValLoss = &loss
	}
	return r.tellLast(ctx)
}

// tellLast tells of the last step, if that has not been done.
func (r *run) tellLast(ctx context.Context) error {
	if r.last == nil {
		return nil
	}
	p := *r.last
	r.last = nil
	return r.tell(ctx, p)
}

// progress is what is told of a batch. A loss or gradient that is not finite ends the run, unless such batches are skipped; its
// update was not applied. A gradient that overflowed for the loss scale alone is no such.
func (r *run) progress(m engine.Measured) (Progress, error) {
	step := m.Batch + 1
	p := Progress{Step: step, Steps: r.Train.Steps, Tokens: r.tokens(step), Loss: m.Loss, LR: r.optimizer.LR(m.Batch), GradNorm: m.GradNorm,
		Staleness: r.Pipeline.Delay, LossScale: m.Scale}
	skips := r.Train.Nonfinite == config.Skip
	if m.Overflowed {
		p.Skipped = true
		if step > r.told {
			r.Report.Note("step %d: the gradient is too large for f16 with a loss scale of %.0f: the batch was skipped, and the scale is halved", step, m.Scale)
		}
	} else if m.OK && (skips || finite(m.Loss) && finite(m.GradNorm)) {
		r.skipped = 0
	} else if r.skipped++; !skips || r.skipped > mostSkipped {
		return p, r.diverged(p)
	} else {
		p.Skipped = true
		if step > r.told {
			r.Report.Note("step %d: the loss is %v and the norm of its gradient %v: the batch was skipped", step, p.Loss, p.GradNorm)
		}
	}
	p.TokensPerSec, p.Left = r.pace.step(r.Train.BatchSize*r.Model.SeqLen, r.Train.Steps-step)
	return p, nil
}

// mostSkipped is how many batches in a row may be skipped before training stops all the same.
const mostSkipped = 10

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

const calmer = "(a smaller learning rate or a longer warm-up may help)"

func (r *run) diverged(p Progress) error {
	scale := ""
	if p.LossScale > 0 {
		scale = fmt.Sprintf(" with a loss scale of %.0f", p.LossScale)
	}
	return usererror.Errorf("step %d: the loss is %v and the norm of its gradient %v%s: the update was not applied and %w; %s %s",
		p.Step, p.Loss, p.GradNorm, scale, ErrDiverged, r.kept(), calmer)
}

// kept tells what a run that stops too early can go on from.
func (r *run) kept() string {
	if r.saved < 0 {
		return "there is no checkpoint yet"
	}
	return fmt.Sprintf("the checkpoint of step %d is kept", r.saved)
}

// tell records one step everywhere; one that is done again, after a restart, only where what was told of it is forgotten.
func (r *run) tell(ctx context.Context, p Progress) error {
	values := []metrics.Value{{Name: "tokens", Value: float64(p.Tokens)}, {Name: "loss", Value: p.Loss}, {Name: "lr", Value: p.LR},
		{Name: "grad_norm", Value: p.GradNorm}, {Name: "tokens_per_s", Value: p.TokensPerSec}, {Name: "staleness", Value: float64(p.Staleness)}}
	if p.LossScale > 0 {
		values = append(values, metrics.Value{Name: "loss_scale", Value: p.LossScale})
	}
	if p.ValLoss != nil {
		values = append(values, metrics.Value{Name: "val_loss", Value: *p.ValLoss})
	}
	if p.Skipped {
		values = append(values, metrics.Value{Name: "skipped", Value: 1})
	} else {
		r.result.Loss = &p.Loss
	}
	if p.Step > r.told {
		if err := r.log.Append(p.Step, values...); err != nil {
			return usererror.New(err)
		}
		if err := r.events.Scalars(p.Step, time.Now(), values...); err != nil {
			return usererror.New(err)
		}
		r.Report.Step(p)
	}
	err := r.listened(ctx, p.Step, values)
	r.told = max(r.told, p.Step)
	r.hooks.Flush(r.Report.Note)
	return err
}

// listened tells hooks of a step's measurements, but for those of the clock: what they decide is the same every time. A run that
// one of them ends does so at the end of a segment, so that no batch under way decides where.
func (r *run) listened(ctx context.Context, step int, values []metrics.Value) error {
	m := map[string]any{"step": step}
	for _, v := range values {
		if m[v.Name] = v.Value; !finite(v.Value) {
			m[v.Name] = fmt.Sprint(v.Value)
		}
	}
	delete(m, "tokens_per_s")
	stopped, err := r.hooks.Metrics.Observe(ctx, step, m)
	if stopped != "" && r.result.Stopped == "" {
		r.result.Stopped = stopped
		if step > r.told {
			r.Report.Note("%s: asked at step %d that the run end", stopped, step)
		}
	}
	return err
}

// pace estimates speed and time left from the last steps. Measurements may arrive several at a time, so it looks at a few
// steps together.
type pace struct {
	began  time.Time // later by every pause
	recent []moment
	best   float64 // tokens a second over paceSteps
}

type moment struct {
	at     time.Duration // since began
	tokens int64
}

const paceSteps = 8

// start begins the account.
func (p *pace) start() { p.began, p.recent = time.Now(), []moment{{}} }

// pause leaves time out of the account.
func (p *pace) pause(d time.Duration) { p.began = p.began.Add(d) }

// step accounts for one step's tokens.
func (p *pace) step(tokens, left int) (perSec float64, remaining time.Duration) {
	first, last := p.recent[0], p.recent[len(p.recent)-1]
	now := moment{time.Since(p.began), last.tokens + int64(tokens)}
	p.recent = append(p.recent, now)
	if len(p.recent) > paceSteps {
		p.recent = p.recent[1:]
	}
	if now.at <= first.at {
		return 0, 0
	}
	perSec = float64(now.tokens-first.tokens) / (now.at - first.at).Seconds()
	if len(p.recent) == paceSteps {
		p.best = max(p.best, perSec)
	}
	return perSec, timeFor(tokens, left, perSec)
}

// timeFor is how long so many steps of so many tokens take; 0 where the speed is not known.
func timeFor(tokens, steps int, perSec float64) time.Duration {
	if perSec <= 0 {
		return 0
	}
	return time.Duration(float64(tokens) * float64(steps) / perSec * float64(time.Second))
}
