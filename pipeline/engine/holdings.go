package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
)

// holding is a parameter that a line's programs read. One line owns it and updates it; the others hold copies, to which they
// gather gradients for the owner: the head of a tied model when it is not where the embedding is, and all of a further replica.
type holding struct {
	param     string
	owner     int      // line
	gradients []string // variables; the first shares the parameter's pool of buffers
}

// holdings are the parameters of a line, in the model's order.
func (o Options) holdings(line int) []holding {
	gathered := map[string][]string{}
	for chunk := range o.Chunks {
		part := chunk*o.Stages + line%o.Stages
		first, last := o.units(part, o.Model)
		for _, p := range o.Model.Reads(first, last) {
			all := o.Model.Gradients(p.Name)
			if o.virtualStageOf(p) == part {
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
			hs = append(hs, holding{param: p.Name, owner: o.virtualStageOf(p) % o.Stages, gradients: gradients})
		}
	}
	return hs
}

// virtualStageOf is the part that has a parameter's own unit.
func (o Options) virtualStageOf(p model.Parameter) int {
	unit := 0
	for o.Model.UnitScope(unit) != p.Scope {
		unit++
	}
	part := 0
	for _, c := range o.Cut {
		if unit >= c {
			part++
		}
	}
	return part
}

// contribution names, on the owner's line, the gradient that another line gathers in a variable.
func (o Options) contribution(line int, variable string) string {
	if r := line / o.Stages; r > 0 {
		return fmt.Sprintf("replica%d/%s", r, variable)
	}
	return variable
}

// Contributions lists the variables whose sum, in order, is a parameter's gradient; the last is the owner's own. It is what
// optim.Param is told.
func (o Options) Contributions(param string) []string {
	all := o.Model.Gradients(param)
	var names []string
	for r := 1; r < o.Replicas; r++ {
		for _, g := range all {
			names = append(names, o.contribution(r*o.Stages, g))
		}
	}
	return slices.Concat(all[:len(all)-1], names, all[len(all)-1:])
}

// LossContributions lists the further replicas' losses, as the line with the first one's has them. It is what optim.Config is told.
func (o Options) LossContributions() (names []string) {
	for r := 1; r < o.Replicas; r++ {
		names = append(names, o.contribution(r*o.Stages, model.LossVariable))
	}
	return names
}

// exchange is what two lines exchange a batch: gradients to the owner, and a further replica's loss; updated weights back.
type exchange struct {
	from, to int      // the line with copies, the owner
	params   []string // sent back
	// Variables at the sender and what they are called at the owner.
	gradients, as []string
}

// add has a variable sent to the owner too.
func (x *exchange) add(o Options, variable string) {
	x.gradients, x.as = append(x.gradients, variable), append(x.as, o.contribution(x.from, variable))
}

// exchange is the exchange between a line with copies and their owner.
func (e *Engine) exchange(from, to int) exchange {
	return e.exchanges[slices.IndexFunc(e.exchanges, func(x exchange) bool { return x.from == from && x.to == to })]
}

// planExchanges are all exchanges, by sender and owner.
func (o Options) planExchanges() []exchange {
	var ls []exchange
	for line := range o.ranks() {
		at := map[int]int{} // link by owner
		to := func(owner int) *exchange {
			i, ok := at[owner]
			if !ok {
				i = len(ls)
				at[owner], ls = i, append(ls, exchange{from: line, to: owner})
			}
			return &ls[i]
		}
		for _, h := range o.holdings(line) {
			if h.owner == line {
				continue
			}
			x := to(h.owner)
			x.params = append(x.params, h.param)
			for _, g := range h.gradients {
				x.add(o, g)
			}
		}
		if line >= o.Stages { // a further replica's stage tells that of the first, though it may have nothing to tell
			to(line % o.Stages)
		}
		if first := o.Stages - 1; line > first && line%o.Stages == first { // a further replica's loss
			if o.Optimizer.Scaled() {
				x := to(first)
				x.params = append(x.params, optim.ScaleVariable) // it has the same
			}
			if len(o.Optimizer.Losses()) > 0 {
				to(first).add(o, model.LossVariable)
			}
		}
	}
	return ls
}
