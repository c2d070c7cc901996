package exec

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/plan"
	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// Chooser selects among the variants of a kernel.
type Chooser interface {
	// Choose returns an index into candidates, which are in the order that shaders.Lowering gives.
	Choose(dev device.Device, label string, candidates []shaders.Kernel, fallback int) (int, error)
}

// Announcer is a Chooser that can report its progress: it receives all candidates before it chooses among them.
type Announcer interface {
	// Announce receives the candidates of each kernel that Choose will be called for.
	Announce(dev device.Device, kernels [][]shaders.Kernel)
}

// Options of NewPlan.
type Options struct {
	Tune   Chooser         // nil: the static choice
	Budget int64           // bytes that the plan may take; 0: bounded by the device only
	Pools  map[string]Pool // by variable; a variable without one has a buffer of its own
}

// Pool is several equal buffers for one variable, or for several variables that share them: versions of weights, or
// activations of several microbatches. Each run of a program selects among them by the variables' classes.
type Pool struct {
	Name  string // variables with pools of one name share its memory
	Class string // the key of the index in a Binding
	Size  int    // number of buffers
}

// Binding is the index of a buffer by class. Variables of one pool that one program uses must have different indices.
type Binding map[string]int

// Plan is programs that share variables, lowered for a device. Nothing is allocated yet.
type Plan struct {
	dev       device.Device
	programs  map[string]*program
	variables map[string]graph.Type
	pools     map[string]Pool       // by variable
	memory    map[string]graph.Type // of variables, by the names of their buffers
	order     []string              // of buffers
	arena     []int64               // bytes of the arena's buffers, shared by the programs
	untuned   error
}

type program struct {
	name    string
	graph   *graph.Graph
	fused   *fuse.Result
	memory  *plan.Plan
	kernels []kernel // by group
	inputs  map[string]graph.Type
	outputs map[string]graph.Type
}

// Memory is the size of a plan in bytes.
type Memory struct {
	Variables int64 `json:"variables"`
	Inputs    int64 `json:"inputs"`
	Outputs   int64 `json:"outputs"`
	Constants int64 `json:"constants"`
	Arena     int64 `json:"arena"` // of the largest program, since all programs share one arena
	Total     int64 `json:"total"`
}

// kernel is the chosen variant of a group's kernel.
type kernel struct {
	shaders.Kernel
	bytes  int64                   // bytes that it reads and writes
	memory map[*graph.Value]string // see variants
}

// KernelInfo describes one kernel of a program.
type KernelInfo struct {
	Label     string  `json:"label"`
	Scope     string  `json:"scope,omitempty"` // of the model: "layers.3", "layers.3 backward"
	Candidate string  `json:"candidate"`
	Tolerance float64 `json:"tolerance,omitempty"` // relative error to expect, where it is larger than f32's
	Flops     float64 `json:"flops"`               // multiplications and additions of matrix products and of attention
	Bytes     int64   `json:"bytes"`               // that must be read and written at least
}

// ErrTooLarge is wrapped by NewPlan's error for an array or a plan that is larger than the device or the budget allows.
var ErrTooLarge = plan.ErrTooLarge

// Shortage is NewPlan's error for a plan that is larger than the budget.
type Shortage struct {
	Needed    Memory
	Available int64 // bytes
}

func (s *Shortage) Error() string {
	m := s.Needed
	return fmt.Sprintf("%v: %s needed (variables %s, arena %s, inputs %s, outputs %s, constants %s), %s available",
		ErrTooLarge, units.Bytes(m.Total), units.Bytes(m.Variables), units.Bytes(m.Arena), units.Bytes(m.Inputs), units.Bytes(m.Outputs),
		units.Bytes(m.Constants), units.Bytes(s.Available))
}

func (s *Shortage) Unwrap() error { return ErrTooLarge }

