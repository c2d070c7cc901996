package train

import (
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
)

func (r *run) makeOptimizer() (err error) {
	r.optimizer, err = newOptimizer(r.Config)
	return Mistake(err)
}

// newOptimizer applies the config's optimizer to the model: what is for hidden layers' matrices takes those inside the layers;
// weight decay acts on matrices, embeddings included, and not on norms.
func newOptimizer(c Config) (*optim.Optimizer, error) {
	gradients := c.engineOptions().Contributions
	o, a, l := c.Optimizer, c.Optimizer.AdamW, c.LR
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
		Schedule: optim.Schedule{Name: l.Schedule, Steps: c.Train.Steps, Warmup: l.Warmup, MinRatio: l.MinRatio, Decay: l.Decay},
	}, params)
}
