package model

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Written is a model that comes as a graph: see Draft. Muon and its like take its matrices, but for those of the first and the last
// unit.
type Written struct {
	size   Size
	units  []string
	params []Parameter
	alike  []int // by unit
	write  func(batch int) (*Draft, error)

	mu     sync.Mutex
	drafts map[int]*sheets // by batch
}

// NewWritten makes one of vocab tokens and sequences of seqLen. write gives its draft for microbatches of some sequences; it is called
// once for each number of them, and has to write the same units and parameters each time.
func NewWritten(vocab, seqLen int, write func(batch int) (*Draft, error)) (*Written, error) {
	d, err := write(1)
	if err != nil {
		return nil, err
	}
	s := d.sheets()
	w := &Written{size: Size{VocabSize: vocab, SeqLen: seqLen, DModel: s.dmodel()}, units: d.Units, params: d.Parameters, alike: s.alike(),
		write: write, drafts: map[int]*sheets{1: s}}
	return w, nil
}

// Prepare has the model written for microbatches of some sequences, and checks that it is the same.
func (w *Written) Prepare(batch int) error {
	_, err := w.draft(batch)
	return err
}

// draft is the model for microbatches of a size.
func (w *Written) draft(batch int) (*sheets, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.drafts[batch]; s != nil {
		return s, nil
	}
	d, err := w.write(batch)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(d.Units, w.units) {
		return nil, fmt.Errorf("the model has units %v for %d sequences, and %v for one", d.Units, batch, w.units)
	}
	for i := range max(len(d.Parameters), len(w.params)) {
		if i >= len(d.Parameters) || i >= len(w.params) || !reflect.DeepEqual(d.Parameters[i], w.params[i]) {
			return nil, fmt.Errorf("the model has parameter %d as %v for %d sequences, and as %v for one", i, nth(d.Parameters, i), batch, nth(w.params, i))
		}
	}
	s := d.sheets()
	if got := s.dmodel(); got != w.size.DModel {
		return nil, fmt.Errorf("f32[B,T,%d] goes between units for %d sequences, and f32[B,T,%d] for one", got, batch, w.size.DModel)
	}
	w.drafts[batch] = s
	return s, nil
}

func nth(ps []Parameter, i int) string {
	if i >= len(ps) {
		return "none"
	}
	p := ps[i]
	return fmt.Sprintf("%q %v of unit %q (std %v, else %v)", p.Name, p.Type, p.Scope, p.Std, p.Fill)
}

// alike finds the first unit that each is like. The first and the last are like no other: one reads tokens, the other has the loss.
func (s *sheets) alike() []int {
	like := make([]int, len(s.Units))
	texts := make([]string, len(s.Units))
	for u := range s.Units {
		like[u], texts[u] = u, s.signature(u)
		if u == 0 || u == len(s.Units)-1 {
			continue
		}
		if v := slices.Index(texts[1:u], texts[u]); v >= 0 {
			like[u] = v + 1
		}
	}
	return like
}

// signature describes what a unit computes, without names.
func (s *sheets) signature(u int) string {
	known := map[*graph.Value]string{}
	if u > 0 {
		known[s.leaves[u-1]] = "entry"
	}
	var text strings.Builder
	for _, n := range s.nodes[u] {
		attributes, err := json.Marshal(n.Op)
		if err != nil {
			panic(err) // ops are plain structs
		}
		fmt.Fprintf(&text, "%s %s", n.Op.Name(), attributes)
		for _, v := range n.Inputs {
			if known[v] == "" { // a source: parameters by their order, others by what they hold
				known[v] = fmt.Sprintf("%s %d %v", v.Node.Op.Name(), len(known), v.Type)
				if c, ok := v.Node.Op.(*graph.Constant); ok {
					known[v] = fmt.Sprintf("constant %v %x", v.Type, s.digest(c))
				}
			}
			text.WriteString(", " + known[v])
		}
		for _, v := range n.Outputs {
			known[v] = fmt.Sprint("#", len(known))
		}
		text.WriteString("\n")
	}
	return text.String() + "= " + known[s.leaves[u]]
}

// digest is a hash of a constant's numbers.
func (s *sheets) digest(c *graph.Constant) [sha256.Size]byte {
	sum, ok := s.digests[c]
	if !ok {
		h := sha256.New()
		if err := binary.Write(h, binary.LittleEndian, c.Data); err != nil {
			panic(err) // a hash takes everything
		}
		sum = [sha256.Size]byte(h.Sum(nil))
		s.digests[c] = sum
	}
	return sum
}

