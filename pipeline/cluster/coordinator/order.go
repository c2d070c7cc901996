package coordinator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/partition"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// mostOrdered is how many members may be put into another order. Of more, the links of neighbors alone are measured,
// since the number of pairs grows with the square of that of the members.
const mostOrdered = 6

// faster is how many times as fast another order must be, so that ranks do not move for the error of a measurement.
const faster = 1.02

// pairs lists the pairs of members whose links are measured: all, if their order may change, or else neighbors.
func (p *Pipeline) pairs() []pair {
	all := p.neighbors()
	if len(p.members) > mostOrdered {
		return all
	}
	for _, from := range p.members {
		for _, to := range p.members {
			if x := (pair{from, to}); from != to && !slices.Contains(all, x) {
				all = append(all, x)
			}
		}
	}
	return all
}

// solve decides where the model is cut, how many microbatches are in flight, and on which member each stage is: in the
// order of the places, unless another order is predicted to be faster.
func (p *Pipeline) solve(t train.RemoteTask, problem partition.Problem) (config.Config, partition.Plan, []layout.Depth, error) {
	problem.KeepOrder = true
	c, plan, depths, err := t.Solve(problem)
	if problem.Network == nil || len(p.members) > mostOrdered {
		return c, plan, depths, err
	}
	problem.KeepOrder = false
	other, best, compared, failed := t.Solve(problem)
	if failed != nil || err == nil && best.TokensPerSec < faster*plan.TokensPerSec {
		return c, plan, depths, err
	}
	p.reorder(best.Devices)
	text := fmt.Sprintf("the stages are on %s, in this order", strings.Join(p.stageMembers(), ", "))
	if err == nil {
		text += fmt.Sprintf(": in the one before, the prediction would be %.0f tokens/s", plan.TokensPerSec)
	}
	t.Report.Note("%s", text)
	return other, best, compared, nil
}

// reorder moves the stages of each replica: stage s goes to the place of stage order[s].
func (p *Pipeline) reorder(order []int) {
	places := slices.Clone(p.places)
	for rank := range places {
		stage := rank % p.stages
		places[rank] = p.places[rank-stage+order[stage]]
	}
	p.places = places
}

// stageMembers are the members of the stages of the first replica.
func (p *Pipeline) stageMembers() (all []string) {
	for _, place := range p.places[:p.stages] {
		all = append(all, place.Member)
	}
	return all
}
