package schedule

import (
	"fmt"
	"math"
)

// Cost is what one part of the model costs, in any unit of time, and in bytes.
type Cost struct {
	Forward, Backward, InputGrad, WeightGrad float64 // of a microbatch; Forward is also Evaluate's
	Update                                   float64 // of a batch
	Transfer                                 float64 // of a microbatch's activations to the next part, on another stage; their gradient takes as long
	Activation                               float64 // bytes that a microbatch holds from its forward to the end of its backward
}

// mostCost leaves room for sums of as many as a schedule can have.
const mostCost = 1e100

// Costs is what Simulate reckons with.
type Costs struct {
	Parts    []Cost  // of each part of the model, or one for all
	Exchange float64 // of a batch: votes, and of tied embeddings the gradients and the weights, each
}

// Even is a cost whose backward is halved by I and W.
func Even(forward, backward, update float64) Cost {
	return Cost{Forward: forward, Backward: backward, InputGrad: backward / 2, WeightGrad: backward / 2, Update: update}
}

// Result is how a schedule runs at given costs.
type Result struct {
	Makespan float64       `json:"makespan"`
	Bubble   float64       `json:"bubble"` // share of all stages' time in which they wait
	Steady   *Steady       `json:"steady"` // nil where the batches are too few to tell
	Stages   []StageResult `json:"stages"`
	Events   []Event       `json:"events"` // in the order of their starts
}

// Steady is of whole batches, after the pipeline has filled and before it drains.
type Steady struct {
	Period float64 `json:"period"` // from batch to batch
	Bubble float64 `json:"bubble"`
}

// StageResult is of one stage.
type StageResult struct {
	Busy       float64 `json:"busy"`
	Idle       float64 `json:"idle"`
	Activation float64 `json:"activation"` // the most bytes of activations at one time
}

// Event is an action of computation on a stage's device.
type Event struct {
	Stage  int     `json:"stage"`
	Action Action  `json:"action"`
	Start  float64 `json:"start"`
	End    float64 `json:"end"`
}

// Simulate runs a schedule, which must validate, at given costs. Stages compute in the order of their lines; an update is done as
// soon as what it needs has come, but where the delay is as the lines have it. Transfers take no device's time; those of one kind
// between two stages follow one another. Without communication an update needs its own line only, with it the votes of all.
func Simulate(s *Schedule, c Costs) (*Result, error) {
	if err := c.check(s); err != nil {
		return nil, err
	}
	if _, err := Validate(s); err != nil {
		return nil, err
	}
	sim := newSimulation(s, c)
	for sim.next() {
	}
	return sim.result(), nil
}

func (c Costs) check(s *Schedule) error {
	if len(c.Parts) != 1 && len(c.Parts) != s.Parts() {
		return fmt.Errorf("schedule %s: found costs of %d parts, expected 1 for all or %d", s.Name, len(c.Parts), s.Parts())
	}
	for q, p := range c.Parts {
		for _, v := range []float64{p.Forward, p.Backward, p.InputGrad, p.WeightGrad, p.Update, p.Transfer, p.Activation, c.Exchange} {
			if !(v >= 0 && v <= mostCost) {
				return fmt.Errorf("schedule %s: costs of part %d: found %v, expected numbers from 0 to %v", s.Name, q, v, mostCost)
			}
		}
	}
	return nil
}

func (c Costs) part(q int) Cost {
	if len(c.Parts) == 1 {
		return c.Parts[0]
	}
	return c.Parts[q]
}

// simulation is a schedule while it runs in time. Times of what has not happened yet are missing (NaN).
type simulation struct {
	*Schedule
	costs    Costs
	links    Links
	at       []int               // of each line: the next action
	free     []float64           // of each line: when the device has done what it was given
	updates  []int               // of each line: batches updated
	left     [][]int             // of each line and batch: gradients to come
	complete [][]float64         // of each line and batch: when no gradient was to come any more
	updated  [][]float64         // of each line and batch: when its own parameters were
	arrived  map[arrival]float64 // when what was sent, and not yet used, came
	channels map[channel]float64 // when they are free again
	ready    []Event             // of each line: what it can begin next; without a start where that is not known yet
	events   []Event
}

// arrival is a message as its receiver knows it.
type arrival struct {
	stage int
	recv  Kind
	message
}

var missing = math.NaN()

