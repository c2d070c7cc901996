package hooks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// maxSkippedInARow is how many batches in a row on_error: skip may skip.
const maxSkippedInARow = 10

// Position is where a run is in its data: the next step and the batch that it takes. The batch's number exceeds the
// step's by the number of skipped batches.
type Position struct {
	Step  int
	Batch int64
}

// cursor is a position and the modules' states there.
type cursor struct {
	Position
	states [][]byte // by batchHook; nil of a module without state
}

// Feed is what a Feeder computes from.
type Feed struct {
	Start     Position
	States    BatchStates // at Start
	Steps     int         // of the run
	Instances int         // of each module, and batches in progress
	Read      func(Position) (*hook.Batch, error)
	Finish    func(Position, *hook.Batch) engine.Batch
	Note      func(format string, args ...any) // about skipped batches, from any goroutine
}

// Feeder applies the modules to batches ahead of the devices, several at a time, and returns them in order. It
// implements engine.Source and engine.Preparer; a nil Feeder, without modules, implements Prepare, Release, Cursor and
// Close.
//
// If a batch is skipped, the next one takes its place. Batches that were computed for later steps are then discarded
// and computed again. So results do not depend on how far ahead the Feeder is.
type Feeder struct {
	feed   Feed
	hooks  []*batchHook
	trace  *trace.Writer
	cancel context.CancelFunc // ends run
	wake   chan struct{}      // a batch was requested
	done   chan struct{}      // closed when no more batches will be computed
	err    error              // then: why; nil after the last step

	mu        sync.Mutex
	requested int // one more than the largest step requested
	released  int // the first step that is not released
	slots     map[int]*slot
	after     map[int]cursor // by number of steps
}

// slot is a step's batch.
type slot struct {
	ready     chan struct{} // closed when batch is set
	batch     engine.Batch
	requested bool
}

func newFeeder(f Feed, hooks []*batchHook) *Feeder {
	first := cursor{f.Start, make([][]byte, len(hooks))}
	for i, h := range hooks {
		first.states[i] = f.States[h.module]
	}
	d := &Feeder{feed: f, hooks: hooks, wake: make(chan struct{}, 1), done: make(chan struct{}), requested: f.Start.Step,
		slots: map[int]*slot{}, after: map[int]cursor{f.Start.Step: first}}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go d.run(ctx, first)
	return d
}

var errClosed = errors.New("the run has ended")

// Close cancels the batches in progress, waits for them, and closes the modules' instances.
func (d *Feeder) Close() {
	if d == nil {
		return
	}
	d.cancel()
	<-d.done
	for _, h := range d.hooks {
		h.instances.Close()
	}
}

// Trace records from now on how long the engine waits for batches.
func (d *Feeder) Trace(w *trace.Writer) {
	if d != nil {
		d.trace = w
	}
}

// Batch waits for the batch of a step.
func (d *Feeder) Batch(step int64) (engine.Batch, error) {
	return d.Await(context.Background(), int(step))
}

// Prepare waits for the batch of a step.
func (d *Feeder) Prepare(step int64) error {
	if d == nil {
		return nil
	}
	_, err := d.Batch(step)
	return err
}

// Await is Batch until ctx ends.
func (d *Feeder) Await(ctx context.Context, step int) (engine.Batch, error) {
	s, first := d.request(step)
	if s == nil {
		return nil, fmt.Errorf("batch %d is released", step) // a replica that is lost has asked for it
	}
	began := time.Now()
	select {
	case <-s.ready:
		return s.batch, nil
	default:
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-d.done:
		select {
		case <-s.ready: // both
		default:
			return nil, usererror.New(d.err)
		}
	}
	if first && d.trace != nil {
		d.trace.Complete(trace.DataTrack, trace.Data, fmt.Sprintf("batch %d", step), began, time.Since(began),
			map[string]any{"batch": step})
	}
	return s.batch, nil
}

// request returns a step's slot, nil if it is released, and whether this is its first request.
func (d *Feeder) request(step int) (s *slot, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if step < d.released {
		return nil, false
	}
	s = d.slot(step)
	first, s.requested = !s.requested, true
	if step >= d.requested {
		d.requested = step + 1
		select {
		case d.wake <- struct{}{}:
		default: // a wake-up is pending
		}
	}
	return s, first
}

func (d *Feeder) slot(step int) *slot {
	s := d.slots[step]
	if s == nil {
		s = &slot{ready: make(chan struct{})}
		d.slots[step] = s
	}
	return s
}

