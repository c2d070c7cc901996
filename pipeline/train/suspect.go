package train

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// suspectedBatch is a batch for which a module's loss is not finite.
type suspectedBatch struct {
	step int
	data engine.Batch
}

// suspectBatch keeps such a batch, the first since the last blameLoss. With segments the cause cannot be found: an
// evaluation computes another model, whose attention does not know documents.
func (t *trainer) suspectBatch(m engine.Measured) error {
	task := t.job.task
	if task.Loss == nil || task.Inputs.Segments || finite(m.Loss) || t.suspect != nil || m.Batch < t.recorder.reported {
		return nil
	}
	b, err := t.loader.source.Batch(int64(m.Batch))
	if err != nil {
		return err
	}
	t.suspect = &suspectedBatch{m.Batch + 1, b}
	return nil
}

// blameLoss reports whether the module's loss is the cause of a loss that is not finite; ended is the error that may end
// the run. If the cross-entropy of the same batch is finite, so are the logits, and the model is not the cause. The
// weights are the current ones: a batch that is not finite has not changed them.
func (t *trainer) blameLoss(ctx context.Context, ended error) error {
	s := t.suspect
	if t.suspect = nil; s == nil || ended != nil && !errors.Is(ended, ErrDiverged) {
		return ended
	}
	began, loss := time.Now(), 0.0
	n := t.job.config.Train.Microbatches
	err := t.session.engine.Evaluate(ctx, microbatches{s.data, n}, n, func(m engine.Measured) error {
		loss += m.Loss / float64(n)
		return nil
	})
	t.recorder.pace.pause(time.Since(began))
	switch {
	case err != nil && ended != nil || err != nil && ctx.Err() != nil:
		return ended // the cause remains unknown
	case err != nil:
		return evaluating(fmt.Sprintf("evaluating the batch of step %d", s.step), err)
	case !finite(loss):
		return ended
	}
	text := fmt.Sprintf("hook %s: %s: the loss of step %d is not finite, but the cross entropy of its batch is, %.4g: the loss is at fault, and not the model",
		t.job.task.Loss.File(), hook.BuildLoss, s.step, loss)
	if ended != nil {
		return usererror.New(fmt.Errorf("%w; %s", ended, text))
	}
	t.job.options.Report.Note("%s", text)
	return nil
}

// microbatches are those of a batch, as an evaluation takes them.
type microbatches struct {
	whole engine.Batch
	n     int
}

// Batch returns one microbatch.
func (m microbatches) Batch(i int64) (engine.Batch, error) {
	one := engine.Batch{}
	for _, name := range []string{model.TokensInput, model.TargetsInput} {
		size := len(m.whole[name]) / m.n
		one[name] = m.whole[name][int(i)*size : (int(i)+1)*size]
	}
	return one, nil
}
