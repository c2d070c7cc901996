package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// runsFlags are the flags of commands that carry out many runs.
type runsFlags struct {
	Set    []string `help:"Override a key of every run's config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Jobs   int      `help:"Number of runs at the same time, on each device." default:"1"`
	Device []string `help:"Device that computes whole runs, repeatable: cpu:0, webgpu:0, vulkan:0, null. Default: those of the config." placeholder:"NAME"`
	DryRun bool     `help:"List and count the runs, and train nothing."`
	JSON   bool     `help:"Print one JSON object a line: each finished run, then the report."`
}

// options checks the flags. p shows the runs' notes.
func (f runsFlags) options(a *app, p *progress) (runs.Options, error) {
	o := runs.Options{Jobs: f.Jobs, Devices: f.Device, OpenDevice: a.openDevice, OpenWorker: a.workers(), Saves: &a.saves, Note: p.Note}
	if f.Jobs < 1 || f.Jobs > 1024 {
		return o, usererror.New(fmt.Errorf("--jobs: found %d, expected an integer from 1 to 1024", f.Jobs))
	}
	for i, name := range f.Device {
		if _, err := parseDevice(name); err != nil {
			return o, usererror.New(fmt.Errorf("--device: %w", err))
		}
		if slices.Contains(f.Device[:i], name) {
			return o, usererror.New(fmt.Errorf("--device: found %s twice, expected each device once (--jobs is the number of runs on each)", name))
		}
	}
	return o, nil
}

// runsProgress shows a set of runs: a line for every run that has ended, and the runs under way.
type runsProgress[R runs.Run] struct {
	*progress
	ending func(runs.Ended[R]) string               // how a run ended
	event  func(runs.Ended[R]) any                  // the same for JSON
	best   func(outcomes map[R]runs.Outcome) string // the best result so far; nil: not shown
	latest string                                   // best of as many outcomes as known says
	known  int
	done   int
}

func (s *runsProgress[R]) show(p runs.Progress[R]) {
	s.done = p.Done
	if s.json {
		if p.Ended != nil {
			s.emit(event{"event": "run", "run": s.event(*p.Ended), "done": p.Done, "total": p.Total, "at_most": p.AtMost,
				"left_ns": p.Left})
		}
		return
	}
	count := fmt.Sprintf("%d/%d", p.Done, p.Total)
	if p.AtMost {
		count = fmt.Sprintf("%d/≤%d", p.Done, p.Total)
	}
	var rest []string
	if s.best != nil {
		if len(p.Outcomes) != s.known {
			s.known, s.latest = len(p.Outcomes), s.best(p.Outcomes)
		}
		rest = append(rest, s.latest)
	}
	if p.Left > 0 {
		rest = append(rest, p.Left.Round(time.Second).String()+" left")
	}
	rest = slices.DeleteFunc(rest, func(text string) bool { return text == "" })
	if p.Ended != nil {
		s.line.keep(append([]string{fmt.Sprintf("%s  %s: %s", count, p.Ended.Run, s.ending(*p.Ended))}, rest...)...)
		return
	}
	s.line.show(slices.Concat([]string{count}, rest, p.Running)...)
}

// conclude handles the error of the execution.
func (s *runsProgress[R]) conclude(a *app, err error) error {
	s.line.clear()
	if errors.Is(err, runs.ErrInterrupted) {
		a.note("stopped after %d runs; the same command continues", s.done)
		return errInterrupted
	}
	return err
}

// listRuns prints the dry run of a set: the runs that have ended, and those to do.
func listRuns[R runs.Run](a *app, p runs.Planned[R], ending func(runs.Ended[R]) string) {
	for _, e := range p.Ended {
		a.prose(fmt.Sprintf("done   %s: %s\n", e.Run, ending(e)))
	}
	for _, r := range p.Waiting {
		a.prose(fmt.Sprintf("to do  %s\n", r))
	}
}

// lines are the files of a report, one a line.
func lines(files []string) string { return strings.Join(append(files, ""), "\n") }