// Release drops the batches and cursors of the steps before step.
func (d *Feeder) Release(step int) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.released = max(d.released, step)
	maps.DeleteFunc(d.slots, func(s int, _ *slot) bool { return s < step })
	maps.DeleteFunc(d.after, func(s int, _ cursor) bool { return s < step })
}

// Cursor returns the next batch and the modules' states after a number of steps. All of these must have been returned
// by Batch, and the last one must not have been released.
func (d *Feeder) Cursor(steps int) (next int64, states BatchStates) {
	if d == nil {
		return int64(steps), nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.after[steps]
	states = BatchStates{}
	for i, h := range d.hooks {
		states[h.module] = at.states[i]
	}
	return at.Batch, states
}

// run computes batches from a cursor on until the last step, an error that may not be skipped, or the end of ctx.
func (d *Feeder) run(ctx context.Context, at cursor) {
	defer close(d.done)
	inARow := 0
	for {
		last := at
		at, d.err = d.untilError(ctx, at)
		var e *BatchError
		if d.err == nil || !errors.As(d.err, &e) || e.hook.config.OnError != config.Skip || !inCall(e) {
			return
		}
		if at.Step > last.Step {
			inARow = 0
		}
		if inARow++; inARow > maxSkippedInARow {
			d.err = fmt.Errorf("%d batches in a row were skipped, and the next one fails too: %w", maxSkippedInARow, d.err)
			return
		}
		d.feed.Note("batch %d is skipped: %v", at.Batch, e.err)
		at.Batch++
	}
}

// untilError computes batches up to one that fails, and returns the cursor before that.
func (d *Feeder) untilError(ctx context.Context, at cursor) (cursor, error) {
	for i, h := range d.hooks {
		h.rewind(at.Step, at.states[i])
	}
	var working sync.WaitGroup
	defer working.Wait()
	computing, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan job, d.feed.Instances) // in the order of the steps
	working.Go(func() {
		defer close(queue)
		d.dispatch(computing, at.Position, queue, &working)
	})
	for j := range queue {
		m := <-j.result
		if ctx.Err() != nil {
			break
		}
		if m.err != nil {
			return at, m.err
		}
		at = cursor{Position{j.Step + 1, j.Batch + 1}, m.states}
		d.deliver(m.batch, at)
	}
	if ctx.Err() != nil {
		return at, errClosed
	}
	return at, nil
}

// job is a batch in progress.
type job struct {
	Position
	result chan result // has room for it
}

type result struct {
	batch  engine.Batch
	states [][]byte // after it
	err    error
}

// dispatch starts jobs from a position on, as many at a time as there are instances, and as far ahead as room allows.
func (d *Feeder) dispatch(ctx context.Context, at Position, queue chan<- job, working *sync.WaitGroup) {
	instances := make(chan struct{}, d.feed.Instances)
	for ; at.Step < d.feed.Steps && d.room(ctx, at.Step); at = (Position{at.Step + 1, at.Batch + 1}) {
		select {
		case instances <- struct{}{}:
		case <-ctx.Done():
			return
		}
		j := job{at, make(chan result, 1)}
		working.Go(func() {
			j.result <- d.compute(ctx, j.Position)
			<-instances
		})
		select {
		case queue <- j:
		case <-ctx.Done():
			return
		}
	}
}

// room waits until a step may be computed: at most Instances steps ahead of the requested ones. It returns false when
// ctx ends.
func (d *Feeder) room(ctx context.Context, step int) bool {
	for {
		d.mu.Lock()
		limit := d.requested + d.feed.Instances
		d.mu.Unlock()
		if step <= limit {
			return true
		}
		select {
		case <-d.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// compute computes a batch. An error of a hook is a *BatchError.
func (d *Feeder) compute(ctx context.Context, p Position) (r result) {
	b, err := d.feed.Read(p)
	if err != nil {
		return result{err: err}
	}
	r.states = make([][]byte, len(d.hooks))
	for i, h := range d.hooks {
		if r.states[i], err = h.apply(ctx, p, b); err != nil {
			return result{err: &BatchError{h, err}}
		}
	}
	r.batch = d.feed.Finish(p, b)
	return r
}

// deliver makes a step's batch available.
func (d *Feeder) deliver(b engine.Batch, after cursor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.slot(after.Step - 1)
	s.batch = b
	close(s.ready)
	d.after[after.Step] = after
}

// BatchError is a hook's error on a batch.
type BatchError struct {
	hook *batchHook
	err  error
}

func (e *BatchError) Error() string { return e.err.Error() }
func (e *BatchError) Unwrap() error { return e.err }
