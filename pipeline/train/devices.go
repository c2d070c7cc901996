package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// openDevices opens a device for each rank by its name. Each name is opened as often as it occurs. again reports that
// the devices were open before.
func openDevices(open layout.OpenDevice, names []string, again bool) (devices []device.Device, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, dev := range devices {
			err = errors.Join(err, dev.Close())
		}
		devices = nil
	}()
	for _, name := range names {
		dev, err := open(name)
		if err != nil {
			return devices, usererror.Errorf("%s: %w", opening(name, again), err)
		}
		devices = append(devices, dev)
	}
	return devices, nil
}

// opening describes a failed attempt to open a device. The config is not at fault if it was opened before.
func opening(name string, again bool) string {
	if !again {
		return "pipeline.devices"
	}
	return fmt.Sprintf("opening %s again", device.Described(name))
}

// checkIsolation refuses devices in processes of their own for commands and systems without.
func (j *job) checkIsolation(context.Context) error {
	isolate := j.config.Pipeline.Processes
	if !isolate.Isolated() || j.options.Devices.Remote != nil || j.options.Devices.OpenWorker != nil {
		return nil
	}
	return usererror.New(config.Invalid("pipeline.isolate", isolate.Isolate,
		"%s: devices in processes of their own are for gpupipe train, sweep, lr-range and study, and not for Windows",
		config.IsolateNone))
}
