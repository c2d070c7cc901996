package engine

import (
	"encoding/binary"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// rank is one stage of one replica on its device.
type rank struct {
	engine      *Engine
	index       int
	device      device.Device // nil: the rank is in another process, and has no programs and no session here
	holdings    []holding
	optimizer   *optim.Shard     // of its own parameters and the loss, or of neither; nil on a rank of a further replica
	slots       int              // microbatches that a chunk may have in flight
	runs        map[string]bool  // programs that exist: the first virtual stage has no input gradient
	reads       [][]graph.Named  // by chunk: the variables of a microbatch's data that its programs read
	sizes       map[string]int64 // bytes of the variables of its programs
	planned     Planned
	session     Session
	roles       stage.Roles
	initialized bool // an update was applied, see isInitialized
}

func (r *rank) stage() int   { return r.index % r.engine.options.Layout.Stages }
func (r *rank) replica() int { return r.index / r.engine.options.Layout.Stages }

// virtualStage is the virtual stage of a chunk.
func (r *rank) virtualStage(chunk int) int { return chunk*r.engine.options.Layout.Stages + r.stage() }

// units are the bounds of a chunk.
func (r *rank) units(chunk int) (first, last int) {
	o := r.engine.options
	return o.Layout.units(r.virtualStage(chunk), o.Model)
}

func (r *rank) name() string {
	prefix := r.engine.options.RankPrefix
	if r.engine.options.Layout.Replicas == 1 {
		return fmt.Sprintf("%sstage %d", prefix, r.stage())
	}
	return fmt.Sprintf("%sreplica %d stage %d", prefix, r.replica(), r.stage())
}

// local reports whether the rank is in this process.
func (r *rank) local() bool { return r.device != nil }

// prepare finds what the rank holds and, if it is in this process, builds its programs and plans its memory.
func (r *rank) prepare() error {
	r.holdings = r.engine.options.holdings(r.index)
	var own []string
	for _, h := range r.holdings {
		if h.owner == r.index {
			own = append(own, h.param)
		}
	}
	if r.replica() == 0 { // in a schedule each stage computes norms and updates, even if it owns no parameter
		r.optimizer = r.engine.options.Optimizer.Shard(own, r.stage() == r.engine.options.Layout.Stages-1)
	}
	if !r.local() {
		return nil
	}
	p, err := r.buildPrograms()
	if err != nil {
		return err
	}
	r.runs, r.sizes = map[string]bool{}, map[string]int64{}
	for name, g := range p.graphs {
		r.runs[name] = true
		for _, v := range g.Variables() {
			r.sizes[v.ID] = v.Type.Bytes()
		}
	}
	r.planned, err = r.engine.options.Execute(r.device, p.graphs, p.pools)
	return err
}

// load loads the programs onto the device.
func (r *rank) load() (err error) {
	if r.session, err = r.planned.Load(); err != nil {
		return err
	}
	delay := r.engine.options.Layout.Delay
	r.roles = stage.Roles{Older: 0, Newest: delay, Gradients: 1 + delay}
	if !r.scales() {
		return nil
	}
	for _, v := range []Version{Older, Newest} {
		scale := r.scaleAt(r.version(v)[weightsClass])
		if err := r.session.WriteAt(scale.name, scale.at, exec.F32Bytes(r.engine.options.Optimizer.Scaling().Initial())); err != nil {
			return err
		}
	}
	return nil
}

// scales reports whether the rank holds the loss scale: to divide its own gradients by it, or to multiply the loss by
// it.
func (r *rank) scales() bool {
	return r.engine.options.Optimizer.Scaled() && (r.optimizer != nil || r.engine.options.scalesLosses(r.stage()))
}

// scaleAt is the loss scale that is kept with a version of the weights. Without an optimizer a rank reads it only in
// its backwards.
func (r *rank) scaleAt(buffer int) tensor {
	if r.optimizer == nil {
		return tensor{batchScale, exec.Binding{scaleClass: buffer}}
	}
	return tensor{optim.ScaleVariable, exec.Binding{weightsClass: buffer}}
}

// sampleBatches is the number of batches that show every pattern of a schedule.
const sampleBatches = 4

// port is the access of transfers to the rank's tensors.
func (r *rank) port() port { return port{r.session, r.device} }

// sent lists the tensors that a message carries, on the sender: activations, gradients, norms, gradients of copies for
// their owner, or updated weights for copies.
func (r *rank) sent(e stage.Effect) []tensor {
	switch e.Message.Kind {
	case stage.Activation:
		return tensors([]string{chunkVariable(model.ActOut, e.Action.Chunk)}, nil)
	case stage.Gradient:
		return tensors([]string{chunkVariable(model.GradIn, e.Action.Chunk)}, nil)
	case stage.NormSquares:
		return tensors([]string{r.optimizer.LocalVariable()}, nil)
	case stage.Contribution:
		return tensors(r.engine.exchanges.between(r.index, e.To).gradients, exec.Binding{gradientsClass: e.Place.Gradients})
	}
	return tensors(r.engine.exchanges.between(e.To, r.index).params, exec.Binding{weightsClass: e.Place.Weights})
}

// stored lists the tensors that the receiver of a message stores it in, in the order of sent.
func (r *rank) stored(e stage.Effect) []tensor {
	m := e.Message
	chunk, slot := m.VirtualStage/r.engine.options.Layout.Stages, exec.Binding{slotClass: e.Place.Slot}
	switch m.Kind {
	case stage.Activation:
		return tensors([]string{chunkVariable(model.ActIn, chunk)}, slot)
	case stage.Gradient:
		return tensors([]string{chunkVariable(model.GradOut, chunk)}, slot)
	case stage.Contribution:
		return tensors(r.engine.exchanges.between(m.From, r.index).as, nil)
	}
	params := tensors(r.engine.exchanges.between(r.index, m.From).params, exec.Binding{weightsClass: e.Place.Weights})
	for i := range params {
		if params[i].name == optim.ScaleVariable {
			params[i] = r.scaleAt(e.Place.Weights)
		}
	}
	return params
}

// isInitialized reports whether an update was applied before the update of a batch. If only the device knows, each call
// reads its variable and waits for it, until an update was applied.
func (r *rank) isInitialized(batch int) (bool, error) {
	if !r.engine.options.Optimizer.TracksInitialization() {
		return batch > 0, nil
	}
	if r.initialized {
		return true, nil
	}
	p, err := r.session.ReadAt(optim.InitializedVariable, nil)
	if err != nil {
		return false, err
	}
	data, err := p.Wait()
	if err != nil {
		return false, err
	}
	r.initialized = binary.LittleEndian.Uint32(data) != 0
	return r.initialized, nil
}

// fault is an error of the rank.
func (r *rank) fault(err error) error { return &Fault{r.name(), fmt.Errorf("%s: %w", r.name(), err)} }

// machine is the stage machine of a rank for the batches from (included) to to (excluded).
func (r *rank) machine(w work, from, to int) (*stage.Machine, error) {
	e, l := r.engine, r.engine.options.Layout
	g, err := w.schedule(to - from)
	if err != nil {
		return nil, err
	}
	if g, err = g.Communicate(schedule.Copies{Tied: e.options.Model.Tied(), Replica: r.replica() > 0, Copied: r.replica() == 0 &&
		l.Replicas > 1}); err != nil {
		return nil, err
	}
	c := stage.Config{Pipeline: stage.Pipeline{Stages: l.Stages, Chunks: l.Chunks, Microbatches: w.microbatches},
		Stage: r.stage(), Replica: r.replica(), Delay: l.Delay, Stale: g.Head().Stale, Slots: r.slots, QueueDepth: e.options.QueueDepth,
		Actions: g.Actions(r.stage()), From: from, Roles: r.roles}
	if w.evaluates {
		evaluated := r.version(e.Evaluated())[weightsClass]
		c.Delay, c.Roles.Older, c.Roles.Newest, c.FeedAll = 0, evaluated, evaluated, e.options.Inputs.EvaluationReads(model.SegmentsInput)
	} else {
		c.FeedAll = e.options.Inputs.Segments || e.options.Inputs.Real
	}
	if r.optimizer != nil && len(e.owners) > 1 {
		c.Peers.Owners = e.owners
	}
	for _, x := range e.exchanges {
		if x.from == r.index {
			c.Peers.CopiesFrom = append(c.Peers.CopiesFrom, x.to)
		}
		if x.to == r.index {
			c.Peers.CopiesTo = append(c.Peers.CopiesTo, x.from)
		}
	}
	return stage.New(c)
}
