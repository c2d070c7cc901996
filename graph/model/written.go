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
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Written is a model that comes as a graph, from a hook say: see Draft.
type Written struct {
	size   Size
	units  []string
	params []Parameter
	like   []int // by unit
	write  func(batch int) (*Draft, error)

	mu     sync.Mutex
	drafts map[int]*draft // by batch
}

// NewWritten returns the model that write builds, of vocab tokens and sequences of seqLen. write returns the model's
// graph for microbatches of batch sequences. It is called once for each batch, and must build the same units and
// parameters each time.
func NewWritten(vocab, seqLen int, write func(batch int) (*Draft, error)) (*Written, error) {
	d, err := write(1)
	if err != nil {
		return nil, err
	}
	s := d.byUnit()
	w := &Written{size: Size{VocabSize: vocab, SeqLen: seqLen, DModel: s.dmodel()}, units: d.Units, params: d.Parameters, like: s.like(),
		write: write, drafts: map[int]*draft{1: s}}
	return w, nil
}

// Prepare builds the model for microbatches of batch sequences, and checks that it has the same units and parameters.
func (w *Written) Prepare(batch int) error {
	_, err := w.draft(batch)
	return err
}

// draft returns the model for microbatches of batch sequences.
func (w *Written) draft(batch int) (*draft, error) {
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
			return nil, fmt.Errorf("the model has parameter %d as %v for %d sequences, and as %v for one", i, nth(d.Parameters, i), batch,
				nth(w.params, i))
		}
	}
	s := d.byUnit()
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
	return fmt.Sprintf("%q %v of unit %q (std %v, else %v)", p.Name, p.Type, p.Unit, p.Std, p.Fill)
}

