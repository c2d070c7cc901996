package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	corrections["weight_prediction"] = func(Config) (Correction, error) { return weightPrediction{}, nil }
}

// weightPrediction trains at the weights that momentum alone would make next: with P_t the update that the momentum after
// batch t makes, it adds the prediction and takes back the last one: u_t + P_t − P_{t−1} (SpecTrain, arXiv 1809.02839;
// XPipe, arXiv 1911.04610).
type weightPrediction struct{ uncorrected }

func (weightPrediction) Name() string    { return "weight_prediction" }
func (weightPrediction) State() []string { return []string{"prediction"} }
func (weightPrediction) Ahead() string   { return "prediction" }

func (weightPrediction) Step(_ Tensor, u Update, s []*graph.Value) (*graph.Value, []*graph.Value) {
	p := u.Momentum()
	return op.Add(u.U, op.Sub(p, s[0])), []*graph.Value{p}
}
