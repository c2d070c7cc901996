package layout

import (
	"context"
	"fmt"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// CheckMemory refuses a task that does not fit devices, the first ranks' or fewer, though all other ranks have as much
// memory as they need. pipeline.memory limits those, too.
func (t Task) CheckMemory(ctx context.Context, optimizer *optim.Optimizer, devices []device.Device) error {
	p := t.Config.Pipeline
	if p.Stages*p.Chunks*p.Replicas == 1 {
		e, _, err := t.Choose(ctx, optimizer, devices, Options{Note: func(string, ...any) {}})
		if err != nil {
			return err
		}
		return e.Close()
	}
	problem, _, err := t.Problem(ctx, devices, measure.Options{Modelled: true})
	if err != nil {
		return err
	}
	for n := 1; len(problem.Devices) < p.Stages*p.Replicas; n++ {
		d := problem.Devices[0]
		d.Name, d.Memory = fmt.Sprint("member's device ", n), p.MemoryBytes()
		problem.Devices = append(problem.Devices, d)
	}
	_, err = choosePlan(t.Config, problem)
	return usererror.New(err)
}