// like finds the first unit that each unit equals. The first and the last unit equal no other: one reads tokens, the
// other has the loss.
func (s *draft) like() []int {
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

// signature is a text that is equal for units that compute the same, whatever their names.
func (s *draft) signature(u int) string {
	known := map[*graph.Value]string{}
	if u > 0 {
		known[s.results[u-1]] = "entry"
	}
	var text strings.Builder
	for _, n := range s.nodes[u] {
		attributes, err := json.Marshal(n.Op)
		if err != nil {
			panic(err) // ops are plain structs
		}
		fmt.Fprintf(&text, "%s %s", n.Op.Name(), attributes)
		for _, v := range n.Inputs {
			if known[v] == "" { // a source: parameters by their order, constants by their values
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
	return text.String() + "= " + known[s.results[u]]
}

// digest is a hash of a constant's values.
func (s *draft) digest(c *graph.Constant) [sha256.Size]byte {
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

// Validate returns nil: a Draft is checked while it is built.
func (w *Written) Validate() error { return nil }

// Size returns the model's lengths.
func (w *Written) Size() Size { return w.size }

// Units counts the units of the draft.
func (w *Written) Units() int { return len(w.units) }

// UnitName is the name of a unit, which is the scope of its nodes.
func (w *Written) UnitName(unit int) string { return w.units[unit] }

// UnitScope is UnitName.
func (w *Written) UnitScope(unit int) string { return w.units[unit] }

// Like is the first unit with the same programs as this unit.
func (w *Written) Like(unit int) int { return w.like[unit] }

// Parameters lists the trained tensors in the order of their units.
func (w *Written) Parameters() []Parameter { return slices.Clone(w.params) }

// Reads lists the parameters of units [first, last).
func (w *Written) Reads(first, last int) []Parameter { return within(w.Parameters(), w, first, last) }

// Routing is nil: layers of a module are not known to be mixtures of experts.
func (w *Written) Routing(int, int) []int { return nil }

// Experts is 0.
func (w *Written) Experts() int { return 0 }

// SideLosses is false.
func (w *Written) SideLosses() bool { return false }

// Tied is false: units share no parameter.
func (w *Written) Tied() bool { return false }

// Gradients names the one variable that holds a parameter's gradient.
func (w *Written) Gradients(parameter string) []string { return []string{Gradient(parameter)} }

// Count is the number of trained elements.
func (w *Written) Count() int64 { return count(w.params) }

// ActiveCount is Count: every token uses every parameter.
func (w *Written) ActiveCount() int64 { return w.Count() }

// Redundant is false: every tensor of a file must be a parameter.
func (w *Written) Redundant(string) bool { return false }

// Namings is the naming in checkpoints alone.
func (w *Written) Namings() []Naming { return []Naming{{}} }

// LossParameters lists the parameters of the last unit.
func (w *Written) LossParameters() (ps []graph.Named) {
	for _, p := range w.Reads(w.Units()-1, w.Units()) {
		ps = append(ps, graph.Named{ID: p.Name, Type: p.Type})
	}
	return ps
}

// Variables are the variables that hold the data of a microbatch: see Size.Variables.
func (w *Written) Variables(in Inputs, batch int) []graph.Named { return w.size.Variables(in, batch) }

// Stage builds the training programs of a chunk of the model.
func (w *Written) Stage(o StageOptions) (*Stage, error) { return newStage(w, o) }

// Grad is Config.Grad of this model.
func (w *Written) Grad(batch, microbatches int, accumulate bool) (*graph.Graph, error) {
	return grad(w, batch, microbatches, accumulate)
}

// Eval is Config.Eval of this model.
func (w *Written) Eval(batch int, segments bool) (*graph.Graph, error) {
	return evaluation(w, batch, segments)
}

// TopK is Config.TopK of this model.
func (w *Written) TopK(batch, k int, segments bool) (*graph.Graph, error) {
	return likeliest(w, batch, k, segments)
}

// WithSeqLen returns the model itself. The error is a *FieldError if it has another length.
func (w *Written) WithSeqLen(seqLen int) (Model, error) {
	if seqLen != w.size.SeqLen {
		return nil, fielderror.New("seq_len", seqLen, "%d, for which the model was built", w.size.SeqLen)
	}
	return w, nil
}

// HuggingFace is nil: Transformers has no such model.
func (w *Written) HuggingFace() []byte { return nil }

// Decoder returns a decoder without a cache: see Predict.
func (w *Written) Decoder() (Decoder, error) {
	g, err := w.Predict()
	return Decoder{Graph: g}, err
}

// Predict is the graph that takes tokens u32 [1, T] and a "position" u32 [1] < T, and outputs the "logits" f32 [V] of
// the token after the position. The tokens after the position change nothing if the model is causal.
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

// VocabularyInput is the name, in a Draft's graph, of the ids of all tokens in order.
const VocabularyInput = "vocabulary"

// draftNetwork is a draft as values of one graph.
type draftNetwork struct {
	*draft
	b *graph.Builder
	precision
}

func (w *Written) network(b *graph.Builder, batch int) (network, error) {
	s, err := w.draft(batch)
	return draftNetwork{draft: s, b: b}, err
}

func (s draftNetwork) in(d graph.DType) network {
	s.precision = precision(d)
	return s
}

func (s draftNetwork) parameters() []Parameter { return slices.Clone(s.Parameters) }

func (s draftNetwork) parameter(name string) *graph.Value {
	i := slices.IndexFunc(s.Parameters, func(p Parameter) bool { return p.Name == name })
	return s.b.Variable(name, s.Parameters[i].Type)
}

func (s draftNetwork) unit(u int, x *graph.Value, read func(string) *graph.Value) *graph.Value {
	return s.replay(s.b, u, x, func(name string, t graph.Type) *graph.Value {
		if name == VocabularyInput {
			return op.Iota(s.b, graph.U32, 0, t.Shape...)
		}
		v := read(name)
		if v == nil { // no segments: each sequence is one
			v = op.Full(s.b, graph.U32, 0, t.Shape...)
		}
		return v
	}, s.precision)
}

func (s draftNetwork) routing() []routing { return nil }

// head returns the parameters of the last unit. Its hidden values are unknown.
func (s draftNetwork) head() (*graph.Value, map[string]*graph.Value) {
	ps := map[string]*graph.Value{}
	for _, p := range s.Parameters {
		if p.Unit == s.Units[len(s.Units)-1] {
			ps[p.Name] = s.parameter(p.Name)
		}
	}
	return nil, ps
}
