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
	Rule  string  // a name of the table Optimizers
	LR    float64 // before the schedule
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
		all = append(all, of[p.Name])
	}
	return all
}

var number = regexp.MustCompile(`\.\d+\.`)

// String is the assignment as text, with one line for parameters whose names differ by a number only.
func (o *Optimizer) String() string {
	var texts []string
	width := 0
	for _, g := range o.groups {
		width = max(width, len(g.name))
	}
	count := map[string]int{}
	for _, a := range o.Assignment() {
		name := number.ReplaceAllString(a.Param, ".*.")
		text := fmt.Sprintf("%-*s  lr %-8g decay %-6g %s %v", width, a.Rule, a.LR, a.Decay, name, a.Type.Shape)
		if count[text]++; count[text] == 1 {
			texts = append(texts, text)
		}
	}
	for i, t := range texts {
		if count[t] > 1 {
			texts[i] = fmt.Sprintf("%s × %d", t, count[t])
		}
	}
	return strings.Join(texts, "\n")
}
