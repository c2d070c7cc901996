package train

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// CompareSchedules plans a config's run with each schedule, with the model and the loss that its hooks build.
// Of replicas that train on their own it plans one.
func CompareSchedules(ctx context.Context, c config.Config, open layout.OpenDevice, o measure.Options) (p *layout.Comparison, err error) {
	if c.Pipeline.Independent() {
		c = c.OfReplica()
	}
	err = withTask(ctx, c, func(t layout.Task) error {
		p, err = t.Compare(ctx, open, o)
		return err
	})
	return p, err
}

// PlanReplicas plans replicas of a config's run that train on their own, on machines that slow links connect.
func PlanReplicas(ctx context.Context, c config.Config, open layout.OpenMachine, h layout.Homes,
	o measure.Options) (p *layout.ReplicaPlan, err error) {
	err = withTask(ctx, c, func(t layout.Task) error {
		p, err = t.PlanReplicas(ctx, open, h, o)
		return err
	})
	return p, err
}

// Kernels plans a config's run on devices that open returns, one per rank, and gives dump the kernels of its programs
// as the run would load them. Of replicas that train on their own it plans one. It reads no data and trains nothing.
func Kernels(ctx context.Context, c config.Config, open layout.OpenDevice, dump device.Dump) error {
	if c.Pipeline.Independent() {
		c = c.OfReplica()
	}
	return withTask(ctx, c, func(t layout.Task) (err error) {
		optimizer, err := layout.NewOptimizer(c, t.Model, nil)
		if err != nil {
			return usererror.New(err)
		}
		devices, err := openDevices(open, layout.Names(c.Pipeline, 1), false)
		if err != nil {
			return err
		}
		defer func() {
			for _, dev := range devices {
				err = errors.Join(err, dev.Close())
			}
		}()
		_, _, err = t.Choose(ctx, optimizer, devices, layout.Options{Execute: dumping(dump), Note: func(string, ...any) {}})
		return err
	})
}

// dumping returns an executor that plans programs and dumps their kernels. Nothing can be loaded.
func dumping(dump device.Dump) engine.Executor {
	return func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (engine.Planned, error) {
		p, err := exec.NewPlan(dev, graphs, exec.Options{Pools: pools})
		if err != nil {
			return engine.Planned{}, err
		}
		for _, name := range slices.Sorted(maps.Keys(graphs)) {
			all, err := p.Shaders(name)
			if err != nil {
				return engine.Planned{}, err
			}
			for i := range all {
				s := &all[i]
				if err := dump(device.Kernel{Device: dev.Info().Name, Program: name, Shader: s, Format: s.Format(),
					Code: []byte(s.Source)}); err != nil {
					return engine.Planned{}, err
				}
			}
		}
		return engine.Planned{Memory: p.Memory()}, nil
	}
}

// withTask calls f with what a config trains, with the model and the loss that its hooks build.
func withTask(ctx context.Context, c config.Config, f func(layout.Task) error) (err error) {
	h, err := hooks.Open(c.Hooks, hooks.Options{Saved: hooks.SavedModules(c.Hooks, c.Run.Dir, Silent{}.Note),
		Kinds: []string{hook.BuildModel, hook.BuildLoss, hook.MapBatch, hook.TokenWeights}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	m, err := openModel(c, h)
	if err != nil {
		return err
	}
	aligned, err := data.ReadAligned(c.Data.Aligned)
	if err != nil {
		return usererror.New(fielderror.In("data", err))
	}
	t, err := hooks.NewTask(ctx, c, h, m, aligned, h.BatchInputs(c.Data))
	if err != nil {
		return err
	}
	return f(layout.Task{Config: c, Model: m, Loss: t.Build(), Inputs: t.Inputs})
}
