package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/schedule/draw"
)

type scheduleCommand struct {
	Plan      scheduleFlags `embed:""`
	Times     timeFlags     `embed:""`
	Exchanges replicaFlags  `embed:""`
	Draw      string        `help:"Draw the timeline: as text, or into a file that ends in .svg or .png." placeholder:"text|FILE"`
	JSON      bool          `help:"Print a JSON object."`
}

// scheduleFlags choose a schedule.
type scheduleFlags struct {
	Name          string `help:"Name of a schedule (see below)." xor:"what" placeholder:"NAME"`
	File          string `help:"File with a schedule, instead of a name." placeholder:"FILE" xor:"what"`
	Stages        *int   `help:"Stages of the pipeline. Default: 4." placeholder:"P"`
	Microbatches  *int   `help:"Microbatches in a batch. Default: twice the stages, or as many as the depth needs." placeholder:"M"`
	Stale         string `help:"Stale microbatches of each batch with 2bw: a number, auto (stages − 1 + depth, as few as cost nothing) or all (as published)." default:"auto" placeholder:"N"`
	Depth         int    `help:"With 1f1b and 2bw: how many microbatches more than there are stages the first stage has in flight; later stages have a share. See --latency." default:"0" placeholder:"K"`
	Chunks        *int   `help:"Model chunks (virtual stages) on each stage." placeholder:"V"`
	Batches       *int   `help:"Number of batches. Default: enough to show how they overlap." placeholder:"N"`
	Communication bool   `help:"Show the transfers between stages, too."`
	Tied          bool   `help:"With --communication: the last stage has a copy of the embedding."`
}

// timeFlags are the times of actions and transfers.
type timeFlags struct {
	Costs         string  `help:"Time of a stage's forward, backward and update: F,B,U, or F,I,W,U with a split backward. For each stage: F,B,U;F,B,U;…" default:"1,2,0" placeholder:"F,B,U"`
	SplitBackward bool    `help:"Split each backward in two, as training with a delay does: the gradient of the inputs is sent while that of the weights is computed."`
	Transfer      float64 `help:"Time of a transfer between stages." default:"0"`
	Latency       float64 `help:"Put each stage on a machine of its own: a message leaves its machine for the time of a transfer, one at a time, and arrives this much later." default:"0"`
}

func (c *scheduleCommand) Help() string {
	var b strings.Builder
	b.WriteString("Prints the actions of each stage in order, validates them, and prints the memory they need and the bubble, with the closed form\nif there is one.\n\nSchedules:\n")
	for _, f := range schedule.Families() {
		fmt.Fprintf(&b, "  %s %s\n", table.Pad(f.Name, 12), f.Summary)
	}
	b.WriteString(`
Actions, as microbatch.batch, with :chunk if a stage has several model chunks:
  F            forward
  B            backward; if split, I for inputs and W for weights
  E            evaluation
  U            update of a batch
  RF SF RB SB  receive and send activations, and their gradients
  N            all-gather of the gradient norms
  SG RG SW RW  send and receive the gradients, and the weights, of parameters
               with copies on other stages

With --replicas and --local-steps, replicas train on their own, each by this schedule, and exchange fragments of the model by plan
(docs/REPLICAS.md). The drawing then has a column for each step: S the fragments that a replica sends after it, L those that land, w where
it waits for them, and below that how busy its connection was. An SVG or PNG shows steps and messages in time.

The output is again the text of a schedule, with one line for each stage and the figures in comments. A file needs only the lines of the
stages. A run repeats them: describe one batch, or several that overlap.

Examples:
  gpupipe schedule --name 2bw --stages 4 --microbatches 8
  gpupipe schedule --name 2bw --stale all --draw text
  gpupipe schedule --name 2bw --depth 3 --latency 2 --draw text
  gpupipe schedule --name interleaved --stages 4 --chunks 2 --draw text
  gpupipe schedule --name 1f1b --stages 2 --costs "1,2,0.5;1.5,3,0.5" \
    --draw 1f1b.svg
  gpupipe schedule --name 1f1b --stages 1 --replicas 3 --local-steps 8 \
    --message 40 --draw text
  gpupipe schedule --name zb-h1 --stages 2 > mine.txt
  gpupipe schedule --file mine.txt --batches 4 --draw mine.png --json`)
	return b.String()
}

