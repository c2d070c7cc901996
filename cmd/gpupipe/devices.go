package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

const noAdapter = "no GPU adapter was found: install your GPU's Vulkan driver, or Mesa's lavapipe (25 or newer) to compute on the CPU"

// openDevice opens a device by name: "webgpu:0" is WebGPU's first adapter, "null" executes nothing. Without a name it is
// the first adapter that is real hardware, or else the first.
func openDevice(name string) (device.Device, error) {
	backend, number, numbered := strings.Cut(name, ":")
	index := 0
	if numbered {
		var err error
		if index, err = strconv.Atoi(number); err != nil || index < 0 {
			return nil, fmt.Errorf("device %q: expected a name such as webgpu:0", name)
		}
	}
	switch backend {
	case "null":
		return null.New(null.Options{Name: fmt.Sprintf("null:%d", index)}), nil
	case "webgpu", "":
		infos, err := webgpu.Adapters()
		if err != nil {
			return nil, err
		}
		if len(infos) == 0 {
			return nil, fmt.Errorf("%s", noAdapter)
		}
		if !numbered {
			index = preferred(infos)
		}
		if index >= len(infos) {
			return nil, fmt.Errorf("device %q: no such device, expected one of %s", name, names(infos))
		}
		return webgpu.Open(index, webgpu.Options{})
	}
	return nil, fmt.Errorf("device %q: no such backend, expected webgpu:N or null (gpupipe devices lists them)", name)
}

// preferred is the first discrete adapter, else the first integrated one, else the first.
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

func (c *devicesCommand) Run(a *app) error {
	infos, err := webgpu.Adapters()
	if err != nil {
		return train.Mistake(err)
	}
	if c.JSON {
		if infos == nil {
			infos = []device.Info{}
		}
		return a.printJSON(infos)
	}
	if len(infos) == 0 {
		return train.Mistake(fmt.Errorf("%s", noAdapter))
	}
	rows := [][]string{{"NAME", "ADAPTER", "KIND", "API", "DRIVER", ""}}
	for i, d := range infos {
		mark := ""
		if d.Kind == device.Software {
			mark = "computes on the CPU"
		}
		if i == preferred(infos) {
			mark = strings.TrimPrefix(mark+"; used by default", "; ")
		}
		rows = append(rows, []string{d.Name, d.Adapter, string(d.Kind), d.API, d.Driver, mark})
	}
	a.table(rows)
	return nil
}