func newSimulation(s *Schedule, c Costs) *simulation {
	sim := &simulation{Schedule: s, costs: c, at: make([]int, s.Stages), free: make([]float64, s.Stages), updates: make([]int, s.Stages),
		arrived: map[arrival]float64{}, channels: map[channel]float64{}, ready: make([]Event, s.Stages)}
	if s.Links != nil {
		sim.links = *s.Links
	}
	for range s.Stages {
		left, complete, updated := make([]int, s.Batches), make([]float64, s.Batches), make([]float64, s.Batches)
		for t := range s.Batches {
			left[t], complete[t], updated[t] = s.Microbatches*s.Chunks, missing, missing
		}
		sim.left, sim.complete, sim.updated = append(sim.left, left), append(sim.complete, complete), append(sim.updated, updated)
	}
	sim.lookAtAll()
	return sim
}

// look finds what a line can begin next; an update goes before what else could.
func (sim *simulation) look(s int) {
	e, u := sim.computation(s), sim.update(s)
	if u.Start <= e.Start || math.IsNaN(e.Start) {
		e = u
	}
	sim.ready[s] = e
}

func (sim *simulation) lookAtAll() {
	for s := range sim.Stages {
		sim.look(s)
	}
}

// next does what can begin first on any device. It is false at the end.
func (sim *simulation) next() bool {
	first := Event{Start: math.Inf(1)}
	for _, e := range sim.ready {
		if e.Start < first.Start { // never where it is missing
			first = e
		}
	}
	if math.IsInf(first.Start, 1) {
		for s, line := range sim.Lines {
			if sim.at[s] < len(line) {
				panic(fmt.Sprintf("schedule %s: it is valid, but stage %d never comes to %v", sim.Name, s, line[sim.at[s]]))
			}
		}
		return false
	}
	first.End = first.Start + sim.cost(first.Stage, first.Action)
	sim.free[first.Stage] = first.End
	sim.events = append(sim.events, first)
	sim.finish(first)
	return true
}

// early tells an update that does not wait for its place in the line.
func (sim *simulation) early(a Action) bool { return a.Kind == Update && sim.Delay >= 0 }

// computation is a line's next action of computation, and when it can begin.
func (sim *simulation) computation(s int) Event {
	line := sim.Lines[s]
	for sim.at[s] < len(line) && (!line[sim.at[s]].Kind.Computes() || sim.early(line[sim.at[s]])) {
		sim.at[s]++
	}
	if sim.at[s] == len(line) {
		return Event{Start: missing}
	}
	a := line[sim.at[s]]
	start := sim.free[s]
	if recv, _, is := sim.needs(s, a); is {
		came, has := sim.arrived[arrival{s, recv, message{a.Microbatch, a.Batch, a.Chunk}}]
		if !has {
			came = missing
		}
		start = max(start, came)
	}
	if made := a.Batch - 1 - sim.Delay; a.Kind == Forward && sim.Delay >= 0 && made >= 0 {
		start = max(start, sim.updated[s][made])
		if sim.links.Tied && s == sim.Stages-1 {
			start = max(start, sim.updated[0][made]+sim.exchange(s, 0))
		}
	}
	return Event{Stage: s, Action: a, Start: start}
}

// update is a line's next update, and when it can begin.
func (sim *simulation) update(s int) Event {
	t := sim.updates[s]
	if t == sim.Batches || !sim.early(Action{Kind: Update}) {
		return Event{Start: missing}
	}
	start := max(sim.free[s], sim.complete[s][t])
	if sim.Links != nil {
		for from := range sim.Stages {
			start = max(start, sim.vote(from, t)+sim.exchange(from, s))
		}
	}
	return Event{Stage: s, Action: Action{Kind: Update, Batch: t}, Start: start}
}

// vote is when a line knows its gradients of a batch.
func (sim *simulation) vote(s, t int) float64 {
	if sim.links.Tied && s == 0 {
		last := sim.Stages - 1
		return max(sim.complete[s][t], sim.complete[last][t]+sim.exchange(last, s))
	}
	return sim.complete[s][t]
}

// exchange is what a message of the exchange takes.
func (sim *simulation) exchange(from, to int) float64 {
	if from == to {
		return 0
	}
	return sim.costs.Exchange
}

