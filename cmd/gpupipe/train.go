package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/bench"
	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

type trainCommand struct {
	Path   string   `arg:"" optional:"" name:"config" hub:"config" help:"YAML file of the run, or the folder of a run to resume."`
	Config string   `hub:"config" help:"The same as the argument." placeholder:"FILE"`
	Set    []string `hub:"config" help:"Override a key of the config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Resume bool     `help:"Continue from the newest valid checkpoint in run.dir."`
	fromFlag
	Device string `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null. The same as --set pipeline.devices=[NAME]." placeholder:"NAME"`
	tuneFlag
	Profile bool `help:"Measure the kernels of steps 4 and 5. Prints a table at the end and writes profile.html and profile.json into the run folder."`
	JSON    bool `help:"Print one JSON object a line: the start, each step, the result."`
}

func (c *trainCommand) Help() string {
	return `Prints the config values that differ from the defaults, the memory plan and the optimizer of each parameter, then trains. The run
folder (run.dir) holds config.yaml with every value, metrics.jsonl, system.jsonl (times, utilization, memory), events.jsonl, trace.json,
tensorboard, checkpoints and, at the end, loss.png. A mixture of experts has experts.jsonl (loads) and experts.png. gpupipe watch shows them on a page.

--profile measures each kernel of two steps with the device's clock and compares it with the device's measured peak. The two steps are
slower. The trained weights are the same to the last bit.

train.precision: f16 or bf16 rounds the operands of matrix products and the activations kept for the backward pass. Checkpoints have f32
weights. A step whose gradient overflows f16 is skipped, and the loss scale is halved.

Ctrl-C finishes the step, saves a checkpoint and prints how to resume. A second Ctrl-C quits immediately. While the kernels of the first
step compile, Ctrl-C ends the run within seconds. During an evaluation it waits for the current batch.

SIGTERM and SIGHUP, however often they come, save and stop the run as one Ctrl-C does. SIGUSR1 saves a checkpoint after the current step,
and the run goes on: kill -USR1 PID (not on Windows). A reader of the output that goes away, as in gpupipe train c.yaml | head, and a closed
terminal do not end a run: the output is dropped.

` + fromHelp + `
` + tuneHelp + `
With pipeline.isolate: process each device runs in a process of its own. If a process dies, or its device hangs or is lost, all processes
are restarted, and the run continues from its newest checkpoint to the same bits. The run stops after more than pipeline.restarts faults
without a new checkpoint. A device counts as hung after pipeline.watchdog (5m) without progress, plus up to 10s for each kernel that it
runs for the first time. Increase it for a device that needs longer for one pass of a stage over a microbatch. With pipeline.isolate: none
no device is watched. gpupipe sweep, lr-range and study follow this setting; other commands compute in their own process.

Examples:
  gpupipe train examples/demo/config.yaml
  gpupipe train --set model.preset=tiny --set data.train=a.txt \
    --set run.dir=runs/a
  gpupipe train runs/a --resume
  gpupipe train runs/a --from step-200 --set optimizer.lr=0.001
  gpupipe train c.yaml --profile --set train.steps=10 \
    --set run.dir=runs/profiled`
}

// streams says that the command fetches the training text by itself.
func (*trainCommand) streams() {}

