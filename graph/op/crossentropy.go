package op

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
)

func crossEntropies() []graph.Op {
	return []graph.Op{new(PickOp), new(CrossEntropyOp)}
}

// PickOp takes one element of each row: x […, V] and ids u32 […] give […]. An id beyond the row takes the last.
type PickOp struct{}

func (*PickOp) Name() string { return "pick" }

func (*PickOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := graph.Arity(in, 2); err != nil {
		return nil, err
	}
	if len(in[0].Shape) == 0 {
		return nil, fmt.Errorf("input 0 is %v, expected at least one axis", in[0])
	}
	out := graph.Type{DType: in[0].DType, Shape: in[0].Shape[:len(in[0].Shape)-1]}
	return []graph.Type{out}, wantType("input 1", in[1], graph.U32, out.Shape...)
}

func (*PickOp) Kernel(n *graph.Node) graph.Kernel {
	v := lastExtent(n.Inputs[0])
	return graph.Elementwise{Emit: func(e graph.Emitter, at []graph.Index) *scalar.Expr {
		return e.Input(0, append(at[:len(at):len(at)], row(e, e.Input(1, at), v)))
	}}
}

func (*PickOp) Eval(in, out []*graph.Tensor) {
	v := in[0].Shape[len(in[0].Shape)-1]
	for i, id := range in[1].Data {
		out[0].Data[i] = in[0].Data[i*v+min(int(id), v-1)]
	}
}

func (*PickOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	x := n.Inputs[0]
	g := Broadcast(Reshape(d[0], keepDims(x.Shape, lastAxis(x))...), x.Shape...)
	return []*graph.Value{Where(picked(x, n.Inputs[1]), g, Scalar(x.Builder(), x.DType, 0)), nil}
}

// picked reports, for each element of x, whether PickOp takes it.
func picked(x, ids *graph.Value) *graph.Value {
	b, v := x.Builder(), lastExtent(x)
	column := Minimum(ids, Scalar(b, graph.U32, float64(v-1)))
	return Equal(Iota(b, graph.U32, len(x.Shape)-1, x.Shape...), Reshape(column, keepDims(x.Shape, lastAxis(x))...))
}

func (*PickOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, s := range []graph.Shape{{3}, {1, 1}, {4, 5}, {2, 3, 7}, {2, 1003}, {22000, 4}} {
		cs = append(cs, graph.Case{
			Op: new(PickOp), Inputs: []graph.Type{{DType: graph.F32, Shape: s}, {DType: graph.U32, Shape: s[:len(s)-1]}},
		})
	}
	return cs
}

// Pick takes one element of each row: x […, V] and ids u32 […] give […]. An id beyond the row takes the last.
func Pick(x, ids *graph.Value) *graph.Value { return graph.Apply1(new(PickOp), x, ids) }

// CrossEntropyOp is the weighted negative log-likelihood of targets u32 [N] under logits [N,V]. Its inputs are the
// logits, the targets and, if any, the weights [N]; its results the loss [N], the weights that count [N] and
// log Σ e^logits [N], from which the gradient makes probabilities again without storing them.
type CrossEntropyOp struct {
	Ignore int64      `json:"ignore"`
	ZLoss  graph.Real `json:"z_loss"`
}

func (*CrossEntropyOp) Name() string { return "cross_entropy" }

func (o *CrossEntropyOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) != 2 && len(in) != 3 {
		return nil, fmt.Errorf("got %d inputs, expected 2 or 3", len(in))
	}
	if err := wantFloat(0, in[0]); err != nil {
		return nil, err
	}
	if len(in[0].Shape) != 2 {
		return nil, fmt.Errorf("the logits are %v, expected [tokens, vocabulary]", in[0])
	}
	if o.Ignore < -1 || o.Ignore > math.MaxUint32 {
		return nil, fmt.Errorf("the ignored target is %d, expected a u32, or -1 for none", o.Ignore)
	}
	n, d := in[0].Shape[0], in[0].DType
	if err := wantType("the targets", in[1], graph.U32, n); err != nil {
		return nil, err
	}
	if len(in) == 3 {
		if err := wantType("the weights", in[2], d, n); err != nil {
			return nil, err
		}
	}
	t := graph.T(d, n)
	return []graph.Type{t, t, t}, nil
}

// counts is the weight of each token, before and after the ignored ones become zero.
func (o *CrossEntropyOp) counts(in []*graph.Value) (mask, counted *graph.Value) {
	b, t := in[0].Builder(), graph.T(in[0].DType, in[0].Shape[0])
	if len(in) == 3 {
		counted = in[2]
	} else {
		counted = Full(b, t.DType, 1, t.Shape...)
	}
	if o.Ignore >= 0 {
		mask = NotEqual(in[1], Scalar(b, graph.U32, float64(o.Ignore)))
		counted = Where(mask, counted, Scalar(b, t.DType, 0))
	}
	return mask, counted
}

// unless makes x zero where the mask, if there is one, is zero: also where x is not finite.
func unless(mask, x *graph.Value) *graph.Value {
	if mask == nil {
		return x
	}
	return Where(mask, x, Scalar(x.Builder(), x.DType, 0))
}

