package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// window is how many batches may be granted beyond those that are finished. The update of a batch under 2bw comes two
// batches later, its result a message later, and the grant for the next batch another. The messages of replicas that
// train on their own pass slow links behind exchanges, so that more are granted to them, but no more than they do in
// ahead: so long a stop may take.
const (
	window     = 4
	mostWindow = 16
	ahead      = 8 * time.Second
)

// segment is a stretch of work, at whose start and end the pipeline is empty.
type segment struct {
	pipeline *Pipeline
	number   uint64
	work     work
	ended    chan struct{} // closed when all members have ended
	measured chan struct{} // has room for one: there are results
	changed  chan struct{} // has room for one: finished has changed

	mu        sync.Mutex
	collector engine.Collector
	granted   int               // the first batch that is not granted
	finished  int               // the first batch whose results are not complete
	first     time.Time         // when the results of the first batch were complete
	results   []engine.Measured // of finished batches, not yet taken
	limits    map[string]int    // by member that has ended: the first batch that it has not done
}

// work is what a segment does.
type work struct {
	evaluates    bool
	from, to     int
	microbatches int // per batch, of all replicas
	losses       int // of a microbatch
	source       engine.Source
	commonEnd    *commonEnd         // where all replicas end; nil: there are no others
	flights      *[]replicas.Flight // see protocol.Begin
}

// Train implements train.Pipeline.
func (p *Pipeline) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	return p.work(stop, work{from: from, to: to, microbatches: p.plan.microbatches, losses: 1, source: source}, each)
}

// Evaluate implements train.Pipeline.
func (p *Pipeline) Evaluate(stop context.Context, source engine.Source, batches int, each func(engine.Measured) error) error {
	return engine.EvaluationSegments(stop, batches, p.placement.stages, func(from, to int) error {
		_, err := p.work(stop, work{evaluates: true, from: from, to: to, microbatches: 1, losses: p.plan.rows, source: source}, each)
		return err
	})
}

// work does some work and calls each with the results of every batch, in order.
func (p *Pipeline) work(stop context.Context, w work, each func(engine.Measured) error) (int, error) {
	if w.from >= w.to || stop.Err() != nil && w.commonEnd == nil { // other replicas may have begun
		return w.from, nil
	}
	s, err := p.begin(w)
	if err != nil {
		return w.from, err
	}
	stop, cancel := context.WithCancel(stop)
	defer cancel()
	granted := make(chan error, 1)
	p.granting.Go(func() { granted <- s.grantAll(stop) })
	var declined error
	report := func(m engine.Measured) {
		if declined == nil {
			if declined = each(m); declined != nil {
				cancel()
			}
		}
	}
	for {
		select {
		case <-s.measured:
			s.takeResults(report)
			continue
		case <-s.ended:
		case <-p.group.failure.happened:
		}
		break
	}
	cancel()
	var refused error
	select {
	case refused = <-granted:
	case <-p.group.failure.happened: // a source that blocks does not delay that; Close waits for it
	}
	s.takeResults(report)
	if err := p.group.failing(); err != nil {
		return w.from, errors.Join(err, declined)
	}
	end, err := s.end()
	if err != nil {
		err = fmt.Errorf("%w (%w)", err, device.ErrLost)
		p.Abort(err)
	}
	return end, errors.Join(err, refused, declined)
}

