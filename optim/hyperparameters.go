package optim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Hyperparameters are values that change from step to step. Devices get them as one vector, in this order.
type Hyperparameters []Hyperparameter

// Hyperparameter is a value with its name. Within an Optimizer it is prefixed by the rule's, as in "muon/lr".
type Hyperparameter struct {
	Name  string
	Value float64
}

// Float32s is the vector that the input HyperparametersInput takes.
func (hs Hyperparameters) Float32s() []float32 {
	xs := make([]float32, len(hs))
	for i, h := range hs {
		xs[i] = float32(h.Value)
	}
	return xs
}

// Scalars are the hyperparameters of a step by name, as f32 [1] each, in the program that updates.
type Scalars map[string]*graph.Value

// Get returns a scalar. It panics on a name that Rule.Hyperparameters does not have.
func (s Scalars) Get(name string) *graph.Value {
	v, ok := s[name]
	if !ok {
		panic(fmt.Sprintf("optim: no hyperparameter %q, expected one of %v", name, slices.Sorted(maps.Keys(s))))
	}
	return v
}

// weightDecay is the name of lr·λ, which every group has.
const weightDecay = "weight_decay"

// hyperparameters returns the hyperparameters of the group at a step, without the group's prefix.
func (g group) hyperparameters(step int, rate, decay float64) Hyperparameters {
	return append(Hyperparameters{{weightDecay, decay}}, g.rule.Hyperparameters(step, rate)...)
}

// Hyperparameters returns the values of a step, counted from 0: for each group lr·λ and the hyperparameters of its
// rule, and at the end the key of the rounding of moments. initialized is as Variant has it.
func (o *Optimizer) Hyperparameters(step int, initialized bool) (all Hyperparameters) {
	factor := o.cfg.factor(step)
	for _, g := range o.groups {
		rate := g.lr * factor
		decay := rate * o.cfg.WeightDecay
		if _, ok := g.rule.(Initializing); ok && !initialized {
			decay = 0
		}
		for _, h := range g.hyperparameters(step, rate, decay) {
			all = append(all, Hyperparameter{g.name + "/" + h.Name, h.Value})
		}
	}
	return append(all, o.roundingKey(step)...)
}

// scalars are the elements of the input HyperparametersInput, by group.
func (o *Optimizer) scalars(input *graph.Value) []Scalars {
	elements := unstack(input)
	all := make([]Scalars, len(o.groups))
	for i, g := range o.groups {
		all[i] = Scalars{}
		for _, h := range g.hyperparameters(0, 0, 0) {
			all[i][h.Name], elements = elements[0], elements[1:]
		}
	}
	return all
}

// unstack is the elements of a vector, as [1] each.
func unstack(v *graph.Value) []*graph.Value {
	xs := make([]*graph.Value, v.Shape[0])
	for i := range xs {
		xs[i] = op.Slice(v, 0, i, i+1)
	}
	return xs
}
