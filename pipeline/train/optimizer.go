package train

import (
	"context"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
)

func (r *run) makeOptimizer(context.Context) (err error) {
	r.optimizer, err = newOptimizer(r.Config, r.model, r.hooks.factor())
	return usererror.New(err)
}

// newOptimizer applies the config's optimizer to the model: what is for hidden layers' matrices takes those that are neither in the first
// unit nor in the last; weight decay acts on matrices (and on what has more axes), embeddings included, and not on norms and biases.
// factor is that on learning rates; nil: the schedule's.
func newOptimizer(c config.Config, m model.Model, factor func(step int) float64) (*optim.Optimizer, error) {
	layout := engineOptions(c, m)
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
		Schedule:  rateSchedule(c), Factor: factor,
	}, params)
}

// rateSchedule is the course of the learning rate that the config asks for.
func rateSchedule(c config.Config) optim.Schedule {
	l := c.LR
	return optim.Schedule{Name: l.Schedule, Steps: c.Train.Steps, Warmup: l.Warmup, MinRatio: l.MinRatio, Decay: l.Decay}
}
