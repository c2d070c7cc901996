package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
)

// AttentionOp is causal attention with grouped queries and scale 1/√D. Inputs: q [B,Tq,H,D], k and v [B,Tk,KV,D] with
// KV dividing H, and optionally position u32[1], the place of query 0 among the keys (0 without it): query i
// sees the keys j ≤ i + position. Results: o [B,Tq,H,D] and the logarithm of the softmax's denominator [B,H,Tq], which
// the gradient uses. Memory is linear in the sequence length.
type AttentionOp struct{}

func (*AttentionOp) Name() string { return "attention" }

// Attention is causal attention with grouped queries: q [B,Tq,H,D], k and v [B,Tk,KV,D] → [B,Tq,H,D]. Query i sees the
// keys j ≤ i + position; position is u32[1], or nil for 0. There is no gradient through attention with a position.
func Attention(q, k, v, position *graph.Value) *graph.Value {
	in := []*graph.Value{q, k, v}
	if position != nil {
		in = append(in, position)
	}
	return graph.Apply1(new(AttentionOp), in...)
}

func (*AttentionOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) != 3 && len(in) != 4 {
		return nil, fmt.Errorf("got %d inputs, expected q, k, v and perhaps position", len(in))
	}
	s, err := attentionSizes(in)
	if err != nil {
		return nil, err
	}
	if position := graph.T(graph.U32, 1); len(in) == 4 && !in[3].Equal(position) {
		return nil, fmt.Errorf("position is %v, expected %v", in[3], position)
	}
	return []graph.Type{in[0], graph.T(graph.F32, s.batch, s.heads, s.queries)}, nil
}

// attentionShape names the extents of an attention.
type attentionShape struct{ batch, queries, keys, heads, kvHeads, dim int }

// attentionSizes checks q, k and v, the first three types.
func attentionSizes(in []graph.Type) (attentionShape, error) {
	var s attentionShape
	for i, name := range []string{"q", "k", "v"} {
		if in[i].DType != graph.F32 || len(in[i].Shape) != 4 {
			return s, fmt.Errorf("%s is %v, expected f32[batch,sequence,heads,dim]", name, in[i])
		}
	}
	q, k := in[0].Shape, in[1].Shape
	switch {
	case !in[1].Equal(in[2]):
		return s, fmt.Errorf("k is %v and v is %v, expected one type", in[1], in[2])
	case q[0] != k[0] || q[3] != k[3]:
		return s, fmt.Errorf("q is %v and k is %v, expected equal batch and head dimension", in[0], in[1])
	case q[2]%k[2] != 0:
		return s, fmt.Errorf("%d query heads are no multiple of %d key heads", q[2], k[2])
	case q[3] > maxHeadDim:
		return s, fmt.Errorf("head dimension is %d, at most %d is allowed", q[3], maxHeadDim)
	}
	return attentionShape{q[0], q[1], k[1], q[2], k[2], q[3]}, nil
}

