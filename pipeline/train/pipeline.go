package train

import (
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// OpenDevice opens a device by the name that users write; only cmd knows the backends.
type OpenDevice func(name string) (device.Device, error)

// chooser is nil without a cache, and not an interface that holds none.
func chooser(c *tune.Cache) exec.Chooser {
	if c == nil {
		return nil
	}
	return c
}

// rows is the sequences of a microbatch.
func (c Config) rows() int { return c.Train.BatchSize / c.Train.Microbatches }

// microbatches is how many of a batch's microbatches one replica takes.
func (c Config) microbatches() int { return c.Train.Microbatches / c.Pipeline.Replicas }

// engineOptions are what the config says of the pipeline, without devices and cut.
func (c Config) engineOptions() engine.Options {
	p := c.Pipeline
	recompute := make([]bool, p.Stages)
	for i := range recompute {
		recompute[i] = p.Recompute == always
	}
	return engine.Options{
		Layout: engine.Layout{Stages: p.Stages, Chunks: p.Chunks, Replicas: p.Replicas, Delay: p.Delay, Recompute: recompute},
		Model:  c.Model.Config, MicrobatchSize: c.rows(), Microbatches: c.microbatches(), Schedule: c.schedule,
	}
}

// schedule gives the computation of some batches.
func (c Config) schedule(batches int) (*schedule.Generator, error) {
	p := c.Pipeline
	if !p.isFile() {
		return schedule.New(p.Schedule, schedule.Options{Stages: p.Stages, Chunks: p.Chunks, Microbatches: c.microbatches(), Batches: batches})
	}
	s, err := schedule.Read(p.Schedule)
	if err != nil {
		return nil, err
	}
	for _, n := range []struct {
		key        string
		file, here int
	}{{"pipeline.stages", s.Stages, p.Stages}, {"pipeline.chunks", s.Chunks, p.Chunks}, {"train.microbatches (a replica)", s.Microbatches, c.microbatches()}} {
		if n.file != n.here {
			return nil, fmt.Errorf("%s: it has %d where %s is %d", p.Schedule, n.file, n.key, n.here)
		}
	}
	return schedule.Repeat(s, batches)
}

// cut is where the model is cut into parts.
func (r *run) cut() ([]int, error) {
	if p := r.Pipeline; len(p.Cut) > 0 {
		return p.Cut, nil
	}
	return engine.EvenCut(r.Model.Config, r.Pipeline.Stages*r.Pipeline.Chunks), nil
}

// openDevices opens a device for each line: those that are named in turn, or the default. A name may come several times; each
// time it is a logical device of its own.
func openDevices(open OpenDevice, p PipelineConfig) (devices []device.Device, err error) {
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
			return devices, Mistake(fmt.Errorf("pipeline.devices: %w", err))
		}
		devices = append(devices, dev)
	}
	return devices, nil
}
