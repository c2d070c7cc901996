package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// record is the measurement of a device.
type record struct {
	times []partition.Time // by kind of unit
	link  partition.Link
}

// measured runs the programs of each kind of unit, and transfers of its activations, unless the cache has them.
func (t Target) measured(ctx context.Context, dev device.Device, kinds []kind, peers []device.Device, o Options) (r record, cached bool,
	err error) {
	cached = true
	for _, k := range kinds {
		seconds, all, err := t.cached(ctx, dev, k, o)
		if err != nil {
			return r, false, fmt.Errorf("%s: %w", k.unit.Name, err)
		}
		r.times = append(r.times, k.total(seconds))
		cached = cached && all
	}
	known := false
	r.link, known, err = o.transfers(ctx, dev, max(kinds[0].unit.Out, smallest), peers)
	return r, cached && known, err
}

// cached returns the seconds of each of a unit's programs, and whether the cache had them all.
func (t Target) cached(ctx context.Context, dev device.Device, k kind, o Options) (seconds map[string]float64, all bool, err error) {
	seconds, keys := map[string]float64{}, map[string]string{}
	var missing []string
	for _, program := range k.programs {
		if keys[program], err = o.Cache.programKey(dev, k.plan, program); err != nil {
			return nil, false, err
		}
		e, ok := o.Cache.get(keys[program])
		if !ok {
			missing = append(missing, program)
		}
		seconds[program] = e.Seconds
	}
	if len(missing) == 0 {
		return seconds, true, nil
	}
	s, err := k.plan.Load()
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := t.fill(s, k); err != nil {
		return nil, false, err
	}
	for _, program := range missing {
		what := fmt.Sprintf("program %s of %s", program, k.unit.Name)
		if o.Progress != nil {
			o.Progress(dev.Info().Name, what)
		}
		if seconds[program], err = timeOf(ctx, s, program); err != nil {
			return nil, false, fmt.Errorf("program %s: %w", program, err)
		}
		o.Cache.put(keys[program], dev, what, entry{Seconds: seconds[program]})
	}
	return seconds, false, nil
}

// timeOf measures a program.
func timeOf(ctx context.Context, s *exec.Session, program string) (float64, error) {
	d, err := best(ctx, func(n int) error {
		for range n {
			if err := s.Run(program); err != nil {
				return err
			}
		}
		return s.Sync()
	})
	return d.Seconds(), err
}

// total is the Time of a unit, from the times of its programs.
func (k kind) total(seconds map[string]float64) partition.Time {
	x := partition.Time{Forward: seconds[forwardProgram], Backward: seconds[backwardProgram],
		InputGrad: seconds[inputGradProgram], WeightGrad: seconds[weightGradProgram], Update: seconds[normsProgram]}
	for v, share := range k.shares {
		x.Update += share * seconds[updateProgram(v)]
	}
	return x
}

// fill uploads the inputs of the programs: weights, activations and their gradients, tokens, hyperparameters. Gradients
// of weights and the optimizer's state are zero.
func (t Target) fill(s *exec.Session, k kind) error {
	rng, parameters := rand.New(rand.NewPCG(1, 2)), map[string]bool{}
	for _, p := range t.Model.Parameters() {
		parameters[p.Name] = true
	}
	for _, v := range s.Variables() {
		var data []byte
		switch {
		case v.ID == model.TokensInput || v.ID == model.TargetsInput:
			ids := make([]float64, v.Type.Shape.Len())
			for i := range ids {
				ids[i] = float64(rng.IntN(t.Model.Size().VocabSize))
			}
			data = exec.Encode(graph.U32, ids)
		case v.ID == model.ActIn || v.ID == model.GradOut || parameters[v.ID]:
			xs := make([]float32, v.Type.Shape.Len())
			for i := range xs {
				xs[i] = 0.1 * (rng.Float32() - 0.5)
			}
			data = exec.F32Bytes(xs)
		default:
			continue
		}
		if err := s.WriteVariable(v.ID, data); err != nil {
			return err
		}
	}
	for v := range k.shares {
		if err := s.SetInput(updateProgram(v), optim.HyperparametersInput,
			exec.F32Bytes(t.Optimizer.Hyperparameters(0, false).Float32s())); err != nil {
			return err
		}
	}
	return nil
}

// best is the shortest time of one repetition of work. Short disturbances do not matter where it exceeds a second.
func best(ctx context.Context, work func(n int) error) (time.Duration, error) {
	return tune.Best(time.Second, func(n int) (time.Duration, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		start := time.Now()
		err := work(n)
		return time.Since(start) / time.Duration(n), err
	})
}
