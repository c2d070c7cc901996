package optim

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// BalanceRule and ProportionalBalanceRule name, in Assigned, the rules of balancing biases. They are not optimizers of
// the table.
const (
	BalanceRule             = "balance"
	ProportionalBalanceRule = "proportional balance"
)

// A balancing bias [E] is added to the scores by which a mixture of experts chooses E experts. Its gradient is the load
// of each expert: how many tokens of the batch chose it. The rule (Wang et al., arXiv:2408.15664; recentered as in
// torchtitan) is
//
//	δ = γ·sign(mean(load) − load);  x ← x + δ − mean(δ)
//
// or, if it is proportional (the paper also tries the difference in place of its sign),
//
//	δ = γ·(mean(load) − load)/mean(load)
//
// The sign's steps are equal however small the difference, so loads swing by what a step moves, and with a delay by
// several steps. Proportional steps end with the difference.
//
// The rule has no state. The rate γ does not follow the schedule of learning rates. Loads are numbers and no
// derivatives: the loss scale, clipping, weight decay and corrections of the delay do not act on them, and they are no
// part of the gradient's norm, so they cannot refuse a batch. A batch that is refused leaves the bias as it is.

func (p Param) balanceRule() string {
	if p.ProportionalBalance {
		return ProportionalBalanceRule
	}
	return BalanceRule
}

// checkBalance returns an error for a balancing bias that is also something else.
func (p Param) checkBalance() error {
	switch {
	case !p.BalancingBias:
		return nil
	case !(p.BalanceRate >= 0) || math.IsInf(p.BalanceRate, 1):
		return fmt.Errorf("parameter %q has the balancing rate %v, expected a number of at least 0", p.Name, p.BalanceRate)
	case len(p.Type.Shape) != 1 || p.Matrix || p.AdamW || p.Decay:
		return fmt.Errorf("parameter %q is %v and a balancing bias, expected a vector without optimizer and weight decay", p.Name, p.Type)
	}
	return nil
}

// balance adds the rule of a balancing bias.
func (u *update) balance(p Param) {
	load := wholeGradient(u.b, all(p), nil)
	// E times mean(load) − load: loads are integers, and so these are exact.
	missing := op.Sub(op.Sum(load, nil, true), op.Scale(load, float64(p.Type.Shape[0])))
	rate := op.Scalar(u.b, graph.F32, p.BalanceRate)
	delta := signed(missing, rate)
	if p.ProportionalBalance {
		rows := op.Maximum(op.Sum(load, nil, true), op.Scalar(u.b, graph.F32, 1)) // a batch may have none
		delta = op.Mul(op.Div(missing, rows), rate)
	}
	u.move(all(p), u.b.Variable(p.Name, p.Type), op.Sub(op.Mean(delta, nil, true), delta))
}
