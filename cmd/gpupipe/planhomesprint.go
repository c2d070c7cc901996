package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/replicate"
)

// printReplicas prints a plan of replicas.
func printReplicas(a *app, p *layout.ReplicaPlan, h layout.Homes) {
	a.labeled("model", describeParameters(p.Parameters, p.Active)+" parameters")
	a.labeled("batch", fmt.Sprintf("%s tokens of each replica; microbatches: %d of %d sequences", grouped(int64(p.Tokens)), p.Each, p.Sequences))
	if p.Precision != "" {
		a.labeled("precision", p.Precision)
	}
	a.labeled("machines", fmt.Sprintf("%d, the coordinator at %s", p.Machines, h.Sites[h.Coordinator].Name))
	if p.Modelled {
		a.labeled("", "times are estimates from arithmetic and memory traffic, not measurements")
	}
	a.printf("\n")
	printReplicaRows(a, p)
	for _, l := range leftOut(p.LeftOut) {
		a.prose(l + "\n")
	}
	if len(p.Links) > 0 {
		printConnections(a, p)
		printFormats(a, p)
	}
	printTogether(a, p)
}

// mostRows bounds a table of machines.
const mostRows = 12

// printReplicaRows prints the replicas. Those that are alike share a row.
func printReplicaRows(a *app, p *layout.ReplicaPlan) {
	rows := [][]string{{"REPLICAS", "MACHINES", "STAGES", "TOKENS/S ALONE", "STEP"}}
	type speed struct {
		stages  int
		seconds float64
	}
	var order []speed
	alike := map[speed][]replicate.Replica{}
	for _, r := range p.Replicas {
		key := speed{r.Stages, r.StepSeconds}
		if len(alike[key]) == 0 {
			order = append(order, key)
		}
		alike[key] = append(alike[key], r)
	}
	slices.SortStableFunc(order, func(a, b speed) int { return len(alike[b]) - len(alike[a]) })
	for i, key := range order {
		if i == mostRows {
			rows = append(rows, []string{"…", fmt.Sprintf("%d more of other speeds: --json lists all", len(order)-i)})
			break
		}
		var names []string
		for _, r := range alike[key] {
			names = append(names, strings.Join(r.Machines, "+"))
		}
		rows = append(rows, []string{fmt.Sprint(len(names)), shortened(names), fmt.Sprint(key.stages),
			grouped(int64(alike[key][0].TokensPerSec)), inSeconds(key.seconds)})
	}
	a.headed(rows)
}

// leftOut says which machines have no work, one sentence a reason.
func leftOut(all []replicate.LeftOut) (sentences []string) {
	var order []string
	names := map[string][]string{}
	for _, l := range all {
		if len(names[l.Why]) == 0 {
			order = append(order, l.Why)
		}
		names[l.Why] = append(names[l.Why], l.Machine)
	}
	for _, why := range order {
		sentences = append(sentences, fmt.Sprintf("\nleft out: %s: %s", shortened(names[why]), why))
	}
	return sentences
}

// printConnections prints what the exchanges send over each connection. Those that are alike share a row.
func printConnections(a *app, p *layout.ReplicaPlan) {
	rows := [][]string{{"CONNECTION OF", "UP", "BUSY", "DOWN", "BUSY"}}
	var order []replicate.LinkUse
	names := map[replicate.LinkUse][]string{}
	for _, l := range p.Links {
		key := l
		if key.Site = ""; len(names[key]) == 0 {
			order = append(order, key)
		}
		names[key] = append(names[key], l.Site)
	}
	busiest := func(l replicate.LinkUse) float64 { return max(l.UpShare, l.DownShare) }
	slices.SortStableFunc(order, func(a, b replicate.LinkUse) int { return cmp.Compare(busiest(b), busiest(a)) })
	for i, l := range order {
		if i == mostRows {
			rows = append(rows, []string{fmt.Sprintf("… %d more, less busy", len(order)-i)})
			break
		}
		rows = append(rows, []string{shortened(names[l]), perSecond(l.Up), percent(l.UpShare), perSecond(l.Down), percent(l.DownShare)})
	}
	a.printf("\n")
	a.headed(rows)
}

func perSecond(bytes float64) string { return units.Bytes(int64(bytes)) + "/s" }

