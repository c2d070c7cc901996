package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

type traceCommand struct {
	Path string `arg:"" name:"run" help:"Run folder, or its trace.json."`
	JSON bool   `help:"Print a JSON object."`
}

func (c *traceCommand) Help() string {
	return `Prints the share of time in which each stage computed, waited and transferred. "Over all" covers the whole run, with evaluations and
checkpoints. "Steady state" omits the first and the last batch of each stretch between two moments at which the pipeline is empty.

Of a run over several machines, it names the slowest rank, the slowest link and what would help, and shows how far the clocks of the
members were off. Between two members these errors add up.

The file itself opens in https://ui.perfetto.dev and in chrome://tracing. It ends at 256 MiB with an event that says so. A resumed run
starts a new trace.json; the earlier ones are trace.1.json, trace.2.json and so on, oldest first.

Examples:
  gpupipe trace runs/demo
  gpupipe trace runs/demo/trace.1.json`
}

func (c *traceCommand) Run(a *app) error {
	path := c.Path
	if path == "" {
		return usererror.Errorf("no run: expected its folder, or its trace.json")
	}
	earlier := "" // the part before the present one
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		parts, err := trace.Earlier(path)
		if err != nil {
			return usererror.New(err)
		}
		if n := len(parts); n > 0 {
			earlier = filepath.Join(path, trace.EarlierName(parts[n-1]))
		}
		path = filepath.Join(path, trace.FileName)
	}
	s, err := trace.Summarize(path)
	if err != nil {
		if earlier != "" {
			err = fmt.Errorf("%w; the trace up to the last resume is %s", err, earlier)
		}
		return usererror.New(err)
	}
	if c.JSON {
		return a.printJSON(struct {
			trace.Summary
			Advice []string `json:"advice,omitempty"`
		}{s, s.Advice()})
	}
	a.printf("%s: %d batches\n", s.File, s.Batches)
	if earlier != "" {
		a.printf("since the last resume; the trace before it is %s\n", earlier)
	}
	if s.Cut {
		a.printf("the file is incomplete, as after a run that was killed: the shares cover its complete events\n")
	}
	if s.Full {
		a.printf("the file ends before the run, at its limit of %d MiB: the shares cover the part in the file\n", trace.MaxSize>>20)
	}
	if s.Restarts > 0 {
		a.printf("devices were restarted %d times: repeated work counts each time\n", s.Restarts)
	}
	if s.Staleness != nil {
		a.printf("mean age of the gradients: %.3g steps\n", *s.Staleness)
	}
	a.printf("\n")
	printShares(a, "over all", s, func(t trace.Stage) *trace.Shares { return &t.All }, &s.All)
	if s.Steady == nil {
		a.printf("no steady state: it needs three batches without a pause\n\n")
	} else {
		printShares(a, "steady state", s, func(t trace.Stage) *trace.Shares { return t.Steady }, s.Steady)
	}
	printMeans(a, s)
	printMachines(a, s)
	if s.All.Data > 0 {
		a.printf("\nwaiting for batches from hooks: %s over all", shareText(s.All.Data))
		if s.Steady != nil {
			a.printf(", %s in the steady state", shareText(s.Steady.Data))
		}
		a.printf("\n")
	}
	printTraceLegend(a)
	return nil
}

// printTraceLegend explains the columns of the tables.
func printTraceLegend(a *app) {
	a.printf("\n")
	a.facts([][]string{
		{"busy", "computing: forward, backward and the optimizer"},
		{"update", "the part of busy that is the optimizer"},
		{"wait", "idle between two computations"},
		{"transfer", "data was moving to or from the host, mostly during computation"},
		{"bubble", "not busy"},
	})
	a.prose("F forward, B backward (I for inputs and W for weights, if split), E evaluation, N gradient norms, U update\n")
}

func printShares(a *app, title string, s trace.Summary, of func(trace.Stage) *trace.Shares, mean *trace.Shares) {
	rows := [][]string{{strings.ToUpper(title), "BUSY", "UPDATE", "WAIT", "TRANSFER", "BUBBLE", "BATCHES", "SECONDS"}}
	row := func(name string, x *trace.Shares) {
		if x == nil {
			rows = append(rows, []string{name})
			return
		}
		cells := []string{name}
		for _, share := range []float64{x.Busy, x.Update, x.Wait, x.Transfer, x.Bubble} {
			cells = append(cells, shareText(share))
		}
		rows = append(rows, append(cells, fmt.Sprint(x.Batches), fmt.Sprintf("%.3f", x.Seconds)))
	}
	for _, t := range s.Stages {
		row(t.Name, of(t))
	}
	if len(s.Stages) > 1 {
		row("mean", mean)
	}
	a.headed(rows)
	a.printf("\n")
}

// printMachines prints what a run over several machines waited for.
func printMachines(a *app, s trace.Summary) {
	m := s.Machines
	if m == nil {
		for _, advice := range s.Advice() {
			a.printf("\n%s\n", advice)
		}
		return
	}
	rows := [][]string{{"LINK", "WAITED FOR", "MS A TRANSFER", "KIB", "TRANSFERS"}}
	for _, l := range m.Links {
		rows = append(rows, []string{l.From + " to " + l.To, shareText(l.Wait), fmt.Sprintf("%.3f", 1e3*l.Seconds),
			fmt.Sprintf("%.0f", l.Bytes/1024), fmt.Sprint(l.Transfers)})
	}
	a.printf("\n")
	a.headed(rows)
	rows = [][]string{{"CLOCK OF", "OFFSET MS", "ERROR MS"}}
	for _, k := range m.Clocks {
		rows = append(rows, []string{k.Member, fmt.Sprintf("%+.3f", 1e3*k.Offset), fmt.Sprintf("± %.3f", 1e3*k.Error)})
	}
	a.printf("\n")
	a.headed(rows)
	a.printf("\n%s\n", strings.Join(s.Advice(), "\n"))
}

// printMeans prints the mean time of each kind of action.
func printMeans(a *app, s trace.Summary) {
	kinds := map[string]bool{}
	for _, t := range s.Stages {
		for k := range t.Means {
			kinds[k] = true
		}
	}
	header := []string{"MEAN MS"}
	header = append(header, slices.Sorted(maps.Keys(kinds))...)
	rows := [][]string{header}
	for _, t := range s.Stages {
		row := []string{t.Name}
		for _, k := range header[1:] {
			cell := ""
			if m, ok := t.Means[k]; ok {
				cell = fmt.Sprintf("%.3f", 1e3*m)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	a.table(rows)
}

func shareText(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
