package op

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// AttentionOp is causal attention with grouped queries and scale 1/√D. Inputs: q [B,Tq,H,D], k and v [B,Tk,KV,D] with
// KV dividing H, and the inputs of its form. Results: o [B,Tq,H,D] and the logarithm of the softmax's denominator
// [B,H,Tq], which the gradient uses. Memory is linear in the sequence length.
type AttentionOp struct {
	Form AttentionForm `json:"form,omitempty"`
	// Window is the number of keys that a query sees at most, the one at its own place included: query i sees only keys
	// j > i + position - Window. 0 is no limit. The result of a query that sees no key is undefined.
	Window int `json:"window,omitempty"`
	// Result is the dtype of o: f32, or the dtype of q, k and v where D is a multiple of four. The gradient reads o as
	// it is stored.
	Result graph.DType `json:"result,omitempty"`
}

// AttentionForm says which keys a query sees, and which inputs an attention has besides q, k and v.
type AttentionForm string

const (
	// FromStart: query i sees the keys j ≤ i.
	FromStart AttentionForm = ""
	// FromPosition has position u32[1], the place of query 0 among the keys: query i sees the keys j ≤ i + position.
	FromPosition AttentionForm = "position"
	// WithinSegments has segments u32[B,T], where Tq = Tk = T: query i sees the keys j ≤ i of its own segment, those
	// with segments[j] = segments[i].
	WithinSegments AttentionForm = "segments"
	// FromCaches has positions u32[B] and slots u32[B]; k and v [C,Tk,KV,D] are the caches of C sequences. Query i of
	// sequence b sees the keys j ≤ i + positions[b] of cache slots[b]. Several sequences may read one cache, and a slot
	// of C or more reads the last one.
	FromCaches AttentionForm = "caches"
)

// attentionForms lists the inputs of each form besides q, k and v.
var attentionForms = map[AttentionForm][]string{FromStart: nil, FromPosition: {"position"}, WithinSegments: {"segments"},
	FromCaches: {"positions", "slots"}}

func (*AttentionOp) Name() string  { return "attention" }
func (*AttentionOp) TakesFloat16() {}

// Attention is causal attention with grouped queries: q [B,Tq,H,D], k and v [B,Tk,KV,D] → [B,Tq,H,D]. Query i sees the
// keys j ≤ i + position; position is u32[1], or nil for 0. There is no gradient through attention with a position. The
// inputs are of one float dtype, and the result is f32.
func Attention(q, k, v, position *graph.Value) *graph.Value {
	if position == nil {
		return new(AttentionOp).Apply(q, k, v)
	}
	return (&AttentionOp{Form: FromPosition}).Apply(q, k, v, position)
}

// SegmentedAttention is causal attention that does not look beyond documents: q [B,T,H,D], k and v [B,T,KV,D], segments
// u32[B,T] → [B,T,H,D]. Query i sees the keys j ≤ i with the same number as its own, next to it or not. Nil segments
// are none.
func SegmentedAttention(q, k, v, segments *graph.Value) *graph.Value {
	if segments == nil {
		return new(AttentionOp).Apply(q, k, v)
	}
	return (&AttentionOp{Form: WithinSegments}).Apply(q, k, v, segments)
}

// Apply is attention with these attributes: q [B,Tq,H,D], k and v [B,Tk,KV,D] → [B,Tq,H,D]. more are the inputs of the
// form.
func (o *AttentionOp) Apply(q, k, v *graph.Value, more ...*graph.Value) *graph.Value {
	return graph.Apply1(o, append([]*graph.Value{q, k, v}, more...)...)
}

