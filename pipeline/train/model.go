package train

import (
	"context"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/hooks"
	"github.com/gpupipe/gpupipe/pipeline/layout"
)

// openModel is the model of a config, for its microbatches, its pipeline and in its precision.
func openModel(c config.Config, h *hooks.Set) (model.Model, error) {
	m, err := h.Model(c.Model, c.Rows())
	if err == nil {
		err = usererror.New(c.Pipeline.CheckUnits(m))
	}
	if err != nil {
		return nil, err
	}
	return layout.InPrecision(c, m)
}

// makeTask builds the loss and opens its scalars.
func (r *run) makeTask(ctx context.Context) (err error) {
	aligned := r.data.train.Aligned()
	if r.task, err = hooks.NewTask(ctx, r.Config, r.hooks, r.model, aligned); err != nil {
		return err
	}
	if r.task.Unread > 0 {
		r.Report.Note("data.aligned: hooks read %d of its %d tensors", len(aligned)-r.task.Unread, len(aligned))
	}
	return r.openScalars(ctx)
}

// openScalars opens the module that sets the scalars of the loss, if there is one.
func (r *run) openScalars(ctx context.Context) error {
	return r.hooks.Scalars.Open(ctx, r.task.Loss, r.Train.Steps)
}
