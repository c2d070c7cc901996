package replicas

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Settings describe what replicas train and when they exchange it.
type Settings struct {
	Model     model.Model
	Optimizer *optim.Optimizer // of each replica
	Outer     outer.Config
	Period    int // steps between two exchanges of a fragment
	Late      int // steps from sending a fragment to landing its exchange, at most Period
	Last      int // the last step of the run
	Replicas  int
}

// plan is when fragments are exchanged.
func (s Settings) plan(fragments []fragment) schedule.Exchanges {
	return schedule.Exchanges{Fragments: len(fragments), Period: s.Period, Late: s.Late, Last: s.Last}
}

// Owner is the outer optimizer, and the outer weights.
type Owner struct {
	Plan      schedule.Exchanges
	settings  Settings
	config    outer.Config
	fragments []fragment
	machine   *machine
	// By fragment:
	outer, momentum, base [][]byte
	flights               flights
}

// NewOwner makes an Owner. Its weights are zero.
func NewOwner(s Settings) *Owner {
	o := &Owner{settings: s, config: s.Outer, fragments: fragmentsOf(s.Model), flights: flights{}}
	o.Plan = s.plan(o.fragments)
	for _, f := range o.fragments {
		o.outer, o.momentum, o.base = append(o.outer, f.zeros()), append(o.momentum, f.zeros()), append(o.base, f.zeros())
	}
	return o
}

// Load loads the programs of the outer step on a device.
func (o *Owner) Load(dev device.Device, execute engine.Executor) (err error) {
	o.machine, err = newMachine(o.config, dev, execute, o.fragments, ownerPrograms...)
	return err
}

// Close releases the programs.
func (o *Owner) Close() error {
	m := o.machine
	o.machine = nil
	return m.close()
}

// Name is the name of a fragment.
func (o *Owner) Name(fragment int) string { return o.fragments[fragment].name }

// Bytes is the size of a message of a fragment.
func (o *Owner) Bytes(fragment int) int64 { return o.config.Bytes(o.fragments[fragment].blocks) }

// MeanBytes is the mean size of a message.
func (o *Owner) MeanBytes() (mean int64) {
	for f := range o.fragments {
		mean += o.Bytes(f)
	}
	return mean / int64(len(o.fragments))
}

// Step takes the outer step of a fragment that was sent after a step, on the messages of replicas in their order. It
// returns the message of the change of the base.
func (o *Owner) Step(f, at int, messages []Message) (Message, error) {
	fragment, m := o.fragments[f], o.machine
	names := m.message()
	outputs := append(slices.Clone(names), outer.OuterName, outer.MomentumName)
	next, change := tensors{}, Message{}
	err := fragment.each(func(piece, n, from, to int) error {
		sum, err := m.sum(n, piece, messages)
		if err != nil {
			return err
		}
		in := tensors{outer.SumName: sum, outer.OuterName: o.outer[f][from:to], outer.MomentumName: o.momentum[f][from:to],
			outer.HyperparametersInput: exec.F32Bytes(o.config.Hyperparameters(len(messages)))}
		if !o.config.Exact() {
			in[outer.BaseName] = o.base[f][from:to]
		}
		if o.config.Rounds() {
			in[outer.KeyInput] = key(o.config, at, owner, f, piece)
		}
		out, err := m.run(stepProgram, n, in, outputs...)
		if err != nil {
			return err
		}
		base, err := m.apply(n, o.base[f][from:to], out)
		if err != nil {
			return err
		}
		next[outer.OuterName] = append(next[outer.OuterName], out[outer.OuterName]...)
		next[outer.MomentumName] = append(next[outer.MomentumName], out[outer.MomentumName]...)
		next[outer.BaseName] = append(next[outer.BaseName], base...)
		delete(out, outer.OuterName)
		delete(out, outer.MomentumName)
		change.pieces = append(change.pieces, out)
		return nil
	})
	if err != nil {
		return change, fmt.Errorf("exchange of %s: %w", fragment.name, err)
	}
	o.outer[f], o.momentum[f], o.base[f] = next[outer.OuterName], next[outer.MomentumName], next[outer.BaseName]
	o.flights[f] = o.Plan.Lands(at)
	return change, nil
}

// sum adds a piece of messages.
func (m *machine) sum(blocks, piece int, messages []Message) ([]byte, error) {
	sum := make([]byte, blocks*blockBytes)
	for _, message := range messages {
		in := maps.Clone(message.pieces[piece])
		in[outer.SumName] = sum
		out, err := m.run(addProgram, blocks, in, outer.SumName)
		if err != nil {
			return nil, err
		}
		sum = out[outer.SumName]
	}
	return sum, nil
}

// Flights lists the exchanges that have not landed after a step.
func (o *Owner) Flights(step int) []Flight {
	return slices.DeleteFunc(o.flights.list(), func(f Flight) bool { return f.Lands <= step })
}

// Kinds are the variables for exchanges that a replica has of a parameter, in checkpoints.
func (o *Owner) Kinds(param string) (kinds []Kind) {
	if !o.config.Exact() {
		kinds = append(kinds, Residue)
	}
	if f, _, ok := place(o.fragments, param); ok {
		if _, flying := o.flights[f]; flying {
			kinds = append(kinds, Sent)
		}
	}
	return kinds
}

// Snapshot is a copy of the state, which later steps do not change.
func (o *Owner) Snapshot() *Owner {
	c := *o
	c.outer, c.momentum, c.base = slices.Clone(o.outer), slices.Clone(o.momentum), slices.Clone(o.base)
	c.flights = maps.Clone(o.flights)
	return &c
}

// Landed says that everything that lands up to a step has landed on all replicas.
func (o *Owner) Landed(step int) {
	maps.DeleteFunc(o.flights, func(_, lands int) bool { return lands <= step })
}

// Trace records an exchange that was sent after a step, and how many copies of its change the owner sends itself. A nil
// tracer records nothing.
func (o *Owner) Trace(t engine.Tracer, f, at int, began time.Time, took time.Duration, copies int) {
	if t == nil {
		return
	}
	t.Complete(trace.ExchangeTrack, trace.Exchange, "exchange "+o.fragments[f].name, began, took,
		map[string]any{"step": at, "lands": o.Plan.Lands(at), "bytes": o.config.Bytes(o.fragments[f].blocks), "copies": copies})
}

// owner is the sender of the messages of outer steps, see outer.Config.Key.
const owner = -1

// key is the random key of a piece of a message.
func key(c outer.Config, at, sender, f, piece int) []byte {
	return exec.IntBytes(c.Key(at, sender, f<<16|piece))
}
