package stage

import (
	"fmt"
	"iter"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Place names the buffers that a program uses, as indices into the rank's pools of buffers; −1 is none. A forward has
// Gradients only if the batch already has a gradient buffer: always on a rank that finishes each batch before it begins
// the next. Scale is the version of the weights with which the loss scale of an action's batch is kept: its Weights or,
// with a delay, the version that its stale microbatches read.
type Place struct{ Weights, Gradients, Slot, Scale int }

// MessageKind is what a message carries.
type MessageKind uint8

const (
	Activation   MessageKind = iota // of a virtual stage's forward, to the next virtual stage
	Gradient                        // of an activation, to the virtual stage that computed it
	Contribution                    // gradients of the sender's copies of parameters, to their owner
	NormSquares                     // the squared norms of the sender's gradients and its loss, all-gathered by the owners
	Weights                         // the sender's updated parameters, to the ranks that hold copies
)

// Message identifies what one rank sends to another. Microbatch and VirtualStage are 0 if the kind has none.
type Message struct {
	Kind              MessageKind
	Batch, Microbatch int
	VirtualStage      int // that an Activation or a Gradient is for: chunk·Stages + stage
	From              int // the rank that sends it
}

// EffectKind is the kind of an effect.
type EffectKind uint8

const (
	Run   EffectKind = iota // run the program of Action, and call Finished when it ends
	Feed                    // write the data of Action's microbatch that the chunk reads into its slot: tokens (first), targets (last), …
	Store                   // write the payload of Message, which was received, to Place
	Send                    // read the payload of Message from Place, and send it to rank To
	Ready                   // the batch Action.Batch is finished on this rank: its update is done, its copies are received
)

// Effect is one thing to do. Action is the action that causes it (an Update for Ready), with its batch counted as in
// messages.
type Effect struct {
	Kind    EffectKind
	Action  schedule.Action
	Message Message
	To      int // the rank to Send to; −1: all Owners
	Place   Place
	First   bool // of a Run: the first of its kind of the batch on this chunk, which overwrites sums instead of adding to them
}

// Config configures the machine of one rank. Ranks count through all replicas: rank r·Stages + s is stage s of replica
// r.
type Config struct {
	Pipeline       Pipeline
	Stage, Replica int // of the rank
	Peers          Peers
	Delay          int                       // 0 or 1; 0 for a rank that only evaluates
	Stale          int                       // with Delay 1: the first microbatches of a batch, which read Older
	Slots          int                       // per chunk: microbatches whose activations it can hold
	QueueDepth     int                       // Runs in progress at most, at least 1
	FeedAll        bool                      // the virtual stages between the first and the last read data too
	Actions        iter.Seq[schedule.Action] // of the rank, with communication
	From           int                       // the number of batch 0 of Actions; messages and effects count from it
	Roles          Roles
}

// Pipeline is the part of Config that all ranks have in common. Microbatches is the number of microbatches of a batch
// on one replica.
type Pipeline struct{ Stages, Chunks, Microbatches int }

// Peers are the ranks with which a rank exchanges gradients and weights. It is itself at most among Owners.
type Peers struct {
	Owners     []int // whose NormSquares an update needs, the rank itself included if it sends them to itself; or none
	CopiesFrom []int // owners of parameters that the rank holds copies of: it sends them Contributions and receives Weights
	CopiesTo   []int // ranks that hold copies of its parameters: it receives Contributions and sends them Weights
}

// Roles are the roles of the parameter buffers while no batch is in progress. The stale microbatches of the next batch
// read Older; Newest has the updates of all batches (one buffer with delay 0). Gradients is free.
type Roles struct{ Older, Newest, Gradients int }

// New returns a machine before its first action. An error names the field of Config that is invalid.
func New(c Config) (*Machine, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m := &Machine{cfg: c, reader: newReader(c.Actions, c.From), allowed: c.From - 1, window: &window{finished: c.From},
		buffers: newBuffers(c.Roles, c.Delay, c.Stale*c.Pipeline.Chunks), slots: make([]slots, c.Pipeline.Chunks),
		received: map[Message]bool{}}
	for i := range m.slots {
		m.slots[i] = make(slots, c.Slots)
	}
	return m, nil
}

func (c Config) check() error {
	for _, f := range []struct {
		name         string
		found, least int
	}{
		{"Stages", c.Pipeline.Stages, 1}, {"Chunks", c.Pipeline.Chunks, 1}, {"Microbatches", c.Pipeline.Microbatches, 1},
		{"Stage", c.Stage, 0},
		{"Replica", c.Replica, 0}, {"Slots", c.Slots, 1}, {"QueueDepth", c.QueueDepth, 1}, {"From", c.From, 0}, {"Delay", c.Delay, 0},
		{"Roles.Older", c.Roles.Older, 0}, {"Roles.Newest", c.Roles.Newest, 0}, {"Roles.Gradients", c.Roles.Gradients, 0},
	} {
		if f.found < f.least {
			return fmt.Errorf("stage: %s %d, expected at least %d", f.name, f.found, f.least)
		}
	}
	r := c.Roles
	switch {
	case c.Stage >= c.Pipeline.Stages:
		return fmt.Errorf("stage: Stage %d, expected one of %d", c.Stage, c.Pipeline.Stages)
	case c.Delay > 1:
		return fmt.Errorf("stage: Delay %d, expected 0 or 1", c.Delay)
	case c.Stale < c.Delay || c.Stale > c.Delay*c.Pipeline.Microbatches:
		return fmt.Errorf("stage: Stale %d of %d microbatches with Delay %d, expected %d to %d", c.Stale, c.Pipeline.Microbatches, c.Delay,
			c.Delay, c.Delay*c.Pipeline.Microbatches)
	case c.Delay == 1 && c.Pipeline.Microbatches < c.Pipeline.Stages:
		return fmt.Errorf("stage: Microbatches %d with %d stages and Delay 1, expected at least %d: with fewer, two versions of the "+
			"weights are not enough", c.Pipeline.Microbatches, c.Pipeline.Stages, c.Pipeline.Stages)
	case c.Actions == nil:
		return fmt.Errorf("stage: found no Actions")
	case c.Delay == 0 && r.Older != r.Newest || c.Delay == 1 && r.Older == r.Newest || r.Gradients == r.Older || r.Gradients == r.Newest:
		return fmt.Errorf("stage: Roles %+v, expected %d different buffers with delay %d", r, 2+c.Delay, c.Delay)
	}
	for _, f := range []struct {
		name  string
		ranks []int
	}{{"Owners", c.Peers.Owners}, {"CopiesFrom", c.Peers.CopiesFrom}, {"CopiesTo", c.Peers.CopiesTo}} {
		for i, l := range f.ranks {
			if l < 0 || l == c.rank() && f.name != "Owners" || slices.Contains(f.ranks[:i], l) {
				return fmt.Errorf("stage: %s %v of rank %d, expected different ranks, itself only among Owners", f.name, f.ranks, c.rank())
			}
		}
	}
	return nil
}

// rank is the machine's own rank.
func (c Config) rank() int { return c.rankOf(c.Stage) }

// rankOf is the rank, in the same replica, that has a virtual stage.
func (c Config) rankOf(virtualStage int) int {
	return c.Replica*c.Pipeline.Stages + virtualStage%c.Pipeline.Stages
}

// isStale reports whether an action's microbatch reads weights that lack the update of the batch before.
func (c Config) isStale(a schedule.Action) bool { return c.Delay == 1 && a.Microbatch < c.Stale }

// virtualStage is the virtualStage of the model that an action works on.
func (c Config) virtualStage(a schedule.Action) int { return a.Chunk*c.Pipeline.Stages + c.Stage }

// last is the last virtual stage of the model.
func (c Config) last() int { return c.Pipeline.Chunks*c.Pipeline.Stages - 1 }
