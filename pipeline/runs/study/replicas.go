package study

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// Local has the keys of a config's section pipeline in a mode of replicas that train on their own.
type Local struct {
	Steps, Late int    // local_steps, outer.late
	Correction  string // outer.correction
	Wire        string // outer.wire; empty: as in the config
}

// aloneMode is the mode of one replica by itself, with its share of each batch.
const aloneMode = "alone"

const (
	localPrefix = "local-"
	localMode   = localPrefix + "32" // and "local-32-late-8", "local-32-late-8+CORRECTION"
	lateMark    = "-late-"
	plainLate   = "plain" // the correction of a mode that names none
)

var locally = regexp.MustCompile(`^` + localPrefix + `([1-9][0-9]{0,5})(?:` + lateMark + `([1-9][0-9]{0,5}))?$`)

// parseLocal parses a mode of replicas that train on their own. wire is the format of their messages, if it has one.
func parseLocal(name, wire string, rounded bool) (Mode, error) {
	period, correction, corrected := strings.Cut(name, "+")
	part := locally.FindStringSubmatch(period)
	corrections := slices.DeleteFunc(outer.CorrectionNames(), func(name string) bool { return name == plainLate })
	if part == nil || corrected && (part[2] == "" || !slices.Contains(corrections, correction)) ||
		rounded && !slices.Contains(outer.FormatNames(), wire) {
		return Mode{}, fmt.Errorf("expected %s (local steps), or %s%s8 (exchanges that are 8 steps late), which may have +%s; each may "+
			"end in a format of messages: @%s", localMode, localMode, lateMark, strings.Join(corrections, ", +"),
			strings.Join(outer.FormatNames(), ", @"))
	}
	l := Local{Correction: correction, Wire: wire}
	if !corrected {
		l.Correction = plainLate
	}
	l.Steps, _ = strconv.Atoi(part[1]) // digits
	l.Late, _ = strconv.Atoi(part[2])  // digits or nothing
	return Mode{Correction: optim.CorrectionNone, Local: l}, nil
}

// local reports whether replicas train on their own.
func (m Mode) local() bool { return m.Local.Steps > 0 }

// alone reports whether one replica trains, in its share of the batch.
func (m Mode) alone() bool { return m.exact() == aloneMode }

// seldom reports whether the grid compares replicas that seldom talk with one alone or with those that always do.
func (s *Study) seldom() bool {
	return slices.ContainsFunc(s.Modes, func(m Mode) bool { return m.local() || m.alone() })
}

// setReplicas sets how often replicas exchange what they have learned, and the batch of one alone.
func setReplicas(c *runs.Composer, m Mode, where string) {
	const section = "pipeline."
	c.Put(section+"local_steps", m.Local.Steps, where)
	c.Put(section+"outer.late", m.Local.Late, where)
	if m.local() {
		c.Put(section+"outer.correction", m.Local.Correction, where)
	}
	if m.Local.Wire != "" {
		c.Put(section+"outer.wire", m.Local.Wire, where)
	}
	if !m.local() && !m.alone() {
		return
	}
	resolved, err := c.Config()
	switch {
	case err != nil:
		c.Fail(err)
		return
	case resolved.Pipeline.Replicas < 2:
		c.Fail(fmt.Errorf("%s: modes: %s: found %d replicas, expected more (pipeline.replicas)", where, m.Name, resolved.Pipeline.Replicas))
	case m.alone() && len(resolved.Train.BatchSchedule) > 0:
		c.Fail(fmt.Errorf("%s: modes: %s: found train.batch_schedule, expected batches of one size", where, m.Name))
	}
	if m.alone() {
		one := resolved.OfReplica()
		c.Put("train.batch_size", one.Train.BatchSize, where)
		c.Put("train.microbatches", one.Train.Microbatches, where)
		c.Put(section+"replicas", one.Pipeline.Replicas, where)
	}
}

// keepShares sets the share of each cell in the gain that sync has over one replica alone.
func (rep *Report) keepShares(s *Study) {
	for i := range rep.Cells {
		c := &rep.Cells[i]
		if !c.mode.local() || !slices.ContainsFunc(s.Modes, func(m Mode) bool { return m.Name == aloneMode }) {
			continue
		}
		gaps := rep.find(c.Tuning, c.Stages, c.Optimizer, aloneMode).gaps
		if slices.ContainsFunc(gaps, func(gap float64) bool { return gap <= 0 || !metrics.Finite(gap) }) {
			continue // there is no gain to have a share of
		}
		var shares []float64
		for seed, gap := range gaps {
			shares = append(shares, 1-c.gaps[seed]/gap)
		}
		kept := runs.NewEstimate(shares)
		c.Kept = &kept
	}
}

// replicaSection is the table of a grid of replicas that seldom talk: a row per optimizer and mode.
func (rep *Report) replicaSection(s *Study, tuning string, stages int) string {
	rows := [][]string{{"optimizer", "mode", "lr", "loss", "gap", "of sync's gain over alone"}}
	for _, o := range s.Optimizers {
		for _, m := range s.Modes {
			c := rep.find(tuning, stages, o.Label, m.Name)
			row := []string{o.Label, m.Title(), lrText(c.LR), c.text(), "", ""}
			if c.Gap != nil {
				row[4] = c.Gap.Signed()
			}
			if c.Kept != nil {
				row[5] = c.Kept.String()
			}
			rows = append(rows, row)
		}
	}
	return runs.MarkdownTable(rows)
}

// replicaFindings states what corrections of late exchanges change, and in how many seeds.
func (rep *Report) replicaFindings(s *Study, tuning string, stages int) (out []string) {
	for _, m := range s.Modes {
		plain, correction, corrected := strings.Cut(m.exact(), "+")
		if !m.local() || !corrected {
			continue
		}
		plain += strings.TrimPrefix(m.Name, m.exact())
		i := slices.IndexFunc(s.Modes, func(o Mode) bool { return o.Name == plain })
		for _, o := range s.Optimizers {
			if i < 0 {
				break
			}
			without, with := rep.find(tuning, stages, o.Label, plain), rep.find(tuning, stages, o.Label, m.Name)
			better := 0
			for seed, loss := range with.losses {
				if loss < without.losses[seed] {
					better++
				}
			}
			what := titles.Replace(correction) + " of " + s.Modes[i].Title()
			out = append(out, fmt.Sprintf("%s; it is lower in %d of %d seeds", change(what, without, with), better, len(with.losses)))
		}
	}
	return out
}