// printFormats prints how often the replicas have to exchange in each format.
func printFormats(a *app, p *layout.ReplicaPlan) {
	rows := [][]string{{"WIRE", "MESSAGE", "LOCAL STEPS", "LATE", "TOKENS/S", ""}}
	for _, f := range p.Formats {
		chosen := ""
		if f.Format == p.Wire {
			chosen = "planned"
		}
		if !f.Fits {
			rows = append(rows, []string{f.Format, "", "too many", "", "", chosen})
			continue
		}
		rows = append(rows, []string{f.Format, inBytes(f.Message), fmt.Sprint(f.Period), fmt.Sprint(f.Late),
			grouped(int64(f.TokensPerSec)), chosen})
	}
	a.printf("\n")
	a.headed(rows)
}

// printTogether prints what the replicas train together, against the fastest machine alone, and the settings for it.
func printTogether(a *app, p *layout.ReplicaPlan) {
	n := len(p.Replicas)
	a.printf("\n")
	if p.Pooled {
		a.prose("the machines of no site hold the model: its stages are at several sites, and every microbatch crosses their links\n")
	}
	switch {
	case n == 1:
		a.prose(fmt.Sprintf("recommended: one replica on %s, %s tokens/s\n", strings.Join(p.Replicas[0].Machines, ", "),
			grouped(int64(p.TokensPerSec))))
	default:
		a.prose(fmt.Sprintf("recommended: %d replicas, %s tokens/s; each fragment of the model is exchanged every %d steps, and its exchange "+
			"lands %d steps late, %.2g of a period: %s\n", n, grouped(int64(p.TokensPerSec)), p.Period, p.Late,
			float64(p.Late)/float64(p.Period), waits(p)))
		a.prose(fmt.Sprintf("a replica sends and receives %s in a period of %s, and takes %s of its machines' memory besides\n",
			inBytes(p.Message), inSeconds(float64(p.Period)*p.StepSeconds), inBytes(p.Host)))
		if p.Copies > 0 {
			a.prose(fmt.Sprintf("the coordinator sends what it returns to %.3g replicas on average, and these relay it to the others\n", p.Copies))
		}
	}
	if p.Pace >= 0 {
		r := p.Replicas[p.Pace]
		a.prose(fmt.Sprintf("all replicas make the same number of steps: the others wait for %s, %s a step\n", strings.Join(r.Machines, "+"),
			inSeconds(r.StepSeconds)))
	}
	if p.Alone == nil {
		a.prose("the model fits no machine alone\n")
	} else if p.Alone.TokensPerSec >= p.TokensPerSec {
		a.prose(fmt.Sprintf("one machine alone would be as fast or faster: %s, %s tokens/s against %s\n", p.Alone.Machine,
			grouped(int64(p.Alone.TokensPerSec)), grouped(int64(p.TokensPerSec))))
	} else {
		a.prose(fmt.Sprintf("one machine alone would have to be %.2f times as fast as the fastest here, %s, %s tokens/s%s\n",
			p.TokensPerSec/p.Alone.TokensPerSec, p.Alone.Machine, grouped(int64(p.Alone.TokensPerSec)), card(p)))
	}
	if n > 1 {
		a.prose(fmt.Sprintf("\nto train with this plan:%s\n", replicaSettings(p)))
	}
}

// waits says whether replicas wait for exchanges.
func waits(p *layout.ReplicaPlan) string {
	switch {
	case p.Late < p.Needed:
		return fmt.Sprintf("replicas wait for exchanges %s of the time; %d steps late they would not", percent(p.Waiting), p.Needed)
	case p.Needed > p.Period:
		return fmt.Sprintf("the links carry less than that, and replicas wait %s of the time", percent(p.Waiting))
	}
	return "no link is waited for"
}

// card says which card would be as fast alone.
func card(p *layout.ReplicaPlan) string {
	switch {
	case !p.Cards:
		return ""
	case p.Card == "":
		return "; no card that the planner knows is"
	}
	return "; one " + p.Card + " would be"
}

// replicaSettings returns the overrides that make a run follow the plan.
func replicaSettings(p *layout.ReplicaPlan) string {
	n := len(p.Replicas)
	text := fmt.Sprintf(" --set pipeline.replicas=%d --set pipeline.stages=%d --set pipeline.local_steps=%d --set pipeline.outer.late=%d"+
		" --set pipeline.outer.wire=%s --set train.batch_size=%d --set train.microbatches=%d", n, p.Replicas[0].Stages, p.Period, p.Late,
		p.Wire, n*p.Each*p.Sequences, n*p.Each)
	if p.Replicas[0].Stages > 1 {
		text += " --set pipeline.schedule=" + p.Schedule
	}
	return text
}
