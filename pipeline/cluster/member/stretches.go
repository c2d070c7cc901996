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

// stretches are this member's part of a segment of a replica that trains on its own: from one exchange to the next its
// ranks work without a pause. Members of one replica exchange at the same steps, so that a message for a later stretch
// waits for it.
type stretches struct {
	epoch *epoch
	work  engine.Work
	ended chan struct{}
	end   int
	err   error

	mu         sync.Mutex
	current    *engine.Part
	until      int // the first batch after the current stretch
	granted    int // the first batch that must not begin yet
	limit      int // the first batch that must not begin
	early      []delivery
	earlyBytes int64 // of their payloads
}

// delivery is a message for a later stretch.
type delivery struct {
	to      int
	message stage.Message
	payload [][]byte
	sent    time.Time
}

// beginStretches begins the first stretch and goes on by itself. A replica that goes on from a checkpoint, or joins,
// shares its weights before.
func beginStretches(e *epoch, w engine.Work, shares bool) *stretches {
	s := &stretches{epoch: e, work: w, ended: make(chan struct{}), granted: w.From, limit: w.To}
	go func() {
		defer close(s.ended)
		s.end, s.err = s.run(shares)
	}()
	return s
}

// run works on all stretches. It returns the first batch that was not done.
func (s *stretches) run(shares bool) (int, error) {
	at := s.work.From
	if shares {
		if err := s.epoch.replica.course.Share(s.epoch.lifetime.over); err != nil {
			return at, err
		}
	}
	p, err := s.next(at)
	if err != nil {
		return at, err
	}
	for p != nil {
		end, err := p.Wait()
		if err != nil {
			return at, err
		}
		if end > at {
			if err := s.epoch.replica.course.Exchange(end, s.send(end), s.epoch.lifetime.over); err != nil {
				return at, err
			}
		}
		at = end
		if p, err = s.next(at); err != nil {
			return at, err
		}
	}
	return at, nil
}

// next begins the stretch from a batch on; nil: the segment has ended.
func (s *stretches) next(from int) (*engine.Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from >= s.limit {
		return nil, nil
	}
	w := s.work
	w.From, w.To = from, s.epoch.replica.course.Next(from, s.work.To)
	p, err := s.epoch.engine.Begin(w)
	if err != nil {
		return nil, err
	}
	s.current, s.until = p, w.To
	early := s.early
	s.early, s.earlyBytes = nil, 0
	for _, d := range early {
		if err := s.deliver(d); err != nil {
			return nil, err
		}
	}
	p.Grant(s.granted)
	if s.limit < s.work.To {
		p.End(s.limit)
	}
	return p, nil
}

// send sends how far the replica has moved in a fragment.
func (s *stretches) send(step int) func(fragment int, payload [][]byte) {
	return func(fragment int, payload [][]byte) {
		s.epoch.send(s.epoch.member.options.Coordinator, transport.Bulk, protocol.Move{Step: step, Fragment: fragment}, payload)
	}
}

// Grant implements part.
func (s *stretches) Grant(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.granted
	if s.granted = max(s.granted, limit); before < s.until { // otherwise the current stretch may have ended
		s.current.Grant(s.granted)
	}
}

// End implements part.
func (s *stretches) End(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted, s.limit = max(s.granted, limit), min(s.limit, limit)
	if limit < s.until {
		s.current.End(limit)
	}
}

// Deliver implements part.
func (s *stretches) Deliver(to int, m stage.Message, payload [][]byte, sent time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deliver(delivery{to, m, payload, sent})
}

// deliver delivers a message, or keeps it for a later stretch. The caller holds the lock.
func (s *stretches) deliver(d delivery) error {
	if d.message.Batch < s.until {
		return s.current.Deliver(d.to, d.message, d.payload, d.sent)
	}
	for _, tensor := range d.payload {
		s.earlyBytes += int64(len(tensor))
	}
	if len(s.early) >= mostEarly || s.earlyBytes > mostEarlyBytes {
		return fmt.Errorf("%d messages of %d bytes before their batches have begun, expected at most %d of %d", len(s.early)+1,
			s.earlyBytes, mostEarly, mostEarlyBytes)
	}
	s.early = append(s.early, d)
	return nil
}

// Wait implements part.
func (s *stretches) Wait() (int, error) {
	<-s.ended
	return s.end, s.err
}
