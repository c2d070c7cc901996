package main

import (
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/gpupipe/gpupipe/pipeline/runs/study"
)

type studyCommand struct {
	Grid string `arg:"" hub:"config" help:"YAML file of the study, or the folder of a study to continue."`
	runsFlags
}

func (c *studyCommand) Help() string {
	return `Trains every optimizer in every mode of a grid over several seeds, at learning rates that it tunes first, and reports what one step
of delay, wire formats and replicas that seldom talk cost each of them. The grid:

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
                         # @int8, @exchange-bf16, as in sync@int8.
                         # With pipeline.replicas: alone, one of them with its
                         # share of the batch; local-32: 32 local steps;
                         # local-32-late-8: exchanges that are 8 steps late,
                         # which may have +error_feedback or +eager. Both may
                         # have a format of messages, as in local-32@int4
  seeds: [1, 2, 3]       # of weights and of the order of the data
  tune_seeds: [1]        # on which learning rates are chosen
  tuning: synchronous    # modes share the rate tuned without delay; or each
                         # mode has its own; or both
  stages: [1]            # 1 simulates the delay on one device
  pipelines:             # seconds a batch, to plot the loss over time
    1f1b, 4 stages: {mode: sync, seconds: 1.2}
  dir: studies/mine
  summaries: results     # optional folder beside the grid: some KiB a run
                         # that ends. Where they are, the study goes on, also
                         # on another machine without the run folders

The folder holds a run folder for each run in runs/, and table.md, table.csv, results.json and plots. The same command continues a
study that was stopped. SIGUSR1 saves a checkpoint of each run in progress. All runs use the default kernels of the device, untimed, so
that runs differ only in what is compared.

Examples:
  gpupipe study examples/one-step-delay/study.yaml --dry-run
  gpupipe study examples/one-step-delay/study.yaml --jobs 2
  gpupipe study my.yaml --set train.steps=1000 --json`
}

func (c *studyCommand) Run(a *app) error {
	return compare(a, c.runsFlags, func() (runs.Comparison[study.Run], error) { return study.Load(c.Grid, c.Set) })
}
