package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// SGD is the config of torch.optim.SGD without dampening: b ← μ·b + g; u = lr·b, or lr·(g + μ·b) with Nesterov.
type SGD struct {
	LR       float64
	Momentum float64 // μ; with 0 there is no b
	Nesterov bool
}

// DefaultSGD has the defaults of SGD.
func DefaultSGD() *SGD { return &SGD{LR: 0.1, Momentum: 0.95, Nesterov: true} }

// Fields lists the hyperparameters.
func (c *SGD) Fields() []Field {
	momentum := momentumField(&c.Momentum)
	momentum.Shapes = true // without momentum there is no state
	return []Field{learningRateField(&c.LR), momentum, nesterovField(&c.Nesterov)}
}

func momentumField(momentum *float64) Field {
	return Field{Name: "momentum", About: "weight of the momentum so far", Value: momentum, Range: fractions}
}

func nesterovField(nesterov *bool) Field {
	return Field{Name: "nesterov", About: "Nesterov momentum", Value: nesterov}
}

// LearningRate is LR.
func (c *SGD) LearningRate() float64 { return c.LR }
func (*SGD) takes(Param) bool        { return true }
func (c *SGD) rule() Rule            { return &sgd{c.Momentum, c.Nesterov} }

type sgd struct {
	momentum float64
	nesterov bool
}

func (s *sgd) State(p Param) []graph.Named {
	if s.momentum == 0 {
		return nil
	}
	return kinds(p, "momentum")
}

func (*sgd) Hyperparameters(_ int, rate float64) Hyperparameters {
	return Hyperparameters{{"lr", rate}}
}

func (s *sgd) Update(ts []Tensor, h Scalars) []Update {
	us := make([]Update, len(ts))
	for i, t := range ts {
		step := t.Gradient
		if s.momentum != 0 {
			buf := op.Add(op.Scale(t.State[0], s.momentum), t.Gradient)
			us[i].State = []*graph.Value{buf}
			step = buf
			if s.nesterov {
				step = op.Add(t.Gradient, op.Scale(buf, s.momentum))
			}
		}
		us[i].U = op.Mul(step, h.Get("lr"))
	}
	return us
}

// Momentum is lr·b.
func (s *sgd) Momentum(_ []Tensor, us []Update, h Scalars) []*graph.Value {
	ps := make([]*graph.Value, len(us))
	for i, u := range us {
		ps[i] = u.U
		if s.momentum != 0 {
			ps[i] = op.Mul(u.State[0], h.Get("lr"))
		}
	}
	return ps
}
