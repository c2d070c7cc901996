package optim

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Part is the parameters that one pipeline stage owns, and the programs that update them.
type Part struct {
	o         *Optimizer
	params    []Param
	positions []int // of params among the optimizer's
	loss      bool
}

// Part returns the programs for the named parameters, in whatever order they are named. A part that has the loss votes on
// it, if Config.Loss names one. Names that New was not given, or some parameters of a layer without the others, are a
// mistake of the caller's.
func (o *Optimizer) Part(names []string, hasLoss bool) *Part {
	p := &Part{o: o, loss: hasLoss && o.cfg.Loss != ""}
	owned := map[string]bool{} // by layer
	for i, param := range o.params {
		own := slices.Contains(names, param.Name)
		if before, seen := owned[param.Layer]; seen && before != own {
			panic(fmt.Sprintf("optim: a part has some parameters of layer %q only: %v", param.Layer, names))
		}
		if owned[param.Layer] = own; own {
			p.params, p.positions = append(p.params, param), append(p.positions, i)
		}
	}
	if len(p.params) != len(names) {
		panic(fmt.Sprintf("optim: a part of %d parameters, of which %d are known: %v", len(names), len(p.params), names))
	}
	return p
}

// All is the part that owns every parameter and has the loss.
func (o *Optimizer) All() *Part {
	var names []string
	for _, p := range o.params {
		names = append(names, p.Name)
	}
	return o.Part(names, true)
}

// VotesType is the type of the variable "optim/votes".
func (o *Optimizer) VotesType() graph.Type { return votesType(o.params) }

func votesType(params []Param) graph.Type { return graph.T(graph.F32, len(params)+1) }

// Params lists the part's parameters, in the order of New.
func (p *Part) Params() []Param { return slices.Clone(p.params) }

// Positions tells where the part's own votes go: element i of its own variable is element Positions()[i] of "optim/votes".
// The last element of the own variable, the loss, is among them if the part has the loss.
func (p *Part) Positions() []int {
	at := slices.Clone(p.positions)
	if p.loss {
		at = append(at, len(p.o.params))
	}
	return at
}

// OwnName is the variable that Votes assigns, f32 [n+1] for n parameters: "optim/own", or "optim/votes" at once when the
// part owns everything.
func (p *Part) OwnName() string {
	if len(p.params) == len(p.o.params) && (p.loss || p.o.cfg.Loss == "") {
		return VotesVariable
	}
	return OwnVariable
}

// OwnType is the type of the variable OwnName.
func (p *Part) OwnType() graph.Type { return votesType(p.params) }

// State lists the variables of this part that outlive a step besides its parameters: see Optimizer.State.
func (p *Part) State() []graph.Named { return p.o.state(p.params) }

// Votes is the program that sums the squares of each of the part's gradients, once a batch's gradients are complete.
func (p *Part) Votes() (*graph.Graph, error) { return graph.Build(p.AddVotes) }

// Update is the program that applies a batch's update, given all votes, in one of the Optimizer's Variants.
func (p *Part) Update(variant int) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) { p.AddUpdate(b, variant) })
}