func (c *scheduleCommand) Run(a *app) error {
	if c.JSON && c.Draw == "text" {
		return usererror.Errorf("--draw: found text with --json, expected a file")
	}
	batches, err := c.Plan.counts()
	if err != nil {
		return usererror.New(err)
	}
	s, err := c.Plan.schedule(batches, c.Times.SplitBackward)
	if err != nil {
		return usererror.New(err)
	}
	v := &scheduleView{Schedule: s}
	costs, err := c.Times.costs(s)
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
	if v.Simulation.Steady == nil || costs.Network != nil {
		v.Simulation.Steady = c.steady(s, costs)
	}
	c.closed(v, costs)
	if v.Exchanges, err = c.Exchanges.simulate(v.Simulation, s.Batches); err != nil {
		return usererror.New(err)
	}
	if c.Draw != "" && c.Draw != "text" {
		if err := v.save(c.Draw); err != nil {
			return usererror.Errorf("--draw: %w", err)
		}
	}
	if c.JSON {
		return a.printJSON(v.json())
	}
	picture := ""
	if c.Draw == "text" {
		columns := 0
		if a.stdoutColumns != nil {
			columns = a.stdoutColumns()
		}
		if picture, err = draw.Text(s, v.Simulation, columns); err != nil {
			return usererror.Errorf("--draw: %w", err)
		}
		picture = "\n" + picture
		if v.Exchanges != nil {
			picture += "\n" + draw.ExchangesText(v.Exchanges.shown(), max(0, columns-2))
		}
	}
	a.printf("%v", s)
	for line := range strings.Lines(picture) {
		a.printf("%s\n", strings.TrimRight("# "+line, " \n"))
	}
	v.print(a)
	return nil
}

// closed adds the closed form of the schedule, if there is one for its costs.
func (c *scheduleCommand) closed(v *scheduleView, costs schedule.Costs) {
	s := v.Schedule
	o := schedule.Options{Stages: s.Stages, Microbatches: s.Microbatches, Chunks: s.Chunks, Depth: s.Depth, Batches: s.Batches}
	cost := costs.VirtualStages[0]
	switch {
	case len(costs.VirtualStages) > 1:
	case costs.Network != nil && c.Plan.Name == schedule.TwoBW && cost.Update == 0:
		period := float64(s.Microbatches) * schedule.Period(o, cost, c.Times.link(), c.Times.SplitBackward)
		v.Period = &period
	case c.Times.Transfer == 0 && c.Times.Latency == 0:
		if form, known := schedule.Closed(c.Plan.Name, o, cost); known {
			v.Closed = &form
		}
	}
}

// link is the link of --transfer and --latency.
func (c *timeFlags) link() schedule.Link {
	return schedule.Link{Latency: c.Latency, Transfer: c.Transfer, Copies: c.Transfer}
}

// counts checks the numbers of stages, microbatches, chunks and batches, and returns the number of batches; 0 if it is
// not given.
func (c *scheduleFlags) counts() (batches int, err error) {
	for _, n := range []struct {
		name  string
		value *int
	}{{"stages", c.Stages}, {"microbatches", c.Microbatches}, {"chunks", c.Chunks}, {"batches", c.Batches}} {
		if n.value != nil && *n.value < 1 {
			return 0, fmt.Errorf("--%s: found %d, expected at least 1", n.name, *n.value)
		}
	}
	return or0(c.Batches), nil
}

