package testdevice

import (
	"fmt"
	"testing"

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

// compiling opens the device, with more flags for the compiler.
func compiling(flags ...string) (*cpu.Device, error) {
	dir, err := Cache("cpu")
	if err != nil {
		return nil, err
	}
	return cpu.Open(cpu.Options{CacheDir: dir, CFlags: flags})
}

// Quick opens the device until the test ends. The compiler optimizes nothing, which takes half the time, and changes
// bits where sums may be formed in another order.
func Quick(t testing.TB) device.Device {
	t.Helper()
	return opened(t, func() (device.Device, error) { return compiling("-O0") })
}

func openTranslated(level string) (device.Device, error) {
	d, err := compiling(level)
	if err != nil {
		return nil, err
	}
	return translated{translate.Device{Native: d}}, nil
}
