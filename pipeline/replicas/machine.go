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

// program names a program for a number of blocks.
func program(name string, blocks int) string { return fmt.Sprintf("%s/%d", name, blocks) }

// newMachine plans and loads the programs for all sizes of pieces. An owner has the programs of the outer step, too.
func newMachine(c outer.Config, dev device.Device, execute engine.Executor, fragments []fragment, owner bool) (*machine, error) {
	builders := map[string]func(blocks int) (*graph.Graph, error){sendProgram: c.Send, landProgram: c.Land}
	if owner {
		builders[addProgram], builders[stepProgram] = c.Add, c.Step
		if !c.Exact() {
			builders[applyProgram] = c.Apply
		}
	}
	graphs := map[string]*graph.Graph{}
	for _, f := range fragments {
		for _, n := range f.pieces() {
			for name, build := range builders {
				if graphs[program(name, n)] != nil {
					continue
				}
				g, err := build(n)
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

// message names the tensors of a message.
func (m *machine) message() (names []string) {
	for _, t := range m.config.Message(1) {
		names = append(names, t.ID)
	}
	return names
}
