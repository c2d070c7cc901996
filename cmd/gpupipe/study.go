package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/study"
)

type studyCommand struct {
	Grid   string   `arg:"" help:"YAML file of the study."`
	Set    []string `help:"Override a key of every run's config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Jobs   int      `help:"Number of runs at the same time." default:"1"`
	Device string   `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null. The same as --set pipeline.devices=[NAME]." placeholder:"NAME"`
	DryRun bool     `help:"List and count the runs, and train nothing."`
	JSON   bool     `help:"Print one JSON object a line: each finished run, then the report."`
}

func (c *studyCommand) Help() string {
	return `Trains every optimizer in every mode of a grid over several seeds, at learning rates that it tunes first, and reports what one step
of delay and what wire formats cost each of them. The grid:

  base: config.yaml      # beside the grid; or the config itself
  set: {train.steps: 9}  # keys of the config, for all runs
  optimizers:            # by optimizer.name, or by any name with that in set
    adamw: {lrs: [1e-3, 2e-3, 4e-3], set: {optimizer.weight_decay: 0.1}}
    muon:
      lrs: [0.01, 0.02, 0.04]
      times_lr: {optimizer.adamw.lr: 0.15} # a rate that moves with lr
  modes: [sync, delay, delay+error_feedback, delay-1of4]
                         # delay-1of4: a quarter of the microbatches is stale.
                         # Any delay may have +error_feedback,
                         # +weight_prediction or +dc_asgd. With stages
                         # from 2 any mode may have a wire format: @bf16,
                         # @int8, @exchange-bf16, as in sync@int8
  seeds: [1, 2, 3]       # of weights and of the order of the data
  tune_seeds: [1]        # on which learning rates are chosen
  tuning: synchronous    # modes share the rate tuned without delay; or each
                         # mode has its own; or both
  stages: [1]            # 1 simulates the delay on one device
  pipelines:             # seconds a batch, to plot the loss over time
    1f1b, 4 stages: {mode: sync, seconds: 1.2}
  dir: studies/mine

The folder holds a run folder for each run in runs/, and table.md, table.csv, results.json and plots. The same command continues a
study that was stopped. All runs use the default kernels of the device, untimed, so that runs differ only in what is compared.

Examples:
  gpupipe study examples/one-step-delay/study.yaml --dry-run
  gpupipe study examples/one-step-delay/study.yaml --jobs 2
  gpupipe study my.yaml --set train.steps=1000 --json`
}

func (c *studyCommand) Run(a *app) error {
	if c.Jobs < 1 || c.Jobs > 1024 {
		return usererror.New(fmt.Errorf("--jobs: found %d, expected an integer from 1 to 1024", c.Jobs))
	}
	set := c.Set
	if c.Device != "" {
		set = append(set, "pipeline.devices=["+quoted(c.Device)+"]")
	}
	g, err := study.Load(c.Grid, set)
	if err != nil {
		return err
	}
	if c.DryRun {
		return c.list(a, g)
	}
	p := &studyProgress{progress: newProgress(a, c.JSON)}
	o := study.Options{Jobs: c.Jobs, OpenDevice: a.openDevice, OpenWorker: a.openWorker, Progress: p.show, Note: p.Note}
	rep, err := study.Execute(a.ctx, g, o)
	p.line.clear()
	if errors.Is(err, study.ErrInterrupted) {
		a.note("stopped after %d runs; the same command continues", p.done)
		return errInterrupted
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(event{"event": "report", "report": rep})
	}
	a.printf("\n%s\n", rep.Markdown(g))
	for _, file := range rep.Files {
		a.printf("%s\n", file)
	}
	return nil
}

// list is the dry run.
func (c *studyCommand) list(a *app, g *study.Grid) error {
	p, err := study.Plan(g)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(p)
	}
	for _, e := range p.Ended {
		a.printf("done   %s: %s\n", e.Run, ending(e))
	}
	for _, r := range p.Waiting {
		a.printf("to do  %s\n", r)
	}
	total := len(p.Ended) + len(p.Waiting)
	if p.Later > 0 {
		a.prose(fmt.Sprintf("\n%d runs, %d of them done; then at most %d more, at the learning rates that these select: at most %d in all\n", total,
			len(p.Ended), p.Later, total+p.Later))
		return nil
	}
	a.printf("\n%d runs, %d of them done\n", total, len(p.Ended))
	return nil
}

// ending describes how a run ended.
func ending(e study.Ended) string {
	if e.ValLoss == nil {
		return "diverged"
	}
	return fmt.Sprintf("validation loss %.4f", *e.ValLoss)
}

// studyProgress shows a study: a line for every run that has ended, and the runs under way.
type studyProgress struct {
	*progress
	done int
}

func (s *studyProgress) show(p study.Progress) {
	s.done = p.Done
	if s.json {
		if p.Ended != nil {
			s.emit(event{"event": "run", "run": p.Ended, "done": p.Done, "total": p.Total, "at_most": p.AtMost, "left_ns": p.Left})
		}
		return
	}
	count := fmt.Sprintf("%d/%d", p.Done, p.Total)
	if p.AtMost {
		count = fmt.Sprintf("%d/≤%d", p.Done, p.Total)
	}
	left := ""
	if p.Left > 0 {
		left = p.Left.Round(time.Second).String() + " left"
	}
	if p.Ended != nil {
		s.line.keep(fmt.Sprintf("%s  %s: %s", count, p.Ended.Run, ending(*p.Ended)), left)
		return
	}
	s.line.show(strings.Join(append([]string{count, left}, p.Running...), fieldGap))
}
