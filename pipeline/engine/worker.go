package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/stage"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// worker carries out one line's part of a segment: batches between two moments at which the pipeline is empty. Its loop
// enqueues what the machine says and never waits for the device, unless an optimizer has yet to begin: then other lines are not kept waiting,
// since the inbox holds all that they may send meanwhile. A second goroutine waits for what was enqueued, in order.
type worker struct {
	*rank
	seg      *segment
	machine  *stage.Machine
	inbox    chan event
	flights  chan flight
	payloads map[stage.Message]payload
	data     batch     // fed last
	votes    []float32 // of the batch that votes now, as far as they have arrived
	// For the trace:
	done time.Time // when the device finished its last run; at first, when the segment began
	sent time.Time // when what was sent last had reached the host
}

func newWorker(l *rank, seg *segment, m *stage.Machine) *worker {
	// No more than these are ever under way: what a machine is sent is bounded by its slots, what it enqueues by its depth.
	most := 64 + 8*(l.slots*l.e.Chunks+len(l.e.ranks)+l.e.Depth)
	w := &worker{rank: l, seg: seg, machine: m, inbox: make(chan event, most), flights: make(chan flight, most),
		payloads: map[stage.Message]payload{}, done: time.Now()}
	if l.optimizer != nil {
		w.votes = make([]float32, len(l.e.Model.Parameters())+1)
	}
	return w
}

// batch is the data of one.
type batch struct {
	number int
	Batch
}

// payload is what a message carries: its tensors' bytes, or a block that holds them.
type payload struct {
	bytes [][]byte
	block *block
	sent  time.Time // when its event on the sender's track began
}

// event reaches a worker from another line, or from its own device: a message, or the end of a run.
type event struct {
	message  stage.Message
	payload  payload
	finished *schedule.Action
}

// flight is something enqueued on the device for an action: reads, and what to do when they have arrived.
type flight struct {
	action schedule.Action
	reads  []device.Pending
	landed func([][]byte)
}

// operate works until the segment is done or has failed, and what was enqueued has come to its end.
func (w *worker) operate() {
	var landing sync.WaitGroup
	landing.Go(w.land)
	if err := w.run(w.seg.ctx); err != nil {
		w.seg.fail(err)
	}
	close(w.flights)
	landing.Wait()
	w.machine.Close()
}

// run works until the segment is done.
func (w *worker) run(ctx context.Context) error {
	limited := w.seg.gate.limited
	for {
		if err := w.advance(); err != nil {
			return err
		}
		if w.machine.Done() {
			return nil
		}
		select {
		case e := <-w.inbox:
			if err := w.take(e); err != nil {
				return err
			}
		case <-limited:
			limited = nil
			end, _ := w.seg.gate.end()
			w.machine.Limit(end)
		case <-ctx.Done():
			return nil // another line has failed
		}
	}
}

// advance carries out all that can be done now.
func (w *worker) advance() error {
	for w.seg.ctx.Err() == nil {
		if batch, wants := w.machine.WantsBatch(); wants && w.seg.begin(batch) {
			w.machine.Allow(batch)
		}
		effects := w.machine.Next()
		if len(effects) == 0 {
			return nil
		}
		for _, e := range effects {
			if err := w.carry(e); err != nil {
				return w.failed(e.Action, err)
			}
		}
	}
	return nil
}

// failed says where what went wrong.
func (w *worker) failed(a schedule.Action, err error) error {
	return w.fault(fmt.Errorf("%v: %w", a, err))
}

// take hands an event to the machine.
func (w *worker) take(e event) error {
	if e.finished != nil {
		return w.machine.Finished(*e.finished)
	}
	w.payloads[e.message] = e.payload
	return w.machine.Received(e.message)
}

// post hands an event to a line, unless the segment has failed.
func (w *worker) post(line int, e event) {
	select {
	case w.seg.workers[line].inbox <- e:
	case <-w.seg.ctx.Done():
	}
}

// land waits for what was enqueued, in order, until the worker enqueues no more. When the segment has failed nobody wants to
// know any more.
func (w *worker) land() {
	for f := range w.flights {
		var data [][]byte
		for _, p := range f.reads {
			if w.seg.ctx.Err() != nil {
				break
			}
			b, err := p.Wait()
			if err != nil {
				w.seg.fail(w.failed(f.action, err))
			}
			data = append(data, b)
		}
		if w.seg.ctx.Err() == nil {
			f.landed(data)
		}
	}
}