// or0 returns an optional number, or 0.
func or0(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// schedule generates or reads the schedule. With batches 0 it has as many as show the pattern.
func (c *scheduleFlags) schedule(batches int, splitBackward bool) (*schedule.Schedule, error) {
	s, err := c.computation(batches, splitBackward)
	if err != nil || !c.Communication && !c.Tied || s.Copies != nil {
		return s, err
	}
	return schedule.Communicate(s, schedule.Copies{Tied: c.Tied})
}

func (c *scheduleFlags) computation(batches int, splitBackward bool) (*schedule.Schedule, error) {
	if c.Name == "" && c.File == "" {
		return nil, fmt.Errorf("no schedule: expected --name %s, or --file", strings.Join(schedule.Names(), "|"))
	}
	if c.File != "" {
		if c.Stages != nil || c.Microbatches != nil || c.Chunks != nil || c.Stale != "auto" || c.Depth != 0 || splitBackward {
			return nil, fmt.Errorf("--stages, --microbatches, --chunks, --stale, --depth and --split-backward: %s defines them, expected none with --file", c.File)
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
	o := schedule.Options{Stages: or0(c.Stages), Microbatches: or0(c.Microbatches), Chunks: or0(c.Chunks), Depth: c.Depth, Batches: batches}
	if f, ok := schedule.Find(c.Name); ok {
		o = f.Example(o)
	}
	var err error
	if o.Stale, err = c.stale(o); err != nil {
		return nil, err
	}
	if !slices.Contains(schedule.Names(), c.Name) {
		return nil, fmt.Errorf("--name: found %q, expected one of %s", c.Name, strings.Join(schedule.Names(), ", "))
	}
	g, err := schedule.New(c.Name, o)
	if err != nil {
		return nil, err
	}
	if splitBackward {
		g = g.SplitBackward()
	}
	return g.Schedule()
}

// stale is the number of stale microbatches that --stale asks for; 0: as few as cost nothing.
func (c *scheduleFlags) stale(o schedule.Options) (int, error) {
	switch c.Stale {
	case "auto":
		return 0, nil
	case "all":
		return o.Microbatches, nil
	}
	n, err := strconv.Atoi(c.Stale)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("--stale: found %q, expected auto, all, or a number of microbatches of at least 1", c.Stale)
	}
	return n, nil
}

const mostCost = 1e12 // the longest time of an action

// costs parses --costs. A stage's times are divided evenly among its model chunks.
func (c *timeFlags) costs(s *schedule.Schedule) (schedule.Costs, error) {
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
		return schedule.Costs{}, fmt.Errorf("--costs: found %d stages, expected 1 for all of them, or %d", len(stages), s.Stages)
	}
	for _, n := range []struct {
		flag string
		time float64
	}{{"transfer", c.Transfer}, {"latency", c.Latency}} {
		if !(n.time >= 0 && n.time <= mostCost) {
			return schedule.Costs{}, fmt.Errorf("--%s: found %v, expected a number from 0 to 1e12", n.flag, graph.Real(n.time))
		}
	}
	out := schedule.Costs{Exchange: c.Transfer}
	if c.Latency > 0 {
		out.Network = schedule.Uniform(s.Stages, c.link())
	}
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
			return schedule.Cost{}, fmt.Errorf("--costs: found %q in %q, expected numbers from 0 to 1e12", strings.TrimSpace(field), text)
		}
		n = append(n, v/chunks)
	}
	switch len(n) {
	case 3:
		return schedule.Even(n[0], n[1], n[2]), nil
	case 4:
		return schedule.Cost{Forward: n[0], Backward: n[1] + n[2], InputGrad: n[1], WeightGrad: n[2], Update: n[3]}, nil
	}
	return schedule.Cost{}, fmt.Errorf("--costs: found %d numbers in %q, expected F,B,U or F,I,W,U", len(n), text)
}

