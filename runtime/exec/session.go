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

// Session is a plan in a device's memory, ready to run. Operations are enqueued in order. Only waiting for a pending
// read waits for the device.
type Session struct {
	plan      *Plan
	variables map[string]device.Buffer
	arena     []device.Buffer
	programs  map[string]*loaded
	buffers   []device.Buffer // all of them
}

type loaded struct {
	*program
	inputs, outputs, constants map[string]device.Buffer
	recorded                   recording
	classes                    []string                 // of its variables that have a pool, in order
	bound                      map[string]device.Loaded // by the binding of the variables that have a pool
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
		if s.variables[name], err = s.alloc("variable "+name, p.memory[name].Bytes()); err != nil {
			return s, err
		}
	}
	for i, n := range p.arena {
		b, err := s.alloc(fmt.Sprintf("arena %d", i), n)
		if err != nil {
			return s, err
		}
		s.arena = append(s.arena, b)
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
	l := &loaded{program: q, constants: map[string]device.Buffer{}, bound: map[string]device.Loaded{}}
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
	if l.recorded, err = s.plan.record(q); err != nil {
		return err
	}
	l.classes = s.plan.classes(q)
	s.programs[q.name] = l
	if len(l.classes) == 0 {
		_, err = s.bind(l, nil)
	}
	return err
}

// bind returns the program loaded for a binding. Each binding is loaded once.
func (s *Session) bind(l *loaded, b Binding) (device.Loaded, error) {
	key := ""
	for _, class := range l.classes {
		i, ok := b[class]
		if !ok {
			return nil, fmt.Errorf("program %s: class %q needs a buffer index", l.name, class)
		}
		key += fmt.Sprintf("%s %d ", class, i)
	}
	if main, ok := l.bound[key]; ok {
		return main, nil
	}
	p, err := s.assemble(l, b)
	if err != nil {
		return nil, err
	}
	main, err := s.plan.dev.Load(p)
	if err == nil {
		l.bound[key] = main
	}
	return main, err
}

// variable returns the buffer of a variable under a binding.
func (s *Session) variable(name string, b Binding) (device.Buffer, error) {
	i := 0
	if pool, ok := s.plan.pools[name]; ok {
		if i, ok = b[pool.Class]; !ok {
			return nil, fmt.Errorf("variable %q: class %q needs a buffer index", name, pool.Class)
		}
	}
	if buffer, ok := s.variables[s.plan.bufferName(name, i)]; ok {
		return buffer, nil
	}
	return nil, fmt.Errorf("there is no variable %q with index %d", name, i)
}

// buffer returns the memory of a storage.
func (s *Session) buffer(l *loaded, st plan.Storage, bind Binding) (device.Range, error) {
	var b device.Buffer
	var err error
	switch st.Space {
	case plan.Arena:
		b = s.arena[st.Chunk]
	case plan.Variable:
		b, err = s.variable(st.Name, bind)
	case plan.Input:
		b = l.inputs[st.Name]
	case plan.Constant:
		b = l.constants[st.Name]
	case outputSpace:
		b = l.outputs[st.Name]
	}
	return device.Range{Buffer: b, Offset: st.Offset, Size: st.Size}, err
}

// Variables returns the variables' buffers by name. The name of a pool's buffer has an index, as in "pool#1".
func (s *Session) Variables() []graph.Named {
	var vs []graph.Named
	for _, name := range slices.Sorted(maps.Keys(s.variables)) {
		vs = append(vs, graph.Named{ID: name, Type: s.plan.memory[name]})
	}
	return vs
}

// WriteVariable uploads the elements of a variable that has no pool, little-endian.
func (s *Session) WriteVariable(name string, data []byte) error { return s.WriteAt(name, nil, data) }

// WriteAt uploads the elements of one of a variable's buffers.
func (s *Session) WriteAt(name string, at Binding, data []byte) error {
	b, err := s.variable(name, at)
	if err != nil {
		return err
	}
	return s.write("variable "+name, b, data)
}

func (s *Session) write(what string, b device.Buffer, data []byte) error {
	if int64(len(data)) != b.Size() {
		return fmt.Errorf("%s takes %d bytes, got %d", what, b.Size(), len(data))
	}
	return s.plan.dev.Write(b, 0, data)
}

// ReadVariable enqueues a read of a variable that has no pool.
func (s *Session) ReadVariable(name string) (device.Pending, error) { return s.ReadAt(name, nil) }

// ReadAt enqueues a read of one of a variable's buffers.
func (s *Session) ReadAt(name string, at Binding) (device.Pending, error) {
	b, err := s.variable(name, at)
	if err != nil {
		return nil, err
	}
	return s.plan.dev.Read(b, 0, b.Size())
}

// Buffer returns the buffer of a variable, for other uses of its device. The session keeps it.
func (s *Session) Buffer(name string, at Binding) (device.Buffer, error) { return s.variable(name, at) }

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

// Run enqueues a program whose variables have no pool.
func (s *Session) Run(program string) error { return s.RunAt(program, nil) }

// RunAt enqueues a program on the buffers that a binding selects.
func (s *Session) RunAt(program string, at Binding) error {
	_, main, err := s.find(program, at)
	if err != nil {
		return err
	}
	return s.plan.dev.Run(main)
}

// find returns a program, loaded for a binding.
func (s *Session) find(program string, at Binding) (*loaded, device.Loaded, error) {
	l, err := s.program(program)
	if err != nil {
		return nil, nil, err
	}
	main, err := s.bind(l, at)
	return l, main, err
}

// Output enqueues a read of an output of the last enqueued run.
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

// Mark returns a read that completes when all work enqueued so far is done.
func (s *Session) Mark() (device.Pending, error) { return s.plan.dev.Read(s.buffers[0], 0, markBytes) }

// markBytes is the smallest size of a read.
const markBytes = 4

// Sync waits for all enqueued work.
func (s *Session) Sync() error { return s.plan.dev.Sync() }

// Close waits for the device and releases the session's memory.
func (s *Session) Close() error {
	err := s.plan.dev.Sync()
	for _, l := range s.programs {
		for _, main := range l.bound {
			main.Release()
		}
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
