package stage

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// value is what a buffer of a parameter holds: weights, or a sum of gradients.
type value struct {
	symbol  symbol
	updates int // weights: those of batches below have been made
	batch   int // gradients: of this batch
	summed  int // gradients: microbatches
}

// memory is a slot's: the variables of one microbatch on one chunk.
type memory struct {
	id                  batchID // of tokens and targets
	in, out, gradOut    symbol
	gradIn              symbol
	stash, wstash       []symbol
	inID, gradID, outID batchID // which microbatch they are of
}

// rank is a simulated device with its machine. The device executes effects in order, at times of its own.
type rank struct {
	*pipeline
	number          int
	machine         *Machine
	todo            []Effect
	ran             []schedule.Action // and not yet reported
	given, reported int               // Runs
	inbox           []delivery
	payloads        map[Message]map[int]value
	buffers         []map[int]value
	scales          []int // by buffer: the batches whose norms decided the loss scale that is kept with its weights
	slots           [][]memory
	contributions   map[int]map[int]value // by rank
	norms           map[int]map[int]value // by rank, the rank's own too
	loss            [2]value              // of a batch and of the next
	recompute       bool
	ready           int
}

type delivery struct {
	message Message
	payload map[int]value
}

// lossKey is where payloads carry a loss.
const lossKey = -2

// pipeline is all ranks of all replicas.
type pipeline struct {
	model
	schedules []*schedule.Schedule // of each replica
	delay     int
	stale     int
	limit     int
	ranks     []*rank
	random    *rand.Rand
	losses    map[int]symbol // by batch
}

func (p *pipeline) stages() int { return p.schedules[0].Stages }

// units are those of a chunk.
func (rk *rank) units(chunk int) (from, to int) {
	s := rk.schedules[0]
	part := chunk*s.Stages + rk.number%s.Stages
	return part * rk.model.units / s.VirtualStages(), (part + 1) * rk.model.units / s.VirtualStages()
}

func (rk *rank) replica() int { return rk.number / rk.stages() }

// owned are the parameters of a rank's own units.
func (rk *rank) owned() (params []int) {
	for c := range rk.schedules[0].Chunks {
		for from, to := rk.units(c); from < to; from++ {
			params = append(params, from)
		}
	}
	return params
}

// held are all parameters that a rank has.
func (rk *rank) held() []int {
	params := rk.owned()
	if rk.tied && slices.Contains(params, rk.model.units-1) && !slices.Contains(params, 0) {
		params = append(params, 0)
	}
	return params
}

// gradKey is where a rank keeps a gradient: that of a copy of the first unit's parameter lies in the copy's own
// buffers.
func (rk *rank) gradKey(param int) int {
	if param == head && !slices.Contains(rk.owned(), 0) {
		return 0
	}
	return param
}

// newPipeline connects machines. schedules are without communication; limit is the number of batches to do.
func newPipeline(m model, s *schedule.Schedule, limit int, random *rand.Rand) (*pipeline, error) {
	p := &pipeline{model: m, delay: s.Delay, stale: s.Stale, limit: limit, random: random, losses: map[int]symbol{}}
	for r := range m.replicas {
		copies := schedule.Copies{Tied: m.tied, Replica: r > 0, Copied: r == 0 && m.replicas > 1}
		if s.Actions[0][0].Kind == schedule.Evaluate {
			copies = schedule.Copies{}
		}
		c, err := schedule.Communicate(s, copies)
		if err != nil {
			return nil, err
		}
		p.schedules = append(p.schedules, c)
	}
	for n := range m.replicas * s.Stages {
		rk := &rank{pipeline: p, number: n, payloads: map[Message]map[int]value{}, contributions: map[int]map[int]value{},
			norms: map[int]map[int]value{}, recompute: random.IntN(2) == 0}
		p.ranks = append(p.ranks, rk)
		c := p.config(rk)
		var err error
		if rk.machine, err = New(c); err != nil {
			return nil, err
		}
		for range 2 + s.Delay {
			rk.buffers, rk.scales = append(rk.buffers, map[int]value{}), append(rk.scales, 0)
		}
		for _, param := range rk.held() {
			x := value{symbol: apply("initial", param)}
			rk.buffers[c.Roles.Older][param], rk.buffers[c.Roles.Newest][param] = x, x
		}
		for range s.Chunks {
			rk.slots = append(rk.slots, make([]memory, c.Slots))
		}
	}
	return p, nil
}

