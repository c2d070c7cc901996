package serve

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/pipeline/inference"
)

// sequence is a prompt and its continuation. The scheduler's goroutine feeds and extends it; the goroutine of the
// request reads its events.
type sequence struct {
	ctx     context.Context // of the request; cancel ends the sequence alone
	cancel  context.CancelFunc
	number  uint64 // in the order of requests
	prompt  int    // tokens of the prompt, at least 1
	max     int    // tokens to make
	scored  bool   // the prompt's tokens are reported with their probabilities
	top     int    // how many likeliest tokens to report for each token; -1: no probabilities at all
	end     int64  // the token that ends the text; -1: none
	draws   int    // ids that can be drawn: those of the tokenizer
	sampler *inference.Sampler

	slot, fed int
	ids       []uint32
	stopped   bool // at the token that ends the text

	mu     sync.Mutex
	events []event
	ended  bool
	err    error
	wake   chan struct{} // holds a value after a change
}

// event is a token of a sequence, of the prompt if it is scored, and then of the continuation.
type event struct {
	id      uint32
	logProb float64 // NaN: not computed, as of the first token
	top     []scored
	ends    bool // the token ends the text, and is no part of it
}

// scored is a token that might follow.
type scored struct {
	id      uint32
	logProb float64
}

var sequences atomic.Uint64

// prepare gives the sequence its prompt.
func (q *sequence) prepare(ids []uint32) *sequence {
	q.number, q.ids, q.prompt, q.wake = sequences.Add(1), slices.Clone(ids), len(ids), make(chan struct{}, 1)
	if q.scored {
		q.emit(event{id: ids[0], logProb: math.NaN()})
	}
	return q
}

// isReady reports whether only the last token of the prompt remains to be fed.
func (q *sequence) isReady() bool { return q.fed >= q.prompt-1 }

// complete reports whether the sequence has all its tokens.
func (q *sequence) complete() bool {
	return q.isReady() && (q.stopped || len(q.ids)-q.prompt >= q.max)
}

// feed feeds tokens of the prompt, at most n and not the last one.
func (q *sequence) feed(b batch, n int) error {
	part := q.ids[q.fed:min(q.fed+n, q.prompt-1)]
	from := q.fed
	q.fed += len(part)
	if !q.scored {
		return b.Fill(q.slot, from, part)
	}
	return b.Score(q.slot, from, part, func(i int, logits []float32) error {
		q.emit(q.score(q.ids[from+i+1], logits))
		return nil
	})
}

// take draws the token after the last one.
func (q *sequence) take(logits []float32) error {
	q.fed++
	id, err := q.sampler.Next(logits[:q.draws])
	if err != nil {
		return err
	}
	if int64(id) == q.end {
		q.stopped = true
		e := q.score(id, logits)
		e.ends = true
		q.emit(e)
		return nil
	}
	q.ids = append(q.ids, id)
	q.emit(q.score(id, logits))
	return nil
}

// score is the event of a token before which the model gave these logits.
func (q *sequence) score(id uint32, logits []float32) event {
	if q.top < 0 {
		return event{id: id, logProb: math.NaN()}
	}
	lse := inference.LogSumExp(logits)
	return event{id: id, logProb: float64(logits[id]) - lse, top: likeliest(logits, q.top, lse)}
}

// likeliest returns the k tokens with the largest logits, the largest first and the lower id first among equals.
func likeliest(logits []float32, k int, lse float64) []scored {
	top := make([]scored, 0, k+1)
	for i, l := range logits {
		x := scored{uint32(i), float64(l) - lse}
		if k == 0 || len(top) == k && x.logProb <= top[k-1].logProb {
			continue
		}
		at, _ := slices.BinarySearchFunc(top, x, func(a, b scored) int { return cmp.Or(cmp.Compare(b.logProb, a.logProb), cmp.Compare(a.id, b.id)) })
		if top = slices.Insert(top, at, x); len(top) > k {
			top = top[:k]
		}
	}
	return top
}

func (q *sequence) emit(e event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, e)
	q.notify()
}

// finish ends the sequence, once.
func (q *sequence) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ended {
		q.ended, q.err = true, err
	}
	q.notify()
}

// notify wakes the reader. q.mu is held.
func (q *sequence) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next waits for events and takes them. more is false after the last one. The error is that of the sequence, or of its
// context.
func (q *sequence) next() (events []event, more bool, err error) {
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
		case <-q.ctx.Done():
			return nil, false, q.ctx.Err()
		}
	}
}

// reason is why a sequence without an error ended, in OpenAI's words. It is called after the last event.
func (q *sequence) reason() string {
	if q.stopped {
		return "stop"
	}
	return "length"
}
