package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/schedule/draw"
)

type scheduleCommand struct {
	Name          string  `help:"Which schedule (see below)." xor:"what"`
	File          string  `help:"A schedule of your own, instead of a name." placeholder:"FILE" xor:"what"`
	Stages        *int    `help:"Stages of the pipeline; without, 4." placeholder:"P"`
	Microbatches  *int    `help:"Microbatches of a batch; without, twice the stages." placeholder:"M"`
	Chunks        *int    `help:"Parts of the model on each stage." placeholder:"V"`
	Batches       *int    `help:"How many batches; without, enough to see how they overlap." placeholder:"N"`
	Communication bool    `help:"Show what stages tell each other, too."`
	Tied          bool    `help:"With communication: the last stage holds a copy of the embedding."`
	Costs         string  `help:"What a stage's forward, backward and update cost: F,B,U or F,I,W,U with a divided backward; of each stage: F,B,U;F,B,U;…" default:"1,2,0" placeholder:"F,B,U"`
	Transfer      float64 `help:"What a message between stages costs." default:"0"`
	Draw          string  `help:"Draw how it runs: text, or a file that ends in .svg or .png." placeholder:"text|FILE"`
	JSON          bool    `help:"Print a JSON object."`
}

func (c *scheduleCommand) Help() string {
	var b strings.Builder
	b.WriteString("Prints the order in which each stage works, checks it, and says what it asks for and how long stages wait (the bubble), beside\nwhat is known in closed form.\n\nSchedules:\n")
	for _, f := range schedule.Families() {
		fmt.Fprintf(&b, "  %-12s %s\n", f.Name, f.Summary)
	}
	b.WriteString(`
Actions, as microbatch.batch, with :chunk where a stage has several:
  F forward, B backward (I of inputs and W of weights, where divided), E evaluation; U update of a batch;
  RF SF RB SB receive and send activations and their gradients; N votes on the gradients' norm; SG RG gradients and SW RW weights
  of parameters with copies elsewhere.

Examples:
  gpupipe schedule --name 2bw --stages 4 --microbatches 8
  gpupipe schedule --name interleaved --stages 4 --chunks 2 --draw text
  gpupipe schedule --name 1f1b --costs "1,2,0.5;1,2,0.5;1.5,3,0.5;1,2,0.5" --draw 1f1b.svg
  gpupipe schedule --name zb-h1 --stages 2 > mine.txt
  gpupipe schedule --file mine.txt --batches 4 --draw mine.png --json

What is printed is the text of a schedule again, figures in its comments: a line for each stage. A file of your own needs these
lines only. In a run it is repeated: describe one batch, or several where they overlap.`)
	return b.String()
}

func (c *scheduleCommand) Run(a *app) error {
	if c.JSON && c.Draw == "text" {
		return usererror.New(fmt.Errorf("draw: found text with --json, expected a file"))
	}
	batches, err := c.numbers()
	if err != nil {
		return usererror.New(err)
	}
	s, err := c.schedule(batches)
	if err != nil {
		return usererror.New(err)
	}
	v := &scheduleView{Schedule: s}
	costs, err := c.costs(s)
	if err != nil {
		return usererror.New(err)
	}
	report, err := schedule.Validate(s)
	if err != nil {
		return usererror.New(err)
	}
	v.Report = report.Stages
	if v.Simulation, err = schedule.Simulate(s, costs); err != nil {
		return usererror.New(err)
	}
	if v.Simulation.Steady == nil {
		v.Simulation.Steady = c.steady(s, costs)
	}
	o := schedule.Options{Stages: s.Stages, Microbatches: s.Microbatches, Chunks: s.Chunks, Batches: s.Batches}
	if form, known := schedule.Closed(c.Name, o, costs.VirtualStages[0]); known && len(costs.VirtualStages) == 1 && c.Transfer == 0 {
		v.Closed = &form
	}
	if c.Draw != "" && c.Draw != "text" {
		if err := draw.Save(c.Draw, s, v.Simulation); err != nil {
			return usererror.New(err)
		}
	}
	if c.JSON {
		return a.printJSON(v.json())
	}
	picture := ""
	if c.Draw == "text" {
		if picture, err = draw.Text(s, v.Simulation); err != nil {
			return usererror.New(fmt.Errorf("draw: %w", err))
		}
		picture = "\n" + picture
	}
	a.printf("%v", s)
	for line := range strings.Lines(picture) {
		a.printf("%s\n", strings.TrimRight("# "+line, " \n"))
	}
	v.print(a)
	return nil
}

