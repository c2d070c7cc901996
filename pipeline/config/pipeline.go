package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/unitname"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Pipeline is how the model is spread over devices, and the schedule of their work. A rank is one stage of one replica.
type Pipeline struct {
	Schedule          string            `yaml:"schedule" help:"Order of the work: sync (1f1b, or 2bw with pipeline.delay 1), the name of a schedule, or the path of a schedule file."`
	Stages            int               `yaml:"stages" help:"Stages of the model, in each replica."`
	Chunks            int               `yaml:"chunks" help:"Model chunks (virtual stages) in a stage; more than 1 with interleaved." default:"the schedule's"`
	Cut               []CutPoint        `yaml:"cut,flow" help:"Where each chunk after the first begins: layers.4 is before that layer, layers.4.mlp between its attention and its feed-forward layer or mixture, head before the head. Numbers count the embedding, 0, the layers and the head. Empty: chosen by measured times."`
	Devices           []string          `yaml:"devices,flow" help:"Device of each rank, repeated if there are fewer. Empty: the default device for all. Ranks on cpu:0 divide its cores; cpu:0/4 is 4 threads for a rank."`
	Replicas          int               `yaml:"replicas" help:"Data-parallel pipelines that share each batch's microbatches."`
	LocalSteps        int               `yaml:"local_steps" help:"Steps that replicas train on their own between two exchanges of weights, as in DiLoCo. 0: replicas average the gradients of each batch. See docs/REPLICAS.md."`
	Outer             Outer             `yaml:"outer" help:"Exchanges of replicas with local_steps."`
	Delay             int               `yaml:"delay" help:"1 if microbatches may lack the update of the batch before (see stale_microbatches), else 0. 2bw has 1; one stage with 1 computes the same." default:"the schedule's"`
	StaleMicrobatches StaleMicrobatches `yaml:"stale_microbatches" help:"With a delay: how many microbatches of each batch lack the update of the batch before. auto: as few as cost nothing, stages − 1 + depth, or all on one stage. all: as published for 2bw."`
	Depth             Depth             `yaml:"depth" help:"With 1f1b or 2bw: how many microbatches more than stages the first stage has in flight; later stages have a share. More hide slow links between machines, take memory, and with 2bw are stale. auto: as many as the links need, and 0 on one machine."`
	Correction        string            `yaml:"correction" help:"Correction of the delay."`
	ErrorFeedback     bool              `yaml:"error_feedback" help:"The same as pipeline.correction: error_feedback."`
	Memory            string            `yaml:"memory" help:"Memory of each device, as in 24GiB. Empty: what the device reports, which most GPUs do not."`
	Recompute         string            `yaml:"recompute" help:"Recompute activations in the backward pass; auto does so where memory is short."`
	Wire              Wire              `yaml:",inline"`
	Processes         Processes         `yaml:",inline"`
}

// Processes are the processes that compute for the run. They are keys of the section pipeline.
type Processes struct {
	Isolate  string `yaml:"isolate" help:"process: run each rank's device in a process of its own, restarted if it fails. Not on Windows."`
	Restarts int    `yaml:"restarts" help:"Restarts of device processes without a new checkpoint in between. One more fault stops the run."`
	Watchdog string `yaml:"watchdog" help:"Longest time without progress before a device in a process counts as hung, as in 90s or 5m."`
}

// Isolated reports whether each rank's device is in a process of its own.
func (p Processes) Isolated() bool { return p.Isolate == IsolateProcess }

// ScheduleSync is the value of pipeline.schedule that pipeline.delay decides: schedule.ForDelay. Package schedule lists
// the others.
const ScheduleSync = "sync"

// Values of pipeline.recompute.
const (
	RecomputeAuto   = "auto"
	RecomputeAlways = "always"
	RecomputeNever  = "never"
)

// Values of pipeline.isolate.
const (
	IsolateNone    = "none"
	IsolateProcess = "process"
)

// complete fills in the keys whose defaults depend on other keys.
func (p *Pipeline) complete(d *strictyaml.Document) {
	given := func(key string) bool { return d.Given("pipeline." + key) }
	if p.Schedule == ScheduleSync {
		p.Schedule = schedule.ForDelay(p.Delay)
	}
	if f, ok := schedule.Find(p.Schedule); ok {
		if !given("delay") {
			p.Delay = max(0, f.Delay) // −1 differs by stage: validation refuses such a schedule
		}
		if !given("chunks") {
			p.Chunks = f.Chunks
		}
	}
	p.completeDepth()
	p.completeStaleness()
	// error_feedback and correction say the same. If one of them is given, the other follows; validation compares both.
	switch {
	case p.ErrorFeedback && !given("correction"):
		p.Correct(optim.CorrectionErrorFeedback)
	case !given("error_feedback"):
		p.Correct(p.Correction)
	}
}

