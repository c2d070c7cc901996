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

// suspect is a batch whose loss, that a module wrote, is not finite.
type suspect struct {
	step int
	data engine.Batch
}

// suspects keeps such a batch, the first since it was last asked whose fault they are. With segments that cannot be told: what an evaluation
// computes is another model, whose attention knows no documents.
func (r *run) suspects(m engine.Measured) error {
	if r.task.Loss == nil || r.task.Inputs.Segments || finite(m.Loss) || r.suspect != nil || m.Batch < r.told { // after a restart what was told is not told again
		return nil
	}
	b, err := r.source.Batch(int64(m.Batch))
	if err != nil {
		return err
	}
	r.suspect = &suspect{m.Batch + 1, b}
	return nil
}

// blamed tells whether it is the module's fault, of a run that may be about to end with an error. What a model computes is the logits: when
// the cross entropy of the same batch is finite, so are they. That is at the weights that training has come to; a batch that is not
// finite has not changed them.
func (r *run) blamed(ctx context.Context, ended error) error {
	s := r.suspect
	if r.suspect = nil; s == nil || ended != nil && !errors.Is(ended, ErrDiverged) {
		return ended
	}
	began, loss := time.Now(), 0.0
	n := r.Train.Microbatches
	err := r.engine.Evaluate(ctx, microbatches{s.data, n}, n, func(m engine.Measured) error {
		loss += m.Loss / float64(n)
		return nil
	})
	r.pace.pause(time.Since(began))
	switch {
	case err != nil && ended != nil || err != nil && ctx.Err() != nil:
		return ended // whose fault it is remains unknown
	case err != nil:
		return evaluating(fmt.Sprintf("evaluating the batch of step %d", s.step), err)
	case !finite(loss):
		return ended
	}
	text := fmt.Sprintf("hook %s: %s: the loss of step %d is not finite, but the cross entropy of its batch is, %.4g: the loss is at fault, and not the model",
		r.task.Loss.File(), hook.BuildLoss, s.step, loss)
	if ended != nil {
		return usererror.New(fmt.Errorf("%w; %s", ended, text))
	}
	r.Report.Note("%s", text)
	return nil
}

// microbatches are those of a batch, as an evaluation takes them.
type microbatches struct {
	whole engine.Batch
	n     int
}

// Batch is one of them.
func (m microbatches) Batch(i int64) (engine.Batch, error) {
	one := engine.Batch{}
	for _, name := range []string{model.TokensInput, model.TargetsInput} {
		size := len(m.whole[name]) / m.n
		one[name] = m.whole[name][int(i)*size : (int(i)+1)*size]
	}
	return one, nil
}
