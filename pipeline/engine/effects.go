package engine

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/stage"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// carry does what the machine says.
func (w *worker) carry(e stage.Effect) error {
	switch e.Kind {
	case stage.Feed:
		return w.feed(e)
	case stage.Store:
		return w.store(e)
	case stage.Run:
		return w.launch(e)
	case stage.Send:
		return w.send(e)
	}
	return nil
}

// feed uploads what a part reads of a microbatch's data.
func (w *worker) feed(e stage.Effect) error {
	a := e.Action
	if w.data.number != a.Batch || w.data.Batch == nil {
		b, err := w.seg.task.source.Batch(int64(a.Batch))
		if err != nil {
			return err
		}
		w.data = batch{a.Batch, b}
	}
	slot := exec.Binding{slotClass: e.Place.Slot}
	for _, v := range w.reads[a.Chunk] {
		if w.seg.task.evaluates && v.ID != model.TokensInput && v.ID != model.TargetsInput {
			continue
		}
		data, err := w.share(v, a.Microbatch)
		if err == nil {
			err = w.session.WriteAt(chunkVariable(v.ID, a.Chunk), slot, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// share is a microbatch's part of a variable's data.
func (w *worker) share(v graph.Named, microbatch int) ([]byte, error) {
	task, size, all := w.seg.task, int(v.Type.Bytes()), w.data.Batch[v.ID]
	if n := task.replicas * task.microbatches; len(all) != n*size {
		return nil, fmt.Errorf("the data of batch %d have %d bytes of %q, expected %d: %v for each of %d microbatches",
			w.data.number, len(all), v.ID, n*size, v.Type, n)
	}
	at := (w.replica*task.microbatches + microbatch) * size
	return all[at : at+size], nil
}

// store uses what has arrived.
func (w *worker) store(e stage.Effect) error {
	m := e.Message
	data, ok := w.payloads[m]
	if !ok {
		panic(fmt.Sprintf("engine: %v was never sent", m))
	}
	delete(w.payloads, m)
	defer w.traceReceive(m, data.sent, time.Now())
	if m.Kind == stage.NormSquares {
		w.scatter(m.From, data.bytes[0])
		return nil
	}
	if data.block != nil {
		return w.unload(e, data.block)
	}
	for i, t := range w.receives(e) {
		if err := w.session.WriteAt(t.name, t.at, data.bytes[i]); err != nil {
			return err
		}
	}
	return nil
}

// scatter puts a line's votes where the whole model's have them.
func (w *worker) scatter(from int, data []byte) {
	own := exec.ToF32(data)
	for i, at := range w.e.ranks[from].optimizer.Positions() {
		w.votes[at] = own[i]
	}
}

// launch enqueues a program.
func (w *worker) launch(e stage.Effect) error {
	at := exec.Binding{weightsClass: e.Place.Weights, gradientsClass: e.Place.Gradients, slotClass: e.Place.Slot}
	name := chunkProgram(e.Action.Kind, e.Action.Chunk, e.First)
	began := time.Now()
	switch e.Action.Kind {
	case schedule.GradNorm:
		name = normsProgram
	case schedule.Update:
		var err error
		if name, err = w.prepareUpdate(e.Action.Batch); err != nil {
			return err
		}
	}
	// The first part has no input gradient.
	if e.Action.Kind != schedule.InputGrad || w.runs[name] {
		if err := w.runProgram(e.Action, name, at); err != nil {
			return err
		}
	}
	if err := w.measure(e.Action, name); err != nil {
		return err
	}
	return w.mark(e.Action, began)
}

// prepareUpdate uploads what the update of a batch is told, its rates and the votes of all lines, and names its program.
func (w *worker) prepareUpdate(batch int) (program string, err error) {
	if len(w.e.owners) > 1 {
		if err := w.session.WriteAt(optim.NormSquaresVariable, nil, exec.F32Bytes(w.votes)); err != nil {
			return "", err
		}
		clear(w.votes)
	}
	begun, err := w.hasBegun(batch)
	if err != nil {
		return "", err
	}
	program = updateName(w.e.Optimizer.Variant(batch, begun))
	if len(w.optimizer.Params()) == 0 { // it has but the loss to vote on, and reads no rates
		return program, nil
	}
	return program, w.session.SetInput(program, optim.HyperparametersInput, exec.F32Bytes(w.e.Optimizer.Hyperparameters(batch, begun).Float32s()))
}

// hasBegun tells whether an update was applied before a batch's. Where only the device knows, it is waited for until one was.
func (l *rank) hasBegun(batch int) (bool, error) {
	if !l.e.Optimizer.TracksInitialization() {
		return batch > 0, nil
	}
	if l.begun {
		return true, nil
	}
	p, err := l.session.ReadAt(optim.InitializedVariable, nil)
	if err != nil {
		return false, err
	}
	data, err := p.Wait()
	if err != nil {
		return false, err
	}
	l.begun = binary.LittleEndian.Uint32(data) != 0
	return l.begun, nil
}

// measure enqueues the reads of what a run tells about its batch.
func (w *worker) measure(a schedule.Action, program string) error {
	last := a.Chunk*w.e.Stages+w.stage == w.e.virtualStages()-1
	var name string
	switch {
	case a.Kind == schedule.Forward && last:
		name = model.LossOutput
	case a.Kind == schedule.Evaluate && last:
		name = model.LossesOutput
	case a.Kind == schedule.Update && w.index == w.e.owners[0]:
		outputs := []output{{program, optim.NormOutput}, {program, optim.RefusedOutput}}
		if w.e.Optimizer.Scaled() {
			outputs = append(outputs, output{program, optim.ScaleOutput})
		}
		return w.read(a, func(data [][]byte) {
			v := updateResult{norm: first(data[0]), status: binary.LittleEndian.Uint32(data[1])}
			if len(data) > 2 {
				v.scale = first(data[2])
			}
			w.seg.results.update(w.seg.ctx, a.Batch, v)
		}, outputs...)
	default:
		return nil
	}
	return w.read(a, func(data [][]byte) {
		w.seg.results.losses(w.seg.ctx, a.Batch, w.replica*w.seg.task.microbatches+a.Microbatch, exec.ToF32(data[0]))
	}, output{program, name})
}

// first is the first of some f32.
func first(data []byte) float64 { return float64(exec.ToF32(data)[0]) }

// output names an output of a program.
type output struct{ program, output string }

func (w *worker) read(a schedule.Action, landed func([][]byte), outputs ...output) error {
	f := flight{action: a, landed: landed}
	for _, o := range outputs {
		p, err := w.session.Output(o.program, o.output)
		if err != nil {
			return err
		}
		f.reads = append(f.reads, p)
	}
	w.flights <- f
	return nil
}

// mark has the worker told when the runs so far have finished.
func (w *worker) mark(a schedule.Action, enqueued time.Time) error {
	p, err := w.session.Mark()
	if err != nil {
		return err
	}
	w.flights <- flight{a, []device.Pending{p}, func([][]byte) {
		w.traceRun(a, enqueued)
		w.post(w.index, event{finished: &a})
	}}
	return nil
}

// send reads what a message carries; it leaves when it has arrived on the host.
func (w *worker) send(e stage.Effect) error {
	m, to := e.Message, []int{e.To}
	if m.Kind == stage.NormSquares {
		to = w.e.owners
	}
	began := time.Now()
	block := w.e.routes[way{m.Kind, m.VirtualStage, m.From, e.To}].take()
	reads, err := w.fetch(w.sends(e), block)
	if err != nil {
		return err
	}
	w.flights <- flight{e.Action, reads, func(data [][]byte) {
		sent := w.traceSend(m, began)
		for _, line := range to {
			w.post(line, event{message: m, payload: payload{data, block, sent}})
		}
	}}
	return nil
}

// tensor is one of a line's variables.
type tensor struct {
	name string
	at   exec.Binding
}

func tensors(names []string, at exec.Binding) (ts []tensor) {
	for _, name := range names {
		ts = append(ts, tensor{name, at})
	}
	return ts
}

// sends lists what a message carries, as the sender has it: activations, gradients, votes, the gradients of copies for their owner, or
// updated weights for copies.
func (w *worker) sends(e stage.Effect) []tensor {
	switch e.Message.Kind {
	case stage.Activation:
		return tensors([]string{chunkVariable(model.ActOut, e.Action.Chunk)}, nil)
	case stage.Gradient:
		return tensors([]string{chunkVariable(model.GradIn, e.Action.Chunk)}, nil)
	case stage.NormSquares:
		return tensors([]string{w.optimizer.LocalVariable()}, nil)
	case stage.Contribution:
		return tensors(w.e.exchange(w.index, e.To).gradients, exec.Binding{gradientsClass: e.Place.Gradients})
	}
	return tensors(w.e.exchange(e.To, w.index).params, exec.Binding{weightsClass: e.Place.Weights})
}

// receives lists where a message belongs, in the same order.
func (w *worker) receives(e stage.Effect) []tensor {
	m := e.Message
	chunk, slot := m.VirtualStage/w.e.Stages, exec.Binding{slotClass: e.Place.Slot}
	switch m.Kind {
	case stage.Activation:
		return tensors([]string{chunkVariable(model.ActIn, chunk)}, slot)
	case stage.Gradient:
		return tensors([]string{chunkVariable(model.GradOut, chunk)}, slot)
	case stage.Contribution:
		return tensors(w.e.exchange(m.From, w.index).as, nil)
	}
	return tensors(w.e.exchange(w.index, m.From).params, exec.Binding{weightsClass: e.Place.Weights})
}

func bytesOfI32(x []int32) []byte {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	return b
}
