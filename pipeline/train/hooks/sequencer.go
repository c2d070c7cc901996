package hooks

import (
	"context"
	"sync"
)

// sequencer runs functions of several goroutines one after the other, in the order of their numbers.
type sequencer struct {
	mu      sync.Mutex
	next    int64
	waiting map[int64]chan struct{}
}

func newSequencer(first int64) *sequencer {
	return &sequencer{next: first, waiting: map[int64]chan struct{}{}}
}

// do runs f after the functions of all smaller numbers. If f fails, functions of larger numbers wait for the end of
// their contexts.
func (s *sequencer) do(ctx context.Context, number int64, f func() error) error {
	if err := s.wait(ctx, number); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	s.advance()
	return nil
}

func (s *sequencer) wait(ctx context.Context, number int64) error {
	s.mu.Lock()
	if s.next == number {
		s.mu.Unlock()
		return nil
	}
	called := make(chan struct{})
	s.waiting[number] = called
	s.mu.Unlock()
	select {
	case <-called:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *sequencer) advance() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	if called := s.waiting[s.next]; called != nil {
		close(called)
		delete(s.waiting, s.next)
	}
}
