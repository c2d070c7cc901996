package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/bench"
	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/pipebench"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// threads names the environment variable with lavapipe's number of threads for each device. It is read when a device is
// opened.
const threads = "LP_NUM_THREADS"

// pipelines measures the pipelines that the filter matches.
func (c *benchCommand) pipelines(a *app, s *status, o bench.Options, info device.Info) ([]pipebench.Result, error) {
	p := pipebench.Options{Filter: o.Filter, Quick: c.Quick, Progress: s.say,
		Sleeper: func(latency func(string) time.Duration) device.Device {
			return null.New(null.Options{Latency: latency})
		}}
	elsewhere := info.Kind == device.Software && os.Getenv(threads) != "1"
	if !elsewhere {
		name := info.Name
		if info.Kind == device.CPU {
			name = device.WithThreads(name, 1)
		}
		p.Open = func() (device.Device, error) { return a.openDevice(name) }
		if o.Tune != nil {
			p.Execute = engine.Execute(o.Tune, 0)
		}
	}
	rs, err := pipebench.Run(a.ctx, p)
	if err != nil || !elsewhere || !p.Wants(pipebench.DevicesCase) {
		return rs, err
	}
	s.say("measuring %s in a process with %s=1", pipebench.DevicesCase, threads)
	more, err := c.onOneThread(a, info)
	return append(rs, more...), err
}

// onOneThread measures real devices in a process of its own, in which each device has one thread.
func (c *benchCommand) onOneThread(a *app, info device.Info) ([]pipebench.Result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"bench", "--json", "--device", info.Name, "--filter", "^" + pipebench.DevicesCase + "$"}
	if c.Quick {
		args = append(args, "--quick")
	}
	if c.Static {
		args = append(args, "--static")
	}
	cmd := exec.CommandContext(a.ctx, self, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), threads+"=1"), a.stderr
	out, err := cmd.Output()
	if a.ctx.Err() != nil {
		return nil, a.ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s with %s=1: %w", pipebench.DevicesCase, threads, err)
	}
	var r struct{ Pipelines []pipebench.Result }
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&r); err != nil {
		return nil, fmt.Errorf("%s with %s=1: it printed %q: %w", pipebench.DevicesCase, threads, out, err)
	}
	return r.Pipelines, nil
}
