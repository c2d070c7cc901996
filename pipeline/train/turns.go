package train

import (
	"context"
	"sync"
)

// turns lets goroutines do something one after the other, in the order of their numbers.
type turns struct {
	mu      sync.Mutex
	next    int64
	waiting map[int64]chan struct{}
}

func newTurns(first int64) *turns { return &turns{next: first, waiting: map[int64]chan struct{}{}} }

// take does f when all numbers below have had their turn. A number whose turn failed keeps it: those after it wait for ctx to end.
func (t *turns) take(ctx context.Context, number int64, f func() error) error {
	if err := t.wait(ctx, number); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	t.pass()
	return nil
}

func (t *turns) wait(ctx context.Context, number int64) error {
	t.mu.Lock()
	if t.next == number {
		t.mu.Unlock()
		return nil
	}
	called := make(chan struct{})
	t.waiting[number] = called
	t.mu.Unlock()
	select {
	case <-called:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	if called := t.waiting[t.next]; called != nil {
		close(called)
		delete(t.waiting, t.next)
	}
}