// numbers checks those that are given, and returns that of the batches, 0 where it is not.
func (c *scheduleCommand) numbers() (batches int, err error) {
	for _, n := range []struct {
		name  string
		value *int
	}{{"stages", c.Stages}, {"microbatches", c.Microbatches}, {"chunks", c.Chunks}, {"batches", c.Batches}} {
		if n.value != nil && *n.value < 1 {
			return 0, fmt.Errorf("%s: found %d, expected at least 1", n.name, *n.value)
		}
	}
	return or0(c.Batches), nil
}

// or0 is a number that may not be given.
func or0(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// schedule makes or reads what is asked for; batches is 0 for a number that shows the pattern.
func (c *scheduleCommand) schedule(batches int) (*schedule.Schedule, error) {
	s, err := c.computation(batches)
	if err != nil || !c.Communication && !c.Tied || s.Links != nil {
		return s, err
	}
	return schedule.Communicate(s, schedule.Links{Tied: c.Tied})
}

func (c *scheduleCommand) computation(batches int) (*schedule.Schedule, error) {
	if c.Name == "" && c.File == "" {
		return nil, fmt.Errorf("no schedule is named: expected --name %s, or --file", strings.Join(schedule.Names(), "|"))
	}
	if c.File != "" {
		if c.Stages != nil || c.Microbatches != nil || c.Chunks != nil {
			return nil, fmt.Errorf("stages, microbatches and chunks are what %s says, expected none of them with --file", c.File)
		}
		s, err := schedule.Read(c.File)
		if err != nil || batches == 0 || batches == s.Batches {
			return s, err
		}
		g, err := schedule.Repeat(s, batches)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.File, err)
		}
		return g.Schedule()
	}
	o := schedule.Options{Stages: or0(c.Stages), Microbatches: or0(c.Microbatches), Chunks: or0(c.Chunks), Batches: batches}
	if f, ok := schedule.Find(c.Name); ok {
		o = f.Example(o)
	}
	return schedule.Generate(c.Name, o)
}

const mostCost = 1e12 // of an action

// costs reads --costs. A stage's are divided evenly among its chunks.
func (c *scheduleCommand) costs(s *schedule.Schedule) (schedule.Costs, error) {
	var stages []schedule.Cost
	for _, text := range strings.Split(c.Costs, ";") {
		cost, err := parseCost(text, float64(s.Chunks))
		if err != nil {
			return schedule.Costs{}, err
		}
		cost.Transfer = c.Transfer
		stages = append(stages, cost)
	}
	if len(stages) != 1 && len(stages) != s.Stages {
		return schedule.Costs{}, fmt.Errorf("costs: found those of %d stages, expected 1 for all or %d", len(stages), s.Stages)
	}
	if !(c.Transfer >= 0 && c.Transfer <= mostCost) {
		return schedule.Costs{}, fmt.Errorf("transfer: found %v, expected a number from 0 to 1e12", graph.Real(c.Transfer))
	}
	out := schedule.Costs{Exchange: c.Transfer}
	if len(stages) == 1 {
		out.VirtualStages = stages
		return out, nil
	}
	for range s.Chunks {
		out.VirtualStages = append(out.VirtualStages, stages...)
	}
	return out, nil
}

