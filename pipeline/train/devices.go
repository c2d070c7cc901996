package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/runtime/device"
)

func (r *run) makeOptimizer(context.Context) (err error) {
	r.optimizer, err = layout.NewOptimizer(r.Config, r.model, r.hooks.Rate.Factor())
	return usererror.New(err)
}

// newEngine plans the pipeline. After a restart it has the same layout as before.
func (r *run) newEngine(ctx context.Context) (err error) {
	if r.layout != nil {
		o := r.layout.Engine
		o.Optimizer, o.Devices = r.optimizer, r.devices
		r.engine, err = engine.New(o)
		return layout.MarkTooLarge(err)
	}
	r.engine, r.layout, err = r.toTrain().Choose(ctx, r.optimizer, r.devices, layout.Options{Execute: r.Execute, Tune: r.Tune, Costs: r.Costs,
		Resumed: r.saved >= 0, Measuring: r.Report.Measuring, Note: r.Report.Note})
	return err
}

func (r *run) toTrain() layout.Task {
	return layout.Task{Config: r.Config, Model: r.model, Loss: r.task.Build(), Inputs: r.task.Inputs}
}

// openDevices opens a device for each rank. It repeats the configured names in order, and each name is opened as often as
// it occurs. again reports that the devices were open before.
func openDevices(open layout.OpenDevice, p config.Pipeline, again bool) (devices []device.Device, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, dev := range devices {
			err = errors.Join(err, dev.Close())
		}
		devices = nil
	}()
	for i := range p.Stages * p.Replicas {
		name := ""
		if len(p.Devices) > 0 {
			name = p.Devices[i%len(p.Devices)]
		}
		dev, err := open(name)
		if err != nil {
			return devices, usererror.New(fmt.Errorf("%s: %w", opening(name, again), err))
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

// opening describes a failed attempt to open a device. The config is not at fault if it was opened before.
func opening(name string, again bool) string {
	switch {
	case !again:
		return "pipeline.devices"
	case name == "":
		return "opening the default device again"
	}
	return fmt.Sprintf("opening %s again", name)
}
