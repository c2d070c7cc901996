// Package traintest lets tests train without a GPU: a tiny config, and an executor that computes with the ops'
// references.
package traintest

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// Reference is an engine.Executor that computes with the ops' references and rounds each result as a device stores it.
type Reference struct {
	Runs           atomic.Int64          // programs run so far
	Fault          func(run int64) error // returns the error of a run of a program, counted from 1; nil: none fails
	PlanError      error                 // of planning
	Poison         func(batch int) bool  // reports whether the loss of a batch, counted from 1, is NaN; nil: none is
	ReplicasOnly   bool                  // Poison applies to replicas after the first only
	NaNEvaluations bool                  // the losses of evaluations are NaN

	mu       sync.Mutex
	sessions []*referenceSession // in the order of their creation
}

func (x *Reference) Execute(_ device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (engine.Planned, error) {
	if x.PlanError != nil {
		return engine.Planned{}, x.PlanError
	}
	return engine.Planned{Memory: exec.Memory{Total: 1}, Load: func() (engine.Session, error) {
		s := newReferenceSession(x, graphs, pools)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.sessions = append(x.sessions, s)
		return s, nil
	}}, nil
}

type referenceSession struct {
	parent    *Reference
	graphs    map[string]*graph.Graph
	pools     map[string]exec.Pool
	types     map[string]graph.Type    // of variables
	variables map[string]*graph.Tensor // by buffer
	inputs    map[string]map[string]*graph.Tensor
	outputs   map[string]map[string]*graph.Tensor
	forwards  int
}

func newReferenceSession(x *Reference, graphs map[string]*graph.Graph, pools map[string]exec.Pool) *referenceSession {
	s := &referenceSession{parent: x, graphs: graphs, pools: pools, types: map[string]graph.Type{}, variables: map[string]*graph.Tensor{},
		inputs: map[string]map[string]*graph.Tensor{}, outputs: map[string]map[string]*graph.Tensor{}}
	for name, g := range graphs {
		s.inputs[name] = map[string]*graph.Tensor{}
		for _, v := range g.Sources("input") {
			s.inputs[name][Label(v)] = graph.NewTensor(v.Type)
		}
		for _, v := range g.Variables() {
			s.types[v.ID] = v.Type
		}
	}
	return s
}

// buffer names the memory of a variable.
func (s *referenceSession) buffer(name string, at exec.Binding) string {
	if p, ok := s.pools[name]; ok {
		return fmt.Sprintf("%s#%d", p.Name, at[p.Class])
	}
	return name
}

// variable returns a variable's tensor, at first zeros.
func (s *referenceSession) variable(name string, at exec.Binding) (*graph.Tensor, error) {
	t, ok := s.types[name]
	if !ok {
		return nil, fmt.Errorf("there is no variable %q", name)
	}
	b := s.buffer(name, at)
	if s.variables[b] == nil {
		s.variables[b] = graph.NewTensor(t)
	}
	return s.variables[b], nil
}

// Label is the name of a source.
func Label(v *graph.Value) string { return v.Node.Op.(graph.Source).Label() }

func fill(t *graph.Tensor, b []byte) error {
	if int64(len(b)) != t.Type.Bytes() {
		return fmt.Errorf("%d bytes for %v", len(b), t.Type)
	}
	copy(t.Data, exec.Decode(t.DType, b))
	return nil
}

func encode(t *graph.Tensor) device.Pending { return arrived(exec.Encode(t.DType, t.Data)) }

// arrived is data that is read at once.
type arrived []byte

func (a arrived) Wait() ([]byte, error) { return a, nil }

func (s *referenceSession) WriteAt(name string, at exec.Binding, data []byte) error {
	t, err := s.variable(name, at)
	if err != nil {
		return err
	}
	n := graph.NewTensor(t.Type)
	s.variables[s.buffer(name, at)] = n
	return fill(n, data)
}

func (s *referenceSession) ReadAt(name string, at exec.Binding) (device.Pending, error) {
	t, err := s.variable(name, at)
	if err != nil {
		return nil, err
	}
	return encode(t), nil
}

func (s *referenceSession) SetInput(program, name string, data []byte) error {
	t, ok := s.inputs[program][name]
	if !ok {
		return fmt.Errorf("program %s has no input %q", program, name)
	}
	return fill(t, data)
}

func (s *referenceSession) RunAt(program string, at exec.Binding) (err error) {
	n := s.parent.Runs.Add(1)
	if s.parent.Fault != nil {
		if err := s.parent.Fault(n); err != nil {
			return err
		}
	}
	g := s.graphs[program]
	vars := map[string]*graph.Tensor{}
	for _, v := range g.Variables() {
		if vars[v.ID], err = s.variable(v.ID, at); err != nil {
			return err
		}
	}
	if s.outputs[program], err = eval.Run(g, s.inputs[program], vars, eval.Rounded); err != nil {
		return err
	}
	if program == "F" {
		s.forwards++
	}
	if x := s.parent; x.Poison != nil && !(x.ReplicasOnly && s.owns()) && x.Poison((s.forwards+Microbatches-1)/Microbatches) {
		for _, values := range []map[string]*graph.Tensor{s.outputs[program], vars} {
			if loss := values["loss"]; loss != nil { // of the last stage
				loss.Data[0] = math.NaN()
			}
		}
	}
	if losses := s.outputs[program]["losses"]; losses != nil && s.parent.NaNEvaluations {
		losses.Data[0] = math.NaN()
	}
	for _, a := range g.Assigns {
		whole, _ := graph.Whole(a.Variable.Node.Op.(graph.Source))
		s.variables[s.buffer(whole.ID, at)] = vars[whole.ID]
	}
	return nil
}

// Held counts the sessions in which one of a parameter's buffers has these bits.
func (x *Reference) Held(param, bits string) (n int) {
	for _, s := range x.sessions {
		for i := 0; s.variables[fmt.Sprintf("%s#%d", param, i)] != nil; i++ {
			if string(encode(s.variables[fmt.Sprintf("%s#%d", param, i)]).(arrived)) == bits {
				n++
				break
			}
		}
	}
	return n
}

// owns reports whether a session updates parameters. Only sessions of the first replica do.
func (s *referenceSession) owns() bool { return s.graphs["update"] != nil }

func (s *referenceSession) Output(program, name string) (device.Pending, error) {
	t, ok := s.outputs[program][name]
	if !ok {
		return nil, fmt.Errorf("program %s has no output %q", program, name)
	}
	return encode(t), nil
}

func (s *referenceSession) Mark() (device.Pending, error) { return arrived(nil), nil }

func (s *referenceSession) Close() error { return nil }

// ErrInjected is the error of FailAt.
var ErrInjected = errors.New("injected")

// FailAt is a Reference.Fault that fails one run, counted from 1.
func FailAt(n int64) func(run int64) error {
	return func(run int64) error {
		if run == n {
			return ErrInjected
		}
		return nil
	}
}

// OpenNull opens a device that executes nothing. Reference computes in its place.
func OpenNull(name string) (device.Device, error) {
	n, err := device.ParseName(name) // the default device may have a number of threads
	if err != nil || n.Backend != "" && name != "null:0" {
		return nil, fmt.Errorf("device %q: no such device", name)
	}
	return null.New(null.Options{}), nil
}