func (o *AttentionOp) Infer(in []graph.Type) ([]graph.Type, error) {
	more, known := attentionForms[o.Form]
	if !known {
		return nil, fmt.Errorf("the form is %q, expected none, position, segments or caches", o.Form)
	}
	if names := append([]string{"q", "k", "v"}, more...); len(in) != len(names) {
		return nil, fmt.Errorf("got %d inputs, expected %s", len(in), strings.Join(names, ", "))
	}
	s, err := attentionSizes(in)
	if err == nil && o.Form != FromCaches {
		err = sameBatch(in)
	}
	if err != nil {
		return nil, err
	}
	switch o.Form {
	case FromPosition:
		err = wantType("position", in[3], graph.U32, 1)
	case WithinSegments:
		err = s.checkSegments(in[3])
	case FromCaches:
		err = wantEach(more, in[3:], graph.T(graph.U32, s.batch))
	}
	if err != nil {
		return nil, err
	}
	if err := s.checkWindow(o.Window, o.positioned()); err != nil {
		return nil, err
	}
	if o.Result != graph.F32 && (o.Result != in[0].DType || s.dim%4 != 0) {
		return nil, fmt.Errorf("q is %v, expected %v and a head dimension that is a multiple of 4 where the result is %v", in[0],
			o.Result, o.Result)
	}
	return []graph.Type{{DType: o.Result, Shape: in[0].Shape}, graph.T(graph.F32, s.batch, s.heads, s.queries)}, nil
}

// positioned reports whether queries begin at a place among the keys that is known when the graph runs.
func (o *AttentionOp) positioned() bool { return o.Form == FromPosition || o.Form == FromCaches }

// attentionShape names the extents of an attention.
type attentionShape struct{ batch, queries, keys, heads, kvHeads, dim int }

// attentionSizes checks q, k and v, the first three types.
func attentionSizes(in []graph.Type) (attentionShape, error) {
	var s attentionShape
	for i, name := range []string{"q", "k", "v"} {
		if !in[i].DType.Float() || len(in[i].Shape) != 4 {
			return s, fmt.Errorf("%s is %v, expected [batch,sequence,heads,dim] of f32, f16 or bf16", name, in[i])
		}
	}
	q, k := in[0].Shape, in[1].Shape
	switch {
	case !in[1].Equal(in[2]):
		return s, fmt.Errorf("k is %v and v is %v, expected one type", in[1], in[2])
	case in[0].DType != in[1].DType:
		return s, fmt.Errorf("q is %v and k is %v, expected one dtype", in[0], in[1])
	case q[3] != k[3]:
		return s, fmt.Errorf("q is %v and k is %v, expected equal batch and head dimension", in[0], in[1])
	case q[2]%k[2] != 0:
		return s, fmt.Errorf("%d query heads are no multiple of %d key heads", q[2], k[2])
	case q[3] > MaxHeadDim:
		return s, fmt.Errorf("head dimension is %d, at most %d is allowed", q[3], MaxHeadDim)
	}
	return attentionShape{q[0], q[1], k[1], q[2], k[2], q[3]}, nil
}

// sameBatch checks that queries and keys are of as many sequences.
func sameBatch(in []graph.Type) error {
	if in[0].Shape[0] != in[1].Shape[0] {
		return fmt.Errorf("q is %v and k is %v, expected equal batch and head dimension", in[0], in[1])
	}
	return nil
}

func wantEach(names []string, got []graph.Type, want graph.Type) error {
	for i, t := range got {
		if !t.Equal(want) {
			return fmt.Errorf("%s are %v, expected %v", names[i], t, want)
		}
	}
	return nil
}

func (s attentionShape) checkSegments(t graph.Type) error {
	if s.queries != s.keys {
		return fmt.Errorf("there are %d queries and %d keys, expected as many of both where there are segments", s.queries, s.keys)
	}
	if want := graph.T(graph.U32, s.batch, s.keys); !t.Equal(want) {
		return fmt.Errorf("segments are %v, expected %v", t, want)
	}
	return nil
}

// checkWindow refuses windows in which the last query sees no key. A position decides that only when the graph runs.
func (s attentionShape) checkWindow(window int, position bool) error {
	switch {
	case window < 0 || window > math.MaxInt32:
		return fmt.Errorf("the window is %d, expected 0 to %d", window, math.MaxInt32)
	case window > 0 && !position && s.queries-window >= s.keys:
		return fmt.Errorf("the last of %d queries sees none of %d keys in a window of %d", s.queries, s.keys, window)
	}
	return nil
}

// inOneSegment reports whether two places of a sequence belong to one segment.
func (s attentionShape) inOneSegment(segments []float64, b, i, j int) bool {
	return segments == nil || segments[b*s.keys+i] == segments[b*s.keys+j]
}

// inWindow reports whether the key at place j ≤ i lies in the window of the query at place i.
func inWindow(window, i, j int) bool { return window == 0 || i-j < window }

