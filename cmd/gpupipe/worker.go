package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/sidecar"
)

type workerCommand struct {
	Device string `help:"What to compute on: webgpu:0, vulkan:0, null."`
	Socket string `help:"Where to wait for the host: a path in a folder that nobody else can enter, or that does not exist." required:"" placeholder:"PATH"`
}

func (c *workerCommand) Help() string {
	return `Computes on one device for another process on this machine. gpupipe train starts a worker for each device when pipeline.isolate is
process, and ends it; there is no need to call this by hand. A driver that crashes or hangs then takes the worker with it, and not the run.

The first line of the standard input is a secret that the host has to know. When the input ends, or the host is gone, the worker ends.
It listens on no network.

Examples:
  gpupipe train c.yaml --set pipeline.isolate=process
  gpupipe worker --device vulkan:0 --socket /run/user/1000/gpupipe-a/socket`
}

// openWorker opens a device in a process of its own, which is this program again.
func (a *app) openWorker(name string, silence time.Duration) (device.Device, error) {
	backend, _, _, err := parseDevice(name)
	if err != nil {
		return nil, err
	}
	if backend == "vulkan" {
		a.shaderCache() // the worker cannot say what is wrong with it
	}
	program, err := thisProgram()
	if err != nil {
		return nil, err
	}
	dev, err := sidecar.Open(sidecar.Options{Command: []string{program, "worker"}, Device: name, Silence: silence,
		Setting: "pipeline.watchdog"})
	if err != nil {
		return nil, err // and not a Device that holds a nil *sidecar.Device
	}
	return dev, nil
}

// thisProgram is the file to start this program from again. Where that was removed, or another has been built in its place, as may happen
// during a long run, Linux still has the one that runs.
func thisProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	const running = "/proc/self/exe"
	runs, err := os.Stat(running)
	if err != nil {
		return path, nil
	}
	if found, err := os.Stat(path); err != nil || !os.SameFile(found, runs) {
		return running, nil
	}
	return path, nil
}

func (c *workerCommand) Run(a *app) error {
	if _, _, _, err := parseDevice(c.Device); err != nil {
		return usererror.New(err)
	}
	mute := &app{ctx: a.ctx, stdout: io.Discard, stderr: io.Discard} // what is to be said of devices the host says
	open := func(name string) (device.Device, error) {
		if name != c.Device {
			return nil, fmt.Errorf("the host wants device %q, the command line %q", name, c.Device)
		}
		return mute.openDevice(name)
	}
	// Its own context: what ends the command elsewhere is the host's to decide on.
	err := sidecar.Work(context.WithoutCancel(a.ctx), os.Stdin, c.Socket, open)
	var usage *sidecar.UsageError
	if errors.As(err, &usage) {
		return usererror.New(err)
	}
	return err
}
