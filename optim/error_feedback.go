package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	corrections["error_feedback"] = func(Config) (Correction, error) { return errorFeedback{}, nil }
}

// errorFeedback subtracts u_t and, once more, what should have been subtracted last time less what was: 2·u_t − u_{t−1}
// (arXiv 2606.30634).
type errorFeedback struct{ uncorrected }

func (errorFeedback) Name() string    { return "error_feedback" }
func (errorFeedback) State() []string { return []string{"last_update"} }
func (errorFeedback) Ahead() string   { return "last_update" }

func (errorFeedback) Step(_ Tensor, u Update, s []*graph.Value) (*graph.Value, []*graph.Value) {
	return op.Sub(op.Scale(u.U, 2), s[0]), []*graph.Value{u.U}
}
