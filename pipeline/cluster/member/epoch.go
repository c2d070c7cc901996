package member

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// epoch is a layout of ranks on members, and the work of this member's.
type epoch struct {
	member   *Member
	plan     protocol.PlanRequest
	work     *workload
	devices  []device.Device // by rank; nil: the rank is elsewhere
	engine   *engine.Engine
	replica  *replica // nil: no replicas train on their own
	lifetime lifetime
	times    timestamps
	segments segments

	mu     sync.Mutex
	steps  int        // of training that are finished
	events *recording // of the ranks; nil: none is wanted
}

// replica is what a replica that trains on its own needs besides its ranks.
type replica struct {
	course    *replicas.Course
	copies    *copies
	neighbors *neighbors
}

// lifetime is the end of an epoch: a failure, or close.
type lifetime struct {
	failed    sync.Once
	over      chan struct{}  // closed by the first failure
	pending   sync.WaitGroup // reads of variables for the coordinator, and ends of segments
	reporting sync.WaitGroup // of links
	using     sync.RWMutex   // held to read while a message is handled, to write by close
}

// newEpoch builds the programs of the member's ranks and plans their memory.
func (m *Member) newEpoch(ctx context.Context, q protocol.PlanRequest) (e *epoch, err error) {
	e = &epoch{member: m, plan: q, lifetime: lifetime{over: make(chan struct{})}, segments: segments{changed: make(chan struct{})}}
	if e.work, err = m.open(ctx, q.Task); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e, err = nil, errors.Join(err, e.close())
		}
	}()
	var own []int
	var names []string
	for rank, p := range q.Ranks {
		if p.Member == m.options.ID {
			own, names = append(own, rank), append(names, p.Device)
		}
	}
	devices, err := m.openDevices(ctx, names)
	if err != nil {
		return e, err
	}
	e.devices = make([]device.Device, len(q.Ranks))
	for i, rank := range own {
		e.devices[rank] = devices[i]
	}
	o := e.work.task.Engine(e.work.optimizer, q.Cut, q.Recompute, q.Split)
	if ranks := o.Layout.Stages * o.Layout.Replicas; ranks != len(q.Ranks) {
		return e, fmt.Errorf("the plan places %d ranks, expected %d: %d stages of %d replicas", len(q.Ranks), ranks, o.Layout.Stages,
			o.Layout.Replicas)
	}
	o.Devices, o.Remote = e.devices, e
	o.Execute = e.execute()
	if ctx.Err() != nil {
		return e, context.Cause(ctx)
	}
	if e.engine, err = engine.New(o); err == nil && e.work.replica != nil {
		r := &replica{copies: &copies{epoch: e, arrived: map[protocol.Copy]chan []byte{}}, neighbors: newNeighbors(e)}
		e.work.replica.Weights, e.work.replica.Owns, e.work.replica.Waited = e.engine, e.owns, e.waited
		e.work.replica.Copies, e.work.replica.Overdue, e.work.replica.ChangeTimeout = r.copies, r.neighbors.overdue, m.options.ChangeTimeout
		r.course = replicas.NewCourse(*e.work.replica)
		e.replica = r
	}
	return e, err
}

// owns reports whether a rank of this member owns a parameter.
func (e *epoch) owns(param string) bool {
	rank, err := e.engine.Owner(param)
	return err == nil && e.devices[rank] != nil
}

// waited records that the ranks have waited for an exchange for noticeably long, on the track of the first of them.
func (e *epoch) waited(fragment string, since time.Time) {
	const noticeable = time.Millisecond
	took := time.Since(since)
	e.mu.Lock()
	events := e.events
	e.mu.Unlock()
	if events != nil && took >= noticeable {
		events.Complete(e.engine.Ranks()[0].Name, trace.Wait, trace.ExchangeWait+fragment, since, took, nil)
	}
}

// ranks lists the ranks of this member.
func (e *epoch) ranks() (all []int) {
	for rank, dev := range e.devices {
		if dev != nil {
			all = append(all, rank)
		}
	}
	return all
}

func (e *epoch) execute() engine.Executor {
	return engine.Execute(nil, e.work.task.Config.Pipeline.MemoryBytes())
}

// describe describes the ranks of this member.
func (e *epoch) describe() protocol.PlanReply {
	a := protocol.PlanReply{Ranks: map[int]engine.RankPlan{}, Reads: e.engine.Reads(), Notes: e.engine.Untuned()}
	for _, rank := range e.ranks() {
		a.Ranks[rank] = e.engine.Rank(rank)
	}
	return a
}

