package serve

import (
	"context"
	"sync"
)

// event is a token of a sequence, of the prompt if it is scored, and then of the continuation.
type event struct {
	id      uint32
	logProb float64 // NaN: not computed, as of the first token
	top     []scored
	ends    bool // the token ends the text, and is no part of it
	first   bool // the token is the first one of the prompt
}

// scored is a token that might follow.
type scored struct {
	id      uint32
	logProb float64
}

// eventQueue passes the events of a sequence to the goroutine of its request. It holds at most the events of one
// sequence.
type eventQueue struct {
	wake chan struct{} // holds a value after a change

	mu     sync.Mutex
	events []event
	ended  bool
	err    error
}

func (q *eventQueue) add(e event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, e)
	q.notify()
}

// finish ends the events, once.
func (q *eventQueue) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ended {
		q.ended, q.err = true, err
	}
	q.notify()
}

// notify wakes the reader. q.mu is held.
func (q *eventQueue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next waits for events and takes them. more is false after the last one. It returns the error of the sequence, or of
// ctx.
func (q *eventQueue) next(ctx context.Context) (events []event, more bool, err error) {
	for {
		q.mu.Lock()
		events, q.events = q.events, nil
		ended, err := q.ended, q.err
		q.mu.Unlock()
		if len(events) > 0 || ended {
			return events, !ended, err
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}
