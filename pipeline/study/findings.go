package study

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// enough standard errors to speak of a difference.
const enough = 2

// findings says in words what the gaps are: their order over the optimizers, and what corrections do to them.
func (g *Grid) findings(rep *Report, tuning string, stages int) (out []string) {
	where := ""
	if len(g.Stages) > 1 {
		where = fmt.Sprintf(" at %d stages", stages)
	}
	if g.Tuning == Both && tuning == Synchronous {
		where += " at the learning rate tuned without delay"
	} else if g.Tuning == Both {
		where += " with the learning rate tuned again"
	}
	at := func(optimizer, mode string) *Cell { return rep.find(tuning, stages, optimizer, mode) }
	if !slices.ContainsFunc(g.Modes, func(m Mode) bool { return m.Name == delayMode }) {
		return nil
	}
	var cells []*Cell
	for _, o := range g.Optimizers {
		cells = append(cells, at(o.Label, delayMode))
	}
	slices.SortStableFunc(cells, func(a, b *Cell) int { return cmp.Compare(b.Gap.Mean, a.Gap.Mean) })
	var costs []string
	for _, c := range cells {
		costs = append(costs, c.Optimizer+" "+c.Gap.Signed())
	}
	out = append(out, fmt.Sprintf("One step of delay costs, in nats per token%s: %s.", where, strings.Join(costs, "; ")))
	for i, a := range cells {
		for _, b := range cells[i+1:] {
			out = append(out, order(a, b)+where+".")
		}
	}
	for _, m := range g.Modes {
		for _, o := range g.Optimizers {
			if m.Delay > 0 && m.Correction != "none" {
				out = append(out, correction(m, at(o.Label, delayMode), at(o.Label, m.Name))+where+".")
			}
		}
	}
	return out
}

// order compares the gaps of two optimizers, the first of which is not the smaller, seed by seed.
func order(a, b *Cell) string {
	if !finite(a.Gap.Mean) || !finite(b.Gap.Mean) {
		return fmt.Sprintf("The gaps of %s and %s cannot be compared, since runs diverged", a.Optimizer, b.Optimizer)
	}
	return fmt.Sprintf("%s's gap exceeds %s's by %s", a.Optimizer, b.Optimizer, weighed(estimate(differences(a.gaps, b.gaps))))
}

// correction tells what a correction of the delay does to the gap.
func correction(m Mode, plain, corrected *Cell) string {
	name := strings.TrimPrefix(m.Title(), "delay + ")
	name = strings.ToUpper(name[:1]) + name[1:]
	d := estimate(differences(plain.losses, corrected.losses))
	if !finite(d.Mean) {
		return fmt.Sprintf("What %s does to %s's gap cannot be told, since runs diverged", strings.TrimPrefix(m.Title(), "delay + "), plain.Optimizer)
	}
	verb := "shrinks"
	if d.Mean < 0 {
		verb, d.Mean = "widens", -d.Mean
	}
	share := ""
	if verb == "shrinks" && plain.Gap.Mean > 0 && plain.Gap.Errors() >= enough {
		share = fmt.Sprintf(", %.0f %% of it", 100*d.Mean/plain.Gap.Mean)
	}
	return fmt.Sprintf("%s %s %s's gap by %s%s", name, verb, plain.Optimizer, weighed(d), share)
}

// weighed is an estimate, with its size in standard errors.
func weighed(d Estimate) string {
	switch n := d.Errors(); {
	case !finite(d.Err):
		return fmt.Sprintf("%.4f (one seed: how sure that is cannot be told)", d.Mean)
	case n == 0:
		return d.String()
	case n < enough:
		return fmt.Sprintf("%s (%.1f standard errors: these seeds do not settle it)", d, n)
	default:
		return fmt.Sprintf("%s (%.1f standard errors)", d, n)
	}
}