func parseCost(text string, chunks float64) (schedule.Cost, error) {
	var n []float64
	for _, field := range strings.Split(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if err != nil || !(v >= 0 && v <= mostCost) {
			return schedule.Cost{}, fmt.Errorf("costs: found %q in %q, expected numbers from 0 to 1e12", strings.TrimSpace(field), text)
		}
		n = append(n, v/chunks)
	}
	switch len(n) {
	case 3:
		return schedule.Even(n[0], n[1], n[2]), nil
	case 4:
		return schedule.Cost{Forward: n[0], Backward: n[1] + n[2], InputGrad: n[1], WeightGrad: n[2], Update: n[3]}, nil
	}
	return schedule.Cost{}, fmt.Errorf("costs: found %d numbers in %q, expected F,B,U or F,I,W,U", len(n), text)
}

// steady measures a longer run, for a schedule that is too short to have a steady state; nil where none can be listed.
func (c *scheduleCommand) steady(s *schedule.Schedule, costs schedule.Costs) *schedule.Steady {
	fill := (s.Stages + s.Microbatches - 1) / s.Microbatches
	long, err := c.schedule(2*fill + 4*s.Batches)
	if err != nil {
		return nil
	}
	r, err := schedule.Simulate(long, costs)
	if err != nil {
		return nil
	}
	return r.Steady
}

// scheduleView is what the command shows.
type scheduleView struct {
	Schedule   *schedule.Schedule
	Report     []schedule.StageReport
	Simulation *schedule.Result
	Closed     *schedule.Form
}

func (v *scheduleView) json() map[string]any {
	s := v.Schedule
	out := map[string]any{"name": s.Name, "stages": s.Stages, "chunks": s.Chunks, "microbatches": s.Microbatches, "batches": s.Batches, "delay": s.Delay,
		"lines": s.Actions, "report": v.Report, "simulation": v.Simulation}
	if s.Links != nil {
		out["links"] = s.Links.String()
	}
	if v.Closed != nil {
		out["closed_form"] = v.Closed
	}
	return out
}

// print writes comments: what the command prints is the text of a schedule.
func (v *scheduleView) print(a *app) {
	rows := [][]string{{"#"}, {"# STAGE", "IN FLIGHT", "WEIGHTS", "GRADIENTS", "BUFFERS", "STALENESS", "BUSY", "WAITING"}}
	for i, l := range v.Report {
		st := v.Simulation.Stages[i]
		inFlight := fmt.Sprint(l.InFlight)
		if v.Closed != nil {
			inFlight += fmt.Sprintf(" (%d)", v.Closed.InFlight[i])
		}
		staleness := fmt.Sprint(l.Staleness[0])
		if l.Staleness[1] > l.Staleness[0] {
			staleness += fmt.Sprintf(" to %d", l.Staleness[1])
		}
		rows = append(rows, []string{fmt.Sprintf("# %d", i), inFlight, fmt.Sprint(l.Versions), fmt.Sprint(l.Accumulators), fmt.Sprint(l.Buffers), staleness,
			fmt.Sprintf("%.6g", st.Busy), fmt.Sprintf("%.6g", st.Idle)})
	}
	a.table(rows)
	figures := [][]string{{"#"}, {"# valid", "yes"}, {"# makespan", fmt.Sprintf("%.6g", v.Simulation.Makespan)},
		{"# bubble", percent(v.Simulation.Bubble), v.form(func(f *schedule.Form) float64 { return f.Bubble })}}
	if s := v.Simulation.Steady; s != nil {
		figures = append(figures, []string{"# steady", percent(s.Bubble), v.form(func(f *schedule.Form) float64 { return f.Steady }), fmt.Sprintf("%.6g a batch", s.Period)})
	}
	a.table(figures)
}

// form is a figure of the closed form, in brackets as everywhere, if it is known.
func (v *scheduleView) form(of func(*schedule.Form) float64) string {
	if v.Closed == nil {
		return ""
	}
	return fmt.Sprintf("(closed form %s)", percent(of(v.Closed)))
}

func percent(share float64) string { return fmt.Sprintf("%.2f %%", 100*max(0, share)) }