// load allocates the memory of the ranks and compiles their kernels.
func (e *epoch) load() (protocol.LoadReply, error) {
	a := protocol.LoadReply{Allocated: map[int]int64{}, Staging: map[int]int64{}}
	if err := e.engine.Load(); err != nil {
		return a, err
	}
	if e.replica != nil {
		if err := e.replica.course.Load(e.devices[e.ranks()[0]], e.execute()); err != nil {
			return a, err
		}
	}
	a.Notes = e.engine.Notes()
	for _, rank := range e.ranks() {
		a.Allocated[rank], a.Staging[rank] = e.devices[rank].Allocated()
	}
	return a, nil
}

// close stops the ranks and closes their devices. No message is handled meanwhile and afterwards.
func (e *epoch) close() error {
	var errs []error
	if e.engine != nil {
		e.lifetime.failed.Do(func() { close(e.lifetime.over) })
		e.engine.Abort(errors.New("the epoch has ended"))
		e.lifetime.using.Lock() // and never unlocked
		e.lifetime.pending.Wait()
		e.lifetime.reporting.Wait()
		errs = append(errs, e.engine.Close())
	}
	if e.replica != nil {
		e.replica.neighbors.close()
		errs = append(errs, e.replica.course.Close())
	}
	var devices []device.Device
	for _, rank := range e.ranks() {
		devices = append(devices, e.devices[rank])
	}
	return errors.Join(append(errs, closeDevices(devices), e.work.close())...)
}

// fail reports the first failure to the coordinator and stops the ranks.
func (e *epoch) fail(err error) {
	e.lifetime.failed.Do(func() {
		close(e.lifetime.over)
		var lost *lostError
		e.engine.Abort(err)
		// A member that leaves is lost: the run goes on without it.
		again := errors.As(err, &lost) || errors.Is(err, device.ErrLost) || errors.Is(err, errInterrupted)
		h := protocol.Fault{Error: protocol.Shorten(err.Error()), Lost: again}
		var message *messageError
		if errors.As(err, &message) && message.from != e.member.options.Coordinator {
			h.Malformed = message.from
		}
		if unsent := e.member.node.Send(e.member.options.Coordinator, transport.Message{Class: transport.Hot,
			Header: protocol.Encode(h)}); unsent != nil {
			err = errors.Join(err, unsent)
		}
		if !e.member.options.Local {
			e.member.options.Note("%v", err)
		}
	})
}

// send sends a message. An error ends the epoch: the message is too large, or the peer is lost.
func (e *epoch) send(to string, class transport.Class, h protocol.Header, payload [][]byte) {
	if err := e.member.node.Send(to, transport.Message{Class: class, Header: protocol.Encode(h), Payload: payload}); err != nil {
		e.fail(fmt.Errorf("%w (%w)", err, device.ErrLost))
	}
}

// Send implements engine.Remote.
func (e *epoch) Send(to int, m stage.Message, payload [][]byte, began time.Time) {
	class := transport.Hot
	if m.Kind == stage.Contribution || m.Kind == stage.Weights {
		class = transport.Bulk
	}
	e.send(e.plan.Ranks[to].Member, class, protocol.Stage{Segment: e.segments.newest(), To: to, Message: m, Taken: e.times.of(began)},
		payload)
}

// receive takes a message.
func (e *epoch) receive(from string, h protocol.Header, payload [][]byte) error {
	if h, ok := h.(protocol.Stage); ok {
		return e.receiveStage(from, h, payload)
	}
	if h, ok := h.(protocol.Copy); ok && e.replica != nil {
		return e.replica.copies.take(from, h, payload)
	}
	if from != e.member.options.Coordinator {
		return fmt.Errorf("a %T, which only the coordinator sends", h)
	}
	switch h := h.(type) {
	case protocol.Write:
		return e.write(h, payload)
	case protocol.Change:
		if e.replica == nil {
			return errors.New("a change for replicas that do not train on their own")
		}
		if !h.Before {
			return e.replica.neighbors.change(h, payload)
		}
		if err := e.replica.course.Follow(h.Fragment, payload); err != nil {
			return err
		}
		return e.wrote()
	case protocol.Neighbors, protocol.Relay, protocol.Piece:
		return e.receiveOfNeighbors(h, payload)
	case protocol.Begin:
		return e.begin(h)
	case protocol.Read:
		return e.read(h, payload)
	case protocol.Record:
		return e.record(h)
	case segmented:
		return e.inSegment(message{h, payload})
	}
	return fmt.Errorf("a %T, which only members send", h)
}

// receiveOfNeighbors takes what the coordinator says of neighbors.
func (e *epoch) receiveOfNeighbors(h protocol.Header, payload [][]byte) error {
	if e.replica == nil {
		return fmt.Errorf("a %T for replicas that do not train on their own", h)
	}
	switch h := h.(type) {
	case protocol.Relay:
		return e.replica.neighbors.announce(h, payload)
	case protocol.Piece:
		return e.replica.neighbors.piece(e.member.options.Coordinator, h, payload)
	}
	return e.replica.neighbors.connect(payload)
}

