// Package draw shows how a schedule runs, time from left to right, a row per stage: as text, SVG or PNG, and how
// replicas exchange what they have learned. It draws what [schedule.Simulate] and [schedule.SimulateExchanges] return.
package draw

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// maxCells and maxEvents bound what a picture can show legibly.
const (
	maxCells  = 4000
	maxEvents = 20_000
)

// Text draws a schedule with characters. A cell is as long as the shortest action on a microbatch. An action fills as
// many cells as it is long, and a dot is a cell in which a stage waits. Text omits actions shorter than half a cell.
//
// Lines have at most columns characters: a longer schedule continues in further blocks of rows below. 0 columns are
// unlimited.
func Text(s *schedule.Schedule, r *schedule.Result, columns int) (string, error) {
	unit := unit(r)
	cells := int(math.Round(r.Makespan / unit))
	if cells > maxCells {
		return "", fmt.Errorf("the picture would be %d cells wide, expected at most %d: choose fewer batches or microbatches, or costs that differ less", cells, maxCells)
	}
	width := 0 // of a cell
	for _, e := range r.Events {
		width = max(width, len(label(s, e))+1)
	}
	rows := make([][]rune, s.Stages)
	for i := range rows {
		rows[i] = []rune(strings.Repeat("·"+strings.Repeat(" ", width-1), cells))
	}
	for _, e := range r.Events {
		fill(rows[e.Stage], label(s, e), int(math.Round(e.Start/unit))*width, int(math.Round(e.End/unit))*width-1)
	}
	names := len(fmt.Sprint(s.Stages - 1))
	perBlock := max(1, cells)
	if columns > 0 {
		perBlock = max(1, (columns-names-1)/width)
	}
	var b strings.Builder
	for from := 0; from == 0 || from < cells; from += perBlock {
		if from > 0 {
			b.WriteByte('\n')
		}
		for i, row := range rows {
			text := string(row[from*width : min(from+perBlock, cells)*width])
			fmt.Fprintf(&b, "%*d  %s\n", names, i, strings.TrimRight(text, " "))
		}
	}
	return b.String(), nil
}

// fill writes an action into its cells, from one column to another.
func fill(row []rune, label string, from, to int) {
	text := []rune(label)
	for x := from; x < to; x++ {
		row[x] = '─'
		if x-from < len(text) {
			row[x] = text[x-from]
		}
	}
	if to > from {
		row[to] = ' '
	}
}

// unit is the duration of the shortest action on a microbatch.
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

// label names an action. It omits the batch if the schedule has one only.
func label(s *schedule.Schedule, e schedule.Event) string {
	text := e.Action.String()
	if s.Batches == 1 && !e.Action.Kind.PerBatch() {
		text = strings.Replace(text, ".0", "", 1)
	}
	return text
}

// number is the microbatch of an action, with its chunk where a stage has several; U for an update.
func number(s *schedule.Schedule, e schedule.Event) string {
	a := e.Action
	switch {
	case a.Kind.PerBatch():
		return a.Kind.String()
	case s.Chunks > 1:
		return fmt.Sprintf("%d:%d", a.Microbatch, a.Chunk)
	}
	return fmt.Sprint(a.Microbatch)
}
