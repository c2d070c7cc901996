package hook

import (
	"context"
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/wasm"
)

// MaxFactor is the largest factor that a learning_rate hook may return.
const MaxFactor = 1e6

// Rate is an instance that sets the learning rate. It belongs to one goroutine.
type Rate struct {
	m *Module
	i *wasm.Instance
}

// Rate opens an instance that sets the learning rate.
func (m *Module) Rate(ctx context.Context) (*Rate, error) {
	i, err := m.open(ctx)
	return &Rate{m, i}, err
}

// Factor returns the factor on all learning rates at a step, counted from 0, of a run of the given number of steps.
// base is the factor of the schedule. The result is between 0 and MaxFactor.
func (r *Rate) Factor(ctx context.Context, step, steps int, base float64) (float64, error) {
	out := wasm.Of(wasm.Out, []float64{0})
	if _, err := r.i.Call(ctx, LearningRate, step, wasm.Of(wasm.In, []float64{float64(step), float64(steps), base}), out); err != nil {
		return 0, err
	}
	f, err := FactorOf(out)
	if err != nil {
		return 0, r.m.invalid(step, err)
	}
	return f, nil
}

// FactorOf returns the factor that a learning_rate hook stored in its result, or an error if it is invalid.
func FactorOf(out *wasm.Array) (float64, error) {
	f := wasm.Elements[float64](out)
	if len(f) != 1 {
		return 0, fmt.Errorf("found %d factors, expected one", len(f))
	}
	if !(f[0] >= 0 && f[0] <= MaxFactor) {
		return 0, fmt.Errorf("the factor is %v, expected a number from 0 to %v", graph.Real(f[0]), graph.Real(MaxFactor))
	}
	return f[0], nil
}

// Close closes the instance.
func (r *Rate) Close() error { return r.i.Close() }

// Scalars is an instance that sets the scalars of its module's loss. It belongs to one goroutine.
type Scalars struct {
	m *Module
	i *wasm.Instance
	n int
}

// Scalars opens an instance that sets the scalars of a loss with n of them.
func (m *Module) Scalars(ctx context.Context, n int) (*Scalars, error) {
	i, err := m.open(ctx)
	return &Scalars{m, i, n}, err
}

// Values returns the scalars, finite numbers, at a step, counted from 0, of a run of the given number of steps.
func (s *Scalars) Values(ctx context.Context, step, steps int) ([]float32, error) {
	values := make([]float32, s.n)
	out := wasm.Of(wasm.Out, values)
	if _, err := s.i.Call(ctx, LossScalars, step, wasm.Of(wasm.In, []float64{float64(step), float64(steps)}), out); err != nil {
		return nil, err
	}
	if err := sameShape(out, []int{s.n}); err != nil {
		return nil, s.m.invalidOf(LossScalars, step, err)
	}
	for n, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, s.m.invalidOf(LossScalars, step, fmt.Errorf("scalar %d is %v, expected a finite number", n, v))
		}
	}
	return values, nil
}

// Close closes the instance.
func (s *Scalars) Close() error { return s.i.Close() }

// Listener is an instance that receives metrics. It belongs to one goroutine.
type Listener struct {
	m *Module
	i *wasm.Instance
}

// Listener opens an instance that receives metrics, in a state that Save returned; nil is the state of a new instance.
func (m *Module) Listener(ctx context.Context, state []byte) (*Listener, error) {
	i, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	if state != nil {
		if err := i.Load(ctx, state); err != nil {
			i.Close()
			return nil, err
		}
	}
	return &Listener{m, i}, nil
}

// Observe passes the metrics of a step, counted from 1, as JSON. It reports whether the run should end after the step.
func (l *Listener) Observe(ctx context.Context, step int, metrics []byte) (stop bool, err error) {
	r, err := l.i.Call(ctx, OnMetrics, step, wasm.Of(wasm.In, metrics))
	if err == nil && r > 1 {
		err = l.m.invalid(step, fmt.Errorf("found result %d, expected 0 (continue) or 1 (stop)", r))
	}
	return r == 1, err
}

// Save returns the module's state; nil if it keeps none.
func (l *Listener) Save(ctx context.Context) ([]byte, error) { return l.i.Save(ctx) }

// Close closes the instance.
func (l *Listener) Close() error { return l.i.Close() }
