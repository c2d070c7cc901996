// Package testdevice opens the device on which tests of logic run: the CPU's native code, or, where there is none, the
// first adapter of WebGPU. Tests of every backend use internal/testing/gputest, which links all of them.
package testdevice

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Device opens the device until the test ends.
func Device(t testing.TB) device.Device {
	t.Helper()
	return opened(t, func() (device.Device, error) { return Open(Name) })
}

// opened opens a device until the test ends.
func opened(t testing.TB, open func() (device.Device, error)) device.Device {
	t.Helper()
	dev, err := open()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	return dev
}

// Translated opens the CPU as a device for kernels in WGSL, which it translates into C, until the test ends. It reports
// itself as a software adapter with the limits that WebGPU guarantees, but more workgroup memory. The compiler
// optimizes nothing, which changes no bit, because it takes longer than the kernels do. On other systems than Linux it
// is the first adapter.
func Translated(t testing.TB) device.Device {
	t.Helper()
	return opened(t, func() (device.Device, error) { return openTranslated("-O0") })
}

// TranslatedToCompute is Translated for kernels that take longer than their compilation: the compiler optimizes a bit.
func TranslatedToCompute(t testing.TB) device.Device {
	t.Helper()
	return opened(t, func() (device.Device, error) { return openTranslated("-O1") })
}

type translated struct{ device.Device }

func (d translated) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Software
	return info
}

func (d translated) Limits() target.Limits {
	l := target.DefaultLimits()
	l.Software = true
	l.MaxWorkgroupMemory = d.Device.Limits().MaxWorkgroupMemory
	return l
}

// Cache returns the folder of a backend's compiled code. It is the commands' own, which all tests share: the name of
// each file is a sum of what the file was compiled from.
func Cache(backend string) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "gpupipe", backend), nil
}
