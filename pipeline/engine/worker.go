package engine

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// worker drives the stage machine of one rank through a segment. Its loop enqueues what the machine asks for and does
// not wait for the device, except for the initialization of an optimizer; the other ranks do not wait then, because
// events holds all that they may send. A second goroutine completes the operations in flight.
type worker struct {
	rank            *rank
	segment         *segment
	machine         *stage.Machine
	events          chan event
	operations      operationQueue
	received        map[stage.Message]*transfer // whose Store effect is still to come
	firstUnfinished atomic.Int64                // batch
	feeder          feeder
	timeline        timeline
	normSquares     []float32 // of all parameters and the loss, as far as they are received
}

// event reaches a worker from another rank or from its own device: a transfer that is in flight, the end of a run, or
// permission to begin further batches.
type event struct {
	transfer *transfer
	granted  bool
	finished schedule.Action // if it is neither
}

func newWorker(r *rank, seg *segment, m *stage.Machine) *worker {
	e := r.engine
	// More are never in flight: the messages to a machine are bounded by the slots of its rank and of the one before,
	// its operations by the depth of its queue.
	slots := slices.MaxFunc(e.ranks, func(a, b *rank) int { return cmp.Compare(a.slots, b.slots) }).slots
	most := 64 + 8*(slots*e.options.Layout.Chunks+len(e.ranks)+e.options.QueueDepth)
	w := &worker{rank: r, segment: seg, machine: m, events: make(chan event, most), operations: make(operationQueue, most),
		received: map[stage.Message]*transfer{}, feeder: feeder{work: &seg.task, inputs: e.options.Inputs, replica: r.replica()},
		timeline: newTimeline(e.tracer, r.name())}
	w.firstUnfinished.Store(int64(seg.gate.begun + 1))
	if r.optimizer != nil {
		w.normSquares = make([]float32, len(e.options.Model.Parameters())+1)
	}
	return w
}

// work works until the segment is done or has failed and all operations have ended.
func (w *worker) work() {
	var completing sync.WaitGroup
	completing.Go(func() {
		w.operations.complete(w.segment.failure, w.fault)
	})
	if err := w.run(); err != nil {
		w.segment.failure.set(err)
	}
	close(w.operations)
	completing.Wait()
	w.machine.Close()
}

// run is the driver loop of package stage.
func (w *worker) run() error {
	limited := w.segment.gate.limited
	for {
		if err := w.advance(); err != nil {
			return err
		}
		if w.machine.Done() {
			return nil
		}
		select {
		case e := <-w.events:
			if err := w.handle(e); err != nil {
				return err
			}
		case <-limited:
			limited = nil
			end, _ := w.segment.gate.end()
			w.machine.Limit(end)
		case <-w.segment.failure.occurred:
			return nil // another rank has failed
		}
	}
}

// advance executes effects until the machine waits for an event.
func (w *worker) advance() error {
	for w.segment.failure.get() == nil {
		if batch, wants := w.machine.WantsBatch(); wants && w.segment.begin(batch) {
			w.machine.Allow(batch)
		}
		effects := w.machine.Next()
		if len(effects) == 0 {
			return nil
		}
		for _, e := range effects {
			if err := w.execute(e); err != nil {
				return w.fault(e.Action, err)
			}
		}
	}
	return nil
}

// fault is an error of an action on the worker's rank.
func (w *worker) fault(a schedule.Action, err error) error {
	return w.rank.fault(fmt.Errorf("%v: %w", a, err))
}

// handle reports an event to the machine.
func (w *worker) handle(e event) error {
	switch {
	case e.granted: // the machine still wants its batch
		return nil
	case e.transfer == nil:
		return w.machine.Finished(e.finished)
	}
	m := e.transfer.message
	if err := w.machine.Received(m); err != nil {
		return err
	}
	e.transfer.receive()
	e.transfer.wire = w.rank.engine.encoding(m, w.rank.index, w.segment.task.evaluates) // its sender may be in another process
	w.received[m] = e.transfer
	return nil
}

// execute carries out an effect.
func (w *worker) execute(e stage.Effect) error {
	switch e.Kind {
	case stage.Feed:
		return w.feed(e)
	case stage.Store:
		return w.store(e)
	case stage.Run:
		return w.launch(e)
	case stage.Send:
		return w.send(e)
	case stage.Ready:
		w.firstUnfinished.Store(int64(e.Action.Batch + 1))
	}
	return nil
}

// send starts the transfer of a message. When its payload has left the device, the transfer is handed to its receivers.
func (w *worker) send(e stage.Effect) error {
	engine, m, to := w.rank.engine, e.Message, []int{e.To}
	if m.Kind == stage.NormSquares {
		to = engine.owners
	}
	began := time.Now()
	t := newTransfer(m, engine.channels.all[channelKey{m.Kind, m.VirtualStage, m.From, e.To}],
		engine.encoding(m, e.To, w.segment.task.evaluates))
	reads, err := t.read(w.rank.port(), w.rank.sent(e))
	if err != nil {
		return err
	}
	w.operations.add(e.Action, reads, func(payload [][]byte) {
		t.depart(payload)
		t.began = w.timeline.send(m, t.payload, began)
		for _, rank := range to {
			w.segment.deliver(engine.options.Remote, rank, t)
		}
	})
	return nil
}

// store writes the payload of a received message to the device, or keeps norms on the host.
func (w *worker) store(e stage.Effect) error {
	t, ok := w.received[e.Message]
	if !ok {
		panic(fmt.Sprintf("engine: %v was not received", e.Message))
	}
	delete(w.received, e.Message)
	from := w.rank.engine.ranks[e.Message.From]
	defer w.timeline.receive(e.Message, from.name(), t.began, time.Now())
	if e.Message.Kind == stage.NormSquares {
		w.gatherNorms(from, t)
		return nil
	}
	writes, err := t.write(w.rank.port(), w.rank.stored(e))
	if err != nil {
		return err
	}
	if len(writes) == 0 {
		t.complete()
		return nil
	}
	w.operations.add(e.Action, writes, func([][]byte) { t.complete() })
	return nil
}

// gatherNorms puts the norms of a rank's gradients at the positions of its parameters in the model.
func (w *worker) gatherNorms(from *rank, t *transfer) {
	own := exec.ToF32(t.consume())
	for i, at := range from.optimizer.Positions() {
		w.normSquares[at] = own[i]
	}
}

// feed uploads the microbatch's data that a chunk reads.
func (w *worker) feed(e stage.Effect) error {
	a, slot := e.Action, exec.Binding{slotClass: e.Place.Slot}
	for _, v := range w.rank.reads[a.Chunk] {
		data, err := w.feeder.data(a.Batch, a.Microbatch, v)
		if err != nil {
			return err
		}
		if data == nil {
			continue
		}
		if err := w.rank.session.WriteAt(chunkVariable(v.ID, a.Chunk), slot, data); err != nil {
			return err
		}
	}
	return nil
}

// mark enqueues the event that the runs so far have finished.
func (w *worker) mark(a schedule.Action, enqueued time.Time) error {
	p, err := w.rank.session.Mark()
	if err != nil {
		return err
	}
	w.operations.add(a, []device.Pending{p}, func([][]byte) {
		w.timeline.run(a, enqueued)
		w.segment.post(w.rank.index, event{finished: a})
	})
	return nil
}