// MaxHeadDim is the largest width of a head.
const MaxHeadDim = 256

func (s attentionShape) group() int                        { return s.heads / s.kvHeads }
func (s attentionShape) scale() float64                    { return 1 / math.Sqrt(float64(s.dim)) }
func (s attentionShape) query(b, i, h int) int             { return ((b*s.queries+i)*s.heads + h) * s.dim }
func (s attentionShape) key(b, j, h int) int               { return ((b*s.keys+j)*s.kvHeads + h/s.group()) * s.dim }
func (s attentionShape) lse(b, i, h int) int               { return (b*s.heads+h)*s.queries + i }
func (s attentionShape) row(x []float64, at int) []float64 { return x[at : at+s.dim] }

// rows calls f for each query of each head.
func (s attentionShape) rows(f func(b, i, h int)) {
	for b := range s.batch {
		for i := range s.queries {
			for h := range s.heads {
				f(b, i, h)
			}
		}
	}
}

func mustAttentionSizes(types ...graph.Type) attentionShape {
	s, err := attentionSizes(types)
	if err != nil {
		panic(err) // Infer accepted them
	}
	return s
}

// Eval is the textbook: a row of scores, its softmax, the weighted sum of values.
func (a *AttentionOp) Eval(in, out []*graph.Tensor) {
	s := mustAttentionSizes(in[0].Type, in[1].Type, in[2].Type)
	q, k, v := in[0].Data, in[1].Data, in[2].Data
	var segments []float64
	if a.Form == WithinSegments {
		segments = in[3].Data
	}
	s.rows(func(b, i, h int) {
		position, cache := 0, b
		switch a.Form {
		case FromPosition:
			position = int(in[3].Data[0])
		case FromCaches:
			position, cache = int(in[3].Data[b]), min(int(in[4].Data[b]), in[1].Shape[0]-1)
		}
		scores := make([]float64, min(i+position+1, s.keys))
		largest, sum := math.Inf(-1), 0.0
		for j := range scores {
			if scores[j] = math.Inf(-1); !inWindow(a.Window, i+position, j) || !s.inOneSegment(segments, b, i, j) {
				continue
			}
			scores[j] = s.scale() * inner(s.row(q, s.query(b, i, h)), s.row(k, s.key(cache, j, h)))
			largest = max(largest, scores[j])
		}
		for _, x := range scores {
			sum += math.Exp(x - largest)
		}
		o := s.row(out[0].Data, s.query(b, i, h))
		clear(o)
		for j, x := range scores {
			if !inWindow(a.Window, i+position, j) {
				continue // the key may be one that a cache no longer holds
			}
			axpy(math.Exp(x-largest)/sum, s.row(v, s.key(cache, j, h)), o)
		}
		if a.Result.Float16() {
			for x := range o {
				o[x] = a.Result.Round(o[x])
			}
		}
		out[1].Data[s.lse(b, i, h)] = largest + math.Log(sum)
	})
}

