package schedule

import (
	"fmt"
	"math"
)

// Cost is the cost of one virtual stage, in any unit of time, and in bytes.
type Cost struct {
	Forward, Backward, InputGrad, WeightGrad float64 // per microbatch; Forward is also the cost of Evaluate
	Update                                   float64 // per batch
	Transfer                                 float64 // per microbatch: activations to the next virtual stage, on another device; their gradient takes as long
	Activation                               float64 // bytes that a microbatch holds from its forward to the end of its backward
}

// maxCost keeps sums over all actions of a schedule finite.
const maxCost = 1e100

// Costs are the costs of a schedule.
type Costs struct {
	VirtualStages []Cost   // by virtual stage, or one for all
	Exchange      float64  // per batch and message: gradient norms, and the gradients and weights of tied embeddings
	Network       *Network // the machines of the stages; nil: one machine has all of them
}

// Even is a cost whose input gradient and weight gradients each take half of the backward.
func Even(forward, backward, update float64) Cost {
	return Cost{Forward: forward, Backward: backward, InputGrad: backward / 2, WeightGrad: backward / 2, Update: update}
}

// Result is the run of a schedule at given costs.
type Result struct {
	Makespan float64       `json:"makespan"`
	Bubble   float64       `json:"bubble"` // share of the stages' time that is idle
	Steady   *Steady       `json:"steady"` // nil if there are too few batches
	Stages   []StageResult `json:"stages"`
	Events   []Event       `json:"events"` // ordered by start
}

// Steady covers whole batches, after the pipeline has filled and before it drains.
type Steady struct {
	Period float64 `json:"period"` // time from batch to batch
	Bubble float64 `json:"bubble"`
}

// StageResult is the result of one stage.
type StageResult struct {
	Busy       float64 `json:"busy"`
	Idle       float64 `json:"idle"`
	Activation float64 `json:"activation"` // the most bytes of activations at any time
}

// Event is an action of computation on the device of a stage.
type Event struct {
	Stage  int     `json:"stage"`
	Action Action  `json:"action"`
	Start  float64 `json:"start"`
	End    float64 `json:"end"`
}

// Simulate runs a schedule at given costs, after validating it. Stages compute in the order of their action lists. With
// a delay of 0 or 1 an update runs as soon as its inputs have arrived. Transfers occupy no device. Transfers of one
// kind between two stages follow one another. Transfers that leave a machine of a Network pass through its one sender.
// Without communication an update needs only its own stage, with communication the gradient norms of all stages.
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
	if len(c.VirtualStages) != 1 && len(c.VirtualStages) != s.VirtualStages() {
		return fmt.Errorf("schedule %s: found costs of %d virtual stages, expected 1 for all or %d", s.Name, len(c.VirtualStages),
			s.VirtualStages())
	}
	for q, p := range c.VirtualStages {
		for _, v := range []float64{p.Forward, p.Backward, p.InputGrad, p.WeightGrad, p.Update, p.Transfer, p.Activation, c.Exchange} {
			if !(v >= 0 && v <= maxCost) {
				return fmt.Errorf("schedule %s: costs of virtual stage %d: found %v, expected numbers from 0 to %v", s.Name, q, v, maxCost)
			}
		}
	}
	if err := c.Network.check(s.Stages); err != nil {
		return fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	return nil
}

func (c Costs) virtualStage(q int) Cost {
	if len(c.VirtualStages) == 1 {
		return c.VirtualStages[0]
	}
	return c.VirtualStages[q]
}

// simulation is the state of Simulate. Times that are not known yet are NaN.
type simulation struct {
	*Schedule
	costs    Costs
	copies   Copies
	at       []int               // by stage: the next action
	free     []float64           // by stage: when the device is idle
	updates  []int               // by stage: batches updated
	left     [][]int             // by stage and batch: gradients to come
	complete [][]float64         // by stage and batch: when the gradients were complete
	updated  [][]float64         // by stage and batch: when its own parameters were updated
	arrivals map[arrival]float64 // arrival times of messages that are not yet used
	channels map[channel]float64 // when each is free
	senders  []sender            // by machine of the network
	copied   map[copied]float64  // arrival times of copied gradients and weights that crossed the network
	ready    []Event             // by stage: the action that it can start next; Start is NaN while unknown
	events   []Event
}

