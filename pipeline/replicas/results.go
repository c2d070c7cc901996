package replicas

import (
	"math"

	"github.com/gpupipe/gpupipe/pipeline/engine"
)

// combined receives the measurements of the next batch from all replicas. It reports whether there were any.
func combined(measured []chan engine.Measured) (m engine.Measured, ok bool) {
	var all []engine.Measured
	for i, c := range measured {
		m, ok := <-c
		if !ok {
			return m, false
		}
		m.Replica = i
		all = append(all, m)
	}
	return Combine(all), true
}

// Combine is the measurements of replicas as one: means, and the sums of loads. A batch that some replicas have skipped
// for the loss scale alone counts without them; it overflowed if all of them have. Any other batch that a replica has
// not applied was not applied.
func Combine(all []engine.Measured) engine.Measured {
	m := engine.Measured{Batch: all[0].Batch, OK: true, Overflowed: true, Scale: all[0].Scale, Replicas: all}
	applied := 0.0
	for _, r := range all {
		m.OK, m.Overflowed = m.OK && (r.OK || r.Overflowed), m.Overflowed && r.Overflowed
		m.Scale = math.Min(m.Scale, r.Scale)
		m.Loss += r.Loss / float64(len(all))
		m.Losses = append(m.Losses, r.Losses...)
		if !r.Overflowed {
			applied++
			m.GradNorm += (r.GradNorm - m.GradNorm) / applied
		}
	}
	if m.Overflowed {
		m.OK, m.GradNorm = false, all[0].GradNorm
	}
	for layer := range all[0].Routing {
		m.Routing = append(m.Routing, combineRouting(all, layer))
	}
	return m
}

// combineRouting is what the routers of a layer did in all replicas.
func combineRouting(all []engine.Measured, layer int) engine.Routing {
	sum := engine.Routing{Layer: all[0].Routing[layer].Layer, Load: make([]float64, len(all[0].Routing[layer].Load)),
		BiasMin: math.Inf(1), BiasMax: math.Inf(-1)}
	n := float64(len(all))
	for _, m := range all {
		r := m.Routing[layer]
		for i, load := range r.Load {
			sum.Load[i] += load
		}
		sum.Entropy, sum.Aux, sum.Z = sum.Entropy+r.Entropy/n, sum.Aux+r.Aux/n, sum.Z+r.Z/n
		sum.BiasMin, sum.BiasMax = math.Min(sum.BiasMin, r.BiasMin), math.Max(sum.BiasMax, r.BiasMax)
	}
	return sum
}
