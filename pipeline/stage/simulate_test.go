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

// line is a simulated device with its machine. The device does effects in order, at times of its own.
type line struct {
	*pipeline
	number        int
	machine       *Machine
	todo          []Effect
	ran           []schedule.Action // and not yet told
	given, told   int               // Runs
	inbox         []mail
	payloads      map[Message]map[int]value
	buffers       []map[int]value
	slots         [][]memory
	contributions map[int]map[int]value // by line
	votes         map[int]map[int]value // by line, the line's own too
	loss          [2]value              // of a batch and of the next
	recompute     bool
	ready         int
}

type mail struct {
	message Message
	payload map[int]value
}

// lossKey is where payloads carry a loss.
const lossKey = -2

// pipeline is all lines of all replicas.
type pipeline struct {
	model
	schedules []*schedule.Schedule // of each replica
	delay     int
	limit     int
	lines     []*line
	random    *rand.Rand
	losses    map[int]symbol // by batch
}

func (p *pipeline) stages() int { return p.schedules[0].Stages }

// units are those of a chunk.
func (l *line) units(chunk int) (from, to int) {
	s := l.schedules[0]
	part := chunk*s.Stages + l.number%s.Stages
	return part * l.model.units / s.VirtualStages(), (part + 1) * l.model.units / s.VirtualStages()
}

func (l *line) replica() int { return l.number / l.stages() }

// owned are the parameters of a line's own units.
func (l *line) owned() (params []int) {
	for c := range l.schedules[0].Chunks {
		for from, to := l.units(c); from < to; from++ {
			params = append(params, from)
		}
	}
	return params
}

// held are all parameters that a line has.
func (l *line) held() []int {
	params := l.owned()
	if l.tied && slices.Contains(params, l.model.units-1) && !slices.Contains(params, 0) {
		params = append(params, 0)
	}
	return params
}

// gradKey is where a line keeps a gradient: that of a copy of the first unit's parameter lies in the copy's own buffers.
func (l *line) gradKey(param int) int {
	if param == head && !slices.Contains(l.owned(), 0) {
		return 0
	}
	return param
}

// newPipeline connects machines. schedules are without communication; limit is the number of batches to do.
func newPipeline(m model, s *schedule.Schedule, limit int, random *rand.Rand) (*pipeline, error) {
	p := &pipeline{model: m, delay: s.Delay, limit: limit, random: random, losses: map[int]symbol{}}
	for r := range m.replicas {
		links := schedule.Links{Tied: m.tied, Replica: r > 0, Copied: r == 0 && m.replicas > 1}
		if s.Actions[0][0].Kind == schedule.Evaluate {
			links = schedule.Links{}
		}
		c, err := schedule.Communicate(s, links)
		if err != nil {
			return nil, err
		}
		p.schedules = append(p.schedules, c)
	}
	for n := range m.replicas * s.Stages {
		l := &line{pipeline: p, number: n, payloads: map[Message]map[int]value{}, contributions: map[int]map[int]value{},
			votes: map[int]map[int]value{}, recompute: random.IntN(2) == 0}
		p.lines = append(p.lines, l)
		c := p.config(l)
		var err error
		if l.machine, err = New(c); err != nil {
			return nil, err
		}
		for range 2 + s.Delay {
			l.buffers = append(l.buffers, map[int]value{})
		}
		for _, param := range l.held() {
			x := value{symbol: apply("initial", param)}
			l.buffers[c.Roles.Current][param], l.buffers[c.Roles.Next][param] = x, x
		}
		for range s.Chunks {
			l.slots = append(l.slots, make([]memory, c.Slots))
		}
	}
	return p, nil
}

func (p *pipeline) config(l *line) Config {
	s := p.schedules[l.replica()]
	c := Config{Stage: l.number % s.Stages, Stages: s.Stages, Chunks: s.Chunks, Microbatches: s.Microbatches, Replica: l.replica(),
		Delay: p.delay, Depth: 1 + p.random.IntN(4), Actions: slices.Values(s.Actions[l.number%s.Stages])}
	c.Slots = inFlight(s.Actions[c.Stage])
	roles := p.random.Perm(2 + p.delay)
	c.Roles = Roles{Current: roles[0], Next: roles[p.delay], Gradients: roles[1+p.delay]}
	owner := c.Stage
	if c.Replica > 0 {
		c.CopiesFrom = append(c.CopiesFrom, owner)
	} else {
		for n := range s.Stages {
			if n != c.Stage {
				c.Owners = append(c.Owners, n)
			}
		}
		for r := 1; r < p.replicas; r++ {
			c.CopiesTo = append(c.CopiesTo, r*s.Stages+c.Stage)
		}
	}
	if p.tied && s.Stages > 1 {
		switch {
		case c.Stage == s.Stages-1:
			c.CopiesFrom = append(c.CopiesFrom, 0)
		case l.number == 0:
			for r := range p.replicas {
				c.CopiesTo = append(c.CopiesTo, (r+1)*s.Stages-1)
			}
		}
	}
	return c
}