// begin announces a segment to all members.
func (p *Pipeline) begin(w work) (*segment, error) {
	if err := p.group.failing(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.last++
	s := &segment{pipeline: p, number: p.last, work: w, ended: make(chan struct{}), measured: make(chan struct{}, 1),
		changed:   make(chan struct{}, 1),
		collector: engine.NewCollector(w.from, w.microbatches, !w.evaluates, p.plan.layout.Routers()), granted: w.from, finished: w.from,
		limits: map[string]int{}}
	p.segment = s
	p.mu.Unlock()
	written := p.variables.beginSegment()
	for _, member := range p.group.members {
		p.send(member, transport.Hot, protocol.Begin{Segment: s.number, Writes: written[member], Evaluates: w.evaluates, From: w.from,
			To: w.to, Flights: w.flights}, nil)
	}
	return s, nil
}

// send sends a message, unless the pipeline has failed. An error means that the member is lost.
func (p *Pipeline) send(member string, class transport.Class, h protocol.Header, payload [][]byte) {
	if p.group.failing() != nil {
		return
	}
	if err := p.group.node.Send(member, transport.Message{Class: class, Header: protocol.Encode(h), Payload: payload}); err != nil {
		p.Lost(member, err)
	}
}

// grantAll grants the batches of the segment one by one, as long as they are available. It ends the segment early when
// stop ends, or if the source cannot provide a batch.
func (s *segment) grantAll(stop context.Context) error {
	w := s.work
	for batch := w.from; batch < w.to; batch++ {
		if !s.await(stop, batch) {
			s.finish(batch)
			return nil
		}
		data, err := s.prepare(batch)
		if err != nil && !w.commonEnd.refuse(batch) {
			s.pipeline.Abort(err) // this replica alone has no data
			return nil
		}
		if err != nil || !w.commonEnd.admit(stop, batch) {
			s.finish(batch)
			return err
		}
		if s.pipeline.group.failing() != nil {
			return nil
		}
		s.grant(batch, data)
	}
	return nil
}

// await waits until a batch may be granted, except for its data. It returns false when no more should be.
func (s *segment) await(stop context.Context, batch int) bool {
	for {
		s.mu.Lock()
		ready := batch < s.finished+s.window() || s.work.evaluates
		s.mu.Unlock()
		if ready {
			return s.work.commonEnd.open(stop, batch)
		}
		stopped := stop.Done()
		if stop.Err() != nil {
			if !s.work.commonEnd.open(stop, batch) {
				return false
			}
			stopped = nil // others have begun the batch
		}
		select {
		case <-s.changed:
		case <-stopped:
		case <-s.pipeline.group.failure.happened:
			return false
		}
	}
}

// window is how many batches may be granted beyond those that are finished. The caller holds the lock.
func (s *segment) window() int {
	n := s.finished - s.work.from - 1 // since the first
	if s.work.commonEnd == nil || n < 1 {
		return window
	}
	return max(window, int(min(mostWindow, ahead.Seconds()*float64(n)/time.Since(s.first).Seconds())))
}

// prepare waits for the data of a batch.
func (s *segment) prepare(batch int) (engine.Batch, error) {
	if p, ok := s.work.source.(engine.Preparer); ok {
		if err := p.Prepare(int64(batch)); err != nil {
			return nil, err
		}
	}
	return s.work.source.Batch(int64(batch))
}

// grant sends members the data of a batch that their ranks read, and permission to begin it.
func (s *segment) grant(batch int, data engine.Batch) {
	p := s.pipeline
	s.mu.Lock()
	done := s.finished
	s.granted = batch + 1
	s.mu.Unlock()
	var hyperparameters [][]byte
	if !s.work.evaluates {
		for _, initialized := range []bool{false, true} {
			hyperparameters = append(hyperparameters, exec.F32Bytes(p.plan.optimizer.Hyperparameters(batch, initialized).Float32s()))
		}
	}
	for _, member := range p.group.members {
		h := protocol.Batch{Segment: s.number, Batch: batch}
		var payload [][]byte
		for _, name := range p.replies[member].plan.Reads {
			if s.work.evaluates && !p.plan.inputs.EvaluationReads(name) {
				continue
			}
			if content, ok := data[name]; ok {
				h.Names, payload = append(h.Names, name), append(payload, content)
			}
		}
		if len(h.Names) > 0 {
			p.send(member, transport.Hot, h, payload)
		}
		p.send(member, transport.Hot, protocol.Grant{Segment: s.number, Limit: batch + 1, Done: done}, hyperparameters)
	}
}

// finish ends the segment before a batch that was not granted.
func (s *segment) finish(limit int) {
	for _, member := range s.pipeline.group.members {
		s.pipeline.send(member, transport.Hot, protocol.End{Segment: s.number, Limit: limit}, nil)
	}
}

// receive takes a result.
func (s *segment) receive(from string, h protocol.Result, payload [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := protocol.DecodeResult(h, payload)
	if err == nil {
		err = s.check(from, r)
	}
	if err != nil {
		return err
	}
	complete, err := s.collector.Add(r)
	if s.finished == s.work.from && len(complete) > 0 {
		s.first = time.Now()
	}
	for _, m := range complete {
		s.finished = m.Batch + 1
		s.results = append(s.results, m)
	}
	signal(s.changed)
	signal(s.measured)
	return err
}

// memberEnded records that a member has done the batches before a limit.
func (s *segment) memberEnded(member string, limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, twice := s.limits[member]; {
	case twice:
		return fmt.Errorf("segment %d: found its end a second time", s.number)
	case limit < s.work.from || limit > s.granted:
		return fmt.Errorf("segment %d: found its end at batch %d, expected %d to %d", s.number, limit, s.work.from, s.granted)
	}
	s.limits[member] = limit
	if len(s.limits) == len(s.pipeline.group.members) {
		close(s.ended)
	}
	return nil
}

// check checks a result that a member has sent: losses are from the last stage of their replica, routing from the stage
// that it is of, updates from the first rank. The caller holds the lock.
func (s *segment) check(from string, r engine.Result) error {
	if r.Batch < s.finished || r.Batch >= s.granted || r.Microbatch < 0 || r.Microbatch >= s.work.microbatches {
		return fmt.Errorf("a result of microbatch %d of batch %d, expected batches %d to %d of %d microbatches", r.Microbatch, r.Batch,
			s.finished, s.granted-1, s.work.microbatches)
	}
	p, rank := s.pipeline, 0
	replicas := 1
	if !s.work.evaluates {
		replicas = len(p.placement.ranks) / p.placement.stages
	}
	first := r.Microbatch * replicas / s.work.microbatches * p.placement.stages // rank of the microbatch's replica
	if r.Routing != nil {
		if r.VirtualStage < 0 {
			return fmt.Errorf("routing of virtual stage %d of batch %d", r.VirtualStage, r.Batch)
		}
		rank = first + r.VirtualStage%p.placement.stages
	}
	if r.Losses != nil {
		if len(r.Losses) != s.work.losses {
			return fmt.Errorf("microbatch %d of batch %d has %d losses, expected %d", r.Microbatch, r.Batch, len(r.Losses), s.work.losses)
		}
		rank = first + p.placement.stages - 1
	}
	if owner := p.placement.ranks[rank].Member; from != owner {
		return fmt.Errorf("a result of batch %d of rank %d, which is on %s", r.Batch, rank, owner)
	}
	return nil
}

// signal fills a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// takeResults calls f with the results that have arrived, in order.
func (s *segment) takeResults(f func(engine.Measured)) {
	s.mu.Lock()
	all := s.results
	s.results = nil
	s.mu.Unlock()
	for _, m := range all {
		f(m)
	}
}

// end is the first batch that was not done. All members must agree on it, and all results before it must be there.
func (s *segment) end() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, member := range s.pipeline.group.members {
		if limit := s.limits[member]; limit != s.finished {
			return s.work.from, fmt.Errorf("%s: segment %d: found its end at batch %d, expected %d: all results before that have arrived",
				member, s.number, limit, s.finished)
		}
	}
	return s.finished, nil
}