// steady returns the steady state of a longer run of a schedule that is too short to have one; nil if there is none.
func (c *scheduleCommand) steady(s *schedule.Schedule, costs schedule.Costs) *schedule.Steady {
	fill := (s.Stages + s.Microbatches - 1) / s.Microbatches
	batches := 2*fill + 4*s.Batches
	if costs.Network != nil {
		batches = schedule.Options{Stages: s.Stages, Microbatches: s.Microbatches, Depth: s.Depth}.SteadyBatches()
	}
	long, err := c.Plan.schedule(batches, c.Times.SplitBackward)
	if err != nil {
		return nil
	}
	r, err := schedule.Simulate(long, costs)
	if err != nil {
		return nil
	}
	return r.Steady
}

// scheduleView is the command's output.
type scheduleView struct {
	Schedule   *schedule.Schedule
	Report     []schedule.StageReport
	Simulation *schedule.Result
	Closed     *schedule.Form
	Period     *float64 // closed form of the time from batch to batch over links
	Exchanges  *exchangesView
}

// save draws the schedule into a file, or the exchanges of its replicas.
func (v *scheduleView) save(path string) error {
	if v.Exchanges == nil {
		return draw.Save(path, v.Schedule, v.Simulation)
	}
	return draw.SaveExchanges(path, v.Exchanges.title(), v.Exchanges.shown())
}

func (v *scheduleView) json() map[string]any {
	s := v.Schedule
	out := map[string]any{"name": s.Name, "stages": s.Stages, "chunks": s.Chunks, "microbatches": s.Microbatches, "batches": s.Batches,
		"delay": s.Delay,
		"stale": s.Stale, "depth": s.Depth, "staleness": s.MeanStaleness(), "ranks": s.Actions, "report": v.Report,
		"simulation": v.Simulation}
	if s.Copies != nil {
		out["links"] = s.Copies.String()
	}
	if v.Closed != nil {
		out["closed_form"] = v.Closed
	}
	if v.Period != nil {
		out["closed_period"] = *v.Period
	}
	if v.Exchanges != nil {
		out["exchanges"] = v.Exchanges
	}
	return out
}

// print writes the figures as comments, since the output is the text of a schedule.
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
		rows = append(rows, []string{fmt.Sprintf("# %d", i), inFlight, fmt.Sprint(l.Versions), fmt.Sprint(l.Accumulators),
			fmt.Sprint(l.Buffers), staleness, fmt.Sprintf("%.6g", st.Busy), fmt.Sprintf("%.6g", st.Idle)})
	}
	a.table(rows)
	figures := [][]string{{"#"}, {"# valid", "yes"}}
	if s := v.Schedule; s.Delay >= 0 {
		figures = append(figures, []string{"# staleness", fmt.Sprintf("%.6g of a step in the mean", s.MeanStaleness())})
	}
	figures = append(figures, [][]string{{"# makespan", fmt.Sprintf("%.6g", v.Simulation.Makespan)},
		{"# bubble", percent(v.Simulation.Bubble), v.form(func(f *schedule.Form) float64 { return f.Bubble })}}...)
	if s := v.Simulation.Steady; s != nil {
		form := v.form(func(f *schedule.Form) float64 { return f.Steady })
		if v.Period != nil {
			form = fmt.Sprintf("(closed form %.6g a batch)", *v.Period)
		}
		figures = append(figures, []string{"# steady", percent(s.Bubble), form, fmt.Sprintf("%.6g a batch", s.Period)})
	}
	if v.Exchanges != nil {
		figures = append(figures, v.Exchanges.figures()...)
	}
	a.table(figures)
}

// form returns a figure of the closed form in brackets; "" if there is none.
func (v *scheduleView) form(of func(*schedule.Form) float64) string {
	if v.Closed == nil {
		return ""
	}
	return fmt.Sprintf("(closed form %s)", percent(of(v.Closed)))
}

func percent(share float64) string { return fmt.Sprintf("%.2f %%", 100*max(0, share)) }
