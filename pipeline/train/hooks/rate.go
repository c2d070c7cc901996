package hooks

import (
	"context"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Rate asks the learning_rate module for its factors. The module is called once for each step, from step 0 on also in a
// resumed run, so that it remembers the same.
type Rate struct {
	module   *module // nil: the schedule alone decides
	instance *hook.Rate
	schedule optim.Schedule
	factors  []float64 // of the first steps
}

// Open opens the module, which gets the factors of a schedule, and asks for the factor of step 0.
func (r *Rate) Open(ctx context.Context, s optim.Schedule) (err error) {
	if r.module == nil {
		return nil
	}
	instance, err := r.module.Rate(ctx)
	if err != nil {
		return usererror.New(err)
	}
	r.instance, r.schedule = instance, s
	return r.Advance(uninterrupted(ctx), 1)
}

// Factor returns the factor by step, as optim.Config takes it, or nil without a module. Advance must have reached the
// step.
func (r *Rate) Factor() func(step int) float64 {
	if r.instance == nil {
		return nil
	}
	return func(step int) float64 { return r.factors[step] }
}

// Advance asks for the factors of the steps before to. It stops early when ctx ends.
func (r *Rate) Advance(ctx context.Context, to int) error {
	for step := len(r.factors); r.instance != nil && step < to && ctx.Err() == nil; step++ {
		f, err := r.instance.Factor(uninterrupted(ctx), step, r.schedule.Steps, r.schedule.Factor(step))
		if err != nil {
			return usererror.New(err)
		}
		r.factors = append(r.factors, f)
	}
	return nil
}

// askedAhead is the number of steps after which training asks modules for the factors and scalars of the next ones, so
// that a run of many steps begins at once.
const askedAhead = 1000

// Interval is the number of steps after which training calls Advance; 0 without a module.
func (r *Rate) Interval() int {
	if r.instance == nil {
		return 0
	}
	return askedAhead
}

// Close closes the module's instance. The Rate can be opened again.
func (r *Rate) Close() error {
	instance := r.instance
	r.instance, r.factors = nil, nil
	if instance == nil {
		return nil
	}
	return instance.Close()
}
