package engine

import (
	"encoding/binary"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// launch enqueues the program of an action.
func (w *worker) launch(e stage.Effect) error {
	at := exec.Binding{weightsClass: e.Place.Weights, gradientsClass: e.Place.Gradients, slotClass: e.Place.Slot, scaleClass: e.Place.Scale}
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
	// The first virtual stage has no input gradient.
	if e.Action.Kind != schedule.InputGrad || w.rank.runs[name] {
		if err := w.runProgram(e.Action, name, at); err != nil {
			return err
		}
	}
	if err := w.measure(e.Action, name); err != nil {
		return err
	}
	return w.mark(e.Action, began)
}

// prepareUpdate uploads the inputs of the update of a batch, its hyperparameters and the norms of all ranks, and names
// its program.
func (w *worker) prepareUpdate(batch int) (program string, err error) {
	r, o := w.rank, w.rank.engine.options.Optimizer
	if len(r.engine.owners) > 1 {
		if err := r.session.WriteAt(optim.NormSquaresVariable, nil, exec.F32Bytes(w.normSquares)); err != nil {
			return "", err
		}
		clear(w.normSquares)
	}
	initialized, err := r.isInitialized(batch)
	if err != nil {
		return "", err
	}
	program = updateName(o.Variant(batch, initialized))
	if len(r.optimizer.Params()) == 0 { // a rank without parameters checks only the loss
		return program, nil
	}
	return program, r.session.SetInput(program, optim.HyperparametersInput,
		exec.F32Bytes(w.segment.task.hyperparameters(batch, initialized)))
}

// measure enqueues the reads of the results of a run that belong to its batch: losses and routing, and the norm and the
// status of an update.
func (w *worker) measure(a schedule.Action, program string) error {
	engine, report := w.rank.engine, w.segment.report
	microbatch := w.rank.replica()*w.segment.task.microbatches + a.Microbatch
	if a.Kind == schedule.Forward && len(engine.options.Model.Routing(w.rank.units(a.Chunk))) > 0 {
		err := w.readOutputs(a, program, []string{model.RoutingOutput}, func(data [][]byte) {
			report(Result{Batch: a.Batch, Microbatch: microbatch, Routing: exec.ToF32(data[0]), VirtualStage: w.rank.virtualStage(a.Chunk)})
		})
		if err != nil {
			return err
		}
	}
	last := w.rank.virtualStage(a.Chunk) == engine.options.Layout.virtualStages()-1
	var name string
	switch {
	case a.Kind == schedule.Forward && last:
		name = model.LossOutput
	case a.Kind == schedule.Evaluate && last:
		name = model.LossesOutput
	case a.Kind == schedule.Update && w.rank.index == engine.owners[0]:
		names := []string{optim.NormOutput, optim.StatusOutput}
		if engine.options.Optimizer.Scaled() {
			names = append(names, optim.ScaleOutput)
		}
		return w.readOutputs(a, program, names, func(data [][]byte) {
			u := Result{Batch: a.Batch, Norm: firstF32(data[0]), Status: binary.LittleEndian.Uint32(data[1])}
			if len(data) > 2 {
				u.Scale = firstF32(data[2])
			}
			report(u)
		})
	default:
		return nil
	}
	return w.readOutputs(a, program, []string{name}, func(data [][]byte) {
		report(Result{Batch: a.Batch, Microbatch: microbatch, Losses: exec.ToF32(data[0])})
	})
}

func firstF32(data []byte) float64 { return float64(exec.ToF32(data)[0]) }

// readOutputs enqueues reads of some outputs of a program.
func (w *worker) readOutputs(a schedule.Action, program string, names []string, done func([][]byte)) error {
	var reads []device.Pending
	for _, name := range names {
		p, err := w.rank.session.Output(program, name)
		if err != nil {
			return err
		}
		reads = append(reads, p)
	}
	w.operations.add(a, reads, done)
	return nil
}
