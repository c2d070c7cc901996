package bench

import (
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// What a dispatch costs beside its computing: a program of many that each add one to 64 words, each after the one before.
const (
	dispatchCase = "dispatch"      // from the first to the last, waiting for the device included
	enqueueCase  = "dispatch host" // of the host: Run alone
	dispatches   = 1000
)

func measureDispatch(dev device.Device, o Options) ([]Result, error) {
	b, err := dev.Alloc("words", 256)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	p := &device.Program{Label: "dispatches", Shaders: []device.Shader{{Label: "increment", Workgroup: [3]int{64, 1, 1},
		Bindings: []device.Access{device.ReadWrite}, WGSL: `@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) l: u32) { x[l] += 1u; }`}}}
	for range dispatches {
		p.Commands = append(p.Commands, device.Command{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}})
	}
	l, err := dev.Load(p)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	host := time.Hour
	fastest, err := o.best(func(n int) error {
		for range n {
			start := time.Now()
			if err := dev.Run(l); err != nil {
				return err
			}
			host = min(host, time.Since(start))
			if err := dev.Sync(); err != nil {
				return err
			}
		}
		return nil
	}, nil)
	return []Result{{Name: dispatchCase, Micros: micros(fastest) / dispatches}, {Name: enqueueCase, Micros: micros(host) / dispatches}}, err
}
