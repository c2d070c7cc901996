package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/bench"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

type trainCommand struct {
	Path    string   `arg:"" optional:"" name:"config" help:"The run's YAML file, or the folder of a run to resume."`
	Config  string   `help:"The same as the argument." placeholder:"FILE"`
	Set     []string `help:"Override a key of the config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Resume  bool     `help:"Continue from the latest good checkpoint of run.dir."`
	Device  string   `help:"Where to compute: webgpu:0, vulkan:0, null. The same as --set pipeline.devices=[NAME]."`
	Tune    bool     `help:"Time the candidates of each kernel on the device, once, and use the fastest." negatable:"" default:"true"`
	Profile bool     `help:"Measure the kernels of two steps after the first three: a table at the end, profile.html and profile.json in the run folder."`
	JSON    bool     `help:"Print one JSON object a line: what is run, each step, the result."`
}

func (c *trainCommand) Help() string {
	return `The resolved config, the memory plan and the optimizer of each parameter are printed before training; the run folder
(run.dir) then holds config.yaml, metrics.jsonl, trace.json, tensorboard, checkpoints and, at the end, loss.png.

With --profile the devices' own clocks tell what each kernel of two steps takes, beside what the device can do at most, which is
measured before. These steps are slower, and what is trained is the same to the last bit.

train.precision: f16 or bf16 rounds the operands of products and what is kept between the passes; weights are f32 in checkpoints. A step whose
gradient overflows f16 is skipped, and the loss scale halved.

Ctrl-C finishes the step, saves and tells how to resume; a second one quits at once. While the kernels of the first step compile there is
nothing to finish, and the first one ends the run within seconds. In an evaluation it waits for the batch under way; a run that is resumed
begins with that evaluation.

With pipeline.isolate: process each device is in a process of its own. When one dies, hangs or loses its device, all are started again, and the
run goes on from its newest checkpoint to the same bits; after more than pipeline.restarts faults without a checkpoint in between it stops.
A device hangs when it shows no progress for longer than pipeline.watchdog (5m, and up to 10s more for each kernel that it runs for the first time):
a slow one that needs longer than that for one pass of a stage over a microbatch wants more. With pipeline.isolate: none nothing watches a device.
gpupipe study keeps to it too; other commands compute in their own process.

Examples:
  gpupipe train examples/demo/config.yaml
  gpupipe train --set model.preset=tiny --set data.train=[a.txt] --set run.dir=runs/a
  gpupipe train runs/a --resume
  gpupipe train c.yaml --profile --set train.steps=10 --set run.dir=runs/profiled`
}

func (c *trainCommand) Run(a *app) error {
	config, err := c.load()
	if err != nil {
		return err
	}
	r := a.progress(c.JSON)
	o := train.Options{Resume: c.Resume, OpenDevice: a.openDevice, OpenWorker: a.openWorker, Report: r, Costs: a.measuredCosts()}
	if len(config.Hooks) > 0 {
		o.HookCache = a.hookCache()
	}
	if c.Tune {
		o.Tune = a.kernelChoices(r.timing)
	}
	if c.Profile {
		o.Profile = &train.ProfileOptions{Peak: func(dev device.Device) (profile.Peak, error) {
			return bench.Peak(dev, bench.Options{Quick: true})
		}, Done: r.profiled}
	}
	res, err := train.Run(a.ctx, config, o)
	r.line.clear()
	if err := o.Costs.Save(); err != nil {
		fmt.Fprintf(a.stderr, "gpupipe: %v\n", err)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		if err := a.printJSON(event{"event": "result", "result": res}); err != nil {
			return err
		}
	} else {
		r.result(res)
	}
	if res.Interrupted {
		fmt.Fprintf(a.stderr, "stopped after step %d; to go on: gpupipe train %s --resume\n", res.Step, res.Dir)
		return errInterrupted
	}
	return nil
}

// load reads the config; a run folder stands for the config that is kept in it.
func (c *trainCommand) load() (config.Config, error) {
	path := c.Path
	if path == "" {
		path = c.Config
	} else if c.Config != "" {
		return config.Config{}, usererror.New(fmt.Errorf("two configs are given: %s and %s", c.Path, c.Config))
	}
	set := c.Set
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		if !utf8.ValidString(path) {
			return config.Config{}, usererror.New(fmt.Errorf("%q: a name that is not UTF-8, which a config cannot hold", path))
		}
		kept, err := configIn(path)
		if err != nil {
			return config.Config{}, err
		}
		set = append([]string{"run.dir=" + quoted(path)}, set...)
		path = kept
	}
	if path == "" && len(set) == 0 {
		return config.Config{}, usererror.New(fmt.Errorf("no config is given: name a YAML file, or set keys with --set"))
	}
	if c.Device != "" {
		set = append(set, "pipeline.devices=["+quoted(c.Device)+"]")
	}
	return config.Load(path, set)
}

// configIn is the config that a run's folder keeps.
func configIn(dir string) (string, error) {
	path := filepath.Join(dir, "config.yaml")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", usererror.New(fmt.Errorf("%s: a folder without config.yaml: expected a YAML file or the folder of a run", dir))
	}
	return path, nil
}

// quoted writes a text as a YAML scalar.
func quoted(s string) string { return fmt.Sprintf("%q", s) }