// arrival identifies a message by its receiver.
type arrival struct {
	stage int
	recv  Kind
	message
}

var unknown = math.NaN()

func newSimulation(s *Schedule, c Costs) *simulation {
	sim := &simulation{Schedule: s, costs: c, at: make([]int, s.Stages), free: make([]float64, s.Stages), updates: make([]int, s.Stages),
		arrivals: map[arrival]float64{}, channels: map[channel]float64{}, ready: make([]Event, s.Stages)}
	if s.Copies != nil {
		sim.copies = *s.Copies
	}
	sim.senders, sim.copied = c.Network.senders(), map[copied]float64{}
	for range s.Stages {
		left, complete, updated := make([]int, s.Batches), make([]float64, s.Batches), make([]float64, s.Batches)
		for t := range s.Batches {
			left[t], complete[t], updated[t] = s.Microbatches*s.Chunks, unknown, unknown
		}
		sim.left, sim.complete, sim.updated = append(sim.left, left), append(sim.complete, complete), append(sim.updated, updated)
	}
	sim.refreshAll()
	return sim
}

// refresh finds what a stage can start next. An update goes first.
func (sim *simulation) refresh(s int) {
	e, u := sim.computation(s), sim.update(s)
	if u.Start <= e.Start || math.IsNaN(e.Start) {
		e = u
	}
	sim.ready[s] = e
}

func (sim *simulation) refreshAll() {
	for s := range sim.Stages {
		sim.refresh(s)
	}
}