// Validate finds nothing: what a draft may be is checked where it is written.
func (w *Written) Validate() error { return nil }

// Size is the model's lengths.
func (w *Written) Size() Size { return w.size }

// Units counts those that were named, or one.
func (w *Written) Units() int { return len(w.units) }

// UnitScope is the name of a unit.
func (w *Written) UnitScope(unit int) string { return w.units[unit] }

// Like is the first unit that does the same as this.
func (w *Written) Like(unit int) int { return w.alike[unit] }

// Parameters lists the trained tensors in the order of their units.
func (w *Written) Parameters() []Parameter { return slices.Clone(w.params) }

// Reads lists the parameters of units [first, last).
func (w *Written) Reads(first, last int) []Parameter { return within(w.Parameters(), w, first, last) }

// Tied is false: units share no parameter.
func (w *Written) Tied() bool { return false }

// Gradients names the one variable that holds a parameter's gradient.
func (w *Written) Gradients(parameter string) []string { return []string{Gradient(parameter)} }

// Count is the number of trained numbers.
func (w *Written) Count() int64 { return count(w.params) }

// LossParameters lists those of the last unit.
func (w *Written) LossParameters() (ps []graph.Named) {
	for _, p := range w.Reads(w.Units()-1, w.Units()) {
		ps = append(ps, graph.Named{ID: p.Name, Type: p.Type})
	}
	return ps
}

// Variables are those of a microbatch: see Size.Variables.
func (w *Written) Variables(in Inputs, batch int) []graph.Named { return w.size.Variables(in, batch) }

// Stage builds the programs of a part of the model.
func (w *Written) Stage(o StageOptions) (*Stage, error) { return newStage(w, o) }

// Grad is Config.Grad of this model.
func (w *Written) Grad(batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	return grad(w, batch, microbatches, accumulate)
}

// Eval is the graph that outputs "losses", the mean negative log-likelihood of each of batch sequences: f32 [batch].
func (w *Written) Eval(batch int) (*graph.Graph, error) { return evaluation(w, batch) }

// Predict is the graph that takes tokens u32 [1, T] and a "position" u32 [1] < T, and outputs the "logits" f32 [V] of the token after
// that at the position. What comes later in tokens is of no account, if the model is causal.
func (w *Written) Predict() (*graph.Graph, error) {
	return newSpan(w, 0, w.Units(), 1).build(func(s *span) {
		s.source = s.b.Input
		var x *graph.Value
		for u := range w.units {
			x = s.net.unit(u, x, s.read)
		}
		s.b.Scope(s.headScope(), func() {
			rows := op.Reshape(x, s.SeqLen, s.VocabSize)
			row := op.Embedding(rows, s.b.Input(PositionInput, graph.T(graph.U32, 1)))
			s.b.Output(LogitsOutput, op.Reshape(row, s.VocabSize))
		})
	})
}

// VocabularyInput is what a Draft's graph calls the numbers of all tokens.
const VocabularyInput = "vocabulary"

// sheet is a draft as values of a graph.
type sheet struct {
	*sheets
	b *graph.Builder
	precision
}

func (w *Written) network(b *graph.Builder, batch int) (network, error) {
	s, err := w.draft(batch)
	return sheet{sheets: s, b: b}, err
}

func (s sheet) in(d graph.DType) network {
	s.precision = precision(d)
	return s
}

func (s sheet) parameters() []Parameter { return slices.Clone(s.Parameters) }

func (s sheet) parameter(name string) *graph.Value {
	i := slices.IndexFunc(s.Parameters, func(p Parameter) bool { return p.Name == name })
	return s.b.Variable(name, s.Parameters[i].Type)
}

func (s sheet) unit(u int, x *graph.Value, read func(string) *graph.Value) *graph.Value {
	return s.replay(s.b, u, x, func(name string, t graph.Type) *graph.Value {
		if name == VocabularyInput {
			return op.Iota(s.b, graph.U32, 0, t.Shape...)
		}
		v := read(name)
		if v == nil { // no segments: a row is one
			v = op.Full(s.b, graph.U32, 0, t.Shape...)
		}
		return v
	}, s.precision)
}

// head gives the parameters of the last unit. What its logits are made of is the writer's business.
func (s sheet) head() (*graph.Value, map[string]*graph.Value) {
	ps := map[string]*graph.Value{}
	for _, p := range s.Parameters {
		if p.Scope == s.Units[len(s.Units)-1] {
			ps[p.Name] = s.parameter(p.Name)
		}
	}
	return nil, ps
}
