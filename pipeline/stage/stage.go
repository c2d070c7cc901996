// Package stage is the machine of one line of a pipeline: events in, effects out. It follows the line's actions, waits for what
// they need, and owns which buffer plays which role. It is deterministic and pure: no devices, no goroutines, no time.
//
// Effects are carried out in the order in which they are given, as if by one queue: a Send reads what the Runs before it leave,
// a Run reads what the Stores before it wrote. So buffers and slots change hands when an effect is given, not when it is done.
//
// The delay follows Narayanan et al., arXiv 2006.09503 (PipeDream-2BW): batch t's forwards and backwards all read x_t. With u_t
// made of their gradient g_t, delay 0 leaves x_{t+1} = x_t − u_t in the buffer of x_t. With delay 1, x_{t+2} = x_{t+1} − u_t is
// written over g_t, and the buffer of x_t, dead after the batch's last backward, takes g_{t+1}: three buffers are enough, however
// long the update waits.
package stage

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Place is where a program finds what it works on: indices into the line's pools of buffers, −1 where it works on none. A forward
// has Gradients only if the batch's buffer is free already: always on a line that finishes each batch before it begins the next.
type Place struct{ Weights, Gradients, Slot int }

// MessageKind is what a message carries.
type MessageKind uint8

const (
	Activation   MessageKind = iota // what a part's forward leaves to the next part
	Gradient                        // of an activation, to the part that made it
	Contribution                    // gradients of the parameters of which the sender holds copies, to their owner
	Votes                           // the squared norms of the sender's gradients and its loss
	Weights                         // the sender's own parameters, updated, to those that hold copies
)

// Message is what one line tells another; Microbatch and Part are 0 where the kind has none. It is the key of its payload.
type Message struct {
	Kind              MessageKind
	Batch, Microbatch int
	Part              int // chunk·Stages + stage that an Activation or a Gradient is for
	From              int // the line that sent it
}

// EffectKind is what is to be done.
type EffectKind uint8

const (
	Run   EffectKind = iota // the program of Action; Finished tells its end
	Feed                    // bring what the part reads of the data of Action's microbatch into its slot: tokens (first), targets (last), …
	Store                   // write the payload of Message, that has arrived, to Place
	Send                    // read what Message carries from Place, and send it to line To
	Ready                   // the batch Action.Batch is finished on this line: its update is in place, its copies have arrived
)

// Effect is one thing to do. Action is always the action of the line that asks for it (an Update for Ready), its batch counted as
// messages count it.
type Effect struct {
	Kind    EffectKind
	Action  schedule.Action
	Message Message
	To      int // the line to Send to; −1: all Owners
	Place   Place
	First   bool // Run: the first of its kind of the batch on this chunk: what a batch sums is stored, not added
}

// Config is what a machine starts from. Lines count through all replicas: line r·Stages + s is stage s of replica r.
type Config struct {
	Stage, Stages, Chunks, Microbatches int
	Replica                             int
	Delay                               int   // 0 or 1; 0 for a line that only evaluates
	Slots                               int   // a chunk: microbatches whose activations it can hold
	Depth                               int   // Runs that may be given and not yet Finished, at least 1
	Owners                              []int // lines whose votes an update takes; the line itself, if its own are to come as a message; or none
	CopiesFrom                          []int // lines that own parameters of which this one holds copies: they get contributions and send weights
	CopiesTo                            []int // lines that hold copies of this one's parameters: they send contributions and get weights
	FeedAll                             bool  // parts between the first and the last read data too
	Actions                             iter.Seq[schedule.Action]
	From                                int // the batch that the line calls 0; messages and effects count from there
	Roles                               Roles
}

// Roles are what the buffers of parameters hold while no batch is under way: Current x_t and Next x_{t+1} of the batch t to come
// (one buffer with delay 0), Gradients nothing.
type Roles struct{ Current, Next, Gradients int }

// New is a machine before its first action. It refuses, by the field's name, what cannot work.
func New(c Config) (*Machine, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m := &Machine{
		cfg: c, limit: math.MaxInt, fetched: c.From - 1, allowed: c.From - 1, begun: c.From, finished: c.From,
		versions: []int{c.Roles.Current, c.Roles.Next}[:1+c.Delay], free: []int{c.Roles.Gradients},
		slots: make([][]slot, c.Chunks), mail: map[Message]bool{},
	}
	for i := range m.slots {
		m.slots[i] = make([]slot, c.Slots)
	}
	m.pull, m.stop = iter.Pull(c.Actions)
	return m, nil
}

func (c Config) check() error {
	for _, f := range []struct {
		name         string
		found, least int
	}{
		{"Stages", c.Stages, 1}, {"Chunks", c.Chunks, 1}, {"Microbatches", c.Microbatches, 1}, {"Stage", c.Stage, 0},
		{"Replica", c.Replica, 0}, {"Slots", c.Slots, 1}, {"Depth", c.Depth, 1}, {"From", c.From, 0}, {"Delay", c.Delay, 0},
		{"Roles.Current", c.Roles.Current, 0}, {"Roles.Next", c.Roles.Next, 0}, {"Roles.Gradients", c.Roles.Gradients, 0},
	} {
		if f.found < f.least {
			return fmt.Errorf("stage: %s %d, expected at least %d", f.name, f.found, f.least)
		}
	}
	r := c.Roles
	switch {
	case c.Stage >= c.Stages:
		return fmt.Errorf("stage: Stage %d, expected one of %d", c.Stage, c.Stages)
	case c.Delay > 1:
		return fmt.Errorf("stage: Delay %d, expected 0 or 1", c.Delay)
	case c.Delay == 1 && c.Microbatches < c.Stages:
		return fmt.Errorf("stage: Microbatches %d with %d stages and a delay of one batch, expected at least %d: a stage can hold two "+
			"versions of the weights, and the first would need the update of a batch for the batch after the next before all stages "+
			"can have made it", c.Microbatches, c.Stages, c.Stages)
	case c.Actions == nil:
		return fmt.Errorf("stage: no Actions")
	case c.Delay == 0 && r.Current != r.Next || c.Delay == 1 && r.Current == r.Next || r.Gradients == r.Current || r.Gradients == r.Next:
		return fmt.Errorf("stage: Roles %+v, expected %d different buffers with delay %d", r, 2+c.Delay, c.Delay)
	}
	for _, f := range []struct {
		name  string
		lines []int
	}{{"Owners", c.Owners}, {"CopiesFrom", c.CopiesFrom}, {"CopiesTo", c.CopiesTo}} {
		for i, l := range f.lines {
			if l < 0 || l == c.line() && f.name != "Owners" || slices.Contains(f.lines[:i], l) {
				return fmt.Errorf("stage: %s %v of line %d, expected different lines, itself only among Owners", f.name, f.lines, c.line())
			}
		}
	}
	return nil
}

// line is the machine's own line.
func (c Config) line() int { return c.lineOf(c.Stage) }

// lineOf is the line, in the same replica, that has a part.
func (c Config) lineOf(part int) int { return c.Replica*c.Stages + part%c.Stages }

// part is the part of the model that an action works on.
func (c Config) part(a schedule.Action) int { return a.Chunk*c.Stages + c.Stage }

// last is the last part of the model.
func (c Config) last() int { return c.Chunks*c.Stages - 1 }
