package layout

import (
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/layout/replicate"
)

// asOneReplica combines the devices of all ranks into the devices of one replica, since all replicas are cut alike.
// Each stage has the speed of its slowest device and the memory of its smallest. Replicas on one device share its
// memory and its time.
func asOneReplica(ranks []partition.Device, stages int) []partition.Device {
	on, sharing := map[string]int64{}, map[string]int64{} // ranks by device, stages by devices
	names := make([][]string, stages)
	for i, d := range ranks {
		on[d.Name]++
		if s := i % stages; !slices.Contains(names[s], d.Name) {
			names[s] = append(names[s], d.Name)
		}
	}
	for _, n := range names {
		sharing[strings.Join(n, " and ")]++
	}
	var all []partition.Device
	for i, d := range ranks {
		name := strings.Join(names[i%stages], " and ")
		d.Memory = d.Memory * sharing[name] / on[d.Name]
		if len(ranks) > stages {
			d.Ranks = int(on[d.Name])
		}
		if d.Name = name; i < stages {
			all = append(all, d)
		} else {
			all[i%stages] = worse(all[i%stages], d)
		}
	}
	return all
}

// worse is a device that is no better than either of two.
func worse(a, b partition.Device) partition.Device {
	times := slices.Clone(a.Times)
	for u, t := range b.Times {
		x := &times[u]
		x.Forward, x.Backward, x.Update = max(x.Forward, t.Forward), max(x.Backward, t.Backward), max(x.Update, t.Update)
		x.InputGrad, x.WeightGrad = max(x.InputGrad, t.InputGrad), max(x.WeightGrad, t.WeightGrad)
	}
	a.Times, a.Parallel = times, a.Parallel && b.Parallel
	a.Memory, a.Link.Bandwidth = replicate.LeastKnown(a.Memory, b.Memory), replicate.LeastKnown(a.Link.Bandwidth, b.Link.Bandwidth)
	a.Link.Latency, a.Ranks, a.Cores = max(a.Link.Latency, b.Link.Latency), max(a.Ranks, b.Ranks), max(a.Cores, b.Cores)
	return a
}