// inFlight is how many microbatches a chunk of a line holds at most.
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
		for _, l := range p.lines {
			moves = append(moves, l.moves()...)
		}
		if len(moves) == 0 {
			break
		}
		if err := moves[p.random.IntN(len(moves))](); err != nil {
			return err
		}
	}
	for _, l := range p.lines {
		if !l.machine.Done() || l.ready != p.limit || len(l.inbox) > 0 || len(l.payloads) > 0 {
			return fmt.Errorf("stuck, with %d batches ready and %d messages unread: %s", l.ready, len(l.inbox)+len(l.payloads), l.machine.State())
		}
		if left := len(l.machine.mail); left > 0 {
			return fmt.Errorf("%d messages of finished batches are still remembered: %s", left, l.machine.State())
		}
	}
	return nil
}

// moves are what can happen on a line next.
func (l *line) moves() (moves []func() error) {
	if batch, wants := l.machine.WantsBatch(); wants && l.number == 0 {
		moves = append(moves, func() error {
			for _, other := range l.lines {
				if batch == l.limit {
					other.machine.Limit(batch)
				} else {
					other.machine.Allow(batch)
				}
			}
			return nil
		})
	}
	if len(l.inbox) > 0 {
		moves = append(moves, func() error {
			i := l.random.IntN(len(l.inbox))
			m := l.inbox[i]
			l.inbox = slices.Delete(l.inbox, i, i+1)
			l.payloads[m.message] = m.payload
			return l.machine.Arrived(m.message)
		})
	}
	if len(l.todo) > 0 {
		moves = append(moves, func() error {
			e := l.todo[0]
			l.todo = l.todo[1:]
			return l.do(e)
		})
	}
	if len(l.ran) > 0 {
		moves = append(moves, func() error {
			a := l.ran[0]
			l.ran = l.ran[1:]
			l.told++
			return l.machine.Finished(a)
		})
	}
	if effects := l.machine.Next(); len(effects) > 0 {
		l.todo = append(l.todo, effects...)
		for _, e := range effects {
			if e.Kind == Run {
				l.given++
			}
		}
		if l.given-l.told > l.machine.cfg.Depth {
			panic("more on the device than its depth")
		}
		return l.moves()
	}
	return moves
}

// do is the executor.
func (l *line) do(e Effect) error {
	switch e.Kind {
	case Run:
		l.ran = append(l.ran, e.Action)
		return l.execute(e)
	case Feed:
		l.slots[e.Action.Chunk][e.Place.Slot].id = l.id(e.Action.Batch, e.Action.Microbatch)
	case Store:
		payload, ok := l.payloads[e.Message]
		if !ok {
			return fmt.Errorf("line %d: %v, but the message has not come, or has been stored before", l.number, e)
		}
		delete(l.payloads, e.Message)
		return l.store(e, payload)
	case Send:
		return l.send(e)
	case Ready:
		if e.Action.Batch != l.ready {
			return fmt.Errorf("line %d: %v after %d batches", l.number, e, l.ready)
		}
		l.ready++
	}
	return nil
}

func (l *line) id(batch, microbatch int) batchID { return batchID{l.replica(), batch, microbatch} }

func (l *line) store(e Effect, payload map[int]value) error {
	id := l.id(e.Message.Batch, e.Message.Microbatch)
	switch e.Message.Kind {
	case Activation:
		slot := &l.slots[e.Message.Part/l.stages()][e.Place.Slot]
		slot.in, slot.inID = payload[0].symbol, id
	case Gradient:
		slot := &l.slots[e.Message.Part/l.stages()][e.Place.Slot]
		if slot.outID != id {
			return fmt.Errorf("line %d: %v, but the slot is %v's", l.number, e, slot.outID)
		}
		slot.gradOut, slot.gradID = payload[0].symbol, id
	case Contribution:
		l.contributions[e.Message.From] = payload
	case Votes:
		l.votes[e.Message.From] = payload
	case Weights:
		for param, x := range payload {
			l.buffers[e.Place.Weights][param] = x
		}
	}
	return nil
}

func (l *line) send(e Effect) error {
	payload := map[int]value{}
	switch e.Message.Kind {
	case Activation:
		payload[0] = value{symbol: l.slots[e.Action.Chunk][e.Place.Slot].out}
	case Gradient:
		payload[0] = value{symbol: l.slots[e.Action.Chunk][e.Place.Slot].gradIn}
	case Contribution:
		to := l.lines[e.To]
		for _, param := range l.held() {
			if slices.Contains(to.owned(), param) && (param != 0 || slices.Contains(l.owned(), 0)) {
				payload[param] = l.buffers[e.Place.Gradients][param]
			}
		}
		if l.tied && slices.Contains(l.owned(), l.model.units-1) && slices.Contains(to.owned(), 0) {
			payload[head] = l.buffers[e.Place.Gradients][l.gradKey(head)]
		}
		payload[lossKey] = l.loss[e.Action.Batch%2]
	case Votes:
		payload = l.votes[l.number]
	case Weights:
		for _, param := range l.lines[e.To].held() {
			if slices.Contains(l.owned(), param) {
				payload[param] = l.buffers[e.Place.Weights][param]
			}
		}
	}
	for n, to := range l.lines {
		if n == e.To || e.To < 0 && slices.Contains(l.machine.cfg.Owners, n) {
			to.inbox = append(to.inbox, mail{e.Message, payload})
		}
	}
	return nil
}
