package coordinator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

const (
	clockEvery   = 5 * time.Second // between two measurements of a clock
	clockTimeout = 2 * time.Second
	traceTimeout = 5 * time.Second // for the last events of members
	traceAhead   = 4               // messages of events that a member may send before the coordinator has taken the first
	mostArrows   = 1 << 14         // that wait for the slices where they begin
)

// tracing writes what the ranks of members have recorded into the trace of a run. It converts times of members' clocks
// and records how far they may be off.
type tracing struct {
	pipeline *Pipeline
	tracer   engine.Tracer
	owners   map[string]*tracedMember // by track
	members  map[string]*tracedMember // that record
	stop     context.CancelFunc       // of measuring
	measures sync.WaitGroup

	mu      sync.Mutex
	newest  map[string]int64            // by track: the start of its newest slice, by the clock of its member
	arrows  map[string][]protocol.Event // by the track where they begin: those whose slice there is not recorded yet
	held    int                         // arrows
	changed chan struct{}               // has room for one: a member has ended
}

// tracedMember is a member whose ranks record events.
type tracedMember struct {
	id       string
	clock    memberClock
	stated   time.Time // the error of the clock is recorded up to then
	received int       // messages of events
	dropped  int       // events
	ended    bool      // its last event is recorded, or it is lost
}

// SetTrace implements train.Pipeline.
func (p *Pipeline) SetTrace(t engine.Tracer) {
	if before := p.traced(); before != nil {
		before.end()
		p.setTracing(nil)
	}
	if t != nil {
		p.setTracing(newTracing(p, t))
		p.traced().begin()
	}
}

func (p *Pipeline) setTracing(t *tracing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tracing = t
}

// traced is the trace that is being recorded; nil: none.
func (p *Pipeline) traced() *tracing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracing
}

func newTracing(p *Pipeline, tracer engine.Tracer) *tracing {
	t := &tracing{pipeline: p, tracer: tracer, owners: map[string]*tracedMember{}, members: map[string]*tracedMember{},
		newest: map[string]int64{}, arrows: map[string][]protocol.Event{}, changed: make(chan struct{}, 1)}
	for _, id := range p.group.members {
		t.members[id] = &tracedMember{id: id, stated: time.Now()}
	}
	for rank, place := range p.placement.ranks {
		for _, track := range p.plan.layout.Rank(rank).Tracks() {
			t.owners[track] = t.members[place.Member]
		}
	}
	return t
}

// begin measures the clocks and has members record. Members whose clock cannot be measured do not.
func (t *tracing) begin() {
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	var measuring sync.WaitGroup
	for _, m := range t.members {
		measuring.Go(func() {
			if err := t.measure(ctx, m); err != nil {
				t.pipeline.group.note(m.id, []string{fmt.Sprintf("the trace has none of its events: its clock could not be measured: %v",
					err)})
				t.lose(m.id)
				return
			}
			t.pipeline.send(m.id, transport.Hot, protocol.Record{Messages: traceAhead}, nil)
			t.measures.Go(func() { t.follow(ctx, m) })
		})
	}
	measuring.Wait()
	t.describe()
}

// describe records the settings of the pipeline and the measured links.
func (t *tracing) describe() {
	p := t.pipeline
	add := func(name string, args map[string]any) {
		t.tracer.Complete(trace.NetworkTrack, trace.Network, name, time.Now(), 0, args)
	}
	add(p.plan.settings.String(), p.plan.settings.Args())
	if p.links == nil {
		return
	}
	for _, x := range p.placement.neighbors() {
		if link, ok := p.links.get(x); ok {
			add(fmt.Sprintf("%s to %s: %.3g ms, %s", x.from, x.to, 1e3*link.Latency, InBits(link.Bandwidth)),
				map[string]any{"source": x.from, "target": x.to, "latency_micros": 1e6 * link.Latency, "bytes_per_second": link.Bandwidth})
		}
	}
}

// follow measures a clock now and then: clocks drift.
func (t *tracing) follow(ctx context.Context, m *tracedMember) {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = t.measure(ctx, m) // its error grows until it answers again
		case <-ctx.Done():
			return
		}
	}
}

// measure measures a clock and records the error since the measurement before.
func (t *tracing) measure(ctx context.Context, m *tracedMember) error {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	c, err := t.pipeline.group.control.Clock(ctx, m.id)
	if err == nil {
		c.Error += protocol.TimestampError
		t.state(m, m.clock.take(c, time.Now()))
	}
	return err
}

