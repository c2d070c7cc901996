package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// recorder writes the measurements of each step to metrics.jsonl, system.jsonl and TensorBoard's event files, reports
// them, passes them to hooks, and writes the trace. A step is recorded late, because its validation loss comes after
// it: until then it is pending.
type recorder struct {
	job       *job
	logs      logs
	system    system
	events    *metrics.Events
	trace     *trace.Writer // nil: nothing is traced
	pace      pace
	pending   *pendingStep // nil: the last step is recorded
	reported  int          // the newest step that was recorded; after a restart it may be done again
	loss      *float64     // of the last step that was not skipped
	stopped   string       // the hook that ends the run
	announced bool         // Report.Start was called
}

// pendingStep is the last step, until it is recorded.
type pendingStep struct {
	Progress
	system   []metrics.Value // how the step used the machines; the time comes first
	observed bool            // by hooks
}

// report is the step's report; nil: no step is pending.
func (s *pendingStep) report() *Progress {
	if s == nil {
		return nil
	}
	return &s.Progress
}

// open opens the files of a run that has recorded the steps up to done. With traced, no step is left to trace, and the
// trace of the steps before stays.
func (r *recorder) open(done int, traced bool) (err error) {
	dir := r.job.config.Run.Dir
	if err := r.logs.open(dir, done, len(r.job.model.Routing(0, r.job.model.Units())) > 0); err != nil {
		return err
	}
	if err := r.job.journal.open(filepath.Join(dir, journalFile)); err != nil {
		return err
	}
	if r.events, err = metrics.NewEvents(filepath.Join(dir, eventsDir), done+1); err != nil || traced {
		return err
	}
	if err := keepTrace(dir); err != nil {
		return err
	}
	r.trace, err = trace.Create(filepath.Join(dir, traceFile), "gpupipe "+dir)
	return err
}

