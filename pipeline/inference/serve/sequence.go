package serve

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/inference"
)

// sequence is a prompt and its continuation. The scheduler's goroutine feeds and extends it; the goroutine of the
// request reads its events.
type sequence struct {
	ctx    context.Context // of the request; cancel ends the sequence alone
	cancel context.CancelFunc
	number uint64 // in the order of submission
	asked  decoding

	ids     []uint32 // the prompt, then the tokens made
	prompt  int      // tokens of the prompt, at least 1
	slot    int
	fed     int  // tokens that the slot has
	stopped bool // at the token that ends the text
	events  *eventQueue

	submitted time.Time
	firstAt   time.Time // when the first token was drawn
	drawn     int       // tokens drawn
}

// decoding is how a prompt is continued, and which probabilities are reported.
type decoding struct {
	max     int                  // tokens to make
	isEnd   func(id uint32) bool // reports whether a token ends the text
	draws   int                  // number of ids that can be drawn: the tokenizer's
	sampler *inference.Sampler
	scored  bool // the prompt's tokens are reported with their probabilities
	top     int  // how many likeliest tokens to report for each token; -1: no probabilities at all
}

// newSequence makes the sequence of a prompt.
func newSequence(ctx context.Context, ids []uint32, asked decoding) *sequence {
	q := &sequence{asked: asked, ids: slices.Clone(ids), prompt: len(ids), submitted: time.Now(),
		events: &eventQueue{wake: make(chan struct{}, 1)}}
	q.ctx, q.cancel = context.WithCancel(ctx)
	asked.sampler.Begin(ids)
	if asked.scored {
		q.events.add(event{id: ids[0], logProb: math.NaN(), first: true})
	}
	return q
}

// isReady reports whether only the last token of the prompt remains to be fed.
func (q *sequence) isReady() bool { return q.fed >= q.prompt-1 }

// complete reports whether the sequence has all its tokens.
func (q *sequence) complete() bool {
	return q.isReady() && (q.stopped || len(q.ids)-q.prompt >= q.asked.max)
}

// feed feeds tokens of the prompt, at most n and not the last one.
func (q *sequence) feed(b batch, n int) error {
	part := q.ids[q.fed:min(q.fed+n, q.prompt-1)]
	from := q.fed
	q.fed += len(part)
	if !q.asked.scored {
		return b.Fill(q.slot, from, part)
	}
	return b.Score(q.slot, from, part, func(i int, logits []float32) error {
		q.events.add(q.score(q.ids[from+i+1], logits))
		return nil
	})
}

// take draws the token after the last one.
func (q *sequence) take(logits []float32) error {
	q.fed++
	id, err := q.asked.sampler.Next(logits[:q.asked.draws])
	if err != nil {
		return err
	}
	if q.drawn++; q.drawn == 1 {
		q.firstAt = time.Now()
	}
	if q.asked.isEnd(id) {
		q.stopped = true
		e := q.score(id, logits)
		e.ends = true
		q.events.add(e)
		return nil
	}
	q.ids = append(q.ids, id)
	q.events.add(q.score(id, logits))
	return nil
}

// score is the event of a token before which the model gave these logits.
func (q *sequence) score(id uint32, logits []float32) event {
	if q.asked.top < 0 {
		return event{id: id, logProb: math.NaN()}
	}
	lse := inference.LogSumExp(logits)
	return event{id: id, logProb: float64(logits[id]) - lse, top: likeliest(logits, q.asked.top, lse)}
}

// likeliest returns the k tokens with the largest logits, the largest first and the lower id first among equals.
func likeliest(logits []float32, k int, lse float64) []scored {
	top := make([]scored, 0, k+1)
	for i, l := range logits {
		x := scored{uint32(i), float64(l) - lse}
		if k == 0 || len(top) == k && x.logProb <= top[k-1].logProb {
			continue
		}
		at, _ := slices.BinarySearchFunc(top, x, func(a, b scored) int {
			return cmp.Or(cmp.Compare(b.logProb, a.logProb),
				cmp.Compare(a.id, b.id))
		})
		if top = slices.Insert(top, at, x); len(top) > k {
			top = top[:k]
		}
	}
	return top
}

// finish ends the sequence, once.
func (q *sequence) finish(err error) { q.events.finish(err) }

// next waits for events and takes them: see eventQueue.next.
func (q *sequence) next() (events []event, more bool, err error) { return q.events.next(q.ctx) }

// reason is why a sequence without an error ended, in OpenAI's words. It is called after the last event.
func (q *sequence) reason() string {
	if q.stopped {
		return "stop"
	}
	return "length"
}
