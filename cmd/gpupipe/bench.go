package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	pipebench "github.com/gpupipe/gpupipe/pipeline/bench"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/bench"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

type benchCommand struct {
	Device string `help:"What to measure: webgpu:0, vulkan:0, null."`
	Filter string `help:"Only what matches this regular expression." placeholder:"REGEXP"`
	Quick  bool   `help:"Shorter and less exact."`
	Static bool   `help:"Do not time kernel candidates first; take those that the device's kind suggests."`
	JSON   bool   `help:"Print a JSON object."`
}

func (c *benchCommand) Help() string {
	return `Kernels alone, matrix products beside gonum's on the CPU, whole training steps with the share of each kernel, and pipelines:
"pipeline sleeping" on 16 devices that compute nothing and take their time, "pipeline devices" on two logical devices of the
adapter. Where that is a software adapter, the latter runs in a process of its own with LP_NUM_THREADS=1, so that each device
computes on one thread; two cores must be idle.

Examples:
  gpupipe bench --filter matmul
  gpupipe bench --filter pipeline
  gpupipe bench --json > bench.json`
}

// benchReport is what --json prints.
type benchReport struct {
	bench.Report
	Pipelines []pipebench.Result `json:"pipelines,omitempty"`
}

func (c *benchCommand) Run(a *app) error {
	o := bench.Options{Quick: c.Quick}
	if c.Filter != "" {
		var err error
		if o.Filter, err = regexp.Compile(c.Filter); err != nil {
			return train.Mistake(fmt.Errorf("filter: %w", err))
		}
	}
	dev, err := openDevice(c.Device)
	if err != nil {
		return train.Mistake(err)
	}
	defer dev.Close()
	s := &status{app: a, silent: c.JSON}
	o.Progress = func(name string) { s.say("measuring %s", name) }
	save := func() error { return nil }
	if !c.Static {
		c := a.kernelChoices(func(label string, n int) { s.say("timing %d kernels for %s", n, label) })
		o.Tune, save = c, c.Save
	}
	var r benchReport
	r.Report, err = bench.Run(a.ctx, dev, o)
	if err == nil {
		r.Pipelines, err = c.pipelines(a, s, o, dev.Info())
	}
	s.clear()
	if err != nil {
		return err
	}
	if len(r.Results)+len(r.Steps)+len(r.Pipelines) == 0 {
		return train.Mistake(fmt.Errorf("filter: nothing that is measured matches %q", c.Filter))
	}
	if err := save(); err != nil {
		fmt.Fprintf(a.stderr, "gpupipe: %v\n", err)
	}
	if c.JSON {
		return a.printJSON(r)
	}
	if err := r.Print(a.stdout); err != nil {
		return train.Mistake(err)
	}
	return train.Mistake(pipebench.Print(a.stdout, r.Pipelines))
}

// kernelChoices opens the user's cache of timed kernels. Where it cannot be kept, it is said and the choices are made anew.
func (a *app) kernelChoices(timing func(label string, candidates int)) *tune.Cache {
	dir, err := os.UserCacheDir()
	if err == nil {
		var c *tune.Cache
		if c, err = tune.Open(filepath.Join(dir, "gpupipe", "kernels.json"), timing); err == nil {
			return c
		}
	}
	fmt.Fprintf(a.stderr, "gpupipe: the choices of kernels are not kept for the next time: %v\n", err)
	c, err := tune.Open("", timing)
	if err != nil {
		panic(err) // nothing was read
	}
	return c
}

// status is one line on standard error that tells what goes on, on a terminal only.
type status struct {
	*app
	silent bool
	shown  bool
}

func (s *status) say(format string, args ...any) {
	if s.silent || !s.terminal {
		return
	}
	text := []rune(fmt.Sprintf(format, args...))
	if len(text) > 78 {
		text = append(text[:77], '…')
	}
	s.shown = true
	fmt.Fprintf(s.stderr, "\r\x1b[K%s", string(text))
}

func (s *status) clear() {
	if s.shown {
		fmt.Fprint(s.stderr, "\r\x1b[K")
		s.shown = false
	}
}
