package verify

import "fmt"

// deepMicrobatches is enough for four stages at the largest depth. It is a multiple of five, so that half of them can
// be stale on five stages.
const deepMicrobatches = 10

// atDepth adds pipelines with more microbatches in flight than stages. The same microbatches are stale as on one device
// with as many stale microbatches.
func (p *planner) atDepth() {
	for n := 2; n <= 4; n++ {
		for _, k := range []int{1, 2, 4} {
			if p.quick && (n != 3 || k != 2) {
				continue
			}
			stale := n - 1 + k
			muon, adamw := deep(delayedBy("muon", "error_feedback", k != 2), stale), deep(delayedBy("adamw", "none", k == 2), stale)
			if n == 3 {
				adamw = deep(delayedBy("adamw", "error_feedback", k != 2), stale)
			}
			p.equal(atDepth, muon, at(on2BW(muon, n), k))
			if !p.quick {
				p.equal(atDepth, adamw, at(on2BW(adamw, n), k))
			}
		}
	}
	if p.quick {
		return
	}
	all := deep(delayedBy("muon", "error_feedback", true), deepMicrobatches)
	p.sound(atDepth, all)
	p.equal(atDepth, all, at(on2BW(all, 3), 4))
	sync := undelayed("muon", true).with(fmt.Sprintf("muon, tied, %d microbatches", deepMicrobatches), microbatches(deepMicrobatches)...)
	p.equal(synchronous, sync, at(sync.with(sync.name+", 1f1b, 3 stages", "pipeline.stages=3"), 2))
	part := deep(delayedBy("muon", "error_feedback", true), 6)
	p.stop(resumed, part, at(on2BW(part, 5), 2), at(on2BW(part, 3), 4))
}

// deep is a delayed setting with deepMicrobatches microbatches. The first stale of them are stale.
func deep(s setting, stale int) setting {
	return s.with(fmt.Sprintf("%s, %d of %d stale", s.name, stale, deepMicrobatches),
		append(microbatches(deepMicrobatches), fmt.Sprint("pipeline.stale_microbatches=", stale))...)
}

// at is a pipeline at a depth.
func at(s setting, depth int) setting {
	return s.with(fmt.Sprintf("%s, depth %d", s.name, depth), fmt.Sprint("pipeline.depth=", depth))
}
