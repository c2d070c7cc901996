package schedule

import (
	"container/heap"
	"fmt"
	"math"
	"slices"
)

// ExchangeResult is the run of exchanges at given costs.
type ExchangeResult struct {
	Makespan float64         `json:"makespan"`
	Step     float64         `json:"step"` // the time from step to step in the steady state, of the slowest replica
	Replicas []ReplicaResult `json:"replicas"`
	Sites    []SiteResult    `json:"sites"`
	Flights  []FlightResult  `json:"flights"` // in the order in which they were sent
	// Lateness is the least Late with which no replica would wait for these exchanges.
	Lateness int `json:"lateness"`
}

// ReplicaResult is the result of one replica.
type ReplicaResult struct {
	Waited float64 `json:"waited"` // for exchanges to land
	Work   float64 `json:"work"`   // of exchanges: sending, landing and drained pipelines
	// When each step began and ended; an owner that does not train has none.
	Begins []float64 `json:"begins"`
	Ends   []float64 `json:"ends"`
}

// SiteResult is how long the connection of a site was busy.
type SiteResult struct {
	Up   float64 `json:"up"`
	Down float64 `json:"down"`
}

// FlightResult is one exchange of a fragment. The lists are by replica; an owner that does not train has zeros.
type FlightResult struct {
	Fragment int       `json:"fragment"`
	Step     int       `json:"step"`    // after which it was sent
	Lands    int       `json:"lands"`   // the step after which it counts
	Sent     []float64 `json:"sent"`    // when the replica began to send
	Leaves   []float64 `json:"leaves"`  // when its message began to leave
	Left     []float64 `json:"left"`    // when all of it had left
	Arrived  []float64 `json:"arrived"` // when the result was there
	Landed   []float64 `json:"landed"`  // when the replica moved by it
}

// SimulateExchanges runs exchanges at given costs for a number of steps, after validating them. Replicas compute step
// after step, and wait only where a result has to land that has not arrived. Messages occupy the sender, the
// connections of both sites and the receiver, each of which carries them one after the other in the order in which
// they were ready.
func SimulateExchanges(e Exchanges, c ExchangeCosts, steps int) (*ExchangeResult, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if err := c.check(e); err != nil {
		return nil, err
	}
	if steps < 1 || steps > e.Last {
		return nil, fmt.Errorf("exchanges: found %d steps to simulate, expected 1 to %d", steps, e.Last)
	}
	sim := newExchangeSimulation(e, c, steps)
	for sim.queue.Len() > 0 {
		next := heap.Pop(&sim.queue).(moment)
		sim.now = next.time
		next.do()
	}
	return sim.finish(), nil
}

// exchangeSimulation is the state of SimulateExchanges.
type exchangeSimulation struct {
	Exchanges
	costs    ExchangeCosts
	senders  int     // replicas that train, those that are alike once
	training float64 // replicas that train
	owners   int     // replicas with a share
	latency  float64 // of messages between sites
	steps    int
	now      float64
	moments  int // so far
	queue    moments
	replicas []replicaState
	sites    []siteState
	flights  map[[2]int]*flight // by fragment and step
	sent     []*flight          // in the order in which they were sent
}

type replicaState struct {
	out, in pipe
	pending []*flight // that it has sent and not landed
	resume  func()    // goes on when an exchange has arrived; nil: it does not wait for one
	since   float64   // when it began to wait
	ReplicaResult
}

func (r *replicaState) step() int { return len(r.Ends) }

type siteState struct {
	up, down        pipe
	training, owned float64
}

// pipe carries one message at a time.
type pipe struct {
	rate float64 // 0: any
	free float64
	busy float64
}

// pass sends bytes that come in a span of time. It returns the span in which they leave.
func (p *pipe) pass(bytes float64, come span) span {
	if p.rate == 0 || bytes == 0 {
		return come
	}
	begin := max(come.first, p.free)
	p.free = max(begin+bytes/p.rate, come.last)
	p.busy += bytes / p.rate
	return span{begin, p.free}
}

