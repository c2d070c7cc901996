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
		return o, usererror.Errorf("--jobs: found %d, expected an integer from 1 to 1024", f.Jobs)
	}
	for i, name := range f.Device {
		if _, err := parseDevice(name); err != nil {
			return o, usererror.Errorf("--device: %w", err)
		}
		if slices.Contains(f.Device[:i], name) {
			return o, usererror.Errorf("--device: found %s twice, expected each device once (--jobs is the number of runs on each)", name)
		}
	}
	return o, nil
}

// compare carries out the runs of a comparison and prints its report, or with --dry-run what there is to do.
func compare[R runs.Run](a *app, f runsFlags, load func() (runs.Comparison[R], error)) error {
	p := &runsProgress[R]{progress: newProgress(a, f.JSON)}
	o, err := f.options(a, p.progress)
	if err != nil {
		return err
	}
	if p.comparison, err = load(); err != nil {
		return err
	}
	if f.DryRun {
		return listRuns(a, p.comparison, f.JSON)
	}
	rep, err := runs.Compare(a.ctx, p.comparison, o, p.show)
	if err := p.conclude(a, err); err != nil {
		return err
	}
	if f.JSON {
		return a.printJSON(event{"event": "report", "report": rep.Results})
	}
	a.printf("\n")
	a.markdown(rep.Markdown)
	a.printf("\n%s", lines(rep.Files))
	return nil
}

// runsProgress shows a set of runs: a line for every run that has ended, and the runs under way.
type runsProgress[R runs.Run] struct {
	*progress
	comparison runs.Comparison[R]
	latest     string // the best of as many outcomes as known says
	known      int
	done       int
}

func (s *runsProgress[R]) show(p runs.Progress[R]) {
	s.done = p.Done
	if s.json {
		if p.Ended != nil {
			s.emit(event{"event": "run", "run": s.comparison.Event(*p.Ended), "done": p.Done, "total": p.Total, "at_most": p.AtMost,
				"left_ns": p.Left})
		}
		return
	}
	count := fmt.Sprintf("%d/%d", p.Done, p.Total)
	if p.AtMost {
		count = fmt.Sprintf("%d/≤%d", p.Done, p.Total)
	}
	var rest []string
	if len(p.Outcomes) != s.known {
		s.known, s.latest = len(p.Outcomes), s.comparison.Best(p.Outcomes)
	}
	rest = append(rest, s.latest)
	if p.Left > 0 {
		rest = append(rest, p.Left.Round(time.Second).String()+" left")
	}
	rest = slices.DeleteFunc(rest, func(text string) bool { return text == "" })
	if p.Ended != nil {
		s.line.keep(append([]string{fmt.Sprintf("%s  %s: %s", count, p.Ended.Run, s.comparison.Ending(*p.Ended))}, rest...)...)
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

// plannedRuns is the remaining work of a comparison, for JSON.
type plannedRuns[R runs.Run] struct {
	Ended   []any `json:"ended"`
	Waiting []R   `json:"waiting"`
	Later   int   `json:"later"` // an upper bound of the runs that the waiting ones decide
}

// listRuns is the dry run of a comparison: the runs that have ended, and those to do.
func listRuns[R runs.Run](a *app, c runs.Comparison[R], asJSON bool) error {
	p, err := runs.Plan(c)
	if err != nil {
		return err
	}
	if asJSON {
		out := plannedRuns[R]{[]any{}, append([]R{}, p.Waiting...), p.Later}
		for _, e := range p.Ended {
			out.Ended = append(out.Ended, c.Event(e))
		}
		return a.printJSON(out)
	}
	for _, e := range p.Ended {
		a.prose(fmt.Sprintf("done   %s: %s\n", e.Run, c.Ending(e)))
	}
	for _, r := range p.Waiting {
		a.prose(fmt.Sprintf("to do  %s\n", r))
	}
	total := len(p.Ended) + len(p.Waiting)
	text := fmt.Sprintf("\n%d runs, %d of them done", total, len(p.Ended))
	if p.Later > 0 {
		text += fmt.Sprintf("; then at most %d more, %s: at most %d in all", p.Later, c.Later(), total+p.Later)
	}
	a.prose(text + "\n")
	return nil
}

// lines are the files of a report, one a line.
func lines(files []string) string { return strings.Join(append(files, ""), "\n") }
