package optim

import (
	"github.com/gpupipe/gpupipe/graph"
)

// Rule is the mathematics of an optimizer: it turns gradients into updates. How an update is applied is up to
// Optimizer.
type Rule interface {
	// State lists the kinds of state per parameter, each with its type. All state starts as zero.
	State(p Param) []graph.Named
	// Hyperparameters are the values that change from step to step (from 0), given the step's learning rate. Their
	// names and their order are the same at every step.
	Hyperparameters(step int, rate float64) Hyperparameters
	// Update adds the nodes that compute the updates, in the order of ts, which are parameters of one layer.
	Update(ts []Tensor, h Scalars) []Update
}

// Varied is a Rule whose update is a different program at some steps, such as those that renew a basis. Its Update is
// variant 0.
type Varied interface {
	Rule
	Variants() int
	Variant(step int) int // of a step, from 0, except for Initializing rules
	UpdateVariant(variant int, ts []Tensor, h Scalars) []Update
}

// Initializing is a Varied rule with an initialization step: its first update that is applied, at whatever step, sets
// up its state and leaves the weights as they are, without weight decay.
type Initializing interface {
	InitializationVariant() int
}

// WithMomentum is a Rule that computes a part of the next update beforehand: the update that its momentum alone would
// make, at the step's learning rate. Momentum gets the arguments and results of Update. For other rules the update
// itself is used.
type WithMomentum interface {
	Momentum(ts []Tensor, us []Update, h Scalars) []*graph.Value
}

// Tensor is a parameter as a Rule gets it.
type Tensor struct {
	Param
	Gradient  *graph.Value   // clipped
	State     []*graph.Value // in the order of Rule.State
	Staleness float64        // Config.Staleness, for corrections
}

// Update is a Rule's result for a parameter. U includes the learning rate, excludes weight decay, and is to be
// subtracted from the weights.
type Update struct {
	U     *graph.Value
	State []*graph.Value // new, in the order of Rule.State
	// Momentum returns the update that momentum alone would make next (see WithMomentum). Corrections call it; rules
	// leave it nil. Its nodes are added by the first call.
	Momentum func() *graph.Value
}

// kinds is state of the parameter's own type.
func kinds(p Param, kinds ...string) (s []graph.Named) {
	for _, k := range kinds {
		s = append(s, graph.Named{ID: k, Type: p.Type})
	}
	return s
}
