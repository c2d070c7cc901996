package coordinator

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// mostOrdered is how many members may be put into another order. Of more, the links of neighbors alone are measured,
// since the number of pairs grows with the square of the number of members.
const mostOrdered = 6

// faster is how many times as fast another order must be, so that ranks do not move for the error of a measurement.
const faster = 1.02

// solve decides where the model is cut, how many microbatches are in flight, and on which member each stage is: in the
// order of the places, unless another order is predicted to be faster.
func (p *Pipeline) solve(t train.RemoteTask, problem partition.Problem) (config.Config, partition.Plan, []layout.Depth, error) {
	problem.KeepOrder = true
	c, plan, depths, err := t.Solve(problem)
	if problem.Network == nil || len(p.group.members) > mostOrdered {
		return c, plan, depths, err
	}
	problem.KeepOrder = false
	other, best, compared, failed := t.Solve(problem)
	if failed != nil || err == nil && best.TokensPerSec < faster*plan.TokensPerSec {
		return c, plan, depths, err
	}
	p.placement.reorder(best.Devices)
	text := fmt.Sprintf("the stages are on %s, in this order", strings.Join(p.placement.stageMembers(), ", "))
	if err == nil {
		text += fmt.Sprintf(": in the one before, the prediction would be %.0f tokens/s", plan.TokensPerSec)
	}
	t.Report.Note("%s", text)
	return other, best, compared, nil
}
