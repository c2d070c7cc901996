package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/sidecar"
)

type workerCommand struct {
	Device string `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null."`
	Socket string `help:"Socket to listen on: a path in a folder that only this user can enter, or that does not exist." required:"" placeholder:"PATH"`
}

func (c *workerCommand) Help() string {
	return `Computes on one device for another process on this machine. With pipeline.isolate: process, gpupipe train starts a worker for each
device, and ends it. A driver that crashes or hangs then ends the worker, not the run.

The first line of standard input is a secret that the host must present. The worker ends when its input ends or the host disconnects. It
listens on no network.

Examples:
  gpupipe train c.yaml --set pipeline.isolate=process
  gpupipe worker --device vulkan:0 --socket /run/user/1000/gpupipe-a/socket`
}

// workers opens devices in processes of their own; nil: this system has none.
func (a *app) workers() train.OpenWorker {
	if !sidecar.Available {
		return nil
	}
	return a.openWorker
}

// openWorker opens a device in a process of its own, another instance of this program.
func (a *app) openWorker(name string, silence time.Duration) (device.Device, error) {
	n, err := a.resolve(name) // with its notes, since the worker cannot write them
	if err != nil {
		return nil, err
	}
	switch n.Backend {
	case "vulkan":
		a.shaderCache() // warns here
	case device.CPUBackend:
		a.cpuCache()
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

// thisProgram returns the file to start another instance of this program from. During a long run, that file may be
// removed or replaced by another build; on Linux /proc still has the running program. GPUPIPE_PROGRAM names another,
// where a script has to start the program.
func thisProgram() (string, error) {
	if program := os.Getenv("GPUPIPE_PROGRAM"); program != "" {
		return program, nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	const running = "/proc/self/exe"
	runs, err := os.Stat(running)
	if err != nil || runtime.GOOS != linux {
		return path, nil
	}
	if found, err := os.Stat(path); err != nil || !os.SameFile(found, runs) {
		return running, nil
	}
	return path, nil
}

func (c *workerCommand) Run(a *app) error {
	if _, err := parseDevice(c.Device); err != nil {
		return usererror.New(err)
	}
	mute := &app{ctx: a.ctx, stdout: io.Discard, stderr: io.Discard} // the host prints what concerns devices
	open := func(name string) (device.Device, error) {
		if name != c.Device {
			return nil, fmt.Errorf("the host asks for device %q, expected %q, that of --device", name, c.Device)
		}
		return mute.openDevice(name)
	}
	// The host decides how Ctrl-C ends a run, so it must not cancel the worker.
	err := sidecar.Work(context.WithoutCancel(a.ctx), os.Stdin, c.Socket, open)
	var usage *sidecar.UsageError
	if errors.As(err, &usage) {
		return usererror.New(err)
	}
	return err
}
