package partition

import (
	"fmt"
	"strings"
)

// InfeasibleError is a model that does not fit into the devices' memory. It names the stage that misses most where the cut is
// the one that misses least.
type InfeasibleError struct {
	Stage     int
	Units     string // "layers.3 to head"
	Device    string
	Sharing   int // stages that share the device's memory
	Needed    Memory
	Available int64 // bytes, the stage's part of the device's memory
	Recompute Recompute
}

func (e *InfeasibleError) Error() string {
	m := e.Needed
	var b strings.Builder
	fmt.Fprintf(&b, "stage %d (%s) does not fit on %s: %d bytes needed (weights %d, gradients %d, optimizer %d, activations %d, working %d), %d available",
		e.Stage, e.Units, e.Device, m.Total(), m.Weights, m.Gradients, m.Optimizer, m.Activations, m.Working, e.Available)
	if e.Sharing > 1 {
		fmt.Fprintf(&b, ", a share of %d", e.Sharing)
	}
	if e.Recompute == Never {
		b.WriteString(" without recomputation")
	} else {
		b.WriteString(", even with recomputation where it helps")
	}
	b.WriteString(": expected more stages, more memory, or smaller microbatches (more microbatches per batch)")
	return b.String()
}

// tooLarge says where a layout misses most.
func (c *costs) tooLarge(l layout) error {
	worst := cost{over: -1}
	var e *InfeasibleError
	for s := range c.Schedule.Stages {
		d, parts := l.order[s], c.parts(l, s)
		x := c.stage(s, d, parts)
		if x.over <= worst.over {
			continue
		}
		worst = x
		e = &InfeasibleError{Stage: s, Units: c.unitsText(parts), Device: c.Devices[d].Name, Sharing: c.share[d],
			Needed: x.memory, Available: c.available(d), Recompute: c.Recompute}
	}
	return e
}
