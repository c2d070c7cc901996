package graph

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
)

// The file format of a graph is JSON: its nodes in topological order, each with its op's attributes and its inputs as
// [node, result], then the outputs and assignments. Equal graphs have equal bytes.
const (
	fileFormat  = "gpupipe-graph"
	fileVersion = 1
	maxNodes    = 1 << 20
	maxInputs   = 1 << 10 // of one node
)

type graphFile struct {
	Format  string       `json:"format"`
	Version int          `json:"version"`
	Nodes   []nodeFile   `json:"nodes"`
	Outputs []outputFile `json:"outputs"`
	Assigns []assignFile `json:"assigns"`
}

type nodeFile struct {
	Op     string          `json:"op"`
	Scope  string          `json:"scope"`
	Attrs  json.RawMessage `json:"attrs"`
	Inputs []reference     `json:"inputs"`
}

// reference is a node and which of its results. It is a slice because JSON fills an array of another length in silence.
type reference []int

type outputFile struct {
	Name  string    `json:"name"`
	Value reference `json:"value"`
}

type assignFile struct {
	Variable reference `json:"variable"`
	Value    reference `json:"value"`
}

func refer(v *Value) reference { return reference{v.Node.ID, v.Index} }

// Encode writes the graph. Numbers read back as the same bits.
func Encode(w io.Writer, g *Graph) error {
	f := graphFile{fileFormat, fileVersion, []nodeFile{}, []outputFile{}, []assignFile{}}
	for _, n := range g.Nodes {
		attrs, err := json.Marshal(n.Op)
		if err != nil {
			return fmt.Errorf("encoding node %d (%s): %w", n.ID, n.Op.Name(), err)
		}
		nf := nodeFile{n.Op.Name(), n.Scope, attrs, []reference{}}
		for _, v := range n.Inputs {
			nf.Inputs = append(nf.Inputs, refer(v))
		}
		f.Nodes = append(f.Nodes, nf)
	}
	for _, o := range g.Outputs {
		f.Outputs = append(f.Outputs, outputFile{o.Name, refer(o.Value)})
	}
	for _, a := range g.Assigns {
		f.Assigns = append(f.Assigns, assignFile{refer(a.Variable), refer(a.Value)})
	}
	return json.NewEncoder(w).Encode(f)
}

// Decode reads a graph that Encode wrote, and checks it as the builder does: each shape rule runs again. It allocates
// memory in proportion to the bytes that it reads. Ops come from the catalogue, so their packages must be imported.
func Decode(r io.Reader) (*Graph, error) {
	var f graphFile
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("graph file: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("graph file: there is something after its end")
	}
	if f.Format != fileFormat || f.Version != fileVersion {
		return nil, fmt.Errorf("graph file: format %q version %d, expected %q version %d", f.Format, f.Version, fileFormat, fileVersion)
	}
	if len(f.Nodes) > maxNodes {
		return nil, fmt.Errorf("graph file: %d nodes, at most %d are allowed", len(f.Nodes), maxNodes)
	}
	g, err := Build(func(b *Builder) { b.load(f) })
	if err != nil {
		return nil, fmt.Errorf("graph file: %w", err)
	}
	return g, nil
}

func (b *Builder) load(f graphFile) {
	for i, nf := range f.Nodes {
		what := fmt.Sprintf("node %d (%.40q)", i, nf.Op)
		op, err := decodeOp(nf)
		if err != nil {
			b.Fail(what, "%v", err)
		}
		if len(nf.Inputs) > maxInputs {
			b.Fail(what, "%d inputs, at most %d are allowed", len(nf.Inputs), maxInputs)
		}
		in := make([]*Value, len(nf.Inputs))
		for j, r := range nf.Inputs {
			in[j] = b.resolve(what, r)
		}
		b.Scope(nf.Scope, func() {
			if s, ok := op.(Source); ok {
				b.loadSource(what, s, nf)
			} else {
				b.Apply(op, in...)
			}
		})
	}
	for _, o := range f.Outputs {
		b.Output(o.Name, b.resolve("output", o.Value))
	}
	for _, a := range f.Assigns {
		b.Assign(b.resolve("assign", a.Variable), b.resolve("assign", a.Value))
	}
}

// loadSource adds a source as the builder would: once by name, and in no layer.
func (b *Builder) loadSource(what string, s Source, nf nodeFile) {
	if nf.Scope != "" || len(nf.Inputs) != 0 {
		b.Fail(what, "a source has no scope and no inputs")
	}
	n := b.Len()
	if b.source(s); b.Len() == n {
		b.Fail(what, "%q is named twice", s.Label())
	}
}

// resolve finds a value among the nodes so far, so that no reference makes a cycle.
func (b *Builder) resolve(what string, r reference) *Value {
	if len(r) != 2 || r[0] < 0 || r[0] >= b.Len() || r[1] < 0 || r[1] >= len(b.Node(r[0]).Outputs) {
		b.Fail(what, "reference %v, expected [node, result] of an earlier node", []int(r[:min(len(r), 4)]))
	}
	return b.Node(r[0]).Outputs[r[1]]
}

// decodeOp makes an op from its attributes. All of them must be given, and no others.
func decodeOp(nf nodeFile) (Op, error) {
	op, err := NewOp(nf.Op)
	if err != nil {
		return nil, err
	}
	var given, known map[string]json.RawMessage
	if len(nf.Attrs) == 0 {
		return nil, fmt.Errorf("attributes are missing")
	}
	if err := json.Unmarshal(nf.Attrs, &given); err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	if given == nil {
		return nil, fmt.Errorf("attributes are %.20s, expected an object", nf.Attrs)
	}
	d := json.NewDecoder(bytes.NewReader(nf.Attrs))
	d.DisallowUnknownFields()
	if err := d.Decode(op); err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	// Encoding again shows which attributes the op has: a missing one would be zero in silence.
	again, err := json.Marshal(op)
	if err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	if err := json.Unmarshal(again, &known); err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	if !maps.EqualFunc(given, known, func(_, _ json.RawMessage) bool { return true }) {
		return nil, fmt.Errorf("attributes are %.200s, expected those of %.200s", nf.Attrs, again)
	}
	return op, nil
}
