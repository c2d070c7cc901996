package hook

import (
	"context"
	"errors"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/tetratelabs/wazero/api"
)

// BuildLoss has the module write the loss of rows tokens over a vocabulary: see graphhook.BuildLoss. It is called once, and nothing of
// the module runs later.
func (m *Module) BuildLoss(ctx context.Context, rows, vocab int) (*graph.Graph, error) {
	i, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	defer i.Close()
	g, err := graphhook.BuildLoss(rows, vocab, func(b *graphhook.Builder) (graphhook.Handle, error) {
		h, err := m.host.serving(i, b, func() (int32, error) { return i.Call(ctx, BuildLoss, -1) })
		return graphhook.Handle(h), err
	})
	var known *wasm.Error
	if err != nil && !errors.As(err, &known) {
		err = m.wrong(-1, err)
	}
	return g, err
}

const i32 = api.ValueTypeI32

// graphImports are the functions with which a module writes a graph.
func (h *Host) graphImports() (imports []wasm.Import) {
	for _, im := range graphhook.Imports() {
		imports = append(imports, wasm.Import{Name: im.Name, Params: slices.Repeat([]api.ValueType{i32}, im.Params), Results: []api.ValueType{i32},
			Call: func(i *wasm.Instance, s []uint64) error {
				b, err := served[*graphhook.Builder](h, i, BuildLoss)
				if err != nil {
					return err
				}
				args := make([]uint32, im.Params)
				for n := range args {
					args[n] = uint32(s[n])
				}
				r, err := im.Call(b, i, args)
				s[0] = uint64(r)
				return err
			}})
	}
	return imports
}
