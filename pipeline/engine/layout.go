package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Layout assigns a model to ranks. Each replica is a pipeline of Stages ranks; rank r·Stages + s is stage s of replica
// r. The model is cut into Stages·Chunks virtual stages; virtual stage c·Stages + s is model chunk c of stage s.
type Layout struct {
	Stages, Chunks, Replicas int
	Cut                      []int  // the first unit of each virtual stage but the first, see model.Model
	Recompute                []bool // by stage: the backward recomputes activations instead of keeping them
	Delay                    int    // 1 if some or all microbatches of a batch are stale, else 0
}

func (l Layout) ranks() int         { return l.Stages * l.Replicas }
func (l Layout) virtualStages() int { return l.Stages * l.Chunks }

func (l Layout) recompute(stage int) bool { return len(l.Recompute) > 0 && l.Recompute[stage] }

// units are the bounds of a virtual stage.
func (l Layout) units(virtualStage int, m model.Model) (first, last int) {
	bounds := slices.Concat([]int{0}, l.Cut, []int{m.Units()})
	return bounds[virtualStage], bounds[virtualStage+1]
}

func (l Layout) check(m model.Model) error {
	switch {
	case l.Stages < 1 || l.Chunks < 1 || l.Replicas < 1:
		return fmt.Errorf("%d stages, %d chunks, %d replicas: expected at least one of each", l.Stages, l.Chunks, l.Replicas)
	case l.Delay < 0 || l.Delay > 1:
		return fielderror.New("delay", l.Delay, "0 or 1")
	case len(l.Cut) != l.virtualStages()-1:
		return fielderror.New("cut", l.Cut, "the first units of %d virtual stages", l.virtualStages()-1)
	}
	before := 0
	for _, u := range l.Cut {
		if u <= before || u >= m.Units() {
			return fielderror.New("cut", l.Cut, "ascending units from 1 to %d (0 is %s, %d %s)", m.Units()-1, m.UnitName(0), m.Units()-1,
				m.UnitName(m.Units()-1))
		}
		before = u
	}
	return nil
}

// EvenCut distributes the units evenly over virtual stages. The embedding belongs to the first and the head to the
// last.
func EvenCut(m model.Model, virtualStages int) []int {
	var cut []int
	for v := 1; v < virtualStages; v++ {
		cut = append(cut, max(v, min(1+(m.Units()-1)*v/virtualStages, m.Units()-virtualStages+v)))
	}
	return cut
}