// advised adds advice to the error of an array that is too large, and gives its sizes in units of memory. Other errors
// stay as they are.
func advised(err error) error {
	var large *plan.TooLarge
	if !errors.As(err, &large) {
		return err
	}
	return fmt.Errorf("%w: %s needs %s in one piece, the device binds at most %s: use a smaller microbatch, vocabulary or sequence",
		ErrTooLarge, large.Array, units.Bytes(large.Needed), units.Bytes(large.Limit))
}

// NewPlan lowers the named graphs for a device. Graphs that name the same variable share it. A plan that does not fit
// is refused before any kernel is timed, because timing allocates memory. A plan that fits, but not with the scratch
// memory of the kernels that Tune chose, uses the static choice: see Untuned.
func NewPlan(dev device.Device, graphs map[string]*graph.Graph, opts Options) (*Plan, error) {
	tune := opts.Tune
	opts.Tune = nil
	lows, err := lower(dev, graphs)
	if err != nil {
		return nil, err
	}
	static, err := newPlan(dev, lows, opts)
	if err != nil || tune == nil {
		return static, err
	}
	if a, ok := tune.(Announcer); ok {
		a.Announce(dev, choices(lows))
	}
	opts.Tune = tune
	p, err := newPlan(dev, lows, opts)
	if errors.Is(err, ErrTooLarge) {
		static.untuned = err
		return static, nil
	}
	return p, err
}

// Untuned returns why the plan does not have the kernels that Tune chose: an error that wraps ErrTooLarge. It is nil if
// the plan has them, or if Tune was nil.
func (p *Plan) Untuned() error { return p.untuned }

// choices returns the candidates of the kernels that have several.
func choices(lows map[string]*lowered) (several [][]shaders.Kernel) {
	for _, name := range slices.Sorted(maps.Keys(lows)) {
		for _, v := range lows[name].variants {
			if len(v.kernels) > 1 {
				several = append(several, v.kernels)
			}
		}
	}
	return several
}

func newPlan(dev device.Device, lows map[string]*lowered, opts Options) (*Plan, error) {
	p := &Plan{dev: dev, programs: map[string]*program{}, variables: map[string]graph.Type{}, pools: opts.Pools,
		memory: map[string]graph.Type{}}
	for _, name := range slices.Sorted(maps.Keys(lows)) {
		if err := p.add(name, lows[name], opts.Tune); err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
	}
	if m := p.Memory(); opts.Budget > 0 && m.Total > opts.Budget {
		return nil, &Shortage{m, opts.Budget}
	}
	return p, nil
}

func (p *Plan) add(name string, low *lowered, tune Chooser) error {
	fused := low.fused
	q := &program{name: name, graph: fused.Graph, fused: fused,
		inputs: map[string]graph.Type{}, outputs: map[string]graph.Type{}}
	scratch := map[*fuse.Group][]int64{}
	for i, group := range fused.Groups {
		k, err := p.choose(group, low.variants[i].kernels, tune)
		if err != nil {
			return err
		}
		q.kernels = append(q.kernels, kernel{k, shaders.Bytes(fused, group, k), low.variants[i].memory})
		scratch[group] = k.Scratch
	}
	var err error
	if q.memory, err = plan.Run(fused, func(g *fuse.Group) []int64 { return scratch[g] }, p.dev.Limits()); err != nil {
		return advised(err)
	}
	if err := p.declare(q); err != nil {
		return err
	}
	p.programs[name] = q
	return nil
}

// declare collects the buffers that a program needs.
func (p *Plan) declare(q *program) error {
	for _, v := range q.graph.Variables() {
		if old, ok := p.variables[v.ID]; ok && !old.Equal(v.Type) {
			return fmt.Errorf("variable %q is %v here and %v in another program", v.ID, v.Type, old)
		}
		p.variables[v.ID] = v.Type
		if err := p.provide(v.ID, v.Type); err != nil {
			return err
		}
	}
	for _, v := range q.graph.Sources("input") {
		q.inputs[v.Node.Op.(graph.Source).Label()] = v.Type
	}
	for _, o := range q.graph.Outputs {
		q.outputs[o.Name] = o.Value.Type
	}
	for i, n := range q.memory.Chunks {
		if i == len(p.arena) {
			p.arena = append(p.arena, 0)
		}
		p.arena[i] = max(p.arena[i], n)
	}
	return nil
}

