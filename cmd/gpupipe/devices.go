package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

type devicesCommand struct {
	JSON bool `help:"Print a JSON array."`
}

func (c *devicesCommand) Help() string {
	return `Lists GPUs, then the CPU, then software adapters: CPUs that implement a GPU's API. webgpu:N and vulkan:N are the same GPUs through two
APIs. cpu:0 runs native code that a C compiler makes; cpu:0/4 is cpu:0 with 4 threads. Without --device the first that is no vulkan:N is used.

Examples:
  gpupipe devices
  gpupipe devices --json
  gpupipe train c.yaml --device vulkan:0
  gpupipe train c.yaml --device cpu:0/4`
}

// deviceLine is a device in --json. Details come from Vulkan.
type deviceLine struct {
	device.Info
	Limits target.Limits `json:"limits"`
	*vulkan.Details
}

// listDevices lists all devices: GPUs, the CPU, software adapters. errs has the errors of APIs that cannot list their
// devices.
func (a *app) listDevices() (lines []deviceLine, errs []error) {
	for _, a := range webgpu.Describe() {
		lines = append(lines, deviceLine{Info: a.Info, Limits: a.Limits})
	}
	direct, details, err := vulkanAdapters()
	errs = append(errs, err)
	for i, d := range direct {
		lines = append(lines, deviceLine{d, details[i].Limits, &details[i]})
	}
	t, err := a.cpu.find(a)
	switch {
	case err == nil:
		lines = append(lines, deviceLine{Info: t.Adapter(), Limits: t.Limits()})
	case !errors.Is(err, cpu.ErrSystem):
		errs = append(errs, fmt.Errorf("cpu:0: %w", err))
	}
	slices.SortStableFunc(lines, func(x, y deviceLine) int { return listOrder(x.Kind) - listOrder(y.Kind) })
	return lines, errs
}

// listOrder is the position of a kind in lists of devices.
func listOrder(k device.Kind) int {
	if k.GPU() {
		return 0
	}
	return k.Order()
}

func (c *devicesCommand) Run(a *app) error {
	lines, errs := a.listDevices()
	err := errors.Join(errs...)
	if err != nil && len(lines) == 0 {
		return usererror.New(err)
	}
	for _, e := range errs {
		if e != nil {
			a.note("gpupipe: %v", e)
		}
	}
	if c.JSON {
		return a.printJSON(append([]deviceLine{}, lines...)) // [] without devices
	}
	if len(lines) == 0 {
		return usererror.New(errors.New(noAdapter(runtime.GOOS)))
	}
	printDevices(a, lines)
	return nil
}

func printDevices(a *app, lines []deviceLine) {
	var candidates []device.Info // for the default device
	for _, d := range lines {
		if d.Details == nil {
			candidates = append(candidates, d.Info)
		}
	}
	rows := [][]string{{"NAME", "ADAPTER", "KIND", "API", "DRIVER", ""}}
	for _, d := range lines {
		var marks []string
		if d.Kind == device.Software {
			marks = append(marks, "computes on the CPU")
		}
		if len(candidates) > 0 && d.Name == candidates[preferred(candidates)].Name {
			marks = append(marks, "used by default")
		}
		rows = append(rows, []string{d.Name, d.Hardware(), string(d.Kind), d.API, d.Driver, strings.Join(marks, "; ")})
	}
	a.headed(rows)
	var direct []device.Info
	var details []vulkan.Details
	for _, d := range lines {
		if d.Details != nil {
			direct, details = append(direct, d.Info), append(details, *d.Details)
		}
		if d.Limits.Native {
			a.prose(fmt.Sprintf("\n%s: its driver, a C compiler, makes native code of each kernel. Only memory limits the size of a tensor.\n", d.Name))
		}
	}
	if len(direct) > 0 {
		a.printf("\n")
		a.headed(detailRows(direct, details))
	}
	a.prose("\n" + matrixUnits(lines) + "\n")
}

// matrixUnits lists the devices with matrix units for f16 and bf16.
func matrixUnits(lines []deviceLine) string {
	able := map[string][]string{}
	for _, d := range lines {
		for _, dtype := range []string{"f16", "bf16"} {
			if d.Limits.HasCooperative(dtype) {
				able[dtype] = append(able[dtype], d.Name)
			}
		}
	}
	return fmt.Sprintf("train.precision: every device stores f16 and bf16 in 16 bits. Matrix units compute products of f16 on: %s; of bf16 on: %s. Other devices compute them in f32.",
		orNone(able["f16"]), orNone(able["bf16"]))
}

// detailRows returns a table of the properties that Vulkan reports.
func detailRows(infos []device.Info, details []vulkan.Details) [][]string {
	rows := [][]string{{"NAME", "MEMORY", "SUBGROUP", "WORKGROUP", "F16", "IMPORT", "MATRICES"}}
	for i, d := range details {
		subgroup := fmt.Sprint(d.Subgroup[0])
		if d.Subgroup[1] != d.Subgroup[0] {
			subgroup += fmt.Sprintf("–%d", d.Subgroup[1])
		}
		var heaps, matrices []string
		for _, h := range d.Heaps {
			where := "host"
			switch {
			case h.Device && h.Host:
				where = "device, mapped"
			case h.Device:
				where = "device"
			}
			heaps = append(heaps, inBytes(int64(h.Bytes))+" "+where)
		}
		for _, m := range d.Matrices {
			if s := m.String(); !slices.Contains(matrices, s) {
				matrices = append(matrices, s)
			}
		}
		for _, f := range d.Limits.Flexible {
			matrices = append(matrices, fmt.Sprintf("multiples of %d×%d×%d %s by workgroups of %d", f.M, f.N, f.K, f.Input, f.Invocations))
		}
		rows = append(rows, []string{infos[i].Name, strings.Join(heaps, "; "), subgroup,
			fmt.Sprintf("%d invocations, %d KiB", d.Limits.MaxInvocations, d.Limits.MaxWorkgroupMemory>>10), yesNo(d.Float16),
			yesNo(d.ImportAlignment > 0), orNone(matrices)})
	}
	return rows
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
