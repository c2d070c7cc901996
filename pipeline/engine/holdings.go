package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
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
	read := map[string][]string{} // parameter → gradient variables
	stage := line % o.Stages
	for chunk := range o.Chunks {
		first, last := o.units(chunk*o.Stages+stage, o.Model)
		for param, gradients := range o.Model.UnitGradients(first, last) {
			read[param] = append(read[param], gradients...)
		}
	}
	var hs []holding
	for _, p := range o.Model.Parameters() {
		gradients, ok := read[p.Name]
		if !ok {
			continue
		}
		// The gradient that is the parameter's own comes last in a sum and first here.
		all := o.Model.Gradients(p.Name)
		slices.SortFunc(gradients, func(a, b string) int { return slices.Index(all, b) - slices.Index(all, a) })
		hs = append(hs, holding{param: p.Name, owner: o.ownerOf(p), gradients: gradients})
	}
	return hs
}

// ownerOf is the line of the first replica that has the parameter's own unit.
func (o Options) ownerOf(p model.Parameter) int {
	unit := 0
	for u := range o.Model.Units() {
		if o.Model.UnitScope(u) == p.Scope {
			unit = u
		}
	}
	part := 0
	for _, c := range o.Cut {
		if unit >= c {
			part++
		}
	}
	return part % o.Stages
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

// link is what two lines exchange a batch: gradients to the owner, updated weights back.
type link struct {
	from, to int      // the line with copies, the owner
	params   []string // sent back
	// Variables at the sender and what they are called at the owner.
	gradients, as []string
}

// links are all exchanges, by sender and owner.
func (o Options) links() []link {
	var ls []link
	for line := range o.lines() {
		at := map[int]int{} // link by owner
		for _, h := range o.holdings(line) {
			if h.owner == line {
				continue
			}
			i, ok := at[h.owner]
			if !ok {
				i = len(ls)
				at[h.owner], ls = i, append(ls, link{from: line, to: h.owner})
			}
			ls[i].params = append(ls[i].params, h.param)
			for _, g := range h.gradients {
				ls[i].gradients = append(ls[i].gradients, g)
				ls[i].as = append(ls[i].as, o.contribution(line, g))
			}
		}
	}
	return ls
}
