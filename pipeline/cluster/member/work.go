package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// workload is what a run trains, built again from the coordinator's description.
type workload struct {
	hooks     *hooks.Set
	task      layout.Task
	optimizer *optim.Optimizer
	replica   *replicas.CourseOptions // without Weights and Owns; nil: no replicas train on their own
}

// open builds the model, the loss and the optimizer of a task.
func (m *Member) open(ctx context.Context, t protocol.Task) (w *workload, err error) {
	c, err := config.ParseSaved("the coordinator's config", []byte(t.Config))
	if err != nil {
		return nil, err
	}
	w = &workload{}
	if w.hooks, err = hooks.Open(c.Hooks, hooks.Options{Kinds: hooks.GraphKinds(), Saved: t.Modules,
		CacheDir: m.options.HookCache}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w, err = nil, errors.Join(err, w.close())
		}
	}()
	if ctx.Err() != nil {
		return w, context.Cause(ctx)
	}
	built, err := w.hooks.Model(c.Model, c.Rows())
	if err == nil {
		built, err = layout.InPrecision(c, built)
	}
	if err != nil {
		return w, err
	}
	var aligned []data.Aligned
	for _, a := range t.Aligned {
		aligned = append(aligned, data.Aligned{Name: a.Name, DType: a.DType, Shape: a.Shape})
	}
	task, err := hooks.NewTask(ctx, c, w.hooks, built, aligned, t.Added)
	if err != nil {
		return w, err
	}
	w.task = layout.Task{Config: c, Model: built, Loss: task.Build(), Inputs: task.Inputs}
	if w.optimizer, err = layout.NewOptimizer(c, built, nil); err == nil && c.Pipeline.Independent() {
		w.ofReplica(t.Replica)
	}
	return w, err
}

// ofReplica makes the work belong to one of the replicas that train on their own.
func (w *workload) ofReplica(number int) {
	c := w.task.Config
	w.task.Config, w.task.RankPrefix = c.OfReplica(), replicas.RankPrefix(number)
	w.replica = &replicas.CourseOptions{Settings: replicas.Settings{Model: w.task.Model, Optimizer: w.optimizer, Outer: c.OuterOptimizer(),
		Period: c.Pipeline.LocalSteps, Late: c.Pipeline.Outer.Late, Last: c.Train.Steps, Replicas: c.Pipeline.Replicas}, Number: number}
}

func (w *workload) close() error { return w.hooks.Close() }

// openDevices opens a device for each name. Ranks on the CPU divide its cores.
func (m *Member) openDevices(ctx context.Context, names []string) (devices []device.Device, err error) {
	for i, name := range layout.Names(config.Pipeline{Stages: len(names), Replicas: 1, Devices: names}, 1) {
		if ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), closeDevices(devices))
		}
		dev, err := m.options.OpenDevice(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", names[i], err), closeDevices(devices))
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

// closeDevices closes devices in parallel.
func closeDevices(devices []device.Device) error {
	errs := make([]error, len(devices))
	var closing sync.WaitGroup
	for i, dev := range devices {
		if !slices.Contains(devices[:i], dev) {
			closing.Go(func() { errs[i] = dev.Close() })
		}
	}
	closing.Wait()
	return errors.Join(errs...)
}