// state records how far the events of a member may have been off since the last time.
func (t *tracing) state(m *tracedMember, bound time.Duration) {
	t.mu.Lock()
	from, now := m.stated, time.Now()
	m.stated = now
	t.mu.Unlock()
	offset := m.clock.newest()
	t.tracer.Complete(trace.ClockTrack(m.id), trace.Clock, fmt.Sprintf("offset %v ± %v", offset.Round(time.Microsecond),
		bound.Round(time.Microsecond)), from,
		now.Sub(from), map[string]any{"offset_micros": float64(offset) / 1e3, "error_micros": float64(bound) / 1e3})
}

// receive records the events of a member and permits it to send more.
func (t *tracing) receive(from string, h protocol.Events, payload [][]byte) error {
	if t == nil {
		return nil // the trace has ended
	}
	m := t.members[from]
	if m == nil {
		return fmt.Errorf("events of a member without ranks")
	}
	all, err := protocol.DecodeEvents(payload)
	if err != nil {
		return err
	}
	for _, e := range all {
		if t.owners[e.Track] != m || e.From != "" && t.owners[e.From] == nil {
			return fmt.Errorf("event %q on track %.40q: expected a track of one of its ranks", e.Name, e.Track)
		}
	}
	limit, err := t.take(m, h, all)
	if err != nil {
		return err
	}
	if h.Last {
		t.lose(from)
		return nil
	}
	t.pipeline.send(from, transport.Hot, protocol.Record{Messages: limit}, nil)
	return nil
}

// take records the events of a message. It returns how many messages the member may send in all.
func (t *tracing) take(m *tracedMember, h protocol.Events, all []protocol.Event) (limit int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !m.clock.known() {
		return 0, fmt.Errorf("events before they were asked for")
	}
	if m.ended {
		return 0, fmt.Errorf("events after the last")
	}
	for _, e := range all {
		t.write(m, e)
	}
	m.received++
	m.dropped = h.Dropped
	return m.received + traceAhead, nil
}

// write records an event. An arrow waits for the slice where it begins, which may be another member's. The caller
// holds the lock.
func (t *tracing) write(m *tracedMember, e protocol.Event) {
	if e.From != "" {
		if newest, ok := t.newest[e.From]; ok && newest >= e.Sent {
			t.arrow(e)
		} else if t.held < mostArrows {
			t.arrows[e.From], t.held = append(t.arrows[e.From], e), t.held+1
		}
		return
	}
	args := map[string]any{}
	for k, v := range e.Args {
		args[k] = v
	}
	start := m.clock.convert(e.Start)
	t.tracer.Complete(e.Track, e.Category, e.Name, start, m.clock.convert(e.Start+e.Duration).Sub(start), args)
	t.newest[e.Track] = max(t.newest[e.Track], e.Start)
	waiting := t.arrows[e.Track]
	for len(waiting) > 0 && waiting[0].Sent <= e.Start {
		t.arrow(waiting[0])
		waiting, t.held = waiting[1:], t.held-1
	}
	t.arrows[e.Track] = waiting
}

// arrow records an arrow. Each end is converted from the clock of its own member.
func (t *tracing) arrow(e protocol.Event) {
	t.tracer.Flow(e.Name, e.From, t.owners[e.From].clock.convert(e.Sent), e.Track, t.owners[e.Track].clock.convert(e.Start))
}

// lose expects no further events of a member.
func (t *tracing) lose(member string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	if m := t.members[member]; m != nil {
		m.ended = true
	}
	t.mu.Unlock()
	signal(t.changed)
}

// end takes the last events of members and records the errors of their clocks up to now.
func (t *tracing) end() {
	t.stop()
	t.measures.Wait()
	timeout := time.After(traceTimeout)
	for _, m := range t.recording() {
		t.pipeline.send(m.id, transport.Hot, protocol.Record{Last: true}, nil)
	}
	if t.pipeline.group.failing() != nil { // members may not answer, and the run goes on elsewhere
		return
	}
	var measuring sync.WaitGroup
	for _, m := range t.recording() {
		measuring.Go(func() {
			if t.measure(context.Background(), m) != nil {
				t.state(m, m.clock.now(time.Now()))
			}
		})
	}
	measuring.Wait()
	for waiting := true; waiting && len(t.recording()) > 0; {
		select {
		case <-t.changed:
		case <-timeout:
			waiting = false
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.members {
		if m.dropped > 0 {
			t.tracer.Complete(trace.ClockTrack(m.id), trace.Clock, fmt.Sprintf("%d events were dropped: the connection was too slow",
				m.dropped), time.Now(), 0, map[string]any{"dropped": m.dropped})
		}
	}
}

// recording lists the members that may still send events.
func (t *tracing) recording() (all []*tracedMember) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.members {
		if !m.ended {
			all = append(all, m)
		}
	}
	return all
}
