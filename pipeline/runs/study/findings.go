package study

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// significant is the number of standard errors from which the findings call a difference settled.
const significant = 2

// findings states in words what a delay, wire formats and late exchanges of replicas cost.
func (rep *Report) findings(s *Study, tuning string, stages int) (out []string) {
	for _, sentence := range slices.Concat(rep.delayFindings(s, tuning, stages), rep.wireFindings(s, tuning, stages),
		rep.replicaFindings(s, tuning, stages)) {
		out = append(out, tableName(s, tuning, stages)+sentence+".")
	}
	return out
}

// delayFindings states the gaps: their order over the optimizers, and the effect of fewer stale microbatches and of
// corrections.
func (rep *Report) delayFindings(s *Study, tuning string, stages int) (out []string) {
	if !slices.ContainsFunc(s.Modes, func(m Mode) bool { return m.Name == delayMode }) {
		return nil
	}
	at := func(optimizer, mode string) *Cell { return rep.find(tuning, stages, optimizer, mode) }
	add := func(sentence string) { out = append(out, sentence) }
	var cells []*Cell
	for _, o := range s.Optimizers {
		cells = append(cells, at(o.Label, delayMode))
	}
	slices.SortStableFunc(cells, func(a, b *Cell) int { return cmp.Compare(b.Gap.Mean, a.Gap.Mean) })
	var costs []string
	for _, c := range cells {
		costs = append(costs, c.Optimizer+" "+c.Gap.Signed())
	}
	add("one step of delay costs, in nats per token, " + strings.Join(costs, "; "))
	for i, a := range cells {
		for _, b := range cells[i+1:] {
			add(order(a, b))
		}
	}
	for _, m := range s.Modes {
		for _, o := range s.Optimizers {
			if plain, what := s.plainer(m); what != "" {
				add(effect(what, at(o.Label, plain.Name), at(o.Label, m.Name)))
			}
		}
	}
	return out
}

// wireFindings states how each wire format changes the loss of a mode, if the grid has the mode without it.
func (rep *Report) wireFindings(s *Study, tuning string, stages int) (out []string) {
	for _, m := range s.Modes {
		if exact := s.tunedIn(m); exact != m.Name {
			for _, o := range s.Optimizers {
				formats := strings.Replace(m.Title(), ", ", " with ", 1)
				out = append(out, change(formats, rep.find(tuning, stages, o.Label, exact), rep.find(tuning, stages, o.Label, m.Name)))
			}
		}
	}
	return out
}

// change states by how much the loss of a changed mode differs from the plain mode's.
func change(what string, plain, changed *Cell) string {
	verb := "raises"
	d := runs.NewEstimate(differences(changed.losses, plain.losses))
	switch {
	case !metrics.Finite(d.Mean):
		return fmt.Sprintf("%s: the effect on %s is unknown, since runs diverged", what, plain.Optimizer)
	case d.Mean < 0:
		verb, d.Mean = "lowers", -d.Mean
	}
	return fmt.Sprintf("%s %s the loss of %s by %s", what, verb, plain.Optimizer, weighed(d))
}

// plainer returns the mode of the grid that a mode with a delay is compared to, and the text of what distinguishes the
// two. For a correction it is the same delay without correction, or else the delay of all microbatches. The text is
// empty for modes that are not compared.
func (s *Study) plainer(m Mode) (plain Mode, what string) {
	if m.Delay == 0 || m.Name == delayMode || m.rounds() {
		return m, ""
	}
	title, names := m.Title(), []string{delayMode}
	if delay, _, corrected := strings.Cut(m.Name, "+"); corrected {
		names = []string{delay, delayMode}
	}
	for _, name := range names {
		if i := slices.IndexFunc(s.Modes, func(m Mode) bool { return m.Name == name }); i >= 0 {
			plain = s.Modes[i]
			break
		}
	}
	what, extends := strings.CutPrefix(title, plain.Title()+" + ")
	if extends && plain.partly() {
		what = title + " instead of " + plain.Title()
	}
	return plain, what
}

// tableName names the table of a finding. It is empty if there is only one.
func tableName(s *Study, tuning string, stages int) string {
	var parts []string
	switch {
	case s.Tuning == Both && tuning == Synchronous:
		parts = append(parts, "rate tuned without delay")
	case s.Tuning == Both:
		parts = append(parts, "rate tuned in every mode")
	}
	if len(s.Stages) > 1 {
		parts = append(parts, fmt.Sprintf("stages %d", stages))
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ", ") + ": "
}

// order compares the gaps of two optimizers, seed by seed. The gap of a is at least as large as the gap of b.
func order(a, b *Cell) string {
	if !metrics.Finite(a.Gap.Mean) || !metrics.Finite(b.Gap.Mean) {
		return fmt.Sprintf("the gaps of %s and %s cannot be compared, since runs diverged", a.Optimizer, b.Optimizer)
	}
	return fmt.Sprintf("%s's gap exceeds %s's by %s", a.Optimizer, b.Optimizer, weighed(runs.NewEstimate(differences(a.gaps, b.gaps))))
}

// effect states how the gap of a mode differs from the gap of a plainer mode. name says by what the modes differ.
func effect(name string, plain, changed *Cell) string {
	d := runs.NewEstimate(differences(plain.losses, changed.losses))
	switch {
	case !metrics.Finite(d.Mean):
		return fmt.Sprintf("the effect of %s on %s's gap is unknown, since runs diverged", name, plain.Optimizer)
	case d.Mean < 0:
		return fmt.Sprintf("%s widens %s's gap by %s", name, plain.Optimizer, weighed(runs.Estimate{Mean: -d.Mean, Err: d.Err}))
	case plain.Gap.Mean > 0 && plain.Gap.Errors() >= significant && d.Mean > 0:
		return fmt.Sprintf("%s shrinks %s's gap by %s, %.0f %% of it", name, plain.Optimizer, weighed(d), 100*d.Mean/plain.Gap.Mean)
	}
	return fmt.Sprintf("%s shrinks %s's gap by %s", name, plain.Optimizer, weighed(d))
}

// weighed is an estimate as text, with its size in standard errors.
func weighed(d runs.Estimate) string {
	switch n := d.Errors(); {
	case !metrics.Finite(d.Err):
		return fmt.Sprintf("%.4f (one seed: no standard error)", d.Mean)
	case n == 0:
		return d.String()
	case n < significant:
		return fmt.Sprintf("%s (%.1f standard errors: these seeds do not settle it)", d, n)
	default:
		return fmt.Sprintf("%s (%.1f standard errors)", d, n)
	}
}
