package testdevice

import (
	"fmt"

	"github.com/gpupipe/gpupipe/internal/testing/translate"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Name is the device's.
const Name = "cpu:0"

// Open opens the device. Of a name, such as "cpu:0/1" or "", only the number of threads matters.
func Open(name string) (device.Device, error) {
	n, err := device.ParseName(name)
	if err != nil {
		return nil, err
	}
	if n.Backend != "" && n.Backend != device.CPUBackend {
		return nil, fmt.Errorf("a test of logic opens %s, expected %s", name, Name)
	}
	dir, err := Cache("cpu")
	if err != nil {
		return nil, err
	}
	return cpu.Open(cpu.Options{Index: n.Index, Threads: n.Threads, CacheDir: dir})
}

func openTranslated() (device.Device, error) {
	dir, err := Cache("cpu")
	if err != nil {
		return nil, err
	}
	d, err := cpu.Open(cpu.Options{CacheDir: dir, CFlags: []string{"-O1"}})
	if err != nil {
		return nil, err
	}
	return translated{translate.Device{Native: d}}, nil
}
