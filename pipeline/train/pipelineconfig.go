package train

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Values of pipeline.schedule and pipeline.correction that others follow from.
const (
	syncSchedule  = "sync" // 1f1b, or 2bw where a delay is asked for
	asyncSchedule = "2bw"
	noCorrection  = "none"
	errorFeedback = "error_feedback"
)

// Values of pipeline.recompute.
const (
	automatic = "auto"
	always    = "always"
	never     = "never"
)

// Values of pipeline.isolate.
const (
	nowhere   = "none"
	inProcess = "process"
)

// complete fills in what follows from other keys.
func (p *PipelineConfig) complete(d *strictyaml.Document) {
	given := func(key string) bool { return d.Given("pipeline." + key) }
	switch {
	case p.Schedule == asyncSchedule && !given("delay"):
		p.Delay = 1
	case p.Schedule == syncSchedule && p.Delay == 1:
		p.Schedule = asyncSchedule
	case p.Schedule == syncSchedule:
		p.Schedule = "1f1b"
	}
	if p.Schedule == "interleaved" && !given("chunks") {
		p.Chunks = 2
	}
	switch {
	case p.ErrorFeedback && !given("correction"):
		p.Correction = errorFeedback
	case p.Correction == errorFeedback && !given("error_feedback"):
		p.ErrorFeedback = true
	}
}

// isFile tells a schedule of the user's own from those that are known by name.
func (p PipelineConfig) isFile() bool {
	names, _ := schedule.Names()
	return !slices.Contains(names, p.Schedule)
}

func (c Config) validatePipeline() error {
	p := c.Pipeline
	for _, n := range []struct {
		key              string
		value, from, max int
	}{
		{"pipeline.stages", p.Stages, 1, 1 << 12}, {"pipeline.chunks", p.Chunks, 1, 1 << 12},
		{"pipeline.replicas", p.Replicas, 1, 1 << 10}, {"pipeline.delay", p.Delay, 0, 1}, {"pipeline.restarts", p.Restarts, 0, 1 << 20},
	} {
		if n.value < n.from || n.value > n.max {
			return bad(n.key, n.value, "an integer from %d to %d", n.from, n.max)
		}
	}
	if err := oneOf("pipeline.recompute", p.Recompute, automatic, always, never); err != nil {
		return err
	}
	if err := oneOf("pipeline.isolate", p.Isolate, nowhere, inProcess); err != nil {
		return err
	}
	if _, err := p.silence(); err != nil {
		return bad("pipeline.watchdog", p.Watchdog, "%v", err)
	}
	if _, err := bytesOf(p.Memory); err != nil {
		return bad("pipeline.memory", p.Memory, "%v", err)
	}
	lines := p.Stages * p.Replicas
	switch {
	case c.Train.Microbatches%p.Replicas != 0:
		return bad("train.microbatches", c.Train.Microbatches, "a multiple of pipeline.replicas (%d)", p.Replicas)
	case len(p.Devices) > lines:
		return bad("pipeline.devices", listed(p.Devices), "at most %d, one for each of %d stages of %d replicas", lines, p.Stages, p.Replicas)
	case len(p.Cut) > 0 && len(p.Cut) != p.Stages*p.Chunks-1:
		return bad("pipeline.cut", listed(p.Cut), "%d units at which parts begin (%d stages of %d chunks), or []: automatic",
			p.Stages*p.Chunks-1, p.Stages, p.Chunks)
	}
	if !c.Model.written() { // else the units are known when the module has run
		if err := p.fits(c.Model.Config); err != nil {
			return err
		}
	}
	if err := c.validateSchedule(); err != nil {
		return err
	}
	return c.validateCorrection()
}

// listed writes a list as YAML does.
func listed[T any](list []T) string { return strings.ReplaceAll(fmt.Sprint(list), " ", ", ") }

// fits refuses more parts than a model has units, and cuts where it has none.
func (p PipelineConfig) fits(m model.Model) error {
	units := m.Units()
	if p.Stages*p.Chunks > units {
		return bad("pipeline.stages", p.Stages, "at most one part a unit: the model has %d (%s) for %d stages of %d chunks", units, unitsOf(m), p.Stages, p.Chunks)
	}
	before := 0
	for _, u := range p.Cut {
		if u <= before || u >= units {
			return bad("pipeline.cut", listed(p.Cut), "ascending units from 1 to %d (0 is %s, %d %s)", units-1, m.UnitScope(0), units-1, m.UnitScope(units-1))
		}
		before = u
	}
	return nil
}

// unitsOf names a model's units.
func unitsOf(m model.Model) string {
	if _, ok := m.(model.Config); ok {
		return "embedding, layers, head"
	}
	if m.Units() == 1 {
		return m.UnitScope(0)
	}
	return m.UnitScope(0) + " to " + m.UnitScope(m.Units()-1)
}

// silence is how long a device in a process may show no progress until it counts as hung.
func (p PipelineConfig) silence() (time.Duration, error) {
	d, err := time.ParseDuration(p.Watchdog)
	if err != nil || d < time.Second || d > 1000*time.Hour {
		return 0, fmt.Errorf("a time from 1s to 1000h, as in 90s or 5m")
	}
	return d, nil
}

// memory is what a device may take, in bytes; 0: what it tells.
func (c Config) memory() int64 {
	n, err := bytesOf(c.Pipeline.Memory)
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return n
}

func (c Config) validateSchedule() error {
	p := c.Pipeline
	if p.Schedule == "pipedream" || p.Schedule == "eval" {
		return bad("pipeline.schedule", p.Schedule, "one to train with: pipedream's delay differs by stage (gpupipe schedule shows it), eval has no backward")
	}
	g, err := c.schedule(1)
	if err != nil {
		names, _ := schedule.Names()
		if p.isFile() {
			names = slices.DeleteFunc(names, func(n string) bool { return n == "pipedream" || n == "eval" }) // not to train with
			return bad("pipeline.schedule", p.Schedule, "one of sync, %s, or a schedule file: %v", strings.Join(names, ", "), err)
		}
		return bad("pipeline.schedule", p.Schedule, "%d stages, %d chunks and %d microbatches a replica to fit it: %v", p.Stages, p.Chunks, c.microbatches(), err)
	}
	if d := g.Head().Delay; d != p.Delay {
		return bad("pipeline.delay", p.Delay, "%d, the delay of schedule %s", d, p.Schedule)
	}
	return nil
}

func (c Config) validateCorrection() error {
	p := c.Pipeline
	if err := oneOf("pipeline.correction", p.Correction, noCorrection, errorFeedback, "weight_prediction", "dc_asgd"); err != nil {
		return err
	}
	switch {
	case p.ErrorFeedback != (p.Correction == errorFeedback):
		return bad("pipeline.error_feedback", p.ErrorFeedback, "%v, as pipeline.correction is %s", !p.ErrorFeedback, p.Correction)
	case p.Correction != noCorrection && p.Delay == 0:
		return bad("pipeline.correction", p.Correction, "none: it corrects delayed updates, and pipeline.delay is 0")
	}
	return nil
}
