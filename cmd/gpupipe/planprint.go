package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
)

// describeParameters is the number of parameters, and how many of them a token uses if these are fewer.
func describeParameters(all, active int64) string {
	if active == all || active == 0 {
		return grouped(all)
	}
	return grouped(all) + " (" + grouped(active) + " active)"
}

// printPlan prints a plan. use are the devices that a run needs to follow it; none: its members bring them.
func printPlan(a *app, p *layout.Comparison, use []string) {
	a.labeled("model", fmt.Sprintf("%s parameters in %d units: %s", describeParameters(p.Parameters, p.Active), len(p.Units),
		shortened(p.Units)))
	replicas := ""
	if p.Replicas > 1 {
		replicas = fmt.Sprintf(" on each of %d replicas", p.Replicas)
	}
	a.labeled("batch", fmt.Sprintf("%s tokens; microbatches: %d of %d sequences%s", grouped(int64(p.Tokens)), p.Microbatches, p.Sequences,
		replicas))
	if p.Precision != "" {
		a.labeled("precision", p.Precision)
	}
	if p.Wire != "" {
		a.labeled("between", p.Wire)
	}
	printPlanDevices(a, p)
	a.printf("\n")
	rows := [][]string{{"SCHEDULE", "STALENESS", "TOKENS/S", "STEP", "BUBBLE", "LARGEST STAGE", "CUT"}}
	for _, c := range p.Schedules {
		row := []string{c.Schedule, fmt.Sprintf("%.3g", c.Staleness)}
		if c.Plan == nil {
			rows = append(rows, append(row, "not possible"))
			continue
		}
		rows = append(rows, append(row, grouped(int64(c.Plan.TokensPerSec)), inSeconds(c.Plan.StepSeconds),
			fmt.Sprintf("%.1f %%", 100*c.Plan.Bubble), inBytes(c.Plan.Largest()), shortened(c.Plan.CutNames)))
	}
	a.headed(rows)
	for _, c := range p.Schedules {
		if c.Plan == nil {
			a.prose(fmt.Sprintf("\n%s: %s\n", c.Schedule, c.Problem))
		}
	}
	if p.RecommendedIndex >= 0 {
		printRecommendation(a, p, use)
	}
}

// indent is as wide as the labels before the devices' names, less the gap of a table.
const indent = "          "

// printPlanDevices prints the devices. Devices that are alike share an entry.
func printPlanDevices(a *app, p *layout.Comparison) {
	sharing, what := map[string]int{}, "stages"
	for _, name := range p.Ranks {
		sharing[name]++
	}
	if p.Replicas > 1 {
		what = "ranks"
	}
	alike := map[string][]string{} // names
	var kinds []layout.Device
	for i, d := range p.Devices {
		name := p.Ranks[i]
		d.Name = ""
		kind := fmt.Sprint(d)
		if len(alike[kind]) == 0 {
			kinds = append(kinds, d)
		}
		if n := sharing[name]; n > 1 {
			name += fmt.Sprintf(" (shared by %d %s)", n, what)
		}
		if !slices.Contains(alike[kind], name) {
			alike[kind] = append(alike[kind], name)
		}
	}
	for _, d := range kinds {
		memory := "memory unknown"
		if d.Memory > 0 {
			memory = inBytes(d.Memory)
		}
		a.labeled("device", fmt.Sprintf("%s: %s (%s), %s", strings.Join(alike[fmt.Sprint(d)], ", "), d.Hardware(), d.Kind, memory))
		rows := [][]string{{"", "", "FORWARD", "BACKWARD", "UPDATE"}}
		for _, u := range d.Units {
			name := u.Name
			if u.Alike > 1 {
				name += fmt.Sprintf(" (%d alike)", u.Alike)
			}
			rows = append(rows, []string{indent, name, inSeconds(u.Forward), inSeconds(u.Backward), inSeconds(u.Update)})
		}
		a.table(rows)
		rate := ""
		if d.Link.Bandwidth > 0 {
			rate = fmt.Sprintf(" and %s a second", inBytes(int64(d.Link.Bandwidth)))
		}
		a.labeled("", "transfers: "+inSeconds(d.Link.Latency)+rate)
	}
	if p.Modelled {
		a.labeled("", "these times are estimates from arithmetic and memory traffic, not measurements")
	}
}

