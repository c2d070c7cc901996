package partition

import (
	"fmt"
	"github.com/gpupipe/gpupipe/internal/units"
	"strings"
)

// InfeasibleError reports a model that does not fit into the devices' memory. It names the stage that lacks most memory
// in the cut that lacks least.
type InfeasibleError struct {
	Stage     int
	Units     string // "layers.3.mlp to head"
	Device    string
	Sharing   int // stages that share the device's memory
	Needed    Memory
	Available int64 // bytes of the device's memory for the stage
	Recompute Recompute
}

func (e *InfeasibleError) Error() string {
	m := e.Needed
	var b strings.Builder
	fmt.Fprintf(&b, "stage %d (%s) does not fit on %s: %s needed (weights %s, gradients %s, optimizer %s, activations %s, working %s), %s available",
		e.Stage, e.Units, e.Device, units.Bytes(m.Total()), units.Bytes(m.Weights), units.Bytes(m.Gradients), units.Bytes(m.Optimizer),
		units.Bytes(m.Activations), units.Bytes(m.Working), units.Bytes(e.Available))
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

// tooLarge is the error of a layout that does not fit.
func (c *costs) tooLarge(l layout) error {
	worst := cost{over: -1}
	var e *InfeasibleError
	for s := range c.Schedule.Stages {
		d, chunks := l.order[s], c.chunksOf(l, s)
		x := c.stage(s, d, chunks)
		if x.over <= worst.over {
			continue
		}
		worst = x
		e = &InfeasibleError{Stage: s, Units: c.unitsText(chunks), Device: c.Devices[d].Name, Sharing: c.devices[d].stages,
			Needed: x.memory, Available: c.available(d), Recompute: c.Recompute}
	}
	return e
}