// flight is an exchange under way.
type flight struct {
	FlightResult
	sent, answered int  // replicas that have sent, owners that have answered
	out, back      span // of all messages to the owners, and of their answers, as they leave their sites
}

// span is from when the first of some bytes is somewhere to when all are.
type span struct{ first, last float64 }

// with is the span of more bytes.
func (s span) with(o span, some bool) span {
	if !some {
		return o
	}
	return span{min(s.first, o.first), max(s.last, o.last)}
}

// later is the span after a time.
func (s span) later(by float64) span { return span{s.first + by, s.last + by} }

// moment is something that happens at a time.
type moment struct {
	time   float64
	number int
	do     func()
}

// moments is a heap, by time and then by number.
type moments []moment

func (m moments) Len() int      { return len(m) }
func (m moments) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m *moments) Push(x any)   { *m = append(*m, x.(moment)) }
func (m moments) Less(i, j int) bool {
	return m[i].time < m[j].time || m[i].time == m[j].time && m[i].number < m[j].number
}

// Pop implements heap.Interface.
func (m *moments) Pop() any {
	last := (*m)[len(*m)-1]
	*m = (*m)[:len(*m)-1]
	return last
}

func newExchangeSimulation(e Exchanges, c ExchangeCosts, steps int) *exchangeSimulation {
	sim := &exchangeSimulation{Exchanges: e, costs: c, training: float64(c.Training()), steps: steps, flights: map[[2]int]*flight{}}
	for _, s := range c.Sites {
		sim.sites = append(sim.sites, siteState{up: pipe{rate: s.Up}, down: pipe{rate: s.Down}})
		if sim.latency = max(sim.latency, s.Latency); len(c.Sites) == 1 {
			sim.latency = 0
		}
	}
	for i, r := range c.Replicas {
		sim.replicas = append(sim.replicas, replicaState{out: pipe{rate: r.Port}, in: pipe{rate: r.Port}})
		site := &sim.sites[r.Site]
		if site.owned += r.Share; r.Share > 0 {
			sim.owners++
		}
		if r.Step > 0 {
			sim.senders++
			site.training++
			sim.begin(i, 0)
		}
	}
	return sim
}

func (sim *exchangeSimulation) at(time float64, do func()) {
	heap.Push(&sim.queue, moment{time, sim.moments, do})
	sim.moments++
}

// begin begins a replica's next step.
func (sim *exchangeSimulation) begin(i int, at float64) {
	sim.replicas[i].Begins = append(sim.replicas[i].Begins, at)
	sim.at(at+sim.costs.Replicas[i].Step, func() { sim.stepEnds(i) })
}

// stepEnds is the end of a replica's step.
func (sim *exchangeSimulation) stepEnds(i int) {
	r := &sim.replicas[i]
	r.Ends = append(r.Ends, sim.now)
	sim.whenArrived(i, func() { sim.exchange(i) })
}

// whenArrived goes on with a replica when all has arrived that has to land by its step.
func (sim *exchangeSimulation) whenArrived(i int, do func()) {
	r := &sim.replicas[i]
	missing := func(fl *flight) bool { return fl.Lands <= r.step() && fl.Arrived[i] == 0 }
	if !slices.ContainsFunc(r.pending, missing) {
		do()
		return
	}
	r.since = sim.now
	r.resume = func() {
		if slices.ContainsFunc(r.pending, missing) {
			return
		}
		r.Waited += sim.now - r.since
		r.resume = nil
		do()
	}
}

// exchange lands the messages and sends the fragments that are due after a replica's step, and begins the next step.
func (sim *exchangeSimulation) exchange(i int) {
	r := &sim.replicas[i]
	busy := sim.land(i)
	sent := sim.Sent(r.step())
	for _, f := range sent {
		busy += sim.work(f)
		fl := sim.flight(f, r.step())
		r.pending = append(r.pending, fl)
		sim.at(sim.now+busy, func() { sim.send(i, fl) })
	}
	if busy > 0 || len(sent) > 0 {
		busy += sim.costs.Replicas[i].Drain
	}
	r.Work += busy
	sim.at(sim.now+busy, func() {
		sim.whenArrived(i, func() {
			busy := sim.land(i)
			if r.Work += busy; r.step() < sim.steps {
				sim.begin(i, sim.now+busy)
			}
		})
	})
}

