package train

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/measure"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// CompareSchedules plans a config's run with each schedule, with the model and the loss that its hooks build.
func CompareSchedules(ctx context.Context, c config.Config, open layout.OpenDevice, o measure.Options) (p *layout.Comparison, err error) {
	h, err := openHooks(c.Hooks, savedModules(c.Hooks, c.Run.Dir, Silent{}.Note), "", hook.BuildModel, hook.BuildLoss, hook.MapBatch, hook.TokenWeights)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	m, err := openModel(c, h)
	if err != nil {
		return nil, err
	}
	aligned, err := data.ReadAligned(c.Data.Aligned)
	if err != nil {
		return nil, usererror.New(err)
	}
	t, err := newTask(ctx, c, h, m, aligned)
	if err != nil {
		return nil, err
	}
	return layout.Task{Config: c, Model: m, Loss: t.build(), Inputs: t.inputs}.Compare(ctx, open, o)
}
