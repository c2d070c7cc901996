package exec

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/plan"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Session is a plan in a device's memory, ready to run. All its operations are enqueued in order; only waiting for a
// pending read waits for the device.
type Session struct {
	plan      *Plan
	variables map[string]device.Buffer
	chunks    []device.Buffer
	programs  map[string]*loaded
	buffers   []device.Buffer // all of them
}

type loaded struct {
	*program
	inputs, outputs, constants map[string]device.Buffer
	main                       device.Loaded
}

// Load allocates the plan's memory, compiles its kernels and uploads its constants. Variables are zero.
func (p *Plan) Load() (s *Session, err error) {
	s = &Session{plan: p, variables: map[string]device.Buffer{}, programs: map[string]*loaded{}}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	for _, name := range p.order {
		if s.variables[name], err = s.alloc("variable "+name, p.variables[name].Bytes()); err != nil {
			return s, err
		}
	}
	for i, n := range p.chunks {
		b, err := s.alloc(fmt.Sprintf("arena %d", i), n)
		if err != nil {
			return s, err
		}
		s.chunks = append(s.chunks, b)
	}
	for _, name := range slices.Sorted(maps.Keys(p.programs)) {
		if err := s.load(p.programs[name]); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *Session) alloc(label string, size int64) (device.Buffer, error) {
	b, err := s.plan.dev.Alloc(label, size)
	if err == nil {
		s.buffers = append(s.buffers, b)
	}
	return b, err
}

func (s *Session) allocAll(kind string, types map[string]graph.Type) (map[string]device.Buffer, error) {
	m := map[string]device.Buffer{}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		b, err := s.alloc(kind+" "+name, types[name].Bytes())
		if err != nil {
			return nil, err
		}
		m[name] = b
	}
	return m, nil
}

func (s *Session) load(q *program) (err error) {
	l := &loaded{program: q, constants: map[string]device.Buffer{}}
	if l.inputs, err = s.allocAll(q.name+" input", q.inputs); err != nil {
		return err
	}
	if l.outputs, err = s.allocAll(q.name+" output", q.outputs); err != nil {
		return err
	}
	for _, v := range q.graph.Sources("constant") {
		c := v.Node.Op.(*graph.Constant)
		b, err := s.alloc(q.name+" constant "+c.Label(), v.Type.Bytes())
		if err != nil {
			return err
		}
		if err := s.plan.dev.Write(b, 0, Encode(v.DType, c.Data)); err != nil {
			return err
		}
		l.constants[c.Label()] = b
	}
	commands, err := s.record(l)
	if err != nil {
		return err
	}
	if l.main, err = s.plan.dev.Load(commands); err != nil {
		return err
	}
	s.programs[q.name] = l
	return nil
}

// buffer returns the memory of a storage.
func (s *Session) buffer(l *loaded, st plan.Storage) device.Range {
	var b device.Buffer
	switch st.Space {
	case plan.Arena:
		b = s.chunks[st.Chunk]
	case plan.Variable:
		b = s.variables[st.Name]
	case plan.Input:
		b = l.inputs[st.Name]
	case plan.Constant:
		b = l.constants[st.Name]
	}
	return device.Range{Buffer: b, Offset: st.Offset, Size: st.Size}
}

// Variables lists the variables by name.
func (s *Session) Variables() []graph.Named {
	var vs []graph.Named
	for _, name := range slices.Sorted(maps.Keys(s.variables)) {
		vs = append(vs, graph.Named{ID: name, Type: s.plan.variables[name]})
	}
	return vs
}

// WriteVariable uploads a variable's elements, little-endian.
func (s *Session) WriteVariable(name string, data []byte) error {
	b, ok := s.variables[name]
	if !ok {
		return fmt.Errorf("there is no variable %q", name)
	}
	return s.write("variable "+name, b, data)
}

func (s *Session) write(what string, b device.Buffer, data []byte) error {
	if int64(len(data)) != b.Size() {
		return fmt.Errorf("%s takes %d bytes, got %d", what, b.Size(), len(data))
	}
	return s.plan.dev.Write(b, 0, data)
}

// ReadVariable enqueues a read of a variable.
func (s *Session) ReadVariable(name string) (device.Pending, error) {
	b, ok := s.variables[name]
	if !ok {
		return nil, fmt.Errorf("there is no variable %q", name)
	}
	return s.plan.dev.Read(b, 0, b.Size())
}

func (s *Session) program(name string) (*loaded, error) {
	l, ok := s.programs[name]
	if !ok {
		return nil, fmt.Errorf("there is no program %q", name)
	}
	return l, nil
}

// SetInput uploads an input for the runs that follow.
func (s *Session) SetInput(program, name string, data []byte) error {
	l, err := s.program(program)
	if err != nil {
		return err
	}
	b, ok := l.inputs[name]
	if !ok {
		return fmt.Errorf("program %s has no input %q", program, name)
	}
	return s.write("input "+name, b, data)
}

// Run enqueues a program.
func (s *Session) Run(program string) error {
	l, err := s.program(program)
	if err != nil {
		return err
	}
	return s.plan.dev.Run(l.main)
}

// Output enqueues a read of an output as the last enqueued run leaves it.
func (s *Session) Output(program, name string) (device.Pending, error) {
	l, err := s.program(program)
	if err != nil {
		return nil, err
	}
	b, ok := l.outputs[name]
	if !ok {
		return nil, fmt.Errorf("program %s has no output %q", program, name)
	}
	return s.plan.dev.Read(b, 0, b.Size())
}

// Sync waits for everything enqueued.
func (s *Session) Sync() error { return s.plan.dev.Sync() }

// Close waits for the device and releases the session's memory.
func (s *Session) Close() error {
	err := s.plan.dev.Sync()
	for _, l := range s.programs {
		l.main.Release()
	}
	for _, b := range s.buffers {
		b.Release()
	}
	s.buffers, s.programs = nil, nil
	if errors.Is(err, device.ErrClosed) {
		return nil
	}
	return err
}
