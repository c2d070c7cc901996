package optim

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Shard is the parameters that one pipeline stage owns, and the programs that update them.
type Shard struct {
	o         *Optimizer
	params    []Param
	positions []int // of params among the optimizer's
	loss      bool
}

// Shard returns the programs for the named parameters, in whatever order they are named. With hasLoss the shard owns
// the last of Config.Losses, if there is one. It panics on names that New was not given, and on some parameters of a
// layer without the others.
func (o *Optimizer) Shard(names []string, hasLoss bool) *Shard {
	p := &Shard{o: o, loss: hasLoss && len(o.cfg.Losses) > 0}
	owned := map[string]bool{} // by layer
	for i, param := range o.params {
		own := slices.Contains(names, param.Name)
		if before, seen := owned[param.Layer]; seen && before != own {
			panic(fmt.Sprintf("optim: a shard has some parameters of layer %q only: %v", param.Layer, names))
		}
		if owned[param.Layer] = own; own {
			p.params, p.positions = append(p.params, param), append(p.positions, i)
		}
	}
	if len(p.params) != len(names) {
		panic(fmt.Sprintf("optim: a shard of %d parameters, of which %d are known: %v", len(names), len(p.params), names))
	}
	return p
}

// All is the shard that owns every parameter and the loss.
func (o *Optimizer) All() *Shard {
	var names []string
	for _, p := range o.params {
		names = append(names, p.Name)
	}
	return o.Shard(names, true)
}

// NormSquaresType is the type of NormSquaresVariable.
func (o *Optimizer) NormSquaresType() graph.Type { return normSquaresType(o.params) }

func normSquaresType(params []Param) graph.Type { return graph.T(graph.F32, len(params)+1) }

// Params lists the shard's parameters, in the order of New.
func (s *Shard) Params() []Param { return slices.Clone(s.params) }

// Positions maps the shard's own norm squares into the norm squares of all parameters: element i of the local variable
// is element Positions()[i] of NormSquaresVariable. The last element of the local variable, the loss, is included if
// the shard has the loss.
func (s *Shard) Positions() []int {
	at := slices.Clone(s.positions)
	if s.loss {
		at = append(at, len(s.o.params))
	}
	return at
}

// LocalVariable is the variable that NormSquares assigns, of LocalType: LocalNormSquaresVariable or, if the shard owns
// everything, NormSquaresVariable itself.
func (s *Shard) LocalVariable() string {
	if len(s.params) == len(s.o.params) && (s.loss || len(s.o.cfg.Losses) == 0) {
		return NormSquaresVariable
	}
	return LocalNormSquaresVariable
}

// LocalType is the type of the variable LocalVariable: f32 [n+1] for n parameters.
func (s *Shard) LocalType() graph.Type { return normSquaresType(s.params) }

// State lists the variables of this shard that outlive a step, besides its parameters: see Optimizer.State.
func (s *Shard) State() []graph.Named { return s.o.state(s.params) }

// NormSquares is the program that sums the squares of each of the shard's gradients. It runs once a batch's gradients
// are complete.
func (s *Shard) NormSquares() (*graph.Graph, error) { return graph.Build(s.AddNormSquares) }

// Update is the program that applies a batch's update, given the norm squares of all shards, in one of
// Optimizer.Variants.
func (s *Shard) Update(variant int) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) { s.AddUpdate(b, variant) })
}
