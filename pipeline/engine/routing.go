package engine

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
)

// Routing is what the router of a layer did in a batch.
type Routing struct {
	Layer   int
	Load    []float64 // by expert: how many rows it had, over all microbatches
	Entropy float64   // of the router's distribution, in nats, the mean of tokens
	Aux, Z  float64   // the auxiliary loss and the z-loss without their weights, the mean of microbatches
	// The least and the largest balancing bias; 0 without one.
	BiasMin, BiasMax float64
}

// Peak is the largest load of an expert over the mean load.
func (r Routing) Peak() float64 {
	sum := 0.0
	for _, n := range r.Load {
		sum += n
	}
	return slices.Max(r.Load) * float64(len(r.Load)) / sum
}

// Idle counts the experts without load.
func (r Routing) Idle() (n int) {
	for _, x := range r.Load {
		if x == 0 {
			n++
		}
	}
	return n
}

// Router is a virtual stage with mixtures of experts. It reports their routing for each microbatch.
type Router struct {
	VirtualStage int
	Layers       []int
	Values       int // of a report
}

// Routers lists the virtual stages with mixtures of experts, in order.
func (e *Engine) Routers() (rs []Router) {
	o := e.options
	for v := range o.Layout.virtualStages() {
		if layers := o.Model.Routing(o.Layout.units(v, o.Model)); len(layers) > 0 {
			rs = append(rs, Router{v, layers, len(layers) * (o.Model.Experts() + model.RoutingStats)})
		}
	}
	return rs
}

// routing puts the reports of a router's microbatches together. Each has a row for each layer, see
// model.RoutingOutput.
func (r Router) routing(reports [][]float32) (all []Routing) {
	for i, layer := range r.Layers {
		width := len(reports[0]) / len(r.Layers)
		experts := width - model.RoutingStats
		sum := Routing{Layer: layer, Load: make([]float64, experts)}
		for n, report := range reports {
			row := report[i*width : (i+1)*width]
			for e, x := range row[:experts] {
				sum.Load[e] += float64(x)
			}
			stats := row[experts:]
			for j, to := range []*float64{&sum.Entropy, &sum.Aux, &sum.Z} {
				*to += float64(stats[j]) / float64(len(reports))
			}
			least, most := float64(stats[3]), float64(stats[4])
			if n == 0 {
				sum.BiasMin, sum.BiasMax = least, most
			}
			sum.BiasMin, sum.BiasMax = min(sum.BiasMin, least), max(sum.BiasMax, most)
		}
		all = append(all, sum)
	}
	return all
}