const maxHeadDim = 256

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
func (*AttentionOp) Eval(in, out []*graph.Tensor) {
	s := mustAttentionSizes(in[0].Type, in[1].Type, in[2].Type)
	q, k, v := in[0].Data, in[1].Data, in[2].Data
	position := 0
	if len(in) == 4 {
		position = int(in[3].Data[0])
	}
	s.rows(func(b, i, h int) {
		scores := make([]float64, min(i+position+1, s.keys))
		largest, sum := math.Inf(-1), 0.0
		for j := range scores {
			scores[j] = s.scale() * inner(s.row(q, s.query(b, i, h)), s.row(k, s.key(b, j, h)))
			largest = max(largest, scores[j])
		}
		for _, x := range scores {
			sum += math.Exp(x - largest)
		}
		o := s.row(out[0].Data, s.query(b, i, h))
		clear(o)
		for j, x := range scores {
			axpy(math.Exp(x-largest)/sum, s.row(v, s.key(b, j, h)), o)
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

func (*AttentionOp) Grad(n *graph.Node, dout []*graph.Value) []*graph.Value {
	b := n.Outputs[0].Builder()
	if len(n.Inputs) == 4 {
		b.Fail("attention", "attention with a position is for decoding and has no gradient")
	}
	do := dout[0]
	if do == nil {
		do = Full(b, graph.F32, 0, n.Outputs[0].Shape...)
	}
	in := append(append([]*graph.Value{}, n.Inputs...), n.Outputs[0], n.Outputs[1], do)
	if dout[1] != nil {
		in = append(in, dout[1])
	}
	return b.Apply(new(AttentionGradOp), in...)
}

func (*AttentionOp) Kernel(n *graph.Node) graph.Kernel {
	k := attentionKernels{
		attentionShape: mustAttentionSizes(n.Inputs[0].Type, n.Inputs[1].Type, n.Inputs[2].Type),
		position:       len(n.Inputs) == 4,
	}
	return graph.Template{Candidates: k.forward}
}

func (*AttentionOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, s := range attentionCases() {
		cs = append(cs, graph.Case{Op: new(AttentionOp), Inputs: s.inputs(), Tolerance: 1e-5, NoGrad: s.queries > 33})
	}
	for _, s := range []attentionShape{{2, 1, 37, 4, 2, 16}, {1, 3, 40, 3, 1, 20}, {2, 5, 9, 2, 2, 6}} {
		// Queries at the end of a cache that is not full.
		position := float64(s.keys - s.queries - 2)
		types := append(s.inputs(), graph.T(graph.U32, 1))
		cs = append(cs, graph.Case{Op: new(AttentionOp), Inputs: types, Tolerance: 1e-5, NoGrad: true, Fill: func(i, j int) float64 {
			if i == 3 {
				return position
			}
			return scatter(i, j)
		}})
	}
	return cs
}

// attentionCases cover one and many rows, odd lengths, grouped queries, and dims with and without whole vectors.
func attentionCases() []attentionShape {
	return []attentionShape{
		{1, 1, 1, 1, 1, 4}, {2, 5, 5, 3, 1, 3}, {2, 33, 33, 4, 2, 16}, {1, 100, 100, 3, 1, 20}, {2, 128, 128, 2, 2, 32},
		{1, 70, 70, 2, 1, 64}, {1, 9, 9, 1, 1, 128}, {1, 3, 3, 1, 1, 256}, {1, 7, 12, 2, 1, 8}, {1, 12, 7, 2, 2, 8},
	}
}

// inputs are the types of q, k and v.
func (s attentionShape) inputs() []graph.Type {
	kv := graph.T(graph.F32, s.batch, s.keys, s.kvHeads, s.dim)
	return []graph.Type{graph.T(graph.F32, s.batch, s.queries, s.heads, s.dim), kv, kv}
}

// scatter is a fixed number in [-1, 1) that looks random.
func scatter(i, j int) float64 {
	x := uint32(j)*2654435761 + uint32(i)*40503 + 12345
	x ^= x >> 15
	x *= 2246822519
	x ^= x >> 13
	return float64(x)/(1<<31) - 1
}

// AttentionGradOp is the gradient of AttentionOp. Inputs: q, k, v, the results o and logsumexp, the gradient of o, and
// optionally that of logsumexp. Results: the gradients of q, k and v, each summed in a fixed order.
type AttentionGradOp struct{}

func (*AttentionGradOp) Name() string { return "attention_grad" }

func (*AttentionGradOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) != 6 && len(in) != 7 {
		return nil, fmt.Errorf("got %d inputs, expected q, k, v, o, logsumexp, the gradient of o and perhaps that of logsumexp", len(in))
	}
	s, err := attentionSizes(in)
	if err != nil {
		return nil, err
	}
	lse := graph.T(graph.F32, s.batch, s.heads, s.queries)
	for i, want := range []graph.Type{in[0], lse, in[0], lse}[:len(in)-3] {
		if !in[3+i].Equal(want) {
			return nil, fmt.Errorf("input %d is %v, expected %v", 3+i, in[3+i], want)
		}
	}
	return in[:3], nil
}

func (*AttentionGradOp) Grad(n *graph.Node, _ []*graph.Value) []*graph.Value {
	n.Outputs[0].Builder().Fail("attention_grad", "second derivatives of attention are not offered")
	return nil
}

// Eval recomputes each probability from the logsumexp.
func (*AttentionGradOp) Eval(in, out []*graph.Tensor) {
	s := mustAttentionSizes(in[0].Type, in[1].Type, in[2].Type)
	q, k, v, do := in[0].Data, in[1].Data, in[2].Data, in[5].Data
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
			c := s.key(b, j, h)
			p := math.Exp(s.scale()*inner(s.row(q, r), s.row(k, c)) - in[4].Data[s.lse(b, i, h)])
			ds := s.scale() * p * (inner(s.row(do, r), s.row(v, c)) - delta)
			axpy(ds, s.row(k, c), s.row(out[0].Data, r))
			axpy(ds, s.row(q, r), s.row(out[1].Data, c))
			axpy(p, s.row(do, r), s.row(out[2].Data, c))
		}
	})
}

func (*AttentionGradOp) Kernel(n *graph.Node) graph.Kernel {
	k := attentionKernels{
		attentionShape: mustAttentionSizes(n.Inputs[0].Type, n.Inputs[1].Type, n.Inputs[2].Type),
		lseGrad:        len(n.Inputs) == 7,
	}
	return graph.Template{Candidates: k.backward}
}

func (*AttentionGradOp) Cases() []graph.Case {
	var cs []graph.Case
	for n, s := range attentionCases() {
		types := s.inputs()
		lse := graph.T(graph.F32, s.batch, s.heads, s.queries)
		types = append(types, types[0], lse, types[0], lse)[:6+n%2]
		cs = append(cs, graph.Case{Op: new(AttentionGradOp), Inputs: types, Tolerance: 2e-5, NoGrad: true, Fill: func(i, j int) float64 {
			if i == 4 {
				return 4 + scatter(i, j) // keeps the probabilities moderate
			}
			return scatter(i, j)
		}})
	}
	return cs
}

func init() {
	graph.Register(func() graph.Op { return new(AttentionOp) })
	graph.Register(func() graph.Op { return new(AttentionGradOp) })
}