func inner(x, y []float64) (sum float64) {
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

// axpy adds a·x to y.
func axpy(a float64, x, y []float64) {
	for i := range x {
		y[i] += a * x[i]
	}
}

func (o *AttentionOp) Grad(n *graph.Node, dout []*graph.Value) []*graph.Value {
	b := n.Outputs[0].Builder()
	qkv, segments := n.Inputs[:3:3], n.Inputs[3:]
	if o.positioned() {
		b.Fail("attention", "attention with a position is for decoding and has no gradient")
	}
	do := dout[0]
	if do == nil {
		do = Full(b, graph.F32, 0, n.Outputs[0].Shape...)
	}
	in := append(qkv, n.Outputs[0], n.Outputs[1], do)
	if dout[1] != nil {
		in = append(in, dout[1])
	}
	grads := b.Apply(&AttentionGradOp{Segments: o.Form == WithinSegments, Window: o.Window}, append(in, segments...)...)
	return append(grads, make([]*graph.Value, len(segments))...)
}

func (o *AttentionOp) Kernel(n *graph.Node) graph.Kernel {
	k := newAttentionKernels(n, n.Outputs[0].DType)
	k.position = o.positioned()
	switch o.Form {
	case WithinSegments:
		k.segments = "in3"
	case FromCaches:
		k.caches = n.Inputs[1].Shape[0]
	}
	k.setWindow(o.Window)
	return graph.Template{Variants: k.forward, Flops: k.flops(2)}
}

// AttentionGradOp is the gradient of AttentionOp. Inputs: q, k, v, the results o and logsumexp, the gradient of o,
// optionally the gradient of logsumexp, and optionally the segments. o may be of the dtype of q. Results: the gradients
// of q, k and v, in f32 whatever those are, each summed in a fixed order.
type AttentionGradOp struct {
	Segments bool `json:"segments,omitempty"` // the last input is segments
	Window   int  `json:"window,omitempty"`   // as AttentionOp's
}

func (*AttentionGradOp) Name() string  { return "attention_grad" }
func (*AttentionGradOp) TakesFloat16() {}

func (o *AttentionGradOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if n := len(in) - boolToInt(o.Segments); n != 6 && n != 7 {
		return nil, fmt.Errorf("got %d inputs, expected q, k, v, o, logsumexp, the gradient of o, perhaps that of logsumexp, and segments if it has them", len(in))
	}
	s, err := attentionSizes(in)
	if err == nil {
		err = sameBatch(in)
	}
	if err != nil {
		return nil, err
	}
	if o.Segments {
		last := len(in) - 1
		if err := s.checkSegments(in[last]); err != nil {
			return nil, err
		}
		in = in[:last]
	}
	if err := s.checkWindow(o.Window, false); err != nil {
		return nil, err
	}
	lse := graph.T(graph.F32, s.batch, s.heads, s.queries)
	result := in[0].Gradient()
	for i, want := range []graph.Type{result, lse, result, lse}[:len(in)-3] {
		rounded := i == 0 && in[3].Equal(in[0]) && s.dim%4 == 0
		if !in[3+i].Equal(want) && !rounded {
			return nil, fmt.Errorf("input %d is %v, expected %v", 3+i, in[3+i], want)
		}
	}
	return []graph.Type{result, in[1].Gradient(), in[2].Gradient()}, nil
}

func (*AttentionGradOp) Grad(n *graph.Node, _ []*graph.Value) []*graph.Value {
	n.Outputs[0].Builder().Fail("attention_grad", "second derivatives of attention are not offered")
	return nil
}

// Eval recomputes each probability from the logsumexp.
func (o *AttentionGradOp) Eval(in, out []*graph.Tensor) {
	s := mustAttentionSizes(in[0].Type, in[1].Type, in[2].Type)
	q, k, v, do := in[0].Data, in[1].Data, in[2].Data, in[5].Data
	var segments []float64
	if o.Segments {
		last := len(in) - 1
		in, segments = in[:last], in[last].Data
	}
	for _, t := range out {
		clear(t.Data)
	}
	s.rows(func(b, i, h int) {
		r := s.query(b, i, h)
		delta := inner(s.row(do, r), s.row(in[3].Data, r))
		if len(in) == 7 {
			delta -= in[6].Data[s.lse(b, i, h)]
		}
		for j := range min(i+1, s.keys) {
			if !inWindow(o.Window, i, j) || !s.inOneSegment(segments, b, i, j) {
				continue
			}
			c := s.key(b, j, h)
			p := math.Exp(s.scale()*inner(s.row(q, r), s.row(k, c)) - in[4].Data[s.lse(b, i, h)])
			ds := s.scale() * p * (inner(s.row(do, r), s.row(v, c)) - delta)
			axpy(ds, s.row(k, c), s.row(out[0].Data, r))
			axpy(ds, s.row(q, r), s.row(out[1].Data, c))
			axpy(p, s.row(do, r), s.row(out[2].Data, c))
		}
	})
}

func (o *AttentionGradOp) Kernel(n *graph.Node) graph.Kernel {
	k := newAttentionKernels(n, n.Inputs[3].DType)
	k.setWindow(o.Window)
	last := len(n.Inputs) - 1
	if o.Segments {
		k.segments = fmt.Sprintf("in%d", last)
		last--
	}
	k.lseGrad = last == 6
	return graph.Template{Variants: k.backward, Flops: k.flops(5)}
}

func attentions() []graph.Op {
	return []graph.Op{new(AttentionOp), new(AttentionGradOp)}
}