// provide plans the buffers of a variable.
func (p *Plan) provide(id string, t graph.Type) error {
	size := 1
	if pool, ok := p.pools[id]; ok {
		size = pool.Size
	}
	for i := range size {
		name := p.bufferName(id, i)
		if old, ok := p.memory[name]; !ok {
			p.order = append(p.order, name)
		} else if !old.Equal(t) {
			return fmt.Errorf("variable %q is %v, but others of its pool are %v", id, t, old)
		}
		p.memory[name] = t
	}
	return nil
}

// bufferName returns the name of the i-th buffer of a variable.
func (p *Plan) bufferName(id string, i int) string {
	if pool, ok := p.pools[id]; ok {
		return fmt.Sprintf("%s#%d", pool.Name, i)
	}
	return id
}

// choose selects a group's kernel among its variants.
func (p *Plan) choose(g *fuse.Group, ks []shaders.Kernel, tune Chooser) (shaders.Kernel, error) {
	i := shaders.Default(ks, g, p.dev.Limits())
	if tune != nil && len(ks) > 1 {
		var err error
		if i, err = tune.Choose(p.dev, shaders.Label(g), ks, i); err != nil {
			return shaders.Kernel{}, err
		}
	}
	return ks[i], nil
}

// Memory returns the bytes that Load will allocate.
func (p *Plan) Memory() Memory {
	var m Memory
	for _, t := range p.memory {
		m.Variables += t.Bytes()
	}
	for _, q := range p.programs {
		for _, t := range q.inputs {
			m.Inputs += t.Bytes()
		}
		for _, t := range q.outputs {
			m.Outputs += t.Bytes()
		}
		for _, v := range q.graph.Sources("constant") {
			m.Constants += v.Type.Bytes()
		}
	}
	for _, n := range p.arena {
		m.Arena += n
	}
	m.Total = m.Variables + m.Inputs + m.Outputs + m.Constants + m.Arena
	return m
}

// Arena returns the bytes of scratch memory of a program.
func (p *Plan) Arena(program string) (n int64) {
	for _, b := range p.programs[program].memory.Chunks {
		n += b
	}
	return n
}

// Kernels describes a program's kernels in the order in which they run.
func (p *Plan) Kernels(name string) []KernelInfo {
	q, ok := p.programs[name]
	if !ok {
		return nil
	}
	var infos []KernelInfo
	for i, g := range q.fused.Groups {
		k := q.kernels[i]
		infos = append(infos, KernelInfo{Label: shaders.Label(g), Scope: g.Scope, Candidate: k.Name, Tolerance: k.Tolerance,
			Flops: shaders.Flops(g), Bytes: k.bytes})
	}
	return infos
}

// Chosen returns the kernels of a program in the order in which they run, for timing and for inspection. Values share
// no memory in them, except for variables that are replaced in place.
func (p *Plan) Chosen(name string) ([]shaders.Kernel, error) {
	q, ok := p.programs[name]
	if !ok {
		return nil, fmt.Errorf("there is no program %q", name)
	}
	var chosen []shaders.Kernel
	for _, k := range q.kernels {
		chosen = append(chosen, k.Kernel)
	}
	return chosen, nil
}

// Shaders returns the shaders of a program that Load compiles, each distinct source once, in the order of their first
// use.
func (p *Plan) Shaders(name string) ([]device.Shader, error) {
	q, ok := p.programs[name]
	if !ok {
		return nil, fmt.Errorf("there is no program %q", name)
	}
	r, err := p.record(q)
	return r.shaders, err
}
