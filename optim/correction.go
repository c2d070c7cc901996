package optim

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Correction compensates for gradients that are one step old: a row of the table Corrections. Where only some
// microbatches are stale, it acts in proportion to Tensor.Staleness. Its state has the type of the parameter and starts
// as zero. The methods get it in the order of State, as the batch before left it.
type Correction interface {
	// Fields lists all hyperparameters.
	Fields() []Field
	// State names the kinds of state per parameter. No rule has a kind with the same name.
	State() []string
	// Gradient returns the gradient that the rule gets in place of t.Gradient, which is clipped.
	Gradient(t Tensor, s []*graph.Value) *graph.Value
	// Step returns the new state, and the step to subtract from the newest weights in place of u.U. Weight decay is not
	// part of the step.
	Step(t Tensor, u Update, s []*graph.Value) (step *graph.Value, state []*graph.Value)
	// Ahead is the kind of state by which the newest weights x are ahead of the weights y that hold every update once:
	// y = x + state. It is empty if x = y.
	Ahead() string
}

// AppliedState is a kind of state that a correction may name. The optimizer itself keeps in it the last step that was
// subtracted from the weights, including weight decay; zero after a batch that was skipped. Step returns nil for it.
const AppliedState = "applied"

// NoCorrection changes nothing. Corrections embed it for the methods that they do not need.
type NoCorrection struct{}

// Fields is empty.
func (*NoCorrection) Fields() []Field { return nil }

// State is empty.
func (*NoCorrection) State() []string { return nil }

// Gradient returns the gradient as it is.
func (*NoCorrection) Gradient(t Tensor, _ []*graph.Value) *graph.Value { return t.Gradient }

// Ahead is empty.
func (*NoCorrection) Ahead() string { return "" }

// Step returns the update as it is.
func (*NoCorrection) Step(_ Tensor, u Update, _ []*graph.Value) (*graph.Value, []*graph.Value) {
	return u.U, nil
}

// inProportion returns a value times the staleness of a parameter's gradient.
func inProportion(t Tensor, v *graph.Value) *graph.Value {
	if t.Staleness == 1 {
		return v
	}
	return op.Scale(v, t.Staleness)
}

// Settled returns the weights y_t of a parameter, with every update so far applied once. newest are the weights x_t
// with the updates of all batches. ahead is the content of the variable Ahead after the same batch, or nil. With error
// feedback and weight prediction x_t is ahead of y_t. For example, error feedback with staleness r and no weight decay
// makes x_t = y_t + r·(y_t − y_{t−1}).
func Settled(newest, ahead []float32) []float32 {
	y := slices.Clone(newest)
	for i, a := range ahead {
		y[i] += a
	}
	return y
}
