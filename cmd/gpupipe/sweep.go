package main

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/gpupipe/gpupipe/pipeline/runs/sweep"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

type sweepCommand struct {
	Sweep string `arg:"" name:"file" hub:"config" help:"YAML file of the sweep, or the folder of a sweep to continue."`
	runsFlags
}

func (c *sweepCommand) Help() string {
	return `Searches for good values of any keys of a config by training many runs. The file:

  base: config.yaml           # beside the sweep; or the config itself
  set: {train.steps: 450}     # keys of the config, for all runs
  search: grid                # all combinations; random draws some;
                              # halving trains many for a few steps, and the
                              # best ones further
  keys:                       # any keys of the config
    optimizer.name: [adamw, muon]                   # values
    optimizer.lr: {min: 1e-4, max: 1e-2, log: true} # or a range of numbers;
                              # points: 5 divides it, for the grid
  runs: 20                    # trials of random and halving
  seed: 1                     # of the draws: the same file, the same trials
  seeds: [1]                  # of weights and of the order of the data; the
                              # score of a trial is the mean over them
  metric: val_loss            # or val_bits_per_byte, loss, tokens_per_s; or
                              # with goal: min or max any name of
                              # metrics.jsonl. The score is its last value
  halving: {factor: 3, min_steps: 50} # compare after 50 and 150 steps, keep
                              # the best third, train it to train.steps
  dir: sweeps/mine

With halving, the survivors continue from their checkpoints. All runs follow the schedule of train.steps: those stopped early have not
reached its end. A run that diverges or fails is a trial without a score. The folder holds a run folder for each run in runs/, table.md,
table.csv, results.json, a figure for each key, and best.yaml, the best config. The same command continues a sweep that was stopped, and
tries failed runs again. SIGUSR1 saves a checkpoint of each run in progress. All runs use the default kernels of the device, untimed.

With several devices each computes whole runs at the same time. gpupipe study is a sweep over optimizers and delays with a report of its
own. gpupipe lr-range finds a learning rate to start from with one run.

Examples:
  gpupipe sweep examples/learning-rates/sweep.yaml --dry-run
  gpupipe sweep examples/learning-rates/sweep.yaml --jobs 2
  gpupipe sweep my.yaml --device webgpu:0 --device webgpu:1
  gpupipe train sweeps/mine/best.yaml`
}

func (c *sweepCommand) Run(a *app) error {
	return compare(a, c.runsFlags, func() (runs.Comparison[sweep.Run], error) { return sweep.Load(c.Sweep, c.Set) })
}

type lrRangeCommand struct {
	Config string   `arg:"" hub:"config" help:"YAML file of the run."`
	Min    float64  `help:"First value of optimizer.lr." default:"1e-6"`
	Max    float64  `help:"Last value of optimizer.lr." default:"1"`
	Steps  int      `help:"Number of steps." default:"100"`
	Out    string   `help:"Folder for the result." default:"lr-range" placeholder:"FOLDER"`
	Set    []string `hub:"config" help:"Override a key of the config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Device string   `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null. The same as --set pipeline.devices=[NAME]." placeholder:"NAME"`
	JSON   bool     `help:"Print one JSON object a line: each step, then the result."`
}

func (c *lrRangeCommand) Help() string {
	return `The learning-rate range test (Smith 2015, arXiv 1506.01186): trains for a few steps, each at a higher learning rate than the one before,
and ends where the loss diverges. optimizer.lr grows exponentially from --min to --max; other rates, such as optimizer.adamw.lr, keep their
ratio to it, and the schedule of the config does not count. The suggested rate is a tenth of the one at the smallest smoothed loss: a
start for a sweep, which finds the best one. The rate at which the loss falls fastest is printed, too.

Writes metrics.jsonl, lr-range.png and result.json into --out. The folder run.dir of the config is not touched.

Examples:
  gpupipe lr-range examples/demo/config.yaml
  gpupipe lr-range my.yaml --min 1e-5 --max 10 --steps 200 --out ranges/my`
}

func (c *lrRangeCommand) Run(a *app) error {
	load := trainCommand{Path: c.Config, Set: c.Set, Device: c.Device}
	config, err := load.load()
	if err != nil {
		return err
	}
	p := newProgress(a, c.JSON)
	o := sweep.RateOptions{Min: c.Min, Max: c.Max, Steps: c.Steps, Out: c.Out, Step: func(q sweep.RatePoint, steps int) {
		if c.JSON {
			p.emit(event{"event": "step", "step": q})
			return
		}
		p.line.show(fmt.Sprintf("step %d/%d", q.Step, steps), fmt.Sprintf("lr %.3g", q.LR), fmt.Sprintf("loss %.4f", q.Loss),
			fmt.Sprintf("smoothed %.4f", q.Smoothed))
	}}
	o.Options = train.Options{Devices: train.DeviceOptions{Open: a.openDevice, OpenWorker: a.workers(), Costs: a.measuredCosts()}}
	if len(config.Hooks) > 0 {
		o.Options.Hooks.Cache = a.hookCache()
	}
	t, err := sweep.FindRate(a.ctx, config, o)
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(event{"event": "result", "result": t})
	}
	a.facts([][]string{{"suggested", fmt.Sprintf("%s %g", t.Key, t.Suggested)}, {"smallest loss", fmt.Sprintf("at %g", t.Lowest)},
		{"steepest fall", fmt.Sprintf("at %g", t.Steepest)}})
	if t.Stopped != "" {
		a.prose("ended at " + t.Stopped + "\n")
	}
	for _, n := range t.Notes {
		a.prose(n + "\n")
	}
	a.printf("%s", lines(t.Files))
	return nil
}
