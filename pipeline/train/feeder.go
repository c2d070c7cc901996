package train

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

// place is where a run is in its data: the step that comes next and the batch that it takes, which is later by those left out.
type place struct {
	step  int
	batch int64
}

// standing is a place, and the states in which hooks come to it.
type standing struct {
	place
	states [][]byte // of each batch hook; nil: of one that keeps none, or has not been called
}

// feeder computes batches ahead of the devices, several at a time, and hands them out in order. It is an engine.Source and Preparer.
//
// A batch that may be left out is, and the next one takes its place: what was computed for later steps is thrown away then, since
// those batches move up. So nothing depends on how far ahead it is.
type feeder struct {
	feed
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // a batch was asked for
	ended  chan struct{} // closed when it computes no more
	err    error         // then: why, nil after the last step

	mu    sync.Mutex
	asked int // the first step that nobody has asked for
	slots map[int]*slot
	after map[int]standing // how things stood after so many steps
}

// feed is what a feeder computes, and how.
type feed struct {
	first     standing
	steps     int // of the run
	instances int // that work at a time
	hooks     []*batchHook
	// begin brings the data for a place, and end makes what the engine takes of what hooks have made of it.
	begin func(p place) (*hook.Batch, error)
	end   func(b *hook.Batch) engine.Batch
	note  func(format string, args ...any) // of batches that are left out
	trace *trace.Writer
}

// slot is a step's batch.
type slot struct {
	ready chan struct{} // closed when it is there
	batch engine.Batch
	asked bool
}

// newFeeder begins at once.
func newFeeder(f feed) *feeder {
	d := &feeder{feed: f, wake: make(chan struct{}, 1), ended: make(chan struct{}), asked: f.first.step, slots: map[int]*slot{},
		after: map[int]standing{f.first.step: f.first}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	go d.run()
	return d
}

var errClosed = errors.New("the run has ended")

// close ends what is being computed, and waits for it.
func (d *feeder) close() {
	if d == nil {
		return
	}
	d.cancel()
	<-d.ended
	for _, h := range d.hooks {
		h.instances.Close()
	}
}

// Batch is the batch of a step, which is waited for.
func (d *feeder) Batch(step int64) (engine.Batch, error) {
	return d.await(context.Background(), int(step))
}

// Prepare waits for the batch of a step.
func (d *feeder) Prepare(step int64) error {
	if d == nil {
		return nil
	}
	_, err := d.Batch(step)
	return err
}

func (d *feeder) await(ctx context.Context, step int) (engine.Batch, error) {
	s, first := d.ask(step)
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
	case <-d.ended:
		select {
		case <-s.ready: // both
		default:
			return nil, usererror.New(d.err)
		}
	}
	if first && d.trace != nil {
		d.trace.Complete(trace.DataTrack, trace.Data, fmt.Sprintf("batch %d", step), began, time.Since(began), map[string]any{"batch": step})
	}
	return s.batch, nil
}

// ask finds a step's slot, and tells whether nobody has asked for it before.
func (d *feeder) ask(step int) (s *slot, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s = d.slot(step)
	first, s.asked = !s.asked, true
	if step >= d.asked {
		d.asked = step + 1
		select {
		case d.wake <- struct{}{}:
		default: // it has yet to see that it was woken
		}
	}
	return s, first
}

func (d *feeder) slot(step int) *slot {
	s := d.slots[step]
	if s == nil {
		s = &slot{ready: make(chan struct{})}
		d.slots[step] = s
	}
	return s
}

// release forgets the batches of the first steps, which are done with, and how things stood before they were.
func (d *feeder) release(done int) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.slots, func(step int, _ *slot) bool { return step < done })
	maps.DeleteFunc(d.after, func(step int, _ standing) bool { return step < done })
}

