package train

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// inFlight is a step that was enqueued and whose measurements are on their way.
type inFlight struct {
	step   int // counted from 1
	losses []device.Pending
	update pendingUpdate
	queued time.Time
}

// loop runs the remaining steps, saves at the end, and stops early when ctx ends.
func (r *run) loop(ctx context.Context) error {
	r.pace.start()
	for r.step < r.Train.Steps && ctx.Err() == nil {
		began := time.Now()
		if err := r.enqueue(); err != nil {
			return err
		}
		r.trace.Complete("loop", fmt.Sprintf("step %d", r.step), began, time.Since(began), nil)
		evaluate, save := r.due(r.Train.EvalEvery) && r.data.val != nil, r.due(r.Train.SaveEvery)
		if !evaluate && !save {
			if err := r.collect(1); err != nil {
				return err
			}
			continue
		}
		if err := r.settle(evaluate); err != nil {
			return err
		}
		if save {
			if err := r.save(); err != nil {
				return err
			}
		}
	}
	r.result.Interrupted = ctx.Err() != nil && r.step < r.Train.Steps
	if err := r.settle(!r.result.Interrupted && r.step > 0 && r.data.val != nil && r.Train.EvalEvery > 0); err != nil {
		return err
	}
	if r.saved != r.step {
		return r.save()
	}
	return nil
}

// due tells whether something done every n steps is to be done after this one.
func (r *run) due(n int) bool { return n > 0 && r.step%n == 0 && r.step < r.Train.Steps }

// enqueue hands one step to the device, without waiting.
func (r *run) enqueue() error {
	t := r.Train
	f := &inFlight{step: r.step + 1, queued: time.Now()}
	tokens, targets, err := r.data.train.Batch(int64(r.step))
	if err != nil {
		return Mistake(err)
	}
	micro := len(tokens) / t.Microbatches
	for i := range t.Microbatches {
		program := nextProgram
		if i == 0 {
			program = firstProgram
		}
		at := i * micro
		loss, err := runOn(r.session, program, tokens[at:at+micro], targets[at:at+micro], model.LossOutput)
		if err != nil {
			return err
		}
		f.losses = append(f.losses, loss)
	}
	if f.update, err = r.enqueueUpdate(r.step); err != nil {
		return err
	}
	r.step++
	r.pending = append(r.pending, f)
	return nil
}

// settle waits for all steps so far, evaluates if asked, and tells of the last step with what was found.
func (r *run) settle(evaluate bool) error {
	if err := r.collect(1); err != nil {
		return err
	}
	var last *Progress
	if len(r.pending) > 0 {
		p, err := r.measure(r.pending[0])
		if err != nil {
			return err
		}
		last, r.pending = &p, nil
	}
	if evaluate {
		began := time.Now()
		loss, err := r.evaluate()
		if err != nil {
			return err
		}
		if !finite(loss) {
			return mistakef("step %d: the validation loss after it is %v: training stopped; %s %s", r.step, loss, r.kept(), calmer)
		}
		r.pace.pause(time.Since(began))
		r.trace.Complete("loop", "evaluate", began, time.Since(began), nil)
		r.result.ValLoss = &loss
		if last != nil {
			last.ValLoss = &loss
		}
	}
	if last == nil {
		return nil
	}
	return r.tell(*last)
}

// collect tells of the oldest steps until no more than keep are in flight: metrics are read a step late, so that the
// device never waits for the host.
func (r *run) collect(keep int) error {
	for len(r.pending) > keep {
		p, err := r.measure(r.pending[0])
		if err != nil {
			return err
		}
		r.pending = r.pending[1:]
		if err := r.tell(p); err != nil {
			return err
		}
	}
	return nil
}

// measure waits for a step. A loss or gradient that is not finite ends the run; its update was not applied.
func (r *run) measure(f *inFlight) (Progress, error) {
	p := Progress{Step: f.step, Steps: r.Train.Steps, Tokens: r.tokens(f.step)}
	began := time.Now()
	for _, l := range f.losses {
		b, err := l.Wait()
		if err != nil {
			return p, err
		}
		p.Loss += float64(floats(b)[0]) / float64(len(f.losses))
	}
	norm, halted, err := f.update.wait()
	if err != nil {
		return p, err
	}
	r.trace.Complete("loop", fmt.Sprintf("wait %d", f.step), began, time.Since(began), nil)
	p.LR, p.GradNorm = r.optimizer.LR(f.step-1), norm
	if halted || !finite(p.Loss) || !finite(p.GradNorm) {
		return p, r.diverged(p)
	}
	p.TokensPerSec, p.Left = r.pace.step(r.Train.BatchSize*r.Model.SeqLen, r.Train.Steps-f.step)
	return p, nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

const calmer = "(a smaller learning rate or a longer warm-up may help)"

func (r *run) diverged(p Progress) error {
	return mistakef("step %d: the loss is %v and the norm of its gradient %v: the update was not applied and training stopped; %s %s",
		p.Step, p.Loss, p.GradNorm, r.kept(), calmer)
}

// kept tells what a run that stops too early can go on from.
func (r *run) kept() string {
	if r.saved < 0 {
		return "there is no checkpoint yet"
	}
	return fmt.Sprintf("the checkpoint of step %d is kept", r.saved)
}

// tell records one step everywhere.
func (r *run) tell(p Progress) error {
	values := []metrics.Value{{Name: "tokens", Value: float64(p.Tokens)}, {Name: "loss", Value: p.Loss}, {Name: "lr", Value: p.LR},
		{Name: "grad_norm", Value: p.GradNorm}, {Name: "tokens_per_s", Value: p.TokensPerSec}, {Name: "staleness", Value: float64(p.Staleness)}}
	if p.ValLoss != nil {
		values = append(values, metrics.Value{Name: "val_loss", Value: *p.ValLoss})
	}
	if err := r.log.Append(p.Step, values...); err != nil {
		return Mistake(err)
	}
	if err := r.events.Scalars(p.Step, time.Now(), values...); err != nil {
		return Mistake(err)
	}
	r.result.Loss = &p.Loss
	r.Report.Step(p)
	return nil
}

// pace estimates speed and time left from the last steps. Measurements may arrive several at a time, so it looks at a few
// steps together.
type pace struct {
	began  time.Time // later by every pause
	recent []moment
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
	return perSec, time.Duration(float64(tokens) * float64(left) / perSec * float64(time.Second))
}
