package train

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// replicaSettings are the settings of replicas that train on their own.
func (j *job) replicaSettings() replicas.Settings {
	c := j.config
	return replicas.Settings{Model: j.model, Optimizer: j.optimizer, Outer: c.OuterOptimizer(), Period: c.Pipeline.LocalSteps,
		Late: c.Pipeline.Outer.Late, Last: c.Train.Steps, Replicas: c.Pipeline.Replicas}
}

// exchanging is a Pipeline of replicas that train on their own, or a copy of its variables.
type exchanging interface {
	// State lists the state beside the outer weights.
	State() []replicas.Variable
	// Position is where the replicas are after their last step.
	Position() *replicas.Position
}

// restoring is a Pipeline of replicas that train on their own, see replicas.Owner.Restore.
type restoring interface {
	exchanging
	Restore(s replicas.Saved, at *replicas.Position) (fresh int, err error)
}

// openReplicas plans replicas that train on their own. All of them are cut as the first one is.
func (d *deployment) openReplicas(ctx context.Context, resumed bool) error {
	c, o := d.job.config, d.job.options
	task := d.job.layoutTask()
	task.Config = task.Config.OfReplica()
	p := replicas.Options{Settings: d.job.replicaSettings(), Execute: o.Devices.Execute}
	if p.Execute == nil {
		p.Execute = engine.Execute(nil, c.Pipeline.MemoryBytes())
	}
	var ranks []engine.RankPlan
	for r := range c.Pipeline.Replicas {
		own := d.devices[r*c.Pipeline.Stages : (r+1)*c.Pipeline.Stages]
		task.RankPrefix = replicas.RankPrefix(r)
		e, err := d.planReplica(ctx, task, own, resumed)
		if err != nil {
			return err
		}
		p.Engines, p.Devices, ranks = append(p.Engines, e), append(p.Devices, own[0]), append(ranks, e.Ranks()...)
	}
	if err := layout.FitTogether(ranks, d.devices, c.Pipeline.MemoryBytes()); err != nil {
		return layout.MarkTooLarge(err)
	}
	d.engine = replicas.New(p)
	return nil
}

// planReplica plans one replica: as the layout has it, or as the first one of a layout to choose.
func (d *deployment) planReplica(ctx context.Context, task layout.Task, devices []device.Device, resumed bool) (*engine.Engine, error) {
	o := d.job.options
	if d.layout == nil {
		e, l, err := task.Choose(ctx, d.job.optimizer, devices, layout.Options{Execute: o.Devices.Execute, Tune: d.tune,
			Costs: o.Devices.Costs, Resumed: resumed, Measuring: o.Report.Measuring, Note: o.Report.Note})
		if d.layout = l; l != nil {
			l.Prediction = nil // it is of one replica, without exchanges
		}
		return e, err
	}
	again := d.layout.Engine
	again.Optimizer, again.Devices, again.RankPrefix = d.job.optimizer, devices, task.RankPrefix
	e, err := engine.New(again)
	if err != nil {
		return nil, layout.MarkTooLarge(err)
	}
	for _, why := range e.Untuned() {
		o.Report.Note("%s; others run in their place, so that the bits are not those of the first replica's kernels", why)
	}
	return e, nil
}

// upload writes the initial state to the pipeline. at is where a checkpoint's replicas are that train on their own.
func (d *deployment) upload(w *weights.Source, at *replicas.Position) error {
	if err := w.UploadPipeline(d.engine, d.job.secondVersion()); err != nil {
		return err
	}
	p, ok := d.engine.(restoring)
	if !ok {
		return nil
	}
	fresh, err := p.Restore(savedReplicas{w}, at)
	if err != nil || at == nil {
		return err
	}
	n, note := d.job.config.Pipeline.Replicas, d.job.options.Report.Note
	switch {
	case n > at.Count:
		note("pipeline.replicas: the checkpoint has %d, the config %d: the last %d begin at the shared weights with a fresh optimizer",
			at.Count, n, n-at.Count)
	case n < at.Count:
		note("pipeline.replicas: the checkpoint has %d, the config %d: the last %d end", at.Count, n, at.Count-n)
	case fresh > 0:
		note("%d of %d replicas have no state in the checkpoint: they begin at the shared weights with a fresh optimizer", fresh, n)
	}
	return nil
}

// record records what has happened to replicas that train on their own while a checkpoint was written.
func (d *deployment) record() {
	if r, ok := d.engine.(interface{ Record() }); ok {
		r.Record()
	}
}

// savedReplicas is the state in a checkpoint of replicas.
type savedReplicas struct{ source *weights.Source }

// Tensor implements replicas.Saved.
func (s savedReplicas) Tensor(name string, t graph.Type) ([]byte, error) {
	data, err := s.source.StateTensor(name, t)
	return data, usererror.New(err)
}

// addReplicas adds the state of replicas to a checkpoint.
func addReplicas(c *checkpoint.Contents, p exchanging) {
	for _, v := range p.State() {
		c.Optimizer = append(c.Optimizer, tensor(v.Name, v.Type, v.Read))
	}
}

// position is where replicas that train on their own are; nil if they do not.
func (d *deployment) position() *replicas.Position {
	if p, ok := d.engine.(exchanging); ok {
		return p.Position()
	}
	return nil
}

// openWeights opens the weights and the state of a checkpoint.
func (j *job) openWeights(c *checkpoint.Checkpoint, at *replicas.Position) (*weights.Source, error) {
	if j.config.Pipeline.Independent() != (at != nil) {
		return nil, fmt.Errorf("%s: state.json does not fit pipeline.local_steps", c.Dir)
	}
	if at != nil {
		return weights.FromReplicas(c, j.model)
	}
	return weights.FromCheckpoint(c, j.model, j.optimizer, j.secondVersion())
}

// replicaKeys are keys that runs of replicas that train on their own may change.
func replicaKeys(key string) bool {
	return key == "pipeline.replicas" || key == "pipeline.local_steps" || strings.HasPrefix(key, "pipeline.outer.")
}
