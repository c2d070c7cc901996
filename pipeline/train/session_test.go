package train

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// reference is an Executor that computes with the ops' references, each result rounded as a device would store it: the
// whole loop runs with real numbers and no GPU.
type reference struct {
	runs    atomic.Int64
	poison  int // from this run of the first program on, its loss is not a number; 0: never
	refused error
	blind   bool // evaluations give what is not a number
}

func (x *reference) execute(_ device.Device, graphs map[string]*graph.Graph) (Planned, error) {
	if x.refused != nil {
		return Planned{}, x.refused
	}
	return Planned{Memory: exec.Memory{Total: 1}, Load: func() (Session, error) { return newReferenceSession(x, graphs), nil }}, nil
}

type referenceSession struct {
	parent    *reference
	graphs    map[string]*graph.Graph
	variables map[string]*graph.Tensor
	inputs    map[string]map[string]*graph.Tensor
	outputs   map[string]map[string]*graph.Tensor
	firsts    int
}

func newReferenceSession(x *reference, graphs map[string]*graph.Graph) *referenceSession {
	s := &referenceSession{parent: x, graphs: graphs, variables: map[string]*graph.Tensor{},
		inputs: map[string]map[string]*graph.Tensor{}, outputs: map[string]map[string]*graph.Tensor{}}
	for name, g := range graphs {
		s.inputs[name] = map[string]*graph.Tensor{}
		for _, v := range g.Sources("input") {
			s.inputs[name][label(v)] = graph.NewTensor(v.Type)
		}
		for _, v := range g.Sources("variable") {
			s.variables[label(v)] = graph.NewTensor(v.Type)
		}
	}
	return s
}

func label(v *graph.Value) string { return v.Node.Op.(graph.Source).Label() }

func fill(t *graph.Tensor, b []byte) error {
	if int64(len(b)) != t.Type.Bytes() {
		return fmt.Errorf("%d bytes for %v", len(b), t.Type)
	}
	for i := range t.Data {
		u := binary.LittleEndian.Uint32(b[4*i:])
		t.Data[i] = float64(u)
		if t.DType == graph.F32 {
			t.Data[i] = float64(math.Float32frombits(u))
		}
	}
	return nil
}

func encode(t *graph.Tensor) device.Pending {
	var b []byte
	for _, x := range t.Data {
		u := uint32(x)
		if t.DType == graph.F32 {
			u = math.Float32bits(float32(x))
		}
		b = binary.LittleEndian.AppendUint32(b, u)
	}
	return arrived(b)
}

type arrived []byte

func (a arrived) Wait() ([]byte, error) { return a, nil }

func (s *referenceSession) WriteVariable(name string, data []byte) error {
	t, ok := s.variables[name]
	if !ok {
		return fmt.Errorf("there is no variable %q", name)
	}
	n := graph.NewTensor(t.Type)
	s.variables[name] = n
	return fill(n, data)
}

func (s *referenceSession) ReadVariable(name string) (device.Pending, error) {
	t, ok := s.variables[name]
	if !ok {
		return nil, fmt.Errorf("there is no variable %q", name)
	}
	return encode(t), nil
}

func (s *referenceSession) Variables() []graph.Named {
	var vs []graph.Named
	for _, name := range slices.Sorted(maps.Keys(s.variables)) {
		vs = append(vs, graph.Named{ID: name, Type: s.variables[name].Type})
	}
	return vs
}

func (s *referenceSession) SetInput(program, name string, data []byte) error {
	t, ok := s.inputs[program][name]
	if !ok {
		return fmt.Errorf("program %s has no input %q", program, name)
	}
	return fill(t, data)
}

func (s *referenceSession) Run(program string) (err error) {
	s.parent.runs.Add(1)
	s.outputs[program], err = eval.Run(s.graphs[program], s.inputs[program], s.variables, eval.Rounded)
	if program == firstProgram {
		if s.firsts++; s.parent.poison > 0 && s.firsts >= s.parent.poison {
			s.outputs[program]["loss"].Data[0] = math.NaN()
			s.variables["loss"].Data[0] = math.NaN()
		}
	}
	if program == evalProgram && s.parent.blind {
		s.outputs[program]["losses"].Data[0] = math.NaN()
	}
	return err
}

func (s *referenceSession) Output(program, name string) (device.Pending, error) {
	t, ok := s.outputs[program][name]
	if !ok {
		return nil, fmt.Errorf("program %s has no output %q", program, name)
	}
	return encode(t), nil
}

func (s *referenceSession) Close() error { return nil }

// openNull opens a device that executes nothing.
func openNull(name string) (device.Device, error) {
	if name != "" && name != "null:0" {
		return nil, fmt.Errorf("device %q: no such device", name)
	}
	return null.New(null.Options{}), nil
}
