package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
)

// grows reports whether the run will have larger batches than now, which may need more memory.
func (j *job) grows() bool { return j.config.Largest().Train.BatchSize > j.config.Train.BatchSize }

// atLargest is the job at its largest batches, as package layout takes it.
func (j *job) atLargest() (layout.Task, *optim.Optimizer, error) {
	task, c := j.layoutTask(), j.config.Largest()
	c.Pipeline.Cut = task.Config.Pipeline.Cut
	task.Config = c.Alone()
	if c.Pipeline.Independent() {
		task.Config = task.Config.OfReplica()
	}
	optimizer, err := layout.NewOptimizer(task.Config, j.model, nil)
	return task, optimizer, err
}

// ofLargest says of an error that it is of the largest batches, if those are later ones.
func (j *job) ofLargest(err error) error {
	if err == nil || !j.grows() {
		return err
	}
	return fmt.Errorf("train.batch_schedule: batches of %d sequences: %w", j.config.Largest().Train.BatchSize, err)
}

// checkMemory refuses a model that does not fit the devices of this process, whatever the other ranks have.
func (j *job) checkMemory(ctx context.Context, local []string) (err error) {
	p := j.config.Pipeline
	local = local[:min(len(local), p.Stages*p.Replicas)]
	if len(local) == 0 {
		return nil
	}
	devices, err := openDevices(j.options.Devices.Open, local, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevices(devices)) }()
	task, optimizer, err := j.atLargest()
	if err != nil {
		return err
	}
	return j.ofLargest(task.CheckMemory(ctx, optimizer, devices))
}

// checkLargest refuses a run whose largest batches will not fit the devices, before it starts.
func (t *trainer) checkLargest(ctx context.Context) error {
	j := t.job
	if j.options.Devices.Remote != nil || !j.grows() {
		return nil
	}
	task, optimizer, err := j.atLargest()
	if err != nil {
		return err
	}
	devices := t.deployment.devices[:task.Config.Pipeline.Stages*task.Config.Pipeline.Replicas]
	e, _, err := task.Choose(ctx, optimizer, devices, layout.Options{Execute: j.options.Devices.Execute, Tune: t.deployment.tune,
		Costs:   j.options.Devices.Costs,
		Resumed: t.checkpoints.any(), Measuring: j.options.Report.Measuring, Note: func(string, ...any) {}})
	if err != nil {
		return j.ofLargest(err)
	}
	return e.Close()
}

// checkLargestRemote is checkLargest of ranks in other processes, which check their memory when they plan. They have
// one pipeline at a time, so that it comes before the run's own.
func (t *trainer) checkLargestRemote(ctx context.Context) error {
	j := t.job
	if j.options.Devices.Remote == nil || !j.grows() {
		return nil
	}
	r, err := j.remoteTask()
	if err != nil {
		return err
	}
	if r.Task, r.Optimizer, err = j.atLargest(); err != nil {
		return err
	}
	r.Report = measuring{report: r.Report}
	c := r.Config
	r.restale = func(stale int) (*optim.Optimizer, error) { // the run's own number is chosen later
		c.Pipeline.StaleMicrobatches = config.StaleMicrobatches(stale)
		return layout.NewOptimizer(c, j.model, nil)
	}
	e, err := j.options.Devices.Remote(ctx, r)
	if err != nil {
		return j.ofLargest(err)
	}
	return e.Close()
}

// measuring is a Report that passes on what Measuring reports.
type measuring struct {
	Silent
	report Report
}

// Measuring implements Report.
func (m measuring) Measuring(device, what string) { m.report.Measuring(device, what) }
