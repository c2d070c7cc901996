package bench

import (
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// The cost of a dispatch besides its computation, measured with a program of many dispatches that each add one to 64
// words and depend on the previous one.
const (
	dispatchCase = "dispatch"      // from the first to the last, with waiting for the device
	enqueueCase  = "dispatch host" // Run alone
	dispatches   = 1000
)

// measureDispatch returns each device's two results.
func measureDispatch(devs []device.Device, o Options) ([][]Result, error) {
	var subjects []*subject
	hosts := make([][]time.Duration, len(devs))
	for i, dev := range devs {
		l, b, err := loadDispatches(dev)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dev.Info().Name, err)
		}
		defer b.Release()
		defer l.Release()
		subjects = append(subjects, &subject{clock: Host, run: func(n int) (time.Duration, error) {
			began := time.Now()
			for range n {
				start := time.Now()
				if err := dev.Run(l); err != nil {
					return 0, err
				}
				hosts[i] = append(hosts[i], time.Since(start))
				if err := dev.Sync(); err != nil {
					return 0, err
				}
			}
			return time.Since(began) / time.Duration(n), nil
		}})
		if _, err := subjects[i].run(1); err != nil { // compiles
			return nil, err
		}
	}
	if err := o.alternate(subjects, nil); err != nil {
		return nil, err
	}
	var out [][]Result
	for i, s := range subjects {
		out = append(out, []Result{{Name: dispatchCase, DurationMicros: inMicros(s.median()) / dispatches, Clock: Host},
			{Name: enqueueCase, DurationMicros: inMicros(median(hosts[i])) / dispatches, Clock: Host}})
	}
	return out, nil
}

func loadDispatches(dev device.Device) (device.Loaded, device.Buffer, error) {
	b, err := dev.Alloc("words", 256)
	if err != nil {
		return nil, nil, err
	}
	increment := device.Shader{Label: "increment", Workgroup: [3]int{64, 1, 1}, Bindings: []device.Access{device.ReadWrite},
		Source: `@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) l: u32) { x[l] += 1u; }`}
	if dev.Limits().Native {
		increment = nativeIncrement()
	}
	p := &device.Program{Label: "dispatches", Shaders: []device.Shader{increment}}
	for range dispatches {
		p.Commands = append(p.Commands, device.Command{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}})
	}
	l, err := dev.Load(p)
	if err != nil {
		b.Release()
		return nil, nil, err
	}
	return l, b, nil
}