// Correct sets pipeline.correction, and pipeline.error_feedback to whether it is error feedback.
func (p *Pipeline) Correct(correction string) {
	p.Correction, p.ErrorFeedback = correction, correction == optim.CorrectionErrorFeedback
}

// HasScheduleFile reports whether the schedule is a file, and not one of schedule.Families.
func (p Pipeline) HasScheduleFile() bool {
	_, known := schedule.Find(p.Schedule)
	return !known && p.Schedule != ScheduleSync
}

func (c Config) validatePipeline() error {
	p := c.Pipeline
	for _, n := range []struct {
		key              string
		value, from, max int
	}{
		{"pipeline.stages", p.Stages, 1, 1 << 12}, {"pipeline.chunks", p.Chunks, 1, 1 << 12},
		{"pipeline.replicas", p.Replicas, 1, 1 << 10}, {"pipeline.delay", p.Delay, 0, 1},
		{"pipeline.restarts", p.Processes.Restarts, 0, 1 << 20},
	} {
		if n.value < n.from || n.value > n.max {
			return Invalid(n.key, n.value, "an integer from %d to %d", n.from, n.max)
		}
	}
	if err := oneOf("pipeline.recompute", p.Recompute); err != nil {
		return err
	}
	if err := oneOf("pipeline.isolate", p.Processes.Isolate); err != nil {
		return err
	}
	if err := p.Wire.validate(); err != nil {
		return err
	}
	if _, err := p.Processes.WatchdogTimeout(); err != nil {
		return Invalid("pipeline.watchdog", p.Processes.Watchdog, "%v", err)
	}
	if _, err := ParseBytes(p.Memory); err != nil {
		return Invalid("pipeline.memory", p.Memory, "%v", err)
	}
	ranks := p.Stages * p.Replicas
	switch {
	case c.Train.Microbatches%p.Replicas != 0:
		return Invalid("train.microbatches", c.Train.Microbatches, "a multiple of pipeline.replicas (%d)", p.Replicas)
	case len(p.Devices) > ranks:
		return Invalid("pipeline.devices", listed(p.Devices), "at most %d, one for each of %d stages of %d replicas", ranks, p.Stages,
			p.Replicas)
	case len(p.Cut) > 0 && len(p.Cut) != p.Stages*p.Chunks-1:
		return Invalid("pipeline.cut", listed(p.Cut), "%d places where chunks begin (%d stages of %d chunks), or []: automatic",
			p.Stages*p.Chunks-1, p.Stages, p.Chunks)
	}
	if !c.Model.FromHook() { // a hook's units are known once its module has run
		if err := p.CheckUnits(c.Model.Config); err != nil {
			return err
		}
	}
	for _, check := range []func() error{c.validateSchedule, c.validateCorrection, c.validateOuter} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// listed formats a list as YAML does.
func listed[T any](list []T) string { return strings.ReplaceAll(fmt.Sprint(list), " ", ", ") }

// CheckUnits refuses more model chunks than the model has units, and cuts at places that it does not have.
func (p Pipeline) CheckUnits(m model.Model) error {
	if units := m.Units(); p.Stages*p.Chunks > units {
		return Invalid("pipeline.stages", p.Stages, "at most one chunk per unit: the model has %d (%s) for %d stages of %d chunks", units,
			unitname.Range(model.UnitNames(m), 0, units), p.Stages, p.Chunks)
	}
	_, err := p.CutUnits(m)
	return err
}

// WatchdogTimeout is how long a device in a process of its own may show no progress before it counts as hung.
func (p Processes) WatchdogTimeout() (time.Duration, error) {
	d, err := time.ParseDuration(p.Watchdog)
	if err != nil || d < time.Second || d > 1000*time.Hour {
		return 0, fmt.Errorf("a time from 1s to 1000h, as in 90s or 5m")
	}
	return d, nil
}

// MemoryBytes is the memory budget of a device; 0: what the device reports.
func (p Pipeline) MemoryBytes() int64 {
	n, err := ParseBytes(p.Memory)
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return n
}

// Schedule returns the actions of some batches.
func (c Config) Schedule(batches int) (*schedule.Generator, error) {
	p := c.Pipeline
	if !p.HasScheduleFile() {
		return schedule.New(p.Schedule, schedule.Options{Stages: p.Stages, Chunks: p.Chunks, Microbatches: c.MicrobatchesPerReplica(),
			Depth: p.Depth.Number(), Stale: c.scheduledStale(), Batches: batches})
	}
	s, err := c.ScheduleFile()
	if err != nil {
		return nil, err
	}
	return schedule.Repeat(s, batches)
}

// ScheduleFile reads the schedule file that pipeline.schedule names.
func (c Config) ScheduleFile() (*schedule.Schedule, error) {
	p := c.Pipeline
	s, err := schedule.Read(p.Schedule)
	switch {
	case err != nil:
		return nil, err
	case len(s.Actions[0]) > 0 && s.Actions[0][0].Kind == schedule.Evaluate:
		return nil, fmt.Errorf("%s: it evaluates, expected a schedule that trains", p.Schedule)
	case s.Batches > schedule.PatternBatches: // memory is planned for that many
		return nil, fmt.Errorf("%s: it has %d batches, expected a pattern of at most %d", p.Schedule, s.Batches, schedule.PatternBatches)
	}
	for _, n := range []struct {
		key        string
		file, here int
	}{{"pipeline.stages", s.Stages, p.Stages}, {"pipeline.chunks", s.Chunks, p.Chunks},
		{"train.microbatches (a replica)", s.Microbatches, c.MicrobatchesPerReplica()}} {
		if n.file != n.here {
			return nil, fmt.Errorf("%s: it has %d where %s is %d", p.Schedule, n.file, n.key, n.here)
		}
	}
	return s, nil
}

// ScheduleProblem returns an error of package schedule as it is, unless the number of microbatches does not fit the
// schedule: the error that it then returns names the keys to change.
func (c Config) ScheduleProblem(err error) error {
	var e *schedule.MicrobatchesError
	if !errors.As(err, &e) {
		return err
	}
	need, batch := e.Next*c.Pipeline.Replicas, ""
	if c.Train.BatchSize%need != 0 {
		batch = fmt.Sprintf(" and train.batch_size to a multiple of %d", need)
	}
	return Invalid("train.microbatches", c.Train.Microbatches, "%s. To use %s, set train.microbatches to %d%s", e.Expected,
		c.Pipeline.Schedule, need, batch)
}

func (c Config) validateSchedule() error {
	p := c.Pipeline
	names := strings.Join(schedule.TrainableNames(), ", ")
	if f, _ := schedule.Find(p.Schedule); f.Untrainable != "" {
		return Invalid("pipeline.schedule", p.Schedule, "one to train with (sync, %s): %s", names, f.Untrainable)
	}
	if err := cmp.Or(c.validateDepth(), c.validateStaleness()); err != nil {
		return err
	}
	g, err := c.Schedule(1)
	if err != nil {
		if p.HasScheduleFile() {
			return Invalid("pipeline.schedule", p.Schedule, "one of sync, %s, or a schedule file: %v", names, err)
		}
		if problem := c.ScheduleProblem(err); problem != err {
			return problem
		}
		return Invalid("pipeline.schedule", p.Schedule, "%d stages, %d chunks and %d microbatches a replica to fit it: %v", p.Stages,
			p.Chunks, c.MicrobatchesPerReplica(), err)
	}
	if d := g.Head().Delay; d != p.Delay {
		return Invalid("pipeline.delay", p.Delay, "%d, the delay of schedule %s", d, p.Schedule)
	}
	if n := g.Head().Stale; n != c.Stale() {
		return Invalid("pipeline.stale_microbatches", p.StaleMicrobatches, "%d, as in schedule %s", n, p.Schedule)
	}
	if k := g.Head().Depth; k != p.Depth.Number() {
		return Invalid("pipeline.depth", p.Depth, "%d, as in schedule %s", k, p.Schedule)
	}
	return nil
}

func (c Config) validateCorrection() error {
	p := c.Pipeline
	if err := oneOf("pipeline.correction", p.Correction); err != nil {
		return err
	}
	switch {
	case p.ErrorFeedback != (p.Correction == optim.CorrectionErrorFeedback):
		return Invalid("pipeline.error_feedback", p.ErrorFeedback, "%v, as pipeline.correction is %s", !p.ErrorFeedback, p.Correction)
	case p.Correction != optim.CorrectionNone && p.Delay == 0:
		reason := "pipeline.delay"
		if p.StaleMicrobatches == 0 {
			reason = "pipeline.stale_microbatches"
		}
		return Invalid("pipeline.correction", p.Correction, "none: it corrects delayed updates, and %s is 0", reason)
	}
	return nil
}