// receiveOther takes a message that is not of the epoch: of a neighbor, or of an epoch that has ended.
func (e *epoch) receiveOther(from string, m transport.Message) {
	if e.replica == nil {
		return
	}
	if err := e.replica.neighbors.receive(from, m); err != nil {
		e.fail(err)
	}
}

// receiveStage takes a message of another member's rank.
func (e *epoch) receiveStage(from string, h protocol.Stage, payload [][]byte) error {
	if r := h.Message.From; r < 0 || r >= len(e.plan.Ranks) || e.plan.Ranks[r].Member != from {
		return fmt.Errorf("message %v of rank %d, which is not one of its ranks", h.Message, r)
	}
	return e.inSegment(message{h, payload})
}

// inSegment hands a message to its segment.
func (e *epoch) inSegment(m message) error {
	s, err := e.segments.route(m)
	if s == nil || err != nil {
		return err
	}
	return s.take(m)
}

// write uploads a variable to the ranks that hold it.
func (e *epoch) write(h protocol.Write, payload [][]byte) error {
	v := h.Variable
	if len(payload) != 1 {
		return fmt.Errorf("variable %q has %d tensors, expected 1", v.Name, len(payload))
	}
	var err error
	switch {
	case (h.Begins || v.Exchange != "") && e.replica == nil:
		err = fmt.Errorf("variable %q of replicas that do not train on their own", v.Name)
	case h.Begins:
		err = e.replica.course.Begin(v.Name, payload[0])
	case v.Exchange != "":
		err = e.replica.course.WriteExchange(v.Exchange, v.Name, payload[0])
	case v.State:
		err = e.engine.WriteState(v.Name, payload[0])
	default:
		err = e.engine.WriteWeights(v.Name, v.Version, payload[0])
	}
	if err != nil {
		return err
	}
	return e.wrote()
}

// wrote counts a variable, and begins the segment that has waited for it.
func (e *epoch) wrote() error {
	if h := e.segments.wrote(); h != nil {
		return e.begin(*h)
	}
	return nil
}

// begin begins a segment once all variables are written.
func (e *epoch) begin(h protocol.Begin) error {
	if !e.segments.ready(h) {
		return nil
	}
	e.lifetime.pending.Wait()
	s, err := newSegment(e, h)
	if err != nil {
		return err
	}
	all := e.segments.begin(s)
	if err := s.start(); err != nil {
		return err
	}
	for _, m := range all {
		if err := s.handle(m); err != nil {
			return err
		}
	}
	close(s.ready)
	return nil
}

// read sends variables to the coordinator while nothing else runs, once those are written that were sent before.
func (e *epoch) read(h protocol.Read, payload [][]byte) error {
	all, err := protocol.DecodeList[protocol.Variable]("a list of variables", payload)
	if err != nil {
		return err
	}
	e.lifetime.pending.Go(func() {
		if !e.segments.await(nil, e.lifetime.over, func(written int64, _ uint64) bool { return written >= h.Writes }) {
			return
		}
		for _, v := range all {
			data, err := e.readOne(v)
			if err != nil {
				e.fail(err)
				return
			}
			e.send(e.member.options.Coordinator, transport.Bulk, protocol.Tensor{Number: h.Number, Variable: v}, [][]byte{data})
		}
	})
	e.segments.asked(h.Number)
	return nil
}

func (e *epoch) readOne(v protocol.Variable) ([]byte, error) {
	var p device.Pending
	var err error
	switch {
	case v.Exchange != "" && e.replica == nil:
		err = fmt.Errorf("variable %q of replicas that do not train on their own", v.Name)
	case v.Exchange != "":
		p, err = e.replica.course.ReadExchange(v.Exchange, v.Name)
	case v.State:
		p, err = e.engine.ReadState(v.Name)
	default:
		p, err = e.engine.ReadWeights(v.Name, v.Version)
	}
	if err != nil {
		return nil, err
	}
	return p.Wait()
}

// hyperparameters decodes the hyperparameters of a batch: without and with an update before it.
func hyperparameters(payload [][]byte) (h [2][]float32, err error) {
	if len(payload) != 2 || len(payload[0])%4 != 0 || len(payload[1])%4 != 0 {
		return h, fmt.Errorf("hyperparameters in %d tensors, expected 2 of f32", len(payload))
	}
	return [2][]float32{exec.ToF32(payload[0]), exec.ToF32(payload[1])}, nil
}
