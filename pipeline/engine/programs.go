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

// The classes of a line's buffers: which of them a program works on is said at each run.
const (
	weightsClass   = "weights"   // versions of the parameters
	gradientsClass = "gradients" // the same pools: see stage.Roles
	slotClass      = "slot"      // what one microbatch in flight keeps
)

// The programs of a line besides those of its chunks.
const (
	normsProgram  = "votes"
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

// programs are the graphs of a line and how their variables share memory.
type programs struct {
	graphs map[string]*graph.Graph
	pools  map[string]exec.Pool
}

// buildPrograms makes what a line runs.
func (l *rank) buildPrograms() (programs, error) {
	p := programs{graphs: map[string]*graph.Graph{}, pools: map[string]exec.Pool{}}
	for chunk := range l.e.Chunks {
		if err := p.addChunk(l, chunk); err != nil {
			return p, err
		}
	}
	versions := 2 + l.e.Delay // of buffers: weights and gradients
	for _, h := range l.holdings {
		p.pools[h.param] = exec.Pool{Name: h.param, Class: weightsClass, Size: versions}
		p.pools[h.gradients[0]] = exec.Pool{Name: h.param, Class: gradientsClass, Size: versions}
		if l.e.Delay > 0 && l.e.Replicas > 1 && h.owner == l.index {
			// An update that waits for the other replicas reads what the next batch's backward pass would write over.
			for _, g := range h.gradients[1:] {
				p.pools[g] = exec.Pool{Name: g, Class: gradientsClass, Size: versions}
			}
		}
	}
	p.pools[model.LossVariable] = exec.Pool{Name: model.LossVariable, Class: gradientsClass, Size: versions}
	p.pools[optim.ScaleVariable] = exec.Pool{Name: optim.ScaleVariable, Class: weightsClass, Size: versions}
	p.pools[optim.NextScaleVariable] = exec.Pool{Name: optim.ScaleVariable, Class: gradientsClass, Size: versions}
	if l.optimizer == nil {
		return p, nil
	}
	var err error
	if p.graphs[normsProgram], err = l.optimizer.NormSquares(); err != nil {
		return p, err
	}
	for v := range l.e.Optimizer.Variants() {
		if p.graphs[updateName(v)], err = l.optimizer.Update(v); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p programs) addChunk(l *rank, chunk int) error {
	first, last := l.e.units(chunk*l.e.Stages+l.stage, l.e.Model)
	s, err := l.e.Model.Stage(model.StageOptions{First: first, Last: last, Batch: l.e.MicrobatchSize,
		Microbatches: l.e.Microbatches * l.e.Replicas, Recompute: l.e.recompute(l.stage), Loss: l.e.Loss, Inputs: l.e.Inputs, Scale: l.e.scale()})
	if err != nil {
		return err
	}
	l.reads = append(l.reads, l.e.readBy(s))
	kept := []string{model.ActIn}
	for _, v := range l.reads[chunk] {
		kept = append(kept, v.ID)
	}
	for _, v := range s.Stash {
		kept = append(kept, v.ID)
	}
	between := []string{model.GradOut} // what the second half of a backward reads too
	for _, v := range s.WeightStash {
		between = append(between, v.ID)
	}
	transient := []string{model.ActOut, model.GradIn} // used between a run and the transfer beside it
	if l.e.postponed {
		kept = append(kept, between...)
	} else {
		transient = append(transient, between...)
	}
	add := func(kind schedule.Kind, first bool, g *graph.Graph) {
		if g != nil {
			l.rename(p, g, chunk, kept, transient)
			p.graphs[chunkProgram(kind, chunk, first)] = g
		}
	}
	add(schedule.Forward, true, s.Forward)
	add(schedule.Evaluate, true, s.Eval)
	if l.e.split {
		add(schedule.InputGrad, true, s.InputGrad)
		add(schedule.WeightGrad, true, s.WeightGrad)
		add(schedule.WeightGrad, false, s.WeightGradNext)
	}
	if l.e.whole {
		add(schedule.Backward, true, s.Backward)
		add(schedule.Backward, false, s.BackwardNext)
	}
	return nil
}

// scale is the variable that the last part's backward pass finds the loss scale in; none without one.
func (o Options) scale() graph.Named {
	if !o.Optimizer.Scaled() {
		return graph.Named{}
	}
	return graph.Named{ID: optim.ScaleVariable, Type: o.Optimizer.ScaleType()}
}

// readBy lists the variables that a part's programs find a microbatch's data in.
func (e *Engine) readBy(s *model.Stage) []graph.Named {
	read := map[string]bool{}
	for _, g := range []*graph.Graph{s.Forward, s.Backward, s.Eval} {
		for _, v := range g.Sources("variable") {
			read[v.Node.Op.(graph.Source).Label()] = true
		}
	}
	return slices.DeleteFunc(e.Model.Variables(e.Inputs, e.MicrobatchSize), func(v graph.Named) bool { return !read[v.ID] })
}

// rename gives what a chunk has for itself a name of its own on the line. What is kept from a microbatch's forward to its
// backward has a pool, a buffer for each microbatch in flight.
func (l *rank) rename(p programs, g *graph.Graph, chunk int, kept, transient []string) {
	for _, v := range g.Sources("variable") {
		op := v.Node.Op.(*graph.Variable)
		id := chunkVariable(op.ID, chunk)
		switch {
		case slices.Contains(kept, op.ID):
			p.pools[id] = exec.Pool{Name: id, Class: slotClass, Size: l.slots}
			op.ID = id
		case slices.Contains(transient, op.ID):
			op.ID = id
		}
	}
}

// chunkVariable is the name on a line of a variable that each chunk has for itself.
func chunkVariable(name string, chunk int) string {
	if chunk == 0 {
		return name
	}
	return fmt.Sprintf("chunk%d/%s", chunk, name)
}
