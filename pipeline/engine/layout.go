package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
)

// Layout is how a model is spread over lines: each replica is a pipeline of Stages lines, each line holds Chunks parts of the
// model, part c·Stages + s being chunk c of stage s. Line r·Stages + s is stage s of replica r.
type Layout struct {
	Stages, Chunks, Replicas int
	Cut                      []int  // the first unit of each part but the first, see model.Model
	Recompute                []bool // by stage: the backward computes the forward's results again instead of keeping them
	Delay                    int    // batches between a gradient and the weights that it changes: 0 or 1
}

func (l Layout) ranks() int         { return l.Stages * l.Replicas }
func (l Layout) virtualStages() int { return l.Stages * l.Chunks }

// units are the bounds of a part.
func (l Layout) units(part int, m model.Model) (first, last int) {
	bounds := slices.Concat([]int{0}, l.Cut, []int{m.Units()})
	return bounds[part], bounds[part+1]
}

func (l Layout) check(m model.Model) error {
	switch {
	case l.Stages < 1 || l.Chunks < 1 || l.Replicas < 1:
		return fmt.Errorf("%d stages, %d chunks, %d replicas: expected at least one of each", l.Stages, l.Chunks, l.Replicas)
	case l.Delay < 0 || l.Delay > 1:
		return fmt.Errorf("pipeline.delay: found %d, expected 0 or 1", l.Delay)
	case len(l.Cut) != l.virtualStages()-1:
		return fmt.Errorf("pipeline.cut: found %v, expected %d units at which parts begin", l.Cut, l.virtualStages()-1)
	}
	before := 0
	for _, u := range l.Cut {
		if u <= before || u >= m.Units() {
			return fmt.Errorf("pipeline.cut: found %v, expected ascending units from 1 to %d (0 is the embedding, %d the head)",
				l.Cut, m.Units()-1, m.Units()-1)
		}
		before = u
	}
	return nil
}

// EvenCut spreads the layers evenly over parts; the embedding goes with the first and the head with the last.
func EvenCut(m model.Model, parts int) []int {
	var cut []int
	for p := 1; p < parts; p++ {
		// The head counts as a layer: its matrix is often the largest.
		cut = append(cut, max(p, min(1+(m.Units()-1)*p/parts, m.Units()-parts+p)))
	}
	return cut
}
