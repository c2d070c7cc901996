package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
)

// holding is a parameter that a rank's programs read. One rank owns it and updates it. The others hold copies and
// accumulate gradients for the owner: the head of a tied model, if it is not on the rank of the embedding, and all
// ranks of a further replica.
type holding struct {
	param     string
	owner     int      // rank
	gradients []string // variables; the first shares the parameter's pool of buffers
}

// holdings are the parameters of a rank, in the model's order.
func (o Options) holdings(rank int) []holding {
	gathered := map[string][]string{}
	for chunk := range o.Layout.Chunks {
		v := chunk*o.Layout.Stages + rank%o.Layout.Stages
		first, last := o.Layout.units(v, o.Model)
		for _, p := range o.Model.Reads(first, last) {
			all := o.Model.Gradients(p.Name)
			if o.virtualStageOf(p) == v {
				gathered[p.Name] = append([]string{all[len(all)-1]}, gathered[p.Name]...)
			}
			if len(all) > 1 && last == o.Model.Units() {
				gathered[p.Name] = append(gathered[p.Name], all[0])
			}
		}
	}
	var hs []holding
	for _, p := range o.Model.Parameters() {
		if gradients, ok := gathered[p.Name]; ok {
			hs = append(hs, holding{param: p.Name, owner: o.virtualStageOf(p) % o.Layout.Stages, gradients: gradients})
		}
	}
	return hs
}

// virtualStageOf is the virtual stage that has a parameter's own unit.
func (o Options) virtualStageOf(p model.Parameter) int {
	unit, v := model.UnitOf(o.Model, p), 0
	for _, c := range o.Layout.Cut {
		if unit >= c {
			v++
		}
	}
	return v
}

// contribution is the name, on the owner, of the gradient that another rank accumulates in a variable.
func (o Options) contribution(rank int, variable string) string {
	if r := rank / o.Layout.Stages; r > 0 {
		return fmt.Sprintf("replica%d/%s", r, variable)
	}
	return variable
}

// Contributions lists the variables whose sum, in order, is the gradient of a parameter, for optim.Param. The last is
// the owner's own.
func (o Options) Contributions(param string) []string {
	all := o.Model.Gradients(param)
	var names []string
	for r := 1; r < o.Layout.Replicas; r++ {
		for _, g := range all {
			names = append(names, o.contribution(r*o.Layout.Stages, g))
		}
	}
	return slices.Concat(all[:len(all)-1], names, all[len(all)-1:])
}

// LossContributions lists the variables of the further replicas' losses on the rank of the loss, for optim.Config.
func (o Options) LossContributions() (names []string) {
	for r := 1; r < o.Layout.Replicas; r++ {
		names = append(names, o.contribution(r*o.Layout.Stages, model.LossVariable))
	}
	return names
}

// exchange is what two ranks exchange per batch: gradients, and the loss of a further replica, to the owner; updated
// weights back.
type exchange struct {
	from, to int      // the rank with copies, the owner
	params   []string // sent back
	// Variables on the sender, and their names on the owner.
	gradients, as []string
}

// exchanges are all exchanges of an engine.
type exchanges []exchange

// add adds a variable to send to the owner.
func (x *exchange) add(o Options, variable string) {
	x.gradients, x.as = append(x.gradients, variable), append(x.as, o.contribution(x.from, variable))
}

// between is the exchange between a rank with copies and their owner.
func (xs exchanges) between(from, to int) exchange {
	return xs[slices.IndexFunc(xs, func(x exchange) bool { return x.from == from && x.to == to })]
}

// scalesLosses reports whether the backward passes of a stage multiply losses by the loss scale: the training loss, or
// side losses of its layers.
func (o Options) scalesLosses(stage int) bool {
	if stage == o.Layout.Stages-1 {
		return true
	}
	for chunk := range o.Layout.Chunks {
		first, last := o.Layout.units(chunk*o.Layout.Stages+stage, o.Model)
		if o.Model.SideLosses() && len(o.Model.Routing(first, last)) > 0 {
			return true
		}
	}
	return false
}

// planExchanges lists all exchanges, by sender and owner.
func (o Options) planExchanges() exchanges {
	var xs exchanges
	for rank := range o.Layout.ranks() {
		at := map[int]int{} // exchange by owner
		to := func(owner int) *exchange {
			i, ok := at[owner]
			if !ok {
				i = len(xs)
				at[owner], xs = i, append(xs, exchange{from: rank, to: owner})
			}
			return &xs[i]
		}
		for _, h := range o.holdings(rank) {
			if h.owner == rank {
				continue
			}
			x := to(h.owner)
			x.params = append(x.params, h.param)
			for _, g := range h.gradients {
				x.add(o, g)
			}
		}
		// a stage of a further replica has an exchange, maybe an empty one, with the stage of the first replica
		if rank >= o.Layout.Stages {
			to(rank % o.Layout.Stages)
		}
		stage := rank % o.Layout.Stages
		if rank >= o.Layout.Stages && o.Optimizer.Scaled() && o.scalesLosses(stage) {
			x := to(stage)
			x.params = append(x.params, optim.ScaleVariable) // it holds the same
		}
		if rank >= o.Layout.Stages && stage == o.Layout.Stages-1 && len(o.Optimizer.Losses()) > 0 { // a further replica's loss
			to(stage).add(o, model.LossVariable)
		}
	}
	return xs
}
