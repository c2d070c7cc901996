package hooks

import (
	"context"

	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Batches are the modules that change batches: first all map_batch, then all token_weights, each in the order of the
// config.
type Batches struct {
	maps, weights []*module
}

// None reports whether no module changes batches.
func (b *Batches) None() bool { return len(b.maps)+len(b.weights) == 0 }

func (b *Batches) mapsBatches() bool { return len(b.maps) > 0 }

// batchHook is the instances of one module.
type batchHook struct {
	*module
	instances *hook.Batches
	order     *sequencer // of a stateful module's steps
}

// open starts up to n instances of each module.
func (b *Batches) open(n int) (all []*batchHook) {
	for _, modules := range [][]*module{b.maps, b.weights} {
		for _, m := range modules {
			all = append(all, &batchHook{module: m, instances: m.Batches(n)})
		}
	}
	return all
}

// rewind prepares for the batches from a step on, with the module's state before it. No batch may be in progress.
func (h *batchHook) rewind(step int, state []byte) {
	h.order = newSequencer(int64(step))
	h.instances.Restore(state)
}

// apply changes a batch and returns the module's state after it, nil of a module without state. A stateful module gets
// batches in order.
func (h *batchHook) apply(ctx context.Context, p Position, b *hook.Batch) (state []byte, err error) {
	work := func() (err error) {
		if err = h.instances.Apply(ctx, int(p.Batch), b); err == nil {
			state, err = h.instances.Save(ctx)
		}
		return err
	}
	if !h.Stateful() {
		return nil, work()
	}
	err = h.order.do(ctx, int64(p.Step), work)
	return state, err
}
