package train

import (
	"encoding/binary"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// newOptimizer applies the config's optimizer to the model: Muon takes the matrices inside the layers; weight decay acts on
// matrices, embeddings included, and not on norms.
func newOptimizer(c Config) (*optim.Optimizer, error) {
	o, a, l := c.Optimizer, c.Optimizer.AdamW, c.LR
	var params []optim.Param
	for _, p := range c.Model.Parameters() {
		matrix := len(p.Type.Shape) == 2
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Scope, Gradient: model.Gradient(p.Name),
			Matrix: matrix && strings.HasPrefix(p.Scope, "layers."), Decay: matrix})
	}
	return optim.New(optim.Config{
		Name: o.Name, LR: o.LR, Momentum: o.Momentum, Nesterov: o.Nesterov, WeightDecay: o.WeightDecay, NewtonSchulz: o.NewtonSchulz,
		Scale: o.Scale, Clip: c.Train.GradClip, AdamW: optim.AdamWConfig{LR: a.LR, Betas: a.Betas, Eps: a.Eps}, Loss: model.LossVariable,
		Schedule: optim.Schedule{Name: l.Schedule, Steps: c.Train.Steps, Warmup: l.Warmup, MinRatio: l.MinRatio, Decay: l.Decay},
	}, params)
}

// pendingUpdate is what is measured of an update that was enqueued.
type pendingUpdate struct{ norm, halted device.Pending }

// enqueueUpdate applies the update of a step, counted from 0.
func (r *run) enqueueUpdate(step int) (u pendingUpdate, err error) {
	if err := r.session.SetInput(updateProgram, optim.HyperInput, exec.F32Bytes(r.optimizer.Hyper(step))); err != nil {
		return u, err
	}
	for _, program := range []string{votesProgram, updateProgram} {
		if err := r.session.Run(program); err != nil {
			return u, err
		}
	}
	if u.norm, err = r.session.Output(updateProgram, optim.NormOutput); err != nil {
		return u, err
	}
	u.halted, err = r.session.ReadVariable(optim.HaltedVariable)
	return u, err
}

// wait returns the norm of the gradient, and whether the update was refused.
func (u pendingUpdate) wait() (norm float64, halted bool, err error) {
	n, err := u.norm.Wait()
	if err != nil {
		return 0, false, err
	}
	h, err := u.halted.Wait()
	if err != nil {
		return 0, false, err
	}
	return float64(floats(n)[0]), binary.LittleEndian.Uint32(h) != 0, nil
}
