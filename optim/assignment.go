package optim

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// Assigned describes how a parameter is updated.
type Assigned struct {
	Param string
	Type  graph.Type
	Rule  string  // a name of the table Optimizers, BalanceRule or ProportionalBalanceRule
	LR    float64 // before the schedule; of balancing, which follows none, its rate
	Decay float64 // weight decay
}

// Assignment lists how each parameter is updated, in the order given to New.
func (o *Optimizer) Assignment() []Assigned {
	of := map[string]Assigned{}
	for _, g := range o.groups {
		for _, p := range g.params {
			a := Assigned{Param: p.Name, Type: p.Type, Rule: g.name, LR: g.lr}
			if p.Decay {
				a.Decay = o.cfg.WeightDecay
			}
			of[p.Name] = a
		}
	}
	var all []Assigned
	for _, p := range o.params {
		if p.BalancingBias {
			of[p.Name] = Assigned{Param: p.Name, Type: p.Type, Rule: p.balanceRule(), LR: p.BalanceRate}
		}
		all = append(all, of[p.Name])
	}
	return all
}

var number = regexp.MustCompile(`\.\d+\.`)

// String is the assignment as text: a line for each distinct rule, learning rate and weight decay, with the parameters
// that have them and their shapes. Parameters whose names differ by a number only are counted.
func (o *Optimizer) String() string {
	var lines []string
	params := map[string][]string{} // of a line
	count := map[string]int{}       // of a parameter in a line
	for _, a := range o.Assignment() {
		line := fmt.Sprintf("%s, lr %g, decay %g: ", a.Rule, a.LR, a.Decay)
		param := fmt.Sprintf("%s%v", number.ReplaceAllString(strings.TrimSuffix(a.Param, ".weight"), ".*."), a.Type.Shape)
		if params[line] == nil {
			lines = append(lines, line)
		}
		if count[line+param]++; count[line+param] == 1 {
			params[line] = append(params[line], param)
		}
	}
	for i, line := range lines {
		for j, param := range params[line] {
			if n := count[line+param]; n > 1 {
				params[line][j] = fmt.Sprintf("%s×%d", param, n)
			}
		}
		lines[i] = line + strings.Join(params[line], ", ")
	}
	return strings.Join(lines, "\n")
}
