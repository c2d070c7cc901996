// Package draw shows how a schedule runs, time from left to right, a line a stage: as text, SVG or PNG.
package draw

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// maxCells and maxEvents are what can still be looked at.
const (
	maxCells  = 4000
	maxEvents = 20_000
)

// Text is a picture of characters. A cell is as long as the shortest action on a microbatch; an action fills as many as it is
// long, a dot is a cell in which a stage waits. What is shorter than half a cell is not seen.
func Text(s *schedule.Schedule, r *schedule.Result) (string, error) {
	unit := unit(r)
	cells := int(math.Round(r.Makespan / unit))
	if cells > maxCells {
		return "", fmt.Errorf("the picture would be %d cells wide, expected at most %d: take fewer batches or microbatches, or costs that differ less", cells, maxCells)
	}
	width := 0
	for _, e := range r.Events {
		width = max(width, len(label(s, e))+1)
	}
	lines := make([][]rune, s.Stages)
	for i := range lines {
		lines[i] = []rune(strings.Repeat("·"+strings.Repeat(" ", width-1), cells))
	}
	for _, e := range r.Events {
		from, to := int(math.Round(e.Start/unit))*width, int(math.Round(e.End/unit))*width-1
		text := []rune(label(s, e))
		for x := from; x < to; x++ {
			lines[e.Stage][x] = '─'
			if x-from < len(text) {
				lines[e.Stage][x] = text[x-from]
			}
		}
		if to > from {
			lines[e.Stage][to] = ' '
		}
	}
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "%*d  %s\n", len(fmt.Sprint(s.Stages-1)), i, strings.TrimRight(string(line), " "))
	}
	return b.String(), nil
}

// unit is how long the shortest action on a microbatch is.
func unit(r *schedule.Result) float64 {
	unit := math.Inf(1)
	for _, e := range r.Events {
		if d := e.End - e.Start; d > 0 && !e.Action.Kind.PerBatch() {
			unit = min(unit, d)
		}
	}
	if math.IsInf(unit, 1) {
		return max(1, r.Makespan)
	}
	return unit
}

// label names an action, without the batch where there is but one.
func label(s *schedule.Schedule, e schedule.Event) string {
	text := e.Action.String()
	if s.Batches == 1 && !e.Action.Kind.PerBatch() {
		text = strings.Replace(text, ".0", "", 1)
	}
	return text
}
