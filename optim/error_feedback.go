package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// ErrorFeedback subtracts u_t and, once more, the update that should have been subtracted last time minus the one that
// was: 2·u_t − u_{t−1} (arXiv:2606.30634).
type ErrorFeedback struct{ NoCorrection }

// State is the last update.
func (*ErrorFeedback) State() []string { return []string{"last_update"} }

// Ahead is the last update.
func (*ErrorFeedback) Ahead() string { return "last_update" }

// Step returns 2·u_t − u_{t−1} and u_t.
func (*ErrorFeedback) Step(_ Tensor, u Update, s []*graph.Value) (*graph.Value, []*graph.Value) {
	return op.Sub(op.Scale(u.U, 2), s[0]), []*graph.Value{u.U}
}
