package layout

import (
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
)

// NewOptimizer applies the config's optimizer to the model's parameters. Matrices of hidden layers are the matrices
// outside the first and the last unit; a tensor of three axes is a stack of them. Weight decay acts on tensors of two
// or more axes, embeddings included, and not on norms and biases. factor returns the factor on learning rates of a
// step; nil: the schedule's.
func NewOptimizer(c config.Config, m model.Model, factor func(step int) float64) (*optim.Optimizer, error) {
	layout := EngineOptions(c, m)
	var params []optim.Param
	first, last := m.UnitName(0), m.UnitName(m.Units()-1)
	for _, p := range m.Parameters() {
		all := layout.Contributions(p.Name)
		q := optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit, Gradient: all[len(all)-1], Contributions: all[:len(all)-1]}
		if p.Role == model.BalancingBias {
			q.BalancingBias, q.BalanceRate, q.ProportionalBalance = true, p.BalanceRate, p.ProportionalBalance
		} else if len(p.Type.Shape) >= 2 {
			q.AdamW = p.Role == model.Router && c.Optimizer.Router == config.RouterAdamW
			q.Matrix, q.Decay = !q.AdamW && p.Unit != first && p.Unit != last, true
		}
		params = append(params, q)
	}
	return optim.New(optim.Config{
		Algorithm: c.Optimizer.Algorithm, AdamW: c.Optimizer.AdamW, WeightDecay: c.Optimizer.WeightDecay, Clip: c.Train.GradClip,
		Losses:   append(layout.LossContributions(), model.LossVariable),
		Schedule: c.LRSchedule(), Factor: factor,
		Delay: c.Pipeline.Delay, Staleness: c.Staleness(), Correction: c.Optimizer.Correction(c.Pipeline.Correction),
		LossScale: lossScale(c.Train), SkipNonfinite: c.Train.Nonfinite == config.Skip,
		Moments: c.Optimizer.MomentType(), Seed: c.Init.Seed,
	}, params)
}
