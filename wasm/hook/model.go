package hook

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
)

// BuildModel returns the model that the module builds for microbatches of a size: see graphhook.BuildModel. The module
// does not run later.
func (m *Module) BuildModel(ctx context.Context, dims graphhook.Dims) (*model.Draft, error) {
	i, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	defer i.Close()
	d, err := graphhook.BuildModel(dims, func(b *graphhook.Builder) (graphhook.Handle, error) {
		h, err := m.host.serving(i, b, func() (int32, error) { return i.Call(ctx, BuildModel, -1) })
		if err == nil {
			err = i.CheckKeys()
		}
		return graphhook.Handle(h), err
	})
	var known *wasm.Error
	if err != nil && !errors.As(err, &known) {
		err = m.invalid(-1, err)
	}
	return d, err
}