// finish passes on what an action leaves, to those lines that it may concern.
func (sim *simulation) finish(e Event) {
	a, s := e.Action, e.Stage
	if !sim.early(a) {
		sim.at[s]++
	}
	if recv, _, is := sim.needs(s, a); is {
		delete(sim.arrived, arrival{s, recv, message{a.Microbatch, a.Batch, a.Chunk}})
	}
	if send, to, chunk, is := sim.gives(s, a); is {
		sim.send(e, channel{send - 1, s, to}, chunk)
		sim.look(to)
	}
	switch a.Kind {
	case Backward, WeightGrad:
		if sim.left[s][a.Batch]--; sim.left[s][a.Batch] == 0 {
			sim.complete[s][a.Batch] = e.End
			if sim.links.Replica { // the owner's update is not of this schedule
				sim.updated[s][a.Batch] = e.End + 2*sim.costs.Exchange
				sim.updates[s]++
			}
			sim.tell()
		}
	case Update:
		sim.updated[s][a.Batch] = e.End
		sim.updates[s]++
		sim.tell()
	}
	sim.look(s)
}

// tell has all lines look again, where they know of each other's votes and weights.
func (sim *simulation) tell() {
	if sim.Links != nil {
		sim.lookAtAll()
	}
}

// send reckons when a message comes. What stays on a stage needs no time.
func (sim *simulation) send(e Event, c channel, chunk int) {
	came := e.End
	if c.from != c.to {
		q := sim.part(e.Stage, e.Action.Chunk)
		if c.recv == RecvBackward {
			q-- // the gradient is as large as the activations that came from there
		}
		came = max(came, sim.channels[c]) + sim.costs.part(q).Transfer
		sim.channels[c] = came
	}
	sim.arrived[arrival{c.to, c.recv, message{e.Action.Microbatch, e.Action.Batch, chunk}}] = came
}

// cost is how long an action keeps a stage's device.
func (sim *simulation) cost(s int, a Action) float64 {
	c := sim.costs.part(sim.part(s, a.Chunk))
	switch a.Kind {
	case Forward, Evaluate:
		return c.Forward
	case Backward:
		return c.Backward
	case InputGrad:
		return c.InputGrad
	case WeightGrad:
		return c.WeightGrad
	}
	sum := 0.0 // of an update: all of the line's parts
	for chunk := range sim.Chunks {
		sum += sim.costs.part(sim.part(s, chunk)).Update
	}
	return sum
}

func (sim *simulation) result() *Result {
	r := &Result{Stages: make([]StageResult, sim.Stages), Events: sim.events}
	for _, e := range sim.events {
		r.Makespan = max(r.Makespan, e.End)
		r.Stages[e.Stage].Busy += e.End - e.Start
	}
	idle := 0.0
	for s := range r.Stages {
		st := &r.Stages[s]
		st.Idle, st.Activation = r.Makespan-st.Busy, sim.activation(s)
		idle += st.Idle
	}
	r.Bubble = share(idle, float64(sim.Stages)*r.Makespan)
	r.Steady = sim.steady()
	return r
}

func share(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

// activation is the most bytes that a line's microbatches in flight hold.
func (sim *simulation) activation(s int) (most float64) {
	held := 0.0
	for _, a := range sim.Lines[s] {
		bytes := sim.costs.part(sim.part(s, a.Chunk)).Activation
		switch a.Kind {
		case Forward:
			held += bytes
			most = max(most, held)
		case Evaluate:
			most = max(most, bytes)
		case Backward, WeightGrad:
			held -= bytes
		}
	}
	return most
}

// steady looks, on each stage, from the first forward of a batch in the middle to that of the last batch.
func (sim *simulation) steady() *Steady {
	fill := (sim.Stages + sim.Microbatches - 1) / sim.Microbatches // batches
	first, last := max(fill, sim.Batches/2), sim.Batches-1
	if first >= last {
		return nil
	}
	from, to, busy := make([]float64, sim.Stages), make([]float64, sim.Stages), 0.0
	for s := range sim.Stages {
		from[s], to[s] = math.Inf(1), math.Inf(1)
	}
	for _, e := range sim.events {
		switch {
		case e.Action.Kind.PerBatch():
		case e.Action.Batch == first:
			from[e.Stage] = min(from[e.Stage], e.Start)
		case e.Action.Batch == last:
			to[e.Stage] = min(to[e.Stage], e.Start)
		}
	}
	for _, e := range sim.events {
		busy += max(0, min(e.End, to[e.Stage])-max(e.Start, from[e.Stage]))
	}
	all := 0.0
	for s := range sim.Stages {
		all += to[s] - from[s]
	}
	return &Steady{Period: all / float64(sim.Stages*(last-first)), Bubble: share(all-busy, all)}
}
