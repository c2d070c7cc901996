package layout

import (
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
)

// NewOptimizer applies the config's optimizer to the model's parameters. Matrices of hidden layers are those outside the
// first and the last unit. Weight decay acts on tensors of two or more axes, embeddings included, and not on norms and
// biases. factor returns the factor on learning rates of a step; nil: the schedule's.
func NewOptimizer(c config.Config, m model.Model, factor func(step int) float64) (*optim.Optimizer, error) {
	layout := EngineOptions(c, m)
	o, a := c.Optimizer, c.Optimizer.AdamW
	var params []optim.Param
	first, last := m.UnitScope(0), m.UnitScope(m.Units()-1)
	for _, p := range m.Parameters() {
		rank := len(p.Type.Shape)
		all := layout.Contributions(p.Name)
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Scope, Gradient: all[len(all)-1], Contributions: all[:len(all)-1],
			Matrix: rank == 2 && p.Scope != first && p.Scope != last, Decay: rank >= 2})
	}
	return optim.New(optim.Config{
		Name: o.Name, LR: o.LR, Momentum: o.Momentum, Nesterov: o.Nesterov, WeightDecay: o.WeightDecay, NewtonSchulz: o.NewtonSchulz,
		Scale: o.Scale, Betas: o.Betas, Eps: o.Eps, Beta2: o.Beta2, Gamma: o.Gamma, ShampooBeta: o.SOAP.ShampooBeta,
		PreconditionFrequency: o.SOAP.PreconditionFrequency, MaxPrecondDim: o.SOAP.MaxPrecondDim,
		Clip: c.Train.GradClip, AdamW: optim.AdamWConfig{LR: a.LR, Betas: a.Betas, Eps: a.Eps}, Loss: model.LossVariable, LossContributions: layout.LossContributions(),
		Delay: c.Pipeline.Delay, Correction: c.Pipeline.Correction, DCLambda: o.DCLambda, SkipNonfinite: c.Train.Nonfinite == config.Skip,
		LossScale: lossScale(c.Train),
		Schedule:  RateSchedule(c), Factor: factor,
	}, params)
}

// RateSchedule is the config's schedule of the learning rate.
func RateSchedule(c config.Config) optim.Schedule {
	l := c.LR
	return optim.Schedule{Name: l.Schedule, Steps: c.Train.Steps, Warmup: l.Warmup, MinRatio: l.MinRatio, Decay: l.Decay}
}
