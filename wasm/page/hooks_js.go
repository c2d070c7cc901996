package page

import (
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

// BuildLoss has the module build a loss, as hook.Module does. It refuses a loss that asks for scalars, since a page has
// no values for them.
func (m *Module) BuildLoss(o wasm.Options, in graphhook.Inputs) (*graphhook.Loss, error) {
	i, err := m.open(o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	loss, err := graphhook.BuildLoss(in, func(b *graphhook.Builder) (h graphhook.Handle, err error) {
		i.builder = b
		err = i.guard(hook.BuildLoss, -1, m.limits.Budget, func() error {
			result, err := i.invoke(hook.BuildLoss, 0, 0)
			h = graphhook.Handle(result)
			if err = i.call.Status(result, err); err != nil {
				return err
			}
			return i.checkKeys()
		})
		return h, err
	})
	if err == nil && len(loss.Scalars) > 0 {
		err = fmt.Errorf("the loss reads the scalar %q, expected none: a page supports no scalars", loss.Scalars[0])
	}
	return loss, m.wrong(hook.BuildLoss, -1, err)
}

// wrong names the module in a mistake that became known when its call had ended.
func (m *Module) wrong(export string, batch int, err error) error {
	var known *wasm.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &wasm.Error{Hook: m.file, Export: export, Batch: batch, Kind: wasm.Failed, Cause: err}
}

// Rate is an instance that sets the learning rate. It belongs to one goroutine.
type Rate struct {
	i                *instance
	table, in, place uint32 // addresses of the descriptors, of the input and of the output
}

const descriptor = 32 // bytes

// Rate opens one.
func (m *Module) Rate(o wasm.Options) (*Rate, error) {
	i, err := m.open(o)
	if err != nil {
		return nil, err
	}
	r := &Rate{i: i}
	err = i.guard(abi.Alloc, -1, m.limits.Budget, func() error {
		for _, part := range []struct {
			at   *uint32
			size int
		}{{&r.table, 2 * descriptor}, {&r.in, 24}, {&r.place, 8}} {
			if *part.at, err = i.alloc(part.size); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		i.close()
		return nil, err
	}
	return r, nil
}

// Factor is the factor on all learning rates at a step of so many, as of hook.Rate.
func (r *Rate) Factor(step, steps int, base float64) (float64, error) {
	in, out := wasm.Of(wasm.In, []float64{float64(step), float64(steps), base}), wasm.Of(wasm.Out, []float64{0})
	err := r.i.guard(hook.LearningRate, step, r.i.limits.Budget, func() error {
		table := make([]byte, 2*descriptor)
		in.Put(table, r.in)
		out.Put(table[descriptor:], r.place)
		if err := errors.Join(r.i.Write(r.table, table), r.i.Write(r.in, in.Data)); err != nil {
			return err
		}
		if err := r.i.call.Status(r.i.invoke(hook.LearningRate, r.table, 2)); err != nil {
			return err
		}
		return r.returned(in, out)
	})
	if err != nil {
		return 0, err
	}
	f, err := hook.FactorOf(out)
	if err != nil {
		return 0, r.i.wrong(hook.LearningRate, step, err)
	}
	return f, nil
}

// returned takes the arrays back.
func (r *Rate) returned(in, out *wasm.Array) error {
	table, err := r.i.Read(r.table, 2*descriptor)
	if err != nil {
		return err
	}
	if _, err := in.Returned(table, 0, r.in, 24); err != nil {
		return &halt{wasm.Shape, err}
	}
	n, err := out.Returned(table[descriptor:], 1, r.place, 8)
	if err != nil {
		return &halt{wasm.Shape, err}
	}
	out.Data, err = r.i.Read(r.place, n)
	return err
}

// Close closes the instance.
func (r *Rate) Close() { r.i.close() }
