package optim

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// BalanceRule names, in Assigned, the rule of balancing biases. It is not an optimizer of the table: no config chooses
// it.
const BalanceRule = "balance"

// A balancing bias [E] is added to the scores by which a mixture of experts chooses E experts. Its gradient is the load
// of each expert: how many tokens of the batch chose it. The rule (Wang et al., arXiv:2408.15664; recentered as in
// torchtitan) is
//
//	δ = γ·sign(mean(load) − load);  x ← x + δ − mean(δ)
//
// It has no state. The rate γ does not follow the schedule of learning rates. Loads are numbers and no derivatives: the
// loss scale, clipping, weight decay and corrections of the delay do not act on them, and they are no part of the
// gradient's norm, so they cannot refuse a batch. A batch that is refused leaves the bias as it is.

// balances reports whether the parameter is a balancing bias.
func (p Param) balances() bool { return p.BalancingBias }

// checkBalance returns an error for a balancing bias that is also something else.
func (p Param) checkBalance() error {
	switch {
	case !p.balances():
		return nil
	case !(p.Balance >= 0) || math.IsInf(p.Balance, 1):
		return fmt.Errorf("parameter %q has the balancing rate %v, expected a number of at least 0", p.Name, p.Balance)
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
	delta := signed(missing, op.Scalar(u.b, graph.F32, p.Balance))
	u.move(all(p), u.b.Variable(p.Name, p.Type), op.Sub(op.Mean(delta, nil, true), delta))
}
