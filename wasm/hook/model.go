package hook

import (
	"context"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
)

// BuildModel returns the model that the module builds for microbatches of a size: see graphhook.BuildModel. The module
// does not run later.
func (m *Module) BuildModel(ctx context.Context, dims graphhook.Dims) (d *model.Draft, err error) {
	err = m.build(ctx, BuildModel, func(write writer) error {
		d, err = graphhook.BuildModel(dims, write)
		return err
	})
	return d, err
}
