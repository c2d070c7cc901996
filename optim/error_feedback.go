package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// ErrorFeedback subtracts u_t and, once more, the update that should have been subtracted last time minus the one that
// was: 2·u_t − u_{t−1} (arXiv:2606.30634). With staleness r it subtracts u_t + r·(u_t − u_{t−1}): a gradient is then
// taken, in the mean over its microbatches, where the weights would be without delay and correction if u stayed the same.
type ErrorFeedback struct{ NoCorrection }

// State is the last update in proportion.
func (*ErrorFeedback) State() []string { return []string{"last_update"} }

// Ahead is the last update in proportion.
func (*ErrorFeedback) Ahead() string { return "last_update" }

// Step returns u_t + r·(u_t − u_{t−1}) and r·u_t.
func (*ErrorFeedback) Step(t Tensor, u Update, s []*graph.Value) (*graph.Value, []*graph.Value) {
	return op.Sub(op.Scale(u.U, 1+t.Staleness), s[0]), []*graph.Value{inProportion(t, u.U)}
}
