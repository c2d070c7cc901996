package main

import (
	"fmt"
	"os"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/kerneldump"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// dumpVariable is the environment variable that names a folder for the kernels of every device that is opened.
const dumpVariable = "GPUPIPE_DUMP"

// kernelDump returns where devices write their kernels, nil for nowhere.
func kernelDump() (device.Dump, error) {
	dir := os.Getenv(dumpVariable)
	if dir == "" {
		return nil, nil
	}
	dump, err := kerneldump.Folder(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dumpVariable, err)
	}
	return dump, nil
}

type kernelsCommand struct {
	Config string   `arg:"" optional:"" hub:"shape" help:"The run's YAML file, or the folder of a run."`
	Set    []string `hub:"shape" help:"Override a key of the config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Device string   `help:"Generate the kernels for this device, such as vulkan:0, instead of a usual discrete GPU." placeholder:"NAME"`
	Out    string   `help:"Write each kernel to a file in this folder instead of printing it." placeholder:"DIR"`
}

func (c *kernelsCommand) Help() string {
	return `Prints the text of every kernel that training with the config compiles, under the kernel's name: WGSL, or C for cpu:0. No kernel
runs and no data is read. Each distinct text is printed once, although many layers use it. Without --device no device is needed: the kernels
are those for a usual discrete GPU. With --device they are made for the limits and the matrix units of that device.
A run that times its kernels may choose others; to see what a run really compiles, and the SPIR-V that the backend for Vulkan
makes of it, set ` + dumpVariable + ` to a folder, with any command.

Examples:
  gpupipe kernels c.yaml
  gpupipe kernels --set model.preset=smollm2-135m \
    --set train.precision=bf16 --out kernels
  gpupipe kernels c.yaml --device vulkan:0
  ` + dumpVariable + `=kernels gpupipe train c.yaml`
}

func (c *kernelsCommand) Run(a *app) error {
	config, err := (&planCommand{Config: c.Config, Set: c.Set}).load()
	if err != nil {
		return err
	}
	limits, err := c.limits(a)
	if err != nil {
		return err
	}
	dump := kerneldump.Stream(a.stdout)
	if c.Out != "" {
		if dump, err = kerneldump.Folder(c.Out); err != nil {
			return usererror.New(err)
		}
	}
	open := func(string) (device.Device, error) {
		return null.New(null.Options{Limits: limits}), nil
	}
	return train.Kernels(a.ctx, config, open, dump)
}

// limits returns the limits of the device that the kernels are for.
func (c *kernelsCommand) limits(a *app) (*target.Limits, error) {
	if c.Device == "" {
		return usualGPU(), nil
	}
	dev, err := a.openDevice(c.Device)
	if err != nil {
		return nil, usererror.Errorf("device: %w", err)
	}
	l := dev.Limits()
	return &l, dev.Close()
}
