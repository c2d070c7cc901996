package model

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Parameter is one trained tensor.
type Parameter struct {
	Name string // as Hugging Face's Llama names it
	Type graph.Type
	Unit string // the unit that it belongs to: "embed", "layers.0.self_attn", "layers.0.mlp", …, "head"
	Role Role
	// Std is the standard deviation of the normal distribution around 0 that initializes the tensor; if it is 0, every
	// element is Fill.
	Std, Fill float64
	// BalanceRate is how far a BalancingBias moves towards even loads in a step; with 0 it stays.
	BalanceRate float64
	// ProportionalBalance makes the steps of a BalancingBias proportional to the difference of the mean load and the
	// load.
	ProportionalBalance bool
}

// Role is the role of a parameter for an optimizer, besides its shape.
type Role uint8

const (
	Ordinary Role = iota
	// Router is the matrix [experts, d_model] that scores experts.
	Router
	// BalancingBias is the vector [experts] that is added to the scores by which experts are chosen. Its gradient is
	// the load of each expert: how many tokens of the batch chose it. Nothing scales it.
	BalancingBias
)

// LossScope is the scope of the mean of a microbatch's losses.
const LossScope = "loss"

// Initial returns the parameter's initial values: a function of seed and name only.
func (p Parameter) Initial(seed uint64) []float32 {
	n := p.Type.Shape.Len()
	if p.Std > 0 {
		return op.InitNormal(seed, p.Name, n, p.Std)
	}
	return slices.Repeat([]float32{float32(p.Fill)}, n)
}

// Gradient is the name of the variable that holds a parameter's gradient. A parameter may have several: see
// Model.Gradients.
func Gradient(parameter string) string { return "grad/" + parameter }
