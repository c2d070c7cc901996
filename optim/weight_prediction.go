package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// WeightPrediction trains at the weights that momentum alone would make next. P_t is the update that the momentum after
// batch t would make alone, times the staleness. The step adds the new prediction and takes back the last one:
// u_t + P_t − P_{t−1} (SpecTrain, arXiv:1809.02839; XPipe, arXiv:1911.04610).
type WeightPrediction struct{ NoCorrection }

// State is the last prediction.
func (*WeightPrediction) State() []string { return []string{"prediction"} }

// Ahead is the last prediction.
func (*WeightPrediction) Ahead() string { return "prediction" }

// Step returns u_t + P_t − P_{t−1} and P_t.
func (*WeightPrediction) Step(t Tensor, u Update, s []*graph.Value) (*graph.Value, []*graph.Value) {
	p := inProportion(t, u.Momentum())
	return op.Add(u.U, op.Sub(p, s[0])), []*graph.Value{p}
}
