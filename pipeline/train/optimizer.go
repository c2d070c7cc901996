package train

import (
	"context"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
)

func (r *run) makeOptimizer(context.Context) (err error) {
	r.optimizer, err = newOptimizer(r.Config, r.hooks.factor())
	return Mistake(err)
}

// newOptimizer applies the config's optimizer to the model: what is for hidden layers' matrices takes those inside the layers;
// weight decay acts on matrices, embeddings included, and not on norms. factor is that on learning rates; nil: the schedule's.
func newOptimizer(c Config, factor func(step int) float64) (*optim.Optimizer, error) {
	gradients := c.engineOptions().Contributions
	o, a := c.Optimizer, c.Optimizer.AdamW
	var params []optim.Param
	for _, p := range c.Model.Parameters() {
		matrix := len(p.Type.Shape) == 2
		all := gradients(p.Name)
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Scope, Gradient: all[len(all)-1], Contributions: all[:len(all)-1],
			Matrix: matrix && strings.HasPrefix(p.Scope, "layers."), Decay: matrix})
	}
	return optim.New(optim.Config{
		Name: o.Name, LR: o.LR, Momentum: o.Momentum, Nesterov: o.Nesterov, WeightDecay: o.WeightDecay, NewtonSchulz: o.NewtonSchulz,
		Scale: o.Scale, Betas: o.Betas, Eps: o.Eps, Beta2: o.Beta2, Gamma: o.Gamma, ShampooBeta: o.SOAP.ShampooBeta,
		PreconditionFrequency: o.SOAP.PreconditionFrequency, MaxPrecondDim: o.SOAP.MaxPrecondDim,
		Clip: c.Train.GradClip, AdamW: optim.AdamWConfig{LR: a.LR, Betas: a.Betas, Eps: a.Eps}, Loss: model.LossVariable,
		Delay: c.Pipeline.Delay, Correction: c.Pipeline.Correction, DCLambda: o.DCLambda, SkipNonfinite: c.Train.Nonfinite == skip,
		Schedule: c.rateSchedule(), Factor: factor,
	}, params)
}

// rateSchedule is the course of the learning rate that the config asks for.
func (c Config) rateSchedule() optim.Schedule {
	l := c.LR
	return optim.Schedule{Name: l.Schedule, Steps: c.Train.Steps, Warmup: l.Warmup, MinRatio: l.MinRatio, Decay: l.Decay}
}