// printRecommendation prints the stages of the recommended schedule, the reason for it and the settings to use it.
func printRecommendation(a *app, p *layout.Comparison, devices []string) {
	c := p.Schedules[p.RecommendedIndex]
	a.prose(fmt.Sprintf("\nrecommended: %s: %s\n\n", c.Schedule, p.Reason))
	rows := [][]string{{"", "DEVICE", "UNITS", "A MICROBATCH", "SENDS A BATCH", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "ACTIVATIONS",
		"WORKING", "PLANNED", "AVAILABLE", ""}}
	for i, s := range c.Plan.Stages {
		available, recompute := "unknown", ""
		if s.Available > 0 {
			available = inBytes(s.Available)
		}
		if s.Recompute {
			recompute = "recomputes"
		}
		m := s.Memory
		rows = append(rows, []string{fmt.Sprint("stage ", i), s.Device, s.Units, inSeconds(s.Seconds),
			inBytes(s.Sent), inBytes(m.Weights), inBytes(m.Gradients),
			inBytes(m.Optimizer), inBytes(m.Activations), inBytes(m.Working), inBytes(m.Total()), available, recompute})
	}
	a.headed(rows)
	printDepths(a, p.Depths)
	printMicrobatching(a, p.Microbatching)
	printAlone(a, p)
	use := settings(c)
	if len(devices) > 0 {
		use += " --set pipeline.devices=[" + strings.Join(devices, ",") + "]"
	}
	a.prose(fmt.Sprintf("\ncompared: %s\nto train with this plan:%s\n", c.Plan.Search, use))
}

// printMicrobatching prints how the number of microbatches trades speed and memory for staleness.
func printMicrobatching(a *app, all []layout.Microbatching) {
	if len(all) < 2 {
		return
	}
	rows := [][]string{{"MICROBATCHES", "STALE", "STALENESS", "TOKENS/S", "LARGEST STAGE", ""}}
	for _, m := range all {
		recommended := ""
		if m.Recommended {
			recommended = fmt.Sprintf("recommended: --set train.microbatches=%d", m.Microbatches)
		}
		rows = append(rows, []string{fmt.Sprint(m.Microbatches), fmt.Sprint(m.Stale), fmt.Sprintf("%.3g", m.Staleness),
			grouped(int64(m.TokensPerSec)), inBytes(m.Largest), recommended})
	}
	a.printf("\n")
	a.headed(rows)
}

// printDepths prints what each depth gains and costs. It omits depths that are no faster than a smaller one.
func printDepths(a *app, all []layout.Depth) {
	if len(all) == 0 {
		return
	}
	rows, fastest := [][]string{{"DEPTH", "STALE", "STALENESS", "TOKENS/S", "LARGEST STAGE", ""}}, 0.0
	for _, d := range all {
		chosen := ""
		switch {
		case d.Chosen:
			chosen = "chosen: the least within 1 % of the fastest"
		case d.TokensPerSec <= fastest:
			continue
		}
		fastest = max(fastest, d.TokensPerSec)
		rows = append(rows, []string{fmt.Sprint(d.Depth), fmt.Sprint(d.Stale), fmt.Sprintf("%.3g", d.Staleness),
			grouped(int64(d.TokensPerSec)), inBytes(d.Largest), chosen})
	}
	a.printf("\n")
	a.headed(rows)
}

// settings returns the overrides that make a run follow the plan.
func settings(c partition.Candidate) string {
	text := fmt.Sprintf(" --set pipeline.schedule=%s --set pipeline.stages=%d", c.Schedule, len(c.Plan.Stages))
	if c.Delay > 0 && c.Stale == c.Microbatches {
		text += " --set pipeline.stale_microbatches=all"
	}
	if c.Depth > 0 {
		text += fmt.Sprintf(" --set pipeline.depth=%d", c.Depth)
	}
	if c.Chunks > 1 {
		text += fmt.Sprintf(" --set pipeline.chunks=%d", c.Chunks)
	}
	if len(c.Plan.CutNames) > 0 {
		text += " --set pipeline.cut=[" + strings.Join(c.Plan.CutNames, ",") + "]"
	}
	return text
}

// inBytes writes an amount of memory.
func inBytes(n int64) string { return units.Bytes(n) }

// inSeconds formats a time with four digits.
func inSeconds(s float64) string {
	switch {
	case s >= 1:
		return fmt.Sprintf("%.4g s", s)
	case s >= 1e-3:
		return fmt.Sprintf("%.4g ms", s*1e3)
	}
	return fmt.Sprintf("%.4g µs", s*1e6)
}
