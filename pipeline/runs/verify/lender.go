package verify

import (
	"errors"

	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// lender keeps devices open from one run to the next, so that each kernel is compiled once a rank.
type lender struct {
	open    layout.OpenDevice
	devices map[string][]device.Device // by name, in the order in which a run asks for them
}

// first is the device that the first rank with a name gets.
func (l *lender) first(name string) (device.Device, error) { return l.nth(name, 0) }

func (l *lender) nth(name string, n int) (device.Device, error) {
	if n == len(l.devices[name]) {
		dev, err := l.open(name)
		if err != nil {
			return nil, err
		}
		l.devices[name] = append(l.devices[name], dev)
	}
	return l.devices[name][n], nil
}

// opener is an OpenDevice for one run: ranks of one name get different devices, the same ones in every run.
func (l *lender) opener() layout.OpenDevice {
	given := map[string]int{}
	return func(name string) (device.Device, error) {
		dev, err := l.nth(name, given[name])
		if err != nil {
			return nil, err
		}
		given[name]++
		return lent{dev}, nil
	}
}

// close closes all devices; runs that follow open them anew.
func (l *lender) close() error {
	var errs []error
	for _, devs := range l.devices {
		for _, dev := range devs {
			errs = append(errs, dev.Close())
		}
	}
	clear(l.devices)
	return errors.Join(errs...)
}

// lent is a device that the run does not close.
type lent struct{ device.Device }

func (lent) Close() error { return nil }

// Budget is the device's budget in bytes; 0: it has no bound.
func (l lent) Budget() int64 { return device.Budget(l.Device) }
