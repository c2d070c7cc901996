package study

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// Markdown is the report as a page.
func (rep *Report) Markdown(s *Study) string {
	var b strings.Builder
	seeds := fmt.Sprintf("%d seeds", len(rep.Seeds))
	if len(rep.Seeds) == 1 {
		seeds = "one seed"
	}
	fmt.Fprintf(&b, "# %s\n\nValidation loss in nats per token: mean ± standard error over %s. A gap is the difference to sync, seed by seed.\n", s.subject(), seeds)
	for _, tuning := range s.tunings() {
		for _, stages := range s.Stages {
			fmt.Fprintf(&b, "\n## %s\n\n%s", title(tuning, stages), rep.section(s, tuning, stages))
		}
	}
	for _, list := range []struct {
		title string
		lines []string
	}{{"Findings", rep.Findings}, {"Notes", rep.Notes}} {
		if len(list.lines) > 0 {
			fmt.Fprintf(&b, "\n## %s\n\n- %s\n", list.title, strings.Join(list.lines, "\n- "))
		}
	}
	return b.String()
}

// subject is what the study measures.
func (s *Study) subject() string {
	delays := slices.ContainsFunc(s.Modes, func(m Mode) bool { return m.Delay > 0 })
	switch rounds := slices.ContainsFunc(s.Modes, Mode.rounds); {
	case s.seldom():
		return "What replicas that seldom talk cost"
	case delays && rounds:
		return "What one step of delay and wire formats cost"
	case rounds:
		return "What wire formats cost"
	}
	return "What one step of delay costs"
}

func title(tuning string, stages int) string {
	t := "Learning rate tuned without delay"
	if tuning == Each {
		t = "Learning rate tuned in every mode"
	}
	if stages > 1 {
		t += fmt.Sprintf(", %d stages", stages)
	}
	return t
}

// section is a table: a row per optimizer, a column per mode and per gap.
func (rep *Report) section(s *Study, tuning string, stages int) string {
	if s.seldom() {
		return rep.replicaSection(s, tuning, stages)
	}
	shared := tuning == Synchronous // the rate is the same in the whole row
	head := []string{"optimizer"}
	if shared {
		head = append(head, "lr")
	}
	for _, m := range s.Modes {
		head = append(head, m.Title())
		if m.Name != SyncMode {
			head = append(head, "gap")
		}
	}
	rows := [][]string{head}
	for _, o := range s.Optimizers {
		row := []string{o.Label}
		if shared {
			row = append(row, lrText(rep.find(tuning, stages, o.Label, SyncMode).LR))
		}
		for _, m := range s.Modes {
			c := rep.find(tuning, stages, o.Label, m.Name)
			loss := c.text()
			if !shared {
				loss += ", lr " + lrText(c.LR)
			}
			row = append(row, loss)
			if c.Gap != nil {
				row = append(row, c.Gap.Signed())
			}
		}
		rows = append(rows, row)
	}
	return runs.MarkdownTable(rows)
}

// text is the loss of a cell.
func (c *Cell) text() string {
	if c.Diverged == 0 || c.LR == nil {
		return c.Loss.String()
	}
	return fmt.Sprintf("%d of %d diverged", c.Diverged, len(c.Losses))
}

func lrText(lr *float64) string {
	if lr == nil {
		return "–"
	}
	return fmt.Sprintf("%g", *lr)
}

// csv has a line per cell. A value that is not finite is empty.
func (rep *Report) csv() ([]byte, error) {
	rows := [][]string{{"tuning", "stages", "optimizer", "mode", "lr", "seeds", "diverged", "val_loss", "val_loss_stderr", "gap", "gap_stderr"}}
	for _, c := range rep.Cells {
		var gap, gapErr *float64
		if c.Gap != nil {
			gap, gapErr = runs.Number(c.Gap.Mean), runs.Number(c.Gap.Err)
		}
		rows = append(rows, []string{c.Tuning, strconv.Itoa(c.Stages), c.Optimizer, c.Mode, runs.Exact(c.LR), strconv.Itoa(len(c.Losses)),
			strconv.Itoa(c.Diverged), runs.Exact(runs.Number(c.Loss.Mean)), runs.Exact(runs.Number(c.Loss.Err)), runs.Exact(gap),
			runs.Exact(gapErr)})
	}
	return runs.CSV(rows)
}
