package train

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// asOneReplica makes the places of all lines those of one replica, since all are cut alike: a stage is as slow as where it is slowest,
// and has the memory that it has where that is least. What several replicas have on one device, they share, and take turns there.
func asOneReplica(lines []partition.Device, stages int) []partition.Device {
	on, sharing := map[string]int64{}, map[string]int64{} // lines by device, stages by places
	names := make([][]string, stages)
	for i, d := range lines {
		on[d.Name]++
		if s := i % stages; !slices.Contains(names[s], d.Name) {
			names[s] = append(names[s], d.Name)
		}
	}
	for _, n := range names {
		sharing[strings.Join(n, " and ")]++
	}
	var all []partition.Device
	for i, d := range lines {
		name := strings.Join(names[i%stages], " and ")
		d.Memory = d.Memory * sharing[name] / on[d.Name]
		if len(lines) > stages {
			d.Lines = int(on[d.Name])
		}
		if d.Name = name; i < stages {
			all = append(all, d)
		} else {
			all[i%stages] = worse(all[i%stages], d)
		}
	}
	return all
}

// worse is a place that is no better than either of two.
func worse(a, b partition.Device) partition.Device {
	times := slices.Clone(a.Times)
	for u, t := range b.Times {
		x := &times[u]
		x.Forward, x.Backward, x.Update = max(x.Forward, t.Forward), max(x.Backward, t.Backward), max(x.Update, t.Update)
		x.InputGrad, x.WeightGrad = max(x.InputGrad, t.InputGrad), max(x.WeightGrad, t.WeightGrad)
	}
	a.Times = times
	a.Memory, a.Link.Bandwidth = leastKnown(a.Memory, b.Memory), leastKnown(a.Link.Bandwidth, b.Link.Bandwidth)
	a.Link.Latency, a.Lines = max(a.Link.Latency, b.Link.Latency), max(a.Lines, b.Lines)
	return a
}

// leastKnown is the smaller of two numbers of which 0 is not known.
func leastKnown[T int64 | float64](a, b T) T {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// fittingTuned is fitting where the kernels that were chosen by timing may take memory that is not there, on one device or on several lines
// of one: then the options become those of the static choice, if that fits, for all lines, as a run has one choice of kernels wherever
// it is cut.
func (r *run) fittingTuned(o *engine.Options) (*engine.Engine, error) {
	e, err := r.fitting(*o)
	if r.Tune == nil || err != nil && !errors.Is(err, exec.ErrTooLarge) {
		return e, err
	}
	var why string
	if err != nil {
		why = fmt.Sprintf("the fastest kernels need more memory than there is: %v", err)
	} else if why = strings.Join(e.Untuned(), "; "); why == "" {
		return e, nil
	}
	static := *o
	static.Execute = engine.Execute(nil, r.Pipeline.MemoryBytes())
	e, err = r.fitting(static)
	if err == nil {
		*o, r.untuned = static, true
		r.Report.Note("%s; others run in their place%s", why, r.otherBits())
	}
	return e, err
}

// otherBits is to be said where a run goes on with other kernels than those that its checkpoint names.
func (r *run) otherBits() string {
	if r.saved < 0 {
		return ""
	}
	return ", and the run goes on, but not to the same bits"
}

// fitting plans a pipeline whose lines fit their devices, those that are on one of them together too.
func (r *run) fitting(o engine.Options) (*engine.Engine, error) {
	e, err := engine.New(o)
	if err != nil {
		return nil, err
	}
	takes, names := map[string]int64{}, map[string][]string{}
	for i, l := range e.Lines() {
		name, have := l.Device.Name, cmp.Or(r.Pipeline.MemoryBytes(), device.Budget(o.Devices[i]))
		takes[name], names[name] = takes[name]+l.Memory.Total, append(names[name], l.Name)
		if n := names[name]; len(n) > 1 && have > 0 && takes[name] > have {
			return nil, fmt.Errorf("%s and %s on %s: %w: %d bytes needed together, %d available", strings.Join(n[:len(n)-1], ", "), l.Name, name,
				exec.ErrTooLarge, takes[name], have)
		}
	}
	return e, nil
}