// stood is the batch that comes next after so many steps, all of which were handed out and the last of which was not released
// before, and the states of hooks that keep something.
func (d *feeder) stood(after int) (next int64, states map[*loadedHook][]byte) {
	if d == nil {
		return int64(after), nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.after[after]
	states = map[*loadedHook][]byte{}
	for i, h := range d.hooks {
		states[h.loadedHook] = s.states[i]
	}
	return s.batch, states
}

// run computes batches until there are no more, one may not be left out, or the run ends.
func (d *feeder) run() {
	defer close(d.ended)
	at, inARow := d.first, 0
	for {
		last := at
		at, d.err = d.stretch(at)
		var s *stumble
		if d.err == nil || !errors.As(d.err, &s) || s.hook.config.OnError != config.Skip || !inCall(s) {
			return
		}
		if at.step > last.step {
			inARow = 0
		}
		if inARow++; inARow > mostSkipped {
			d.err = fmt.Errorf("%d batches in a row were left out, and the next one cannot be used either: %w", mostSkipped, d.err)
			return
		}
		d.note("batch %d is left out: %v", at.batch, s.err)
		at.batch++
	}
}

// stretch computes batches up to one that fails, and returns how things stood before that.
func (d *feeder) stretch(at standing) (standing, error) {
	for i, h := range d.hooks {
		h.begin(at.step, at.states[i])
	}
	var working sync.WaitGroup
	defer working.Wait()
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	queue := make(chan job, d.instances) // in the order of the steps
	working.Go(func() {
		defer close(queue)
		d.dispatch(ctx, at.place, queue, &working)
	})
	for j := range queue {
		m := <-j.made
		if ctx.Err() != nil {
			break
		}
		if m.err != nil {
			return at, m.err
		}
		at = standing{place{j.step + 1, j.batch + 1}, m.states}
		d.deliver(m.batch, at)
	}
	if d.ctx.Err() != nil {
		return at, errClosed
	}
	return at, nil
}

// job is a batch being computed.
type job struct {
	place
	made chan made // has room for it
}

type made struct {
	batch  engine.Batch
	states [][]byte // of the hooks, after it
	err    error
}

// dispatch has batches computed from a place on, as many at a time as there are instances, as far ahead as is allowed.
func (d *feeder) dispatch(ctx context.Context, at place, queue chan<- job, working *sync.WaitGroup) {
	instances := make(chan struct{}, d.instances)
	for ; at.step < d.steps && d.room(ctx, at.step); at = (place{at.step + 1, at.batch + 1}) {
		select {
		case instances <- struct{}{}:
		case <-ctx.Done():
			return
		}
		j := job{at, make(chan made, 1)}
		working.Go(func() {
			j.made <- d.make(ctx, j.place)
			<-instances
		})
		select {
		case queue <- j:
		case <-ctx.Done():
			return
		}
	}
}

// room waits until a step may be computed.
func (d *feeder) room(ctx context.Context, step int) bool {
	for {
		d.mu.Lock()
		most := d.asked + d.instances
		d.mu.Unlock()
		if step <= most {
			return true
		}
		select {
		case <-d.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// make computes a batch. What a hook does wrong is a *stumble.
func (d *feeder) make(ctx context.Context, p place) (m made) {
	b, err := d.begin(p)
	if err != nil {
		return made{err: err}
	}
	m.states = make([][]byte, len(d.hooks))
	for i, h := range d.hooks {
		if m.states[i], err = h.apply(ctx, p, b); err != nil {
			return made{err: &stumble{h, err}}
		}
	}
	m.batch = d.end(b)
	return m
}

// deliver hands out a step's batch.
func (d *feeder) deliver(b engine.Batch, after standing) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.slot(after.step - 1)
	s.batch = b
	close(s.ready)
	d.after[after.step] = after
}

// stumble is what a hook did wrong.
type stumble struct {
	hook *batchHook
	err  error
}

func (s *stumble) Error() string { return s.err.Error() }
func (s *stumble) Unwrap() error { return s.err }
