package hooks

import (
	"context"
	"maps"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Scalars asks loss_scalars for the scalars of a loss. The module is called once for each step, from step 0 on also in
// a resumed run, so that it remembers the same.
type Scalars struct {
	instance *hook.Scalars // nil: the loss has none
	steps    int           // of the run
	next     int           // the first step that was not asked for
	values   map[int][]float32
}

// Open opens the module of a loss and asks for the scalars of step 0. A nil loss, or one without scalars, needs none.
func (s *Scalars) Open(ctx context.Context, l *Loss, steps int) error {
	if l == nil || len(l.Scalars) == 0 {
		return nil
	}
	instance, err := l.module.Scalars(ctx, len(l.Scalars))
	if err != nil {
		return usererror.New(err)
	}
	*s = Scalars{instance: instance, steps: steps, values: map[int][]float32{}}
	return s.Advance(ctx, 0, min(1, steps))
}

// At returns the scalars of a step within the last Advance.
func (s *Scalars) At(step int) []float32 { return s.values[step] }

// Advance asks for the scalars of the steps before to and drops the scalars of the steps before from. It stops early
// when ctx ends.
func (s *Scalars) Advance(ctx context.Context, from, to int) error {
	if s.instance == nil {
		return nil
	}
	for ; s.next < to && ctx.Err() == nil; s.next++ {
		v, err := s.instance.Values(uninterrupted(ctx), s.next, s.steps)
		if err != nil {
			return usererror.New(err)
		}
		if s.next >= from {
			s.values[s.next] = v
		}
	}
	maps.DeleteFunc(s.values, func(step int, _ []float32) bool { return step < from })
	return nil
}

// Interval is the number of steps after which training calls Advance; 0 without scalars.
func (s *Scalars) Interval() int {
	if s.instance == nil {
		return 0
	}
	return askedAhead
}

// Close closes the module's instance. The Scalars can be opened again.
func (s *Scalars) Close() error {
	instance := s.instance
	*s = Scalars{}
	if instance == nil {
		return nil
	}
	return instance.Close()
}