func (p *pipeline) config(rk *rank) Config {
	s := p.schedules[rk.replica()]
	c := Config{Pipeline: Pipeline{Stages: s.Stages, Chunks: s.Chunks, Microbatches: s.Microbatches}, Stage: rk.number % s.Stages,
		Replica: rk.replica(),
		Delay:   p.delay, Stale: p.stale, QueueDepth: 1 + p.random.IntN(4), Actions: slices.Values(s.Actions[rk.number%s.Stages])}
	c.Slots = inFlight(s.Actions[c.Stage])
	roles := p.random.Perm(2 + p.delay)
	c.Roles = Roles{Older: roles[0], Newest: roles[p.delay], Gradients: roles[1+p.delay]}
	owner := c.Stage
	if c.Replica > 0 {
		c.Peers.CopiesFrom = append(c.Peers.CopiesFrom, owner)
	} else {
		for n := range s.Stages {
			if n != c.Stage {
				c.Peers.Owners = append(c.Peers.Owners, n)
			}
		}
		for r := 1; r < p.replicas; r++ {
			c.Peers.CopiesTo = append(c.Peers.CopiesTo, r*s.Stages+c.Stage)
		}
	}
	if p.tied && s.Stages > 1 {
		switch {
		case c.Stage == s.Stages-1:
			c.Peers.CopiesFrom = append(c.Peers.CopiesFrom, 0)
		case rk.number == 0:
			for r := range p.replicas {
				c.Peers.CopiesTo = append(c.Peers.CopiesTo, (r+1)*s.Stages-1)
			}
		}
	}
	return c
}

// inFlight is how many microbatches a chunk of a rank holds at most.
func inFlight(actions []schedule.Action) int {
	count, most := map[int]int{}, 1
	for _, a := range actions {
		switch a.Kind {
		case schedule.Forward:
			count[a.Chunk]++
			most = max(most, count[a.Chunk])
		case schedule.Backward, schedule.WeightGrad:
			count[a.Chunk]--
		}
	}
	return most
}

// run lets everything happen in random order until nothing can happen any more.
func (p *pipeline) run() error {
	for {
		var moves []func() error
		for _, rk := range p.ranks {
			moves = append(moves, rk.moves()...)
		}
		if len(moves) == 0 {
			break
		}
		if err := moves[p.random.IntN(len(moves))](); err != nil {
			return err
		}
	}
	for _, rk := range p.ranks {
		if !rk.machine.Done() || rk.ready != p.limit || len(rk.inbox) > 0 || len(rk.payloads) > 0 {
			return fmt.Errorf("stuck, with %d batches ready and %d messages unread: %s", rk.ready, len(rk.inbox)+len(rk.payloads),
				rk.machine.State())
		}
		if left := len(rk.machine.received); left > 0 {
			return fmt.Errorf("%d messages of finished batches are still remembered: %s", left, rk.machine.State())
		}
	}
	return nil
}

// moves are what can happen on a rank next.
func (rk *rank) moves() (moves []func() error) {
	if batch, wants := rk.machine.WantsBatch(); wants && rk.number == 0 {
		moves = append(moves, func() error {
			for _, other := range rk.ranks {
				if batch == rk.limit {
					other.machine.Limit(batch)
				} else {
					other.machine.Allow(batch)
				}
			}
			return nil
		})
	}
	if len(rk.inbox) > 0 {
		moves = append(moves, func() error {
			i := rk.random.IntN(len(rk.inbox))
			m := rk.inbox[i]
			rk.inbox = slices.Delete(rk.inbox, i, i+1)
			rk.payloads[m.message] = m.payload
			return rk.machine.Received(m.message)
		})
	}
	if len(rk.todo) > 0 {
		moves = append(moves, func() error {
			e := rk.todo[0]
			rk.todo = rk.todo[1:]
			return rk.do(e)
		})
	}
	if len(rk.ran) > 0 {
		moves = append(moves, func() error {
			a := rk.ran[0]
			rk.ran = rk.ran[1:]
			rk.reported++
			return rk.machine.Finished(a)
		})
	}
	if effects := rk.machine.Next(); len(effects) > 0 {
		rk.todo = append(rk.todo, effects...)
		for _, e := range effects {
			if e.Kind == Run {
				rk.given++
			}
		}
		if rk.given-rk.reported > rk.machine.cfg.QueueDepth {
			panic("more runs on the device than its queue holds")
		}
		return rk.moves()
	}
	return moves
}

