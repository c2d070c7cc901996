package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

const noAdapter = "no device found: install the GPU's Vulkan driver, or Mesa's lavapipe (25 or newer) to compute on the CPU"

// openDevice opens a device by name: "webgpu:0" is WebGPU's first adapter, "vulkan:0" Vulkan's, and "null" executes
// nothing. A name without a number selects the first adapter that is hardware, else the first. An empty name selects
// WebGPU's.
func (a *app) openDevice(name string) (device.Device, error) {
	backend, index, numbered, err := parseDevice(name)
	if err != nil {
		return nil, err
	}
	dump, err := kernelDump()
	if err != nil {
		return nil, err
	}
	switch backend {
	case "null":
		return null.New(null.Options{Name: fmt.Sprintf("null:%d", index), Dump: dump}), nil
	case "cpu":
		return cpu.Open(cpu.Options{Index: index, CacheDir: a.codeCache("cpu", cpu.MakeCache), Dump: dump})
	case "webgpu", "":
		infos, err := webgpu.Adapters()
		if err == nil {
			index, err = choose(name, infos, index, numbered)
		}
		if err != nil {
			return nil, err
		}
		return webgpu.Open(index, webgpu.Options{Dump: dump})
	case "vulkan":
		infos, _, err := vulkanAdapters()
		if err == nil && len(infos) > 0 { // else opening it reports what is missing
			index, err = choose(name, infos, index, numbered)
		}
		if err != nil {
			return nil, err
		}
		return vulkan.Open(index, vulkan.Options{CacheDir: a.shaderCache(), Dump: dump})
	}
	panic("parseDevice accepted an unknown backend")
}

// parseDevice splits a name, and refuses one that cannot be a device's.
func parseDevice(name string) (backend string, index int, numbered bool, err error) {
	backend, number, numbered := strings.Cut(name, ":")
	if !slices.Contains([]string{"", "cpu", "webgpu", "vulkan", "null"}, backend) {
		return "", 0, false, fmt.Errorf("device %q: unknown backend, expected webgpu:N, vulkan:N, cpu or null (gpupipe devices lists them)", name)
	}
	if numbered {
		if index, err = strconv.Atoi(number); err != nil || index < 0 {
			return "", 0, false, fmt.Errorf("device %q: expected a name such as webgpu:0", name)
		}
	}
	return backend, index, numbered, nil
}

// choose returns the index of the adapter that a name selects.
func choose(name string, infos []device.Info, index int, numbered bool) (int, error) {
	switch {
	case len(infos) == 0:
		return 0, errors.New(noAdapter)
	case !numbered:
		return preferred(infos), nil
	case index >= len(infos):
		return 0, fmt.Errorf("device %q: no such device, expected one of %s", name, names(infos))
	}
	return index, nil
}

// vulkanAdapters lists Vulkan's adapters with their properties.
func vulkanAdapters() ([]device.Info, []vulkan.Details, error) {
	adapters, err := vulkan.Adapters()
	var infos []device.Info
	var details []vulkan.Details
	for _, a := range adapters {
		infos, details = append(infos, a.Info), append(details, a.Details)
	}
	return infos, details, err
}

// preferred returns the index of the first discrete adapter, else of the first integrated one, else 0.
func preferred(infos []device.Info) int {
	for _, kind := range []device.Kind{device.Discrete, device.Integrated, device.Virtual} {
		for i, d := range infos {
			if d.Kind == kind {
				return i
			}
		}
	}
	return 0
}

func names(infos []device.Info) string {
	var ns []string
	for _, d := range infos {
		ns = append(ns, d.Name)
	}
	return strings.Join(ns, ", ")
}

type devicesCommand struct {
	JSON bool `help:"Print a JSON array."`
}

func (c *devicesCommand) Help() string {
	return `Lists the devices of WebGPU, then those of Vulkan with their properties. These are the same GPUs through two APIs.

Examples:
  gpupipe devices
  gpupipe devices --json
  gpupipe train c.yaml --device vulkan:0`
}

// deviceLine is a device in --json. Details come from Vulkan.
type deviceLine struct {
	device.Info
	Limits target.Limits `json:"limits"`
	*vulkan.Details
}

func (c *devicesCommand) Run(a *app) error {
	infos, err := webgpu.Adapters()
	direct, details, directly := vulkanAdapters()
	if err = errors.Join(err, directly); err != nil && len(infos)+len(direct) == 0 {
		return usererror.New(err)
	}
	if err != nil {
		a.note("gpupipe: %v", err)
	}
	if c.JSON {
		lines := []deviceLine{}
		for i, l := range webgpu.AdapterLimits() {
			lines = append(lines, deviceLine{Info: infos[i], Limits: l})
		}
		for i, d := range direct {
			lines = append(lines, deviceLine{d, details[i].Limits, &details[i]})
		}
		return a.printJSON(lines)
	}
	if len(infos)+len(direct) == 0 {
		return usererror.New(errors.New(noAdapter))
	}
	rows := [][]string{{"NAME", "ADAPTER", "KIND", "API", "DRIVER", ""}}
	for i, d := range slices.Concat(infos, direct) {
		mark := ""
		if d.Kind == device.Software {
			mark = "computes on the CPU"
		}
		if i == preferred(infos) && i < len(infos) {
			mark = strings.TrimPrefix(mark+"; used by default", "; ")
		}
		rows = append(rows, []string{d.Name, d.Adapter, string(d.Kind), d.API, d.Driver, mark})
	}
	a.headed(rows)
	if len(direct) > 0 {
		a.printf("\n")
		a.headed(detailRows(direct, details))
	}
	a.prose("\n" + matrixUnits(direct, details) + "\n")
	return nil
}

// matrixUnits lists the devices with matrix units for f16 and bf16.
func matrixUnits(direct []device.Info, details []vulkan.Details) string {
	able := map[string][]string{}
	for i, d := range direct {
		for _, dtype := range []string{"f16", "bf16"} {
			if details[i].Limits.HasCooperative(dtype) {
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
			heaps = append(heaps, fmt.Sprintf("%.1f GB %s", float64(h.Bytes)/1e9, where))
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
			fmt.Sprintf("%d invocations, %d KiB", d.Limits.MaxInvocations, d.Limits.MaxWorkgroupMemory>>10), yesNo(d.Float16), yesNo(d.ImportAlignment > 0), orNone(matrices)})
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
