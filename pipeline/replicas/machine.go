package replicas

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// machine runs the programs of package outer on a device.
type machine struct {
	session engine.Session
	config  outer.Config
}

// tensors are the inputs or the outputs of a program, by name.
type tensors map[string][]byte

// The programs of package outer.
const (
	sendProgram  = "send"
	addProgram   = "add"
	stepProgram  = "step"
	applyProgram = "apply"
	landProgram  = "land"
)

// What an owner, a replica, and both in one process run.
var (
	ownerPrograms   = []string{addProgram, stepProgram, applyProgram}
	replicaPrograms = []string{sendProgram, landProgram}
)

// program names a program for a number of blocks.
func program(name string, blocks int) string { return fmt.Sprintf("%s/%d", name, blocks) }

// newMachine plans and loads programs for all sizes of pieces. In f32 there is nothing to apply.
func newMachine(c outer.Config, dev device.Device, execute engine.Executor, fragments []fragment, programs ...string) (*machine, error) {
	builders := map[string]func(blocks int) (*graph.Graph, error){sendProgram: c.Send, addProgram: c.Add, stepProgram: c.Step,
		applyProgram: c.Apply, landProgram: c.Land}
	graphs := map[string]*graph.Graph{}
	for _, f := range fragments {
		for _, n := range f.pieces() {
			for _, name := range programs {
				if graphs[program(name, n)] != nil || name == applyProgram && c.Exact() {
					continue
				}
				g, err := builders[name](n)
				if err != nil {
					return nil, err
				}
				graphs[program(name, n)] = g
			}
		}
	}
	planned, err := execute(dev, graphs, nil)
	if err != nil {
		return nil, err
	}
	s, err := planned.Load()
	if err != nil {
		return nil, err
	}
	return &machine{s, c}, nil
}

// close releases the programs. A nil machine has none.
func (m *machine) close() error {
	if m == nil {
		return nil
	}
	return m.session.Close()
}

// run runs a program and returns some of its outputs.
func (m *machine) run(name string, blocks int, in tensors, outputs ...string) (tensors, error) {
	p := program(name, blocks)
	for input, data := range in {
		if err := m.session.SetInput(p, input, data); err != nil {
			return nil, err
		}
	}
	if err := m.session.RunAt(p, nil); err != nil {
		return nil, err
	}
	out := tensors{}
	for _, o := range outputs {
		pending, err := m.session.Output(p, o)
		if err != nil {
			return nil, err
		}
		if out[o], err = pending.Wait(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// apply applies a message of the owner to a piece of the base.
func (m *machine) apply(blocks int, base []byte, message tensors) ([]byte, error) {
	if m.config.Exact() {
		return message[m.message()[0]], nil
	}
	in := tensors{outer.BaseName: base}
	for _, name := range m.message() {
		in[name] = message[name]
	}
	out, err := m.run(applyProgram, blocks, in, outer.BaseName)
	return out[outer.BaseName], err
}

// message names the tensors of a message.
func (m *machine) message() (names []string) {
	for _, t := range m.config.Message(1) {
		names = append(names, t.ID)
	}
	return names
}
