package serve

import (
	"errors"
	"sync"

	"github.com/gpupipe/gpupipe/pipeline/inference"
)

// batch is what a scheduler needs of inference.Batch.
type batch interface {
	Slots() int
	Fill(slot, from int, ids []uint32) error
	Score(slot, from int, ids []uint32, each func(i int, logits []float32) error) error
	Decode(tokens []inference.Token) ([][]float32, error)
}

// scheduler shares a batch among sequences. Its goroutine repeats: give free slots to waiting sequences, feed a block
// of the prompt of one sequence, and make one token of each sequence whose prompt is fed. So a sequence joins and
// leaves between two tokens, and a long prompt delays the others by one block a token.
type scheduler struct {
	batch batch
	limit int               // sequences that may wait
	ended func(q *sequence) // is called when a sequence leaves its slot

	mu      sync.Mutex
	waiting []*sequence
	last    uint64        // the number of the newest sequence
	err     error         // of the device: nothing can be computed any more
	wake    chan struct{} // holds a value after a change
	done    chan struct{}
	slots   []*sequence // the goroutine alone changes them, and holds mu then
}

// promptBlock is the number of tokens of a prompt that are fed between two tokens of the others.
const promptBlock = 64

var (
	errBusy   = errors.New("too many requests are waiting")
	errClosed = errors.New("the server is closing")
)

func newScheduler(b batch, limit int, ended func(q *sequence)) *scheduler {
	s := &scheduler{batch: b, limit: limit, ended: ended, wake: make(chan struct{}, 1), done: make(chan struct{}),
		slots: make([]*sequence, b.Slots())}
	go s.run()
	return s
}

// submit queues sequences: all or, with errBusy, none.
func (s *scheduler) submit(all []*sequence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case len(s.waiting)+len(all) > s.limit:
		return errBusy
	}
	for _, q := range all {
		s.last++
		q.number = s.last
	}
	s.waiting = append(s.waiting, all...)
	s.notify()
	return nil
}

// close ends all sequences and waits for the goroutine. A later submit fails.
func (s *scheduler) close() {
	s.fail(errClosed)
	<-s.done
}

func (s *scheduler) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.notify()
}

// failure is why nothing can be computed any more; nil: it can.
func (s *scheduler) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// counts returns how many sequences have a slot, and how many wait.
func (s *scheduler) counts() (running, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.slots {
		if q != nil {
			running++
		}
	}
	return running, len(s.waiting)
}

// notify wakes the goroutine. s.mu is held.
func (s *scheduler) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *scheduler) run() {
	defer close(s.done)
	for {
		active, err := s.admit()
		if err != nil {
			s.endAll(err)
			return
		}
		if !active {
			<-s.wake
			continue
		}
		if err := s.step(); err != nil {
			s.fail(err)
		}
	}
}

// admit frees the slots of sequences whose requests have ended, and gives free slots to waiting ones. It reports
// whether any slot is taken.
func (s *scheduler) admit() (active bool, err error) {
	for _, q := range s.slots {
		if q != nil && q.ctx.Err() != nil {
			s.end(q, q.ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false, s.err
	}
	for i := range s.slots {
		for s.slots[i] == nil && len(s.waiting) > 0 {
			next := s.waiting[0]
			s.waiting[0], s.waiting = nil, s.waiting[1:]
			if next.ctx.Err() != nil {
				next.finish(next.ctx.Err())
				continue
			}
			s.slots[i], next.slot = next, i
		}
		active = active || s.slots[i] != nil
	}
	return active, nil
}

func (s *scheduler) endAll(err error) {
	for _, q := range s.slots {
		if q != nil {
			s.end(q, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.waiting {
		q.finish(err)
	}
	s.waiting = nil
}

func (s *scheduler) end(q *sequence, err error) {
	s.mu.Lock()
	s.slots[q.slot] = nil
	s.mu.Unlock()
	s.ended(q)
	q.finish(err)
}

// step feeds one block of a prompt and makes one token of each sequence that is ready.
func (s *scheduler) step() error {
	if q := s.prompted(); q != nil {
		if err := q.feed(s.batch, promptBlock); err != nil {
			return err
		}
	}
	var ready []*sequence
	var tokens []inference.Token
	for _, q := range s.slots {
		switch {
		case q == nil || !q.isReady():
		case q.complete(): // it is to have no token
			s.end(q, nil)
		default:
			ready = append(ready, q)
			tokens = append(tokens, inference.Token{Slot: q.slot, Position: q.fed, ID: q.ids[q.fed]})
		}
	}
	if len(ready) == 0 {
		return nil
	}
	logits, err := s.batch.Decode(tokens)
	if err != nil {
		return err
	}
	failed := make([]error, len(ready))
	var drawing sync.WaitGroup
	for i, q := range ready {
		drawing.Go(func() { failed[i] = q.take(logits[i]) })
	}
	drawing.Wait()
	for i, q := range ready {
		if failed[i] != nil || q.complete() {
			s.end(q, failed[i])
		}
	}
	return nil
}

// prompted returns the sequence that waits longest for its prompt to be fed; nil: none does.
func (s *scheduler) prompted() (first *sequence) {
	for _, q := range s.slots {
		if q != nil && !q.isReady() && (first == nil || q.number < first.number) {
			first = q
		}
	}
	return first
}
