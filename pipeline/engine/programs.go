package engine

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// The classes of a rank's buffers. Each run binds one buffer of each class.
const (
	weightsClass   = "weights"   // versions of the parameters
	gradientsClass = "gradients" // in the same pools, see stage.Roles
	slotClass      = "slot"      // data of one microbatch in flight
	scaleClass     = "scale"     // the loss scale that is kept with a version of the parameters
)

// batchScale is the name, in the backward of the loss, of optim.ScaleVariable: all microbatches of a batch have the
// loss scale of its stale ones, whichever weights they read.
const batchScale = "batch/loss_scale"

// The programs of a rank besides the programs of its model chunks.
const (
	normsProgram  = "norms"
	updateProgram = "update"
)

// chunkProgram names the program of an action: "F", "B", "B+" for all microbatches but the first, "I", "W", "W+", "E".
func chunkProgram(kind schedule.Kind, chunk int, first bool) string {
	name := kind.String()
	if !first && (kind == schedule.Backward || kind == schedule.WeightGrad) {
		name += "+"
	}
	if chunk > 0 {
		name = fmt.Sprintf("%s:%d", name, chunk)
	}
	return name
}

func updateName(variant int) string {
	if variant == 0 {
		return updateProgram
	}
	return fmt.Sprintf("%s/%d", updateProgram, variant)
}

// programs are the graphs of a rank and the pools in which their variables share memory.
type programs struct {
	graphs map[string]*graph.Graph
	pools  map[string]exec.Pool
}

// buildPrograms builds the programs of the rank.
func (r *rank) buildPrograms() (programs, error) {
	p := programs{graphs: map[string]*graph.Graph{}, pools: map[string]exec.Pool{}}
	o := r.engine.options
	for chunk := range o.Layout.Chunks {
		if err := p.addChunk(r, chunk); err != nil {
			return p, err
		}
	}
	versions := 2 + o.Layout.Delay // of buffers: weights and gradients
	for _, h := range r.holdings {
		p.pools[h.param] = exec.Pool{Name: h.param, Class: weightsClass, Size: versions}
		p.pools[h.gradients[0]] = exec.Pool{Name: h.param, Class: gradientsClass, Size: versions}
		if o.Layout.Delay > 0 && o.Layout.Replicas > 1 && h.owner == r.index {
			// An update that waits for the other replicas reads gradients that the next batch's backward would
			// overwrite.
			for _, g := range h.gradients[1:] {
				p.pools[g] = exec.Pool{Name: g, Class: gradientsClass, Size: versions}
			}
		}
	}
	p.pools[model.LossVariable] = exec.Pool{Name: model.LossVariable, Class: gradientsClass, Size: versions}
	p.pools[optim.ScaleVariable] = exec.Pool{Name: optim.ScaleVariable, Class: weightsClass, Size: versions}
	p.pools[batchScale] = exec.Pool{Name: optim.ScaleVariable, Class: scaleClass, Size: versions}
	p.pools[optim.NextScaleVariable] = exec.Pool{Name: optim.ScaleVariable, Class: gradientsClass, Size: versions}
	if r.optimizer == nil {
		return p, nil
	}
	var err error
	if p.graphs[normsProgram], err = r.optimizer.NormSquares(); err != nil {
		return p, err
	}
	for v := range o.Optimizer.Variants() {
		if p.graphs[updateName(v)], err = r.optimizer.Update(v); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p programs) addChunk(r *rank, chunk int) error {
	o := r.engine.options
	first, last := r.units(chunk)
	s, err := o.Model.Stage(model.StageOptions{First: first, Last: last, Batch: o.MicrobatchSize,
		Microbatches: o.Microbatches * o.Layout.Replicas, Recompute: o.Layout.recompute(r.stage()), Loss: o.Loss, Inputs: o.Inputs,
		Scale: o.scale()})
	if err != nil {
		return err
	}
	r.reads = append(r.reads, o.readBy(s))
	kept := []string{model.ActIn}
	for _, v := range r.reads[chunk] {
		kept = append(kept, v.ID)
	}
	for _, v := range s.Stash {
		kept = append(kept, v.ID)
	}
	between := []string{model.GradOut} // the weight gradients read it too
	for _, v := range s.WeightStash {
		between = append(between, v.ID)
	}
	transient := []string{model.ActOut, model.GradIn} // used between a run and the transfer next to it
	if r.engine.backwards.postponed {
		kept = append(kept, between...)
	} else {
		transient = append(transient, between...)
	}
	add := func(kind schedule.Kind, first bool, g *graph.Graph) {
		if g != nil {
			r.rename(p, g, chunk, kept, transient)
			p.graphs[chunkProgram(kind, chunk, first)] = g
		}
	}
	add(schedule.Forward, true, s.Forward)
	add(schedule.Evaluate, true, s.Eval)
	if r.engine.backwards.split {
		add(schedule.InputGrad, true, s.InputGrad)
		add(schedule.WeightGrad, true, s.WeightGrad)
		add(schedule.WeightGrad, false, s.WeightGradNext)
	}
	if r.engine.backwards.whole {
		add(schedule.Backward, true, s.Backward)
		add(schedule.Backward, false, s.BackwardNext)
	}
	return nil
}

// scale is the variable of the loss scale in the backwards of losses; none without a loss scale.
func (o Options) scale() graph.Named {
	s := o.Optimizer.Scaling()
	if s == nil {
		return graph.Named{}
	}
	return graph.Named{ID: batchScale, Type: s.Type()}
}

// readBy lists the variables of a microbatch's data that the programs of a virtual stage read.
func (o Options) readBy(s *model.Stage) []graph.Named {
	read := map[string]bool{}
	for _, g := range []*graph.Graph{s.Forward, s.Backward, s.Eval} {
		for _, v := range g.Sources("variable") {
			read[v.Node.Op.(graph.Source).Label()] = true
		}
	}
	return slices.DeleteFunc(o.Model.Variables(o.Inputs, o.MicrobatchSize), func(v graph.Named) bool { return !read[v.ID] })
}

// rename gives the variables of a chunk names of their own on the rank. Variables that are kept from a microbatch's
// forward to its backward have a pool with a buffer for each microbatch in flight.
func (r *rank) rename(p programs, g *graph.Graph, chunk int, kept, transient []string) {
	for _, v := range g.Sources("variable") {
		op := v.Node.Op.(*graph.Variable)
		id := chunkVariable(op.ID, chunk)
		switch {
		case slices.Contains(kept, op.ID):
			p.pools[id] = exec.Pool{Name: id, Class: slotClass, Size: r.slots}
			op.ID = id
		case slices.Contains(transient, op.ID):
			op.ID = id
		}
	}
}

// chunkVariable is the name on a rank of a variable that each chunk has for itself.
func chunkVariable(name string, chunk int) string {
	if chunk == 0 {
		return name
	}
	return fmt.Sprintf("chunk%d/%s", chunk, name)
}
