package hook

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/tetratelabs/wazero/api"
)

// BuildLoss returns the loss that the module builds: see graphhook.BuildLoss. build_loss runs once. Later only
// loss_scalars runs, which the module must export if the loss has scalars.
func (m *Module) BuildLoss(ctx context.Context, in graphhook.Inputs) (loss *graphhook.Loss, err error) {
	err = m.build(ctx, BuildLoss, func(write writer) error {
		if loss, err = graphhook.BuildLoss(in, write); err == nil && len(loss.Scalars) > 0 && !m.Has(LossScalars) {
			err = fmt.Errorf("the loss reads the scalar %q, but the module exports no %s, which sets its value", loss.Scalars[0], LossScalars)
		}
		return err
	})
	return loss, err
}

// writer has the module write a graph.
type writer = func(*graphhook.Builder) (graphhook.Handle, error)

// build calls do with what one of the module's hooks writes, and names the module in a mistake that do finds.
func (m *Module) build(ctx context.Context, hook string, do func(write writer) error) error {
	i, err := m.open(ctx)
	if err != nil {
		return err
	}
	defer i.Close()
	err = do(func(b *graphhook.Builder) (graphhook.Handle, error) {
		h, err := m.host.serving(i, b, func() (int32, error) { return i.Call(ctx, hook, -1) })
		if err == nil {
			err = i.CheckKeys()
		}
		return graphhook.Handle(h), err
	})
	var known *wasm.Error
	if err != nil && !errors.As(err, &known) {
		err = m.invalid(-1, err)
	}
	return err
}

// LossGrad calls the module's loss_grad, with which build_loss can be checked. It returns the losses of logits [rows ×
// vocab] and the gradient of their mean.
func (m *Module) LossGrad(ctx context.Context, logits []float32, targets []uint32) (losses, gradient []float32, err error) {
	i, err := m.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer i.Close()
	rows := len(targets)
	losses, gradient = make([]float32, rows), make([]float32, len(logits))
	out, onLogits := wasm.Of(wasm.Out, losses), wasm.Of(wasm.Out, gradient, rows, len(logits)/rows)
	in := wasm.Of(wasm.In, logits, rows, len(logits)/rows)
	if _, err = i.Call(ctx, LossGrad, -1, in, wasm.Of(wasm.In, targets), out, onLogits); err != nil {
		return nil, nil, err
	}
	for n, a := range []*wasm.Array{out, onLogits} {
		if err := sameShape(a, [][]int{{rows}, in.Dims}[n]); err != nil {
			return nil, nil, m.invalidOf(LossGrad, -1, fmt.Errorf("%s: %w", [...]string{"losses", "gradient"}[n], err))
		}
	}
	return losses, gradient, nil
}

func sameShape(a *wasm.Array, want []int) error {
	if !slices.Equal(a.Dims, want) {
		return fmt.Errorf("found shape %v, expected %v", a.Dims, want)
	}
	return nil
}

const i32 = api.ValueTypeI32

// graphImports are the functions with which a module builds a graph.
func (h *Host) graphImports() (imports []wasm.Import) {
	for _, im := range graphhook.Imports() {
		imports = append(imports, wasm.Import{Name: im.Name, Params: slices.Repeat([]api.ValueType{i32}, im.Params),
			Results: []api.ValueType{i32}, Call: func(i *wasm.Instance, s []uint64) error {
				b, err := served[*graphhook.Builder](h, i, BuildLoss+" and "+BuildModel)
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
