package layout

import (
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
)

// OpenDevice opens a device by the name that users write. If ranks share the CPU, the name has a number of threads, as
// in "cpu:0/1", or in "/1" for the default device. Only commands know the backends.
type OpenDevice func(name string) (device.Device, error)

// Names returns the name of each rank's device, with which it is opened. Ranks on the CPU compute at the same time:
// they divide its cores, except those whose names have a number of threads. runs is the number of runs that do so; 0:
// one.
func Names(p config.Pipeline, runs int) []string {
	names := configuredNames(p)
	sharing := 0
	for _, name := range names {
		if divides(name) {
			sharing++
		}
	}
	sharing *= max(1, runs)
	if sharing < 2 {
		return names
	}
	threads := max(1, host.ThisProcess().Cores()/sharing)
	for i, name := range names {
		if divides(name) {
			names[i] = device.WithThreads(name, threads)
		}
	}
	return names
}

// configuredNames returns the name of each rank's device as configured; it is empty for the default device.
func configuredNames(p config.Pipeline) []string {
	names := make([]string, p.Stages*p.Replicas)
	for i := range names {
		if len(p.Devices) > 0 {
			names[i] = p.Devices[i%len(p.Devices)]
		}
	}
	return names
}

// configuredName returns the name of a rank's device for pipeline.devices: with a number of threads if it has one
// there.
func configuredName(p config.Pipeline, rank int, dev device.Device) string {
	name := dev.Info().Name
	if len(p.Devices) == 0 {
		return name
	}
	if n, err := device.ParseName(p.Devices[rank%len(p.Devices)]); err == nil && n.Threads > 0 {
		return device.WithThreads(name, n.Threads)
	}
	return name
}

// divides reports whether a name may name a CPU, without a number of threads. The default device may be a CPU.
func divides(name string) bool {
	n, err := device.ParseName(name)
	return err == nil && (n.Backend == "" || n.Backend == device.CPUBackend) && n.Threads == 0
}
