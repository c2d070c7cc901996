package inference

import (
	"fmt"

	"github.com/gpupipe/gpupipe/internal/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// onReference computes with the ops' references.
var onReference = Target{Open: openNull, Execute: (&traintest.Reference{}).Execute}

// notes keeps what a run reports.
type notes struct {
	train.Silent
	text []string
	step func(train.Progress)
}

func (n *notes) Step(p train.Progress) {
	if n.step != nil {
		n.step(p)
	}
}

func (n *notes) Note(format string, args ...any) {
	n.text = append(n.text, fmt.Sprintf(format, args...))
}

// options trains on the reference executor.
func options(n *notes) train.Options {
	return train.Options{OpenDevice: openNull, Execute: (&traintest.Reference{}).Execute, Report: n}
}

// openGPU opens the first adapter of the machine.
func openGPU(string) (device.Device, error) { return webgpu.Open(0, webgpu.Options{}) }

// openNull opens a device that executes nothing.
func openNull(name string) (device.Device, error) {
	if name != "" && name != "null:0" {
		return nil, fmt.Errorf("device %q: no such device", name)
	}
	return null.New(null.Options{}), nil
}