// keepTrace renames the trace of a run that is resumed, the first to trace.1.json, so that each part has its own file.
func keepTrace(dir string) error {
	parts, err := trace.Earlier(dir)
	if err != nil {
		return err
	}
	next := 1
	if len(parts) > 0 {
		next = parts[len(parts)-1] + 1
	}
	err = atomicfile.Rename(filepath.Join(dir, traceFile), filepath.Join(dir, trace.EarlierName(next)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// openTracks gives the trace a track for the run, for each rank and for the batches of hooks. It returns what records
// the events of the ranks on some devices.
func (r *recorder) openTracks(ranks []engine.RankPlan, devices []device.Device, feeder *hooks.Feeder) engine.Tracer {
	r.system.open(ranks, devices)
	if r.trace == nil {
		return nil
	}
	r.trace.Tracks(trace.RunTrack)
	for _, rank := range ranks {
		r.trace.Process(rank.Member, rank.Tracks()...)
	}
	if r.job.config.Pipeline.Independent() {
		r.trace.Tracks(trace.ExchangeTrack)
	}
	if feeder != nil {
		r.trace.Tracks(trace.DataTrack)
		feeder.Trace(r.trace)
	}
	r.system.usage.trace = r.trace
	return &r.system.usage
}

// rewind prepares for steps that are done again: it drops the pending step and a hook's request to end the run.
func (r *recorder) rewind() { r.pending, r.stopped = nil, "" }

// flush records the pending step, if there is one.
func (r *recorder) flush(ctx context.Context) error {
	if r.pending == nil {
		return nil
	}
	p := *r.pending
	r.pending = nil
	return r.record(ctx, p)
}

// ask passes the pending step to hooks before it is recorded: if one ends the run, the final evaluation belongs to it.
func (r *recorder) ask(ctx context.Context) error {
	if r.pending == nil || r.pending.observed {
		return nil
	}
	r.pending.observed = true
	return r.observe(ctx, r.pending.Step, r.pending.values())
}

// record records one step. A step that is done again after a restart only passes to the hooks, which start over.
func (r *recorder) record(ctx context.Context, p pendingStep) error {
	values := p.values()
	if !p.Skipped {
		r.loss = &p.Loss
	}
	if p.Step > r.reported {
		logged := values
		if r.job.links != nil {
			logged = slices.Concat(values, r.job.links())
		}
		if err := r.logs.steps.Append(p.Step, logged...); err != nil {
			return usererror.New(err)
		}
		if err := r.logs.recordLoads(p.Step, p.Steps, p.Routing); err != nil {
			return usererror.New(err)
		}
		if err := r.events.Scalars(p.Step, time.Now(), logged...); err != nil {
			return usererror.New(err)
		}
		if err := r.recordSystem(p); err != nil {
			return usererror.New(err)
		}
		r.job.options.Report.Step(p.Progress)
	}
	var err error
	if !p.observed {
		err = r.observe(ctx, p.Step, values)
	}
	r.reported = max(r.reported, p.Step)
	r.job.hooks.Flush(r.job.options.Report.Note)
	return err
}

// recordSystem records how a step used the machines. A step whose measurements come from a checkpoint has none.
func (r *recorder) recordSystem(p pendingStep) error {
	if len(p.system) == 0 {
		return nil
	}
	if err := r.logs.system.Append(p.Step, p.system...); err != nil {
		return err
	}
	return r.events.Scalars(p.Step, time.Now(), p.system[1:]...) // TensorBoard has its own time
}

// observe passes a step's measurements to hooks, except for the speed, so that they decide the same every time. A run
// that a hook stops ends at the end of a segment, so that no batch in progress decides where.
func (r *recorder) observe(ctx context.Context, step int, values []metrics.Value) error {
	m := map[string]any{"step": step}
	for _, v := range values {
		if m[v.Name] = v.Value; !metrics.Finite(v.Value) {
			m[v.Name] = fmt.Sprint(v.Value)
		}
	}
	delete(m, "tokens_per_s")
	stopped, err := r.job.hooks.Metrics.Observe(ctx, step, m)
	if stopped != "" && r.stopped == "" {
		r.stopped = stopped
		r.noteStep(eventNote, step, "%s: asked at step %d that the run end", stopped, step)
	}
	return err
}

// evaluated adds an evaluation to the pending step and records it. The evaluation does not count as training time.
func (r *recorder) evaluated(ctx context.Context, e Evaluation, began time.Time) error {
	r.paused(trace.EvaluateEvent, began)
	if r.pending != nil {
		r.pending.Evaluation = e
	}
	return r.flush(ctx)
}

// paused traces an interruption of training that began some time ago, and excludes it from the speed.
func (r *recorder) paused(event string, began time.Time) {
	r.pace.pause(time.Since(began))
	r.trace.Complete(trace.RunTrack, trace.Run, event, began, time.Since(began), nil)
}

// noteStep reports a message about a step, unless the step is done again after a restart.
func (r *recorder) noteStep(kind string, step int, format string, args ...any) {
	if step > r.reported {
		r.job.journal.noteEvent(kind, step, format, args...)
	}
}

func (r *recorder) close() error {
	errs := []error{r.logs.close()}
	if r.events != nil {
		errs = append(errs, r.events.Close())
	}
	if r.trace != nil {
		errs = append(errs, r.trace.Close())
	}
	return errors.Join(errs...)
}

// plotLoss draws the losses of metrics.jsonl and returns the path of the plot, or "" if there is nothing to draw.
func plotLoss(c config.Config, parameters int64, entropy float64) (string, error) {
	records, err := metrics.Read(filepath.Join(c.Run.Dir, metricsFile))
	if err != nil {
		return "", usererror.New(err)
	}
	path := filepath.Join(c.Run.Dir, "loss.png")
	err = metrics.PlotLoss(path, c.Run.Dir, subtitle(c, parameters), records, entropy)
	if errors.Is(err, metrics.ErrNoPoint) { // all batches were skipped
		return "", nil
	}
	return path, usererror.New(err)
}

// plotLoads draws the largest load of an expert over the mean load, by step and layer, and returns the path of the
// plot, or "" if there is nothing to draw. If there are more than mostLayers layers, it draws mostLayers of them,
// evenly spaced.
func plotLoads(c config.Config, m model.Model) (string, error) {
	layers := m.Routing(0, m.Units())
	if len(layers) == 0 {
		return "", nil
	}
	records, err := metrics.Read(filepath.Join(c.Run.Dir, metricsFile))
	if err != nil {
		return "", usererror.New(err)
	}
	const mostLayers = 8
	var series []metrics.Series
	for i, n := 0, min(len(layers), mostLayers); i < n; i++ {
		layer := layers[i*(len(layers)-1)/max(n-1, 1)]
		series = append(series, metrics.FromRecords(records, peakName(layer), fmt.Sprintf("layer %d", layer), metrics.Curve))
	}
	path := filepath.Join(c.Run.Dir, "experts.png")
	axes := metrics.Axes{Title: c.Run.Dir, Subtitle: subtitle(c, m.Count()), X: "step", Y: "largest load of an expert / mean load",
		FromZero: true}
	err = metrics.Draw(path, axes, append(series, metrics.Series{Name: "even loads", Kind: metrics.Level, Y: []float64{1}})...)
	if errors.Is(err, metrics.ErrNoPoint) {
		return "", nil
	}
	return path, usererror.New(err)
}

// subtitle describes the run in a line below the title of its plot.
func subtitle(c config.Config, parameters int64) string {
	s := fmt.Sprintf("%s, %.3g M parameters, %s", c.Model.Arch, float64(parameters)/1e6, c.Optimizer.Name())
	if c.Pipeline.Stages > 1 {
		s += fmt.Sprintf(", %s on %d stages", c.Pipeline.Schedule, c.Pipeline.Stages)
	}
	return s
}