func (c *trainCommand) Run(a *app) error {
	config, err := c.load()
	if err != nil {
		return err
	}
	from, err := c.checkpoint(*c)
	if err != nil {
		return err
	}
	r := newProgress(a, c.JSON)
	o := train.Options{Resume: c.Resume, From: from, Plots: true,
		Devices: train.DeviceOptions{Open: a.openDevice, OpenWorker: a.workers(), Costs: a.measuredCosts()}, Report: r,
		Saves: &a.saves}
	if len(config.Hooks) > 0 {
		o.Hooks.Cache = a.hookCache()
	}
	if o.Devices.Tune = c.tuneFlag.cache(a, r.timing); o.Devices.Tune != nil {
		o.Devices.Peak = a.measuredPeak
	}
	if c.Profile {
		o.Profile = &train.ProfileOptions{Peak: func(dev device.Device) (profile.Peak, error) {
			return bench.Peak(dev, bench.Options{Quick: true})
		}, Done: r.profiled}
	}
	stopFetching, err := a.fetchText(&config, &o)
	if err != nil {
		return err
	}
	defer stopFetching()
	var res train.Result
	err = a.whileShown(r, func() (err error) {
		res, err = train.Run(a.ctx, config, o)
		return err
	})
	if err := o.Devices.Costs.Save(); err != nil {
		a.note("gpupipe: %v", err)
	}
	if err != nil {
		return beforeStart(a, err)
	}
	err = r.ended(res, "train")
	if err == nil && !c.JSON && res.Checkpoint != "" {
		a.note("next: gpupipe generate %s --prompt \"In the\" (eval, serve and export take the folder, too)", res.Dir)
	}
	return err
}

// ended prints how a run ended, and how to continue it with a command.
func (p *progress) ended(res train.Result, command string) error {
	if p.json {
		if err := p.printJSON(event{"event": "result", "result": res}); err != nil {
			return err
		}
	} else {
		p.result(res)
	}
	switch {
	case !res.Interrupted:
		return nil
	case res.Checkpoint == "":
		p.note("stopped before the first step was done: there is no checkpoint; to begin again: gpupipe %s %s --resume", command, res.Dir)
	case res.Idle:
		p.note("stopped before another step was done: nothing new was saved; to continue after step %d: gpupipe %s %s --resume", res.Step,
			command, res.Dir)
	default:
		p.note("stopped after step %d; to continue: gpupipe %s %s --resume", res.Step, command, res.Dir)
	}
	return errInterrupted
}

// beforeStart says of a run that was interrupted before it wrote anything that nothing was saved.
func beforeStart(a *app, err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	a.note("stopped before the first step: nothing was saved, and the run folder is as it was; the same command begins again")
	return errInterrupted
}

const noConfig = "no config: expected a YAML file (gpupipe init writes one), or keys set with --set"

// load reads the config. For a run folder it reads the config.yaml in it.
func (c *trainCommand) load() (config.Config, error) {
	path := c.Path
	if path == "" {
		path = c.Config
	} else if c.Config != "" {
		return config.Config{}, usererror.Errorf("two configs: found %s and --config %s, expected one", c.Path, c.Config)
	}
	set, run := c.Set, ""
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		if !utf8.ValidString(path) {
			return config.Config{}, usererror.Errorf("%q: the name is not UTF-8, which config.yaml requires", path)
		}
		kept, err := configIn(path)
		if err != nil {
			return config.Config{}, err
		}
		path, run = kept, path
	}
	if path == "" && len(set) == 0 {
		return config.Config{}, usererror.New(errors.New(noConfig))
	}
	if c.Device != "" {
		set = append(set, "pipeline.devices=["+quoted(c.Device)+"]")
	}
	if run != "" {
		return config.LoadRun(run, path, set)
	}
	return config.LoadKept(path, set, c.commits())
}

// commits returns the commits of the Hub that a run has recorded. The command continues that run or names its folder;
// otherwise there are none.
func (c *trainCommand) commits() hub.Commits {
	if st, err := os.Stat(cmp.Or(c.Path, c.Config)); !c.Resume && c.From == "" && (err != nil || !st.IsDir()) {
		return nil
	}
	run, err := c.run(*c)
	if err != nil {
		return nil // load reports it
	}
	commits := hub.Commits{}
	config.Record(filepath.Join(run, "config.yaml"), commits)
	return commits
}

// configIn returns the path of the config in a run folder.
func configIn(dir string) (string, error) {
	path := filepath.Join(dir, "config.yaml")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", usererror.Errorf("%s: the folder has no config.yaml: expected a YAML file or the folder of a run", dir)
	}
	return path, nil
}

// quoted formats a text as a YAML scalar.
func quoted(s string) string { return fmt.Sprintf("%q", s) }