// land moves a replica by all that is due. It returns the time that this takes.
func (sim *exchangeSimulation) land(i int) (busy float64) {
	r := &sim.replicas[i]
	r.pending = slices.DeleteFunc(r.pending, func(fl *flight) bool {
		if fl.Lands > r.step() {
			return false
		}
		busy += sim.work(fl.Fragment)
		fl.Landed[i] = sim.now + busy
		return true
	})
	return busy
}

func (sim *exchangeSimulation) work(fragment int) float64 {
	if sim.costs.Work == nil {
		return 0
	}
	return sim.costs.Work[fragment]
}

// flight is the exchange of a fragment that is sent after a step.
func (sim *exchangeSimulation) flight(fragment, step int) *flight {
	key := [2]int{fragment, step}
	fl := sim.flights[key]
	if fl == nil {
		times := func() []float64 { return make([]float64, len(sim.replicas)) }
		fl = &flight{FlightResult: FlightResult{Fragment: fragment, Step: step, Lands: sim.Lands(step),
			Sent: times(), Leaves: times(), Left: times(), Arrived: times(), Landed: times()}}
		sim.flights[key] = fl
		sim.sent = append(sim.sent, fl)
	}
	return fl
}

// send sends a replica's message to the owners. Each takes the mean when it has the messages of all replicas.
func (sim *exchangeSimulation) send(i int, fl *flight) {
	r, c, bytes := &sim.replicas[i], sim.costs.Replicas[i], sim.costs.Bytes[fl.Fragment]
	site := &sim.sites[c.Site]
	gone := r.out.pass(bytes*(1-c.Share), span{sim.now, sim.now})
	gone = site.up.pass(bytes*(1-site.owned), gone)
	fl.Sent[i], fl.Leaves[i], fl.Left[i] = sim.now, gone.first, gone.last
	fl.out = fl.out.with(gone, fl.sent > 0)
	if fl.sent++; fl.sent < sim.senders {
		return
	}
	for g := range sim.sites {
		site := &sim.sites[g]
		if site.owned == 0 {
			continue
		}
		others := sim.training - site.training
		came := site.down.pass(bytes*site.owned*others, sim.across(fl.out, others))
		for o, c := range sim.costs.Replicas {
			if c.Site == g && c.Share > 0 {
				there := sim.replicas[o].in.pass(bytes*c.Share*sim.others(c), came)
				sim.at(max(sim.now, there.last), func() { sim.answer(o, fl) })
			}
		}
	}
}

// across is when bytes arrive that have left sites, if some have come from others.
func (sim *exchangeSimulation) across(left span, others float64) span {
	if others == 0 {
		return left
	}
	return left.later(sim.latency)
}

// others is how many replicas train besides one.
func (sim *exchangeSimulation) others(c ReplicaCost) float64 {
	if c.Step > 0 {
		return sim.training - 1
	}
	return sim.training
}

// answer sends an owner's share of the result to all replicas. It arrives when all owners have answered.
func (sim *exchangeSimulation) answer(o int, fl *flight) {
	c, bytes := sim.costs.Replicas[o], sim.costs.Bytes[fl.Fragment]
	site := &sim.sites[c.Site]
	gone := sim.replicas[o].out.pass(bytes*c.Share*sim.others(c), span{sim.now, sim.now})
	copies := sim.training - site.training
	if sim.costs.Copies > 0 {
		copies = sim.costs.Copies
	}
	gone = site.up.pass(bytes*c.Share*copies, gone)
	fl.back = fl.back.with(gone, fl.answered > 0)
	if fl.answered++; fl.answered < sim.owners {
		return
	}
	if sim.costs.Copies == 0 {
		sim.deliver(fl, fl.back, func(siteState) bool { return true })
		return
	}
	owns := func(s siteState) bool { return s.owned > 0 }
	sim.deliver(fl, fl.back, owns)
	come := sim.across(fl.back, 1)
	sim.at(max(sim.now, come.first), func() {
		sim.deliver(fl, sim.relay(bytes, come), func(s siteState) bool { return !owns(s) })
	})
}

