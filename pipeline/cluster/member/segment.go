package member

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
)

// segment is the member's part of a stretch of work.
type segment struct {
	epoch  *epoch
	number uint64
	begin  protocol.Begin
	part   part
	ready  chan struct{} // closed when the messages that came before the segment are handled

	mu              sync.Mutex
	batches         map[int]engine.Batch
	hyperparameters map[int][2][]float32
}

func newSegment(e *epoch, h protocol.Begin) (*segment, error) {
	last := e.segments.newest()
	if h.Segment != last+1 || h.From < 0 || h.To < h.From {
		return nil, fmt.Errorf("segment %d with the batches %d to %d after segment %d", h.Segment, h.From, h.To, last)
	}
	return &segment{epoch: e, number: h.Segment, begin: h, ready: make(chan struct{}), batches: map[int]engine.Batch{},
		hyperparameters: map[int][2][]float32{}}, nil
}

// part is this member's part of a segment: an engine.Part, or several with exchanges in between.
type part interface {
	Grant(limit int)
	End(limit int)
	Deliver(to int, m stage.Message, payload [][]byte, sent time.Time) error
	Wait() (int, error)
}

// start begins the work of the ranks. Nothing is granted yet.
func (s *segment) start() error {
	h := s.begin
	p, err := s.beginPart(engine.Work{Evaluates: h.Evaluates, From: h.From, To: h.To, Source: s, Report: s.report, Hyperparameters: s.at})
	if err != nil {
		return err
	}
	s.part = p
	s.epoch.lifetime.pending.Go(func() {
		end, err := p.Wait()
		if err != nil {
			s.epoch.fail(err)
			return
		}
		if !h.Evaluates {
			s.epoch.finished(end)
		}
		s.epoch.send(s.epoch.member.options.Coordinator, transport.Hot, protocol.Ended{Segment: s.number, Limit: end}, nil)
	})
	return nil
}

// beginPart begins the work: of a replica that trains on its own, up to its first exchange.
func (s *segment) beginPart(w engine.Work) (part, error) {
	e := s.epoch
	if e.replica == nil || w.Evaluates {
		return e.engine.Begin(w)
	}
	if all := s.begin.Flights; all != nil {
		if err := e.replica.course.Resume(*all); err != nil {
			return nil, err
		}
	}
	return beginStretches(e, w, s.begin.Flights != nil), nil
}

// take takes a message of the segment, after those that came before the segment.
func (s *segment) take(m message) error {
	select {
	case <-s.ready:
		return s.handle(m)
	case <-s.epoch.lifetime.over: // the segment could not begin
		return nil
	}
}

func (s *segment) handle(m message) error {
	switch h := m.header.(type) {
	case protocol.Stage:
		return s.part.Deliver(h.To, h.Message, m.payload, time.Unix(0, h.Taken))
	case protocol.Batch:
		return s.keep(h, m.payload)
	case protocol.Grant:
		return s.grant(h, m.payload)
	case protocol.End:
		s.part.End(h.Limit)
	}
	return nil
}

// keep keeps the data of a batch until it is finished.
func (s *segment) keep(h protocol.Batch, payload [][]byte) error {
	if len(payload) != len(h.Names) {
		return fmt.Errorf("batch %d has %d names for %d tensors", h.Batch, len(h.Names), len(payload))
	}
	b := engine.Batch{}
	for i, name := range h.Names {
		b[name] = payload[i]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches[h.Batch] = b
	return nil
}

// behind is how many batches a rank may be behind those whose results are complete. The loss of a batch needs the
// updates of all ranks two batches before.
const behind = 3

// grant permits batches to begin.
func (s *segment) grant(h protocol.Grant, payload [][]byte) error {
	if !s.begin.Evaluates {
		values, err := hyperparameters(payload)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.hyperparameters[h.Limit-1] = values
		s.mu.Unlock()
		s.epoch.finished(h.Done)
	}
	s.mu.Lock()
	for b := range s.batches {
		if b < h.Done-behind {
			delete(s.batches, b)
		}
	}
	for b := range s.hyperparameters {
		if b < h.Done-behind {
			delete(s.hyperparameters, b)
		}
	}
	s.mu.Unlock()
	s.part.Grant(h.Limit)
	return nil
}

// Batch implements engine.Source.
func (s *segment) Batch(batch int64) (engine.Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.batches[int(batch)]
	if !ok {
		return nil, fmt.Errorf("batch %d is granted without its data", batch)
	}
	return b, nil
}

// at returns the hyperparameters of the update of a batch.
func (s *segment) at(batch int, initialized bool) []float32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if initialized {
		return s.hyperparameters[batch][1]
	}
	return s.hyperparameters[batch][0]
}

// report sends what a rank has measured.
func (s *segment) report(r engine.Result) {
	h, payload := protocol.EncodeResult(s.number, r)
	s.epoch.send(s.epoch.member.options.Coordinator, transport.Hot, h, payload)
}