// do is the executor.
func (rk *rank) do(e Effect) error {
	switch e.Kind {
	case Run:
		rk.ran = append(rk.ran, e.Action)
		return rk.execute(e)
	case Feed:
		rk.slots[e.Action.Chunk][e.Place.Slot].id = rk.id(e.Action.Batch, e.Action.Microbatch)
	case Store:
		payload, ok := rk.payloads[e.Message]
		if !ok {
			return fmt.Errorf("rank %d: %v, but the message was not received, or was stored before", rk.number, e)
		}
		delete(rk.payloads, e.Message)
		return rk.store(e, payload)
	case Send:
		return rk.send(e)
	case Ready:
		if e.Action.Batch != rk.ready {
			return fmt.Errorf("rank %d: %v after %d batches", rk.number, e, rk.ready)
		}
		rk.ready++
	}
	return nil
}

func (rk *rank) id(batch, microbatch int) batchID { return batchID{rk.replica(), batch, microbatch} }

func (rk *rank) store(e Effect, payload map[int]value) error {
	id := rk.id(e.Message.Batch, e.Message.Microbatch)
	switch e.Message.Kind {
	case Activation:
		slot := &rk.slots[e.Message.VirtualStage/rk.stages()][e.Place.Slot]
		slot.in, slot.inID = payload[0].symbol, id
	case Gradient:
		slot := &rk.slots[e.Message.VirtualStage/rk.stages()][e.Place.Slot]
		if slot.outID != id {
			return fmt.Errorf("rank %d: %v, but the slot is %v's", rk.number, e, slot.outID)
		}
		slot.gradOut, slot.gradID = payload[0].symbol, id
	case Contribution:
		rk.contributions[e.Message.From] = payload
	case NormSquares:
		rk.norms[e.Message.From] = payload
	case Weights:
		rk.scales[e.Place.Weights] = e.Message.Batch + 1
		for param, x := range payload {
			rk.buffers[e.Place.Weights][param] = x
		}
	}
	return nil
}

func (rk *rank) send(e Effect) error {
	payload := map[int]value{}
	switch e.Message.Kind {
	case Activation:
		payload[0] = value{symbol: rk.slots[e.Action.Chunk][e.Place.Slot].out}
	case Gradient:
		payload[0] = value{symbol: rk.slots[e.Action.Chunk][e.Place.Slot].gradIn}
	case Contribution:
		to := rk.ranks[e.To]
		for _, param := range rk.held() {
			if slices.Contains(to.owned(), param) && (param != 0 || slices.Contains(rk.owned(), 0)) {
				payload[param] = rk.buffers[e.Place.Gradients][param]
			}
		}
		if rk.tied && slices.Contains(rk.owned(), rk.model.units-1) && slices.Contains(to.owned(), 0) {
			payload[head] = rk.buffers[e.Place.Gradients][rk.gradKey(head)]
		}
		payload[lossKey] = rk.loss[e.Action.Batch%2]
	case NormSquares:
		payload = rk.norms[rk.number]
	case Weights:
		for _, param := range rk.ranks[e.To].held() {
			if slices.Contains(rk.owned(), param) {
				payload[param] = rk.buffers[e.Place.Weights][param]
			}
		}
	}
	for n, to := range rk.ranks {
		if n == e.To || e.To < 0 && slices.Contains(rk.machine.cfg.Peers.Owners, n) {
			to.inbox = append(to.inbox, delivery{e.Message, payload})
		}
	}
	return nil
}