// deliver brings a result that has left other sites to the replicas of some.
func (sim *exchangeSimulation) deliver(fl *flight, back span, to func(siteState) bool) {
	bytes := sim.costs.Bytes[fl.Fragment]
	for g := range sim.sites {
		site := &sim.sites[g]
		if site.training == 0 || !to(*site) {
			continue
		}
		came := site.down.pass(bytes*site.training*(1-site.owned), sim.across(back, 1-site.owned))
		for i, c := range sim.costs.Replicas {
			if c.Site != g || c.Step == 0 {
				continue
			}
			there := sim.replicas[i].in.pass(bytes*(1-c.Share), came)
			sim.at(max(sim.now, there.last), func() {
				fl.Arrived[i] = sim.now
				if resume := sim.replicas[i].resume; resume != nil {
					resume()
				}
			})
		}
	}
}

// relayedPieces is in how many pieces a result is relayed: a replica relays the first while others come.
const relayedPieces = 16

// relayingSlower is how much longer it takes to relay a result than to send it: what the replica itself sends
// meanwhile has the other half of the connection.
const relayingSlower = 2

// relay relays a result that comes to the heads of all chains in a span of time. It returns the span in which it
// leaves the last but one: the slowest connection counts, and a piece for each hop.
func (sim *exchangeSimulation) relay(bytes float64, come span) span {
	last, piece, share := come.last, 0.0, sim.costs.share()
	for g := range sim.sites {
		site := &sim.sites[g]
		if site.owned > 0 || site.training == 0 || site.up.rate == 0 {
			continue
		}
		gone := site.up.pass(bytes*site.training*share, come)
		last = max(last, gone.first+relayingSlower*bytes/site.up.rate)
		piece = max(piece, bytes/site.up.rate/relayedPieces)
	}
	return span{come.first, last + sim.costs.hops()*(piece+sim.latency) - sim.latency}
}

// finish is the result.
func (sim *exchangeSimulation) finish() *ExchangeResult {
	out := &ExchangeResult{}
	from := min(2*sim.Period, sim.steps/2) // the steady state
	for i := range sim.replicas {
		r := &sim.replicas[i]
		out.Replicas = append(out.Replicas, r.ReplicaResult)
		if r.step() == 0 {
			continue
		}
		out.Makespan = max(out.Makespan, r.Ends[sim.steps-1])
		began := 0.0
		if from > 0 {
			began = r.Ends[from-1]
		}
		out.Step = max(out.Step, (r.Ends[sim.steps-1]-began)/float64(sim.steps-from))
	}
	for _, s := range sim.sites {
		out.Sites = append(out.Sites, SiteResult{s.up.busy, s.down.busy})
	}
	for _, fl := range sim.sent {
		out.Flights = append(out.Flights, fl.FlightResult)
		for i, r := range sim.replicas {
			if fl.Arrived[i] > 0 {
				out.Lateness = max(out.Lateness, sim.lateness(r.Ends, fl.Step, fl.Arrived[i]))
			}
		}
	}
	return out
}

// lateness is how many steps after one a replica has ended the first step at whose end an exchange has arrived. Later
// steps than it has done are taken to be as long as its last one.
func (sim *exchangeSimulation) lateness(ends []float64, step int, arrived float64) int {
	const rounding = 1e-9
	n, _ := slices.BinarySearch(ends, arrived*(1-rounding))
	if last := len(ends) - 1; n > last && last > 0 {
		n = last + int(math.Ceil((arrived-ends[last])/(ends[last]-ends[last-1])-rounding))
	}
	return max(0, n+1-step)
}