// nll is the loss of each token before weights.
func (o *CrossEntropyOp) nll(logits, targets, lse *graph.Value) *graph.Value {
	l := Sub(lse, Pick(logits, targets))
	if o.ZLoss != 0 {
		l = Add(l, Scale(Square(lse), float64(o.ZLoss)))
	}
	return l
}

func (o *CrossEntropyOp) Kernel(*graph.Node) graph.Kernel {
	return expansion(func(in []*graph.Value) []*graph.Value {
		logits := in[0]
		top := ReduceMax(logits, []int{1}, true)
		lse := Reshape(Add(top, Log(Sum(Exp(Sub(logits, top)), []int{1}, true))), logits.Shape[0])
		mask, counted := o.counts(in)
		return []*graph.Value{unless(mask, Mul(counted, o.nll(logits, in[1], lse))), counted, lse}
	})
}

func (o *CrossEntropyOp) Eval(in, out []*graph.Tensor) {
	v := in[0].Shape[1]
	for i, target := range in[1].Data {
		row := in[0].Data[i*v : (i+1)*v]
		lse := logSumExp(row)
		weight, loss := 0.0, 0.0
		if int64(target) != o.Ignore {
			weight = 1
			if len(in) == 3 {
				weight = in[2].Data[i]
			}
			loss = weight * (lse - row[min(int(target), v-1)] + float64(o.ZLoss)*lse*lse)
		}
		out[0].Data[i], out[1].Data[i], out[2].Data[i] = loss, weight, lse
	}
}

func (o *CrossEntropyOp) Grad(n *graph.Node, d []*graph.Value) []*graph.Value {
	logits, targets, lse := n.Inputs[0], n.Inputs[1], n.Outputs[2]
	mask, counted := o.counts(n.Inputs)
	column := func(x *graph.Value) *graph.Value { return Reshape(x, x.Shape[0], 1) }
	var onPick, onLSE, dw *graph.Value // gradients of the target's logit (negated) and of lse
	if d[0] != nil {
		onPick = Mul(d[0], counted)
		onLSE = onPick
		if o.ZLoss != 0 {
			onLSE = Mul(onPick, Shift(Scale(lse, 2*float64(o.ZLoss)), 1))
		}
		dw = unless(mask, Mul(d[0], o.nll(logits, targets, lse)))
	}
	if d[1] != nil {
		dw = plus(dw, unless(mask, d[1]))
	}
	onLSE = plus(onLSE, d[2])
	grads := make([]*graph.Value, len(n.Inputs))
	if onLSE != nil {
		grads[0] = Mul(column(onLSE), Exp(Sub(logits, column(lse))))
	}
	if onPick != nil {
		zero := Scalar(logits.Builder(), logits.DType, 0)
		grads[0] = Sub(grads[0], Where(picked(logits, targets), column(onPick), zero))
	}
	if len(grads) == 3 {
		grads[2] = dw
	}
	return grads
}

func (*CrossEntropyOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, o := range []*CrossEntropyOp{{-1, 0}, {2, 0}, {-1, 1e-2}, {math.MaxUint32 - 99, 1e-3}} {
		for _, s := range []graph.Shape{{1, 1}, {5, 7}, {33, 64}, {3, 1003}, {2, 33001}} {
			in := []graph.Type{{DType: graph.F32, Shape: s}, graph.T(graph.U32, s[0]), graph.T(graph.F32, s[0])}
			c := graph.Case{Op: o, Inputs: in[:2], Tolerance: 1e-5}
			weighted := c
			weighted.Inputs = in
			cs = append(cs, c, weighted)
		}
	}
	ids := func(i, j int) float64 {
		if i == 1 {
			return []float64{0, math.MaxUint32 - 99, 1002, 5}[j%4]
		}
		return math.Sin(float64(j)) * 30
	}
	odd := graph.Case{Op: &CrossEntropyOp{math.MaxUint32 - 99, 0}, Inputs: []graph.Type{graph.T(graph.F32, 9, 1003), graph.T(graph.U32, 9)},
		Fill: ids, Tolerance: 1e-5}
	weighted := odd
	weighted.Inputs = []graph.Type{graph.T(graph.F32, 9, 12), graph.T(graph.U32, 9), graph.T(graph.F32, 9)}
	return append(cs, odd, weighted)
}

// CrossEntropyOptions modify CrossEntropy. Note that Ignore's zero value ignores token 0; −1 ignores none.
type CrossEntropyOptions struct {
	Weights *graph.Value // [N], of the logits' dtype; nil is ones
	Ignore  int64        // targets of this value neither cost nor count
	ZLoss   float64      // adds ZLoss·(log Σ e^logits)² to each token's loss
}

// CrossEntropy is the negative log-likelihood in nats of targets u32 [N] under logits [N,V], times the weight of each
// token, and the weight that counts (zero where ignored): the mean loss is the sum of one over the sum of the other.
// Targets beyond the vocabulary count as its last token.
func CrossEntropy(logits, targets *graph.Value, o CrossEntropyOptions) (perToken, counted *graph.Value) {
	in := []*graph.Value{logits, targets}
	if o.Weights != nil {
		in = append(in, o.Weights)
	}
	out := logits.Builder().Apply(&CrossEntropyOp{o.Ignore, graph.Real(o.ZLoss)}, in...)
	return out[0], out[1]
}
