package graph

import "fmt"

// Op is one kind of computation with its attributes. An Op is a pointer to a plain struct whose exported fields are its
// attributes: Hash encodes them as JSON. Everything that is known of an op is in this interface: a new op is its type,
// listed in op.Catalogue, and no other code changes.
type Op interface {
	// Name is the op's kind in lower case: "add".
	Name() string
	// Infer is the shape rule: the types of the results, or an error that names the wrong input.
	Infer(in []Type) ([]Type, error)
	// Grad adds the nodes that compute the gradients of the inputs and returns them. dout is the gradients of the
	// results. Both are nil where none flows.
	Grad(n *Node, dout []*Value) []*Value
	// Kernel says how a device computes it.
	Kernel(n *Node) Kernel
	// Eval is the reference, in float64: it fills out.
	Eval(in, out []*Tensor)
	// Cases are the inputs on which every property of the op is tested, on every backend.
	Cases() []Case
}

// Case is one test of an op.
type Case struct {
	Op     Op
	Inputs []Type
	// Fill gives element j of input i; nil means uniform in [-2, 2] (floats) or [0, 4) (integers).
	Fill func(i, j int) float64
	// Low and High bound the uniform floats when they differ.
	Low, High float64
	// Tolerance is the allowed error of the kernel in f32, relative to the largest magnitude of the reference;
	// 0 means 2e-6.
	Tolerance float64
	NoGrad    bool // no input can carry a gradient, or none that central differences can measure
}

// Source is an op without inputs that stands for memory.
type Source interface {
	Op
	Label() string
	Declared() Type
}

// Arity is a helper for shape rules: it refuses another number of inputs than n.
func Arity(in []Type, n int) error {
	if len(in) != n {
		return fmt.Errorf("got %d inputs, expected %d", len(in), n)
	}
	return nil
}

// Named is the name and type of a source.
type Named struct {
	ID   string `json:"name"`
	Type Type   `json:"type"`
}

func (s *Named) Label() string  { return s.ID }
func (s *Named) Declared() Type { return s.Type }
func (*Named) TakesFloat16()    {}

func (s *Named) Infer(in []Type) ([]Type, error) {
	if err := Arity(in, 0); err != nil {
		return nil, err
	}
	if s.ID == "" {
		return nil, fmt.Errorf("a source needs a name")
	}
	return []Type{s.Type}, nil
}

func (s *Named) Grad(*Node, []*Value) []*Value { return nil }
func (s *Named) Kernel(*Node) Kernel           { return Memory{} }
func (s *Named) Eval(_, _ []*Tensor)           { panic("graph: a source has no value of its own") }
func (s *Named) Cases() []Case                 { return nil }

// Input is a tensor that the host uploads before a run.
type Input struct{ Named }

func (*Input) Name() string { return "input" }

// Variable is a tensor that outlives a run.
type Variable struct{ Named }

func (*Variable) Name() string { return "variable" }

// Constant is a tensor of fixed values.
type Constant struct {
	Named
	Data []float64 `json:"data"`
}

func (*Constant) Name() string { return "constant" }

func (c *Constant) Infer(in []Type) ([]Type, error) {
	if err := c.Type.Shape.Check(); err != nil {
		return nil, err
	}
	if len(c.Data) != c.Type.Shape.Len() {
		return nil, fmt.Errorf("constant %q has %d values, expected %d for %v", c.ID, len(c.Data), c.Type.Shape.Len(), c.Type)
	}
	return c.Named.Infer(in)
}

// Eval copies the values.
func (c *Constant) Eval(_, out []*Tensor) { copy(out[0].Data, c.Data) }
