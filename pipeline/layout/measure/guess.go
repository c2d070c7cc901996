package measure

import (
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// speed is an estimate of what a kind of device reaches with portable kernels, of the order of published figures for
// WebGPU.
type speed struct {
	flops  float64 // per second, in products of f32
	matrix float64 // per second, in products on matrix units
	bytes  float64 // per second, to and from its own memory
	launch float64 // seconds per kernel
	link   partition.Link
}

func speedOf(dev device.Device) speed {
	switch dev.Info().Kind {
	case device.CPU:
		n := float64(max(1, dev.Info().Threads))
		return speed{60e9 * n, 60e9 * n, 10e9 * n, 3e-6, partition.Link{Latency: 10e-6, Bandwidth: 10e9}}
	case device.Software:
		return speed{20e9, 20e9, 10e9, 30e-6, partition.Link{Latency: 50e-6, Bandwidth: 5e9}}
	case device.Integrated:
		return speed{1e12, 1e12, 50e9, 10e-6, partition.Link{Latency: 50e-6, Bandwidth: 10e9}}
	}
	return speed{10e12, 10e12, 500e9, 5e-6, partition.Link{Latency: 50e-6, Bandwidth: 10e9}}
}

// guess estimates a kernel's time as the longer of its arithmetic and its memory traffic (the roofline of Williams,
// Waterman and Patterson, CACM 52(4), 2009), plus its launch.
func guess(v speed, kinds []kind) (r record) {
	for _, k := range kinds {
		seconds := map[string]float64{}
		for _, program := range k.programs {
			for _, kernel := range k.plan.Kernels(program) {
				rate := v.flops
				if onMatrixUnits(kernel) {
					rate = v.matrix
				}
				seconds[program] += v.launch + max(kernel.Flops/rate, float64(kernel.Bytes)/v.bytes)
			}
		}
		r.times = append(r.times, k.total(seconds))
	}
	r.link = v.link
	return r
}