// next executes the action that can start first on any device. It returns false at the end.
func (sim *simulation) next() bool {
	first := Event{Start: math.Inf(1)}
	for _, e := range sim.ready {
		if e.Start < first.Start { // never if it is NaN
			first = e
		}
	}
	if m, at := sim.nextSender(); at < first.Start {
		sim.depart(m, at)
		return true
	}
	if math.IsInf(first.Start, 1) {
		for s, actions := range sim.Actions {
			if sim.at[s] < len(actions) {
				panic(fmt.Sprintf("schedule %s: it is valid, but stage %d never reaches %v", sim.Name, s, actions[sim.at[s]]))
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

// unordered reports whether an action is an update that does not wait for its position in the action list.
func (sim *simulation) unordered(a Action) bool { return a.Kind == Update && sim.Delay >= 0 }

// computation is the next action of computation of a stage, and when it can start.
func (sim *simulation) computation(s int) Event {
	actions := sim.Actions[s]
	for sim.at[s] < len(actions) && (!actions[sim.at[s]].Kind.Computes() || sim.unordered(actions[sim.at[s]])) {
		sim.at[s]++
	}
	if sim.at[s] == len(actions) {
		return Event{Start: unknown}
	}
	a := actions[sim.at[s]]
	start := sim.free[s]
	if recv, _, is := sim.receives(s, a); is {
		came, has := sim.arrivals[arrival{s, recv, message{a.Microbatch, a.Batch, a.Chunk}}]
		if !has {
			came = unknown
		}
		start = max(start, came)
	}
	if made := sim.reads(a); a.Kind == Forward && sim.Delay >= 0 && made >= 0 {
		start = max(start, sim.updated[s][made])
		if sim.copies.Tied && s == sim.Stages-1 {
			start = max(start, sim.copyArrival(SendWeights, 0, s, made))
		}
	}
	return Event{Stage: s, Action: a, Start: start}
}

// update is the next update of a stage, and when it can start.
func (sim *simulation) update(s int) Event {
	t := sim.updates[s]
	if t == sim.Batches || !sim.unordered(Action{Kind: Update}) {
		return Event{Start: unknown}
	}
	start := max(sim.free[s], sim.complete[s][t])
	if sim.Copies != nil {
		for from := range sim.Stages {
			start = max(start, sim.gradNorm(from, t)+sim.exchange(from, s))
		}
	}
	return Event{Stage: s, Action: Action{Kind: Update, Batch: t}, Start: start}
}

// gradNorm is when a stage knows its gradients of a batch.
func (sim *simulation) gradNorm(s, t int) float64 {
	if sim.copies.Tied && s == 0 {
		return max(sim.complete[s][t], sim.copyArrival(SendGrads, sim.Stages-1, s, t))
	}
	return sim.complete[s][t]
}

// exchange is the time that the gradient norms of a stage take to another.
func (sim *simulation) exchange(from, to int) float64 {
	switch n := sim.costs.Network; {
	case from == to:
		return 0
	case n.connects(from, to):
		return n.Links[from][to].Latency
	}
	return sim.costs.Exchange
}

// finish records the results of an action and refreshes the stages that they concern.
func (sim *simulation) finish(e Event) {
	a, s := e.Action, e.Stage
	if !sim.unordered(a) {
		sim.at[s]++
	}
	if recv, _, is := sim.receives(s, a); is {
		delete(sim.arrivals, arrival{s, recv, message{a.Microbatch, a.Batch, a.Chunk}})
	}
	if send, to, chunk, is := sim.sends(s, a); is {
		sim.send(e, channel{send - 1, s, to}, chunk)
		sim.refresh(to)
	}
	switch a.Kind {
	case Backward, WeightGrad:
		if sim.left[s][a.Batch]--; sim.left[s][a.Batch] == 0 {
			sim.complete[s][a.Batch] = e.End
			if sim.copies.Replica { // the owner's update is not in this schedule
				sim.updated[s][a.Batch] = e.End + 2*sim.costs.Exchange
				sim.updates[s]++
			}
			sim.sendCopies(SendGrads, sim.Stages-1, 0, e)
			sim.refreshExchange()
		}
	case Update:
		sim.updated[s][a.Batch] = e.End
		sim.updates[s]++
		sim.sendCopies(SendWeights, 0, sim.Stages-1, e)
		sim.refreshExchange()
	}
	sim.refresh(s)
}

// refreshExchange refreshes all stages if they depend on each other through the exchange.
func (sim *simulation) refreshExchange() {
	if sim.Copies != nil {
		sim.refreshAll()
	}
}

// send computes when a message arrives, or leaves that to the sender of a machine. A message within a stage takes no
// time.
func (sim *simulation) send(e Event, c channel, chunk int) {
	came, at := e.End, arrival{c.to, c.recv, message{e.Action.Microbatch, e.Action.Batch, chunk}}
	if sim.costs.Network.connects(c.from, c.to) {
		sim.post(c.from, c.to, outgoing{ready: e.End, transfer: sim.costs.Network.Links[c.from][c.to].Transfer,
			arrived: func(time float64) { sim.arrivals[at] = time }})
		return
	}
	if c.from != c.to {
		q := sim.virtualStage(e.Stage, e.Action.Chunk)
		if c.recv == RecvBackward {
			q-- // the gradient is as large as the activations that came the other way
		}
		came = max(came, sim.channels[c]) + sim.costs.virtualStage(q).Transfer
		sim.channels[c] = came
	}
	sim.arrivals[at] = came
}

// cost is how long an action occupies the device of a stage.
func (sim *simulation) cost(s int, a Action) float64 {
	c := sim.costs.virtualStage(sim.virtualStage(s, a.Chunk))
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
	sum := 0.0 // of an update: all chunks of the stage
	for chunk := range sim.Chunks {
		sum += sim.costs.virtualStage(sim.virtualStage(s, chunk)).Update
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
	r.Bubble = ratio(idle, float64(sim.Stages)*r.Makespan)
	r.Steady = sim.steady()
	return r
}

func ratio(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

// activation is the most bytes that the microbatches in flight of a stage hold.
func (sim *simulation) activation(s int) (most float64) {
	held := 0.0
	for _, a := range sim.Actions[s] {
		bytes := sim.costs.virtualStage(sim.virtualStage(s, a.Chunk)).Activation
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

// steady measures, on each stage, from the first forward of a middle batch to the first forward of the last batch.
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
	return &Steady{Period: all / float64(sim.Stages*(last-first)), Bubble: ratio(all-busy, all)}
}
