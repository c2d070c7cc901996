package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// ErrorFeedback subtracts u_t and, once more, the update that should have been subtracted last time minus the one that
// was: 2·u_t − u_{t−1} (arXiv:2606.30634). With staleness r it subtracts u_t + r·(u_t − u_{t−1}).
//
// Let y_t be the weights with every update once, so x_t = y_t − r·u_{t−1}. The stale microbatches read x_{t−1}, the
// others x_t. The mean of the weights that a batch reads is r·x_{t−1} + (1 − r)·x_t = y_t + r²·(u_{t−1} − u_{t−2}). It
// is y_t, to which the update is applied, where updates stay the same.
type ErrorFeedback struct{ NoCorrection }

// State is r·u_{t−1}.
func (*ErrorFeedback) State() []string { return []string{"last_update"} }

// Ahead is r·u_{t−1}.
func (*ErrorFeedback) Ahead() string { return "last_update" }

// Step returns u_t + r·(u_t − u_{t−1}) and r·u_t.
func (*ErrorFeedback) Step(t Tensor, u Update, s []*graph.Value) (*graph.Value, []*graph.Value) {
	return op.Sub(op.Scale(u.U, 1+t.Staleness), s[0]), []*graph.Value{inProportion(t, u.U)}
}
