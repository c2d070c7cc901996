package verify

import "github.com/gpupipe/gpupipe/pipeline/wire"

// rounded adds pipelines whose tensors are rounded between stages. With the same cut they have the same bits wherever
// the stages compute, and after a stop.
func (p *planner) rounded() {
	for _, format := range []wire.Format{wire.BF16, wire.Int8} {
		if p.quick && format != wire.Int8 {
			continue
		}
		exact := on2BW(delayedBy("muon", "error_feedback", true), 2)
		exact = exact.with(exact.name+" cut at 3", "pipeline.cut=[3]")
		s := exact.with(exact.name+", "+format.String(), "pipeline.wire="+format.String(), "pipeline.wire_exchange="+wire.BF16.String())
		p.sound(rounded, s)
		p.changed(rounded, exact, s)
		if p.openWorker != nil {
			p.equal(rounded, s, s.with(s.name+", a process for each", "pipeline.isolate=process"))
		}
		p.stop(rounded, s, s, s)
	}
}
