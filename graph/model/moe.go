package model

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// This file is a layer's mixture of experts. N = batch·sequence tokens, E = experts, k = experts of a token, R = N·k
// rows. No token is dropped: each expert multiplies the rows that chose it, however many these are.

// Names of the parameters of a mixture of experts, within a layer. Those of experts are stacks: [E, out, in].
const (
	routerName    = "mlp.gate"
	biasName      = "mlp.gate.e_score_correction_bias" // without the suffix of layerName
	expertsPrefix = "mlp.experts"
	sharedPrefix  = "mlp.shared_experts"
	densePrefix   = "mlp"
)

// balancingBias is the name of a layer's balancing bias.
func balancingBias(i int) string { return fmt.Sprintf("model.layers.%d.%s", i, biasName) }

// routing is what a layer's router has decided for a microbatch, beside the layer's result.
type routing struct {
	layer int
	load  *graph.Value // u32 [E]: how many of the R rows each expert has; rows of padding do not count
	// losses are the weighted side losses, f32 [] each. Their gradients are added to the gradients of the training
	// loss. They are no part of the reported loss.
	losses []*graph.Value
	stats  *graph.Value // f32 [RoutingStats]
}

// routing returns what the routers that were built so far have decided.
func (n *net) routing() []routing { return n.routed }

// RoutingStats is the number of statistics of a layer's routing that follow the loads: the mean entropy of the
// router's distribution in nats, the auxiliary loss and the z-loss without their weights, and the least and the
// largest balancing bias.
const RoutingStats = 5

// mixture is the feed-forward layer of a mixture of experts: h [B, T, d_model] to [B, T, d_model].
func (n *net) mixture(i int, h *graph.Value) *graph.Value {
	m, width := n.MoE, n.DModel
	tokens := h.Shape[0] * h.Shape[1]
	x := op.Reshape(h, tokens, width)
	r := n.route(i, x)
	order, place, offsets := op.GroupRows(r.ids, m.Experts)
	n.routed = append(n.routed, n.measure(i, r, offsets))
	token := order // of each row
	if m.TopK > 1 {
		token = op.Div(order, op.Scalar(n.b, graph.U32, float64(m.TopK)))
	}
	rows := op.Take(x, token, place)
	share := op.Take(op.Reshape(r.weights, tokens*m.TopK, 1), order, op.Reshape(place, tokens*m.TopK, 1))
	each := func(name string, x *graph.Value) *graph.Value {
		w := n.parameter(layerName(i, expertsPrefix+"."+name))
		return op.GroupedMatMul(n.operand(x), n.operand(w), offsets, true)
	}
	// The product with the down-projections is linear, so rows are weighted before it: the gradient of a weight then
	// needs nothing that is not kept anyway.
	y := each("down_proj", op.Mul(n.activated(func(name string) *graph.Value { return each(name, rows) }), share))
	y = op.Sum(op.Take(y, place, op.Reshape(order, tokens*m.TopK, 1)), []int{1}, false)
	if m.Shared > 0 {
		y = op.Add(y, n.dense(i, sharedPrefix, x))
	}
	return op.Reshape(y, h.Shape...)
}

// choice is a router's results.
type choice struct {
	logits, scores *graph.Value // f32 [N, E]
	bias           *graph.Value // f32 [E]; nil without balancing bias
	ids, weights   *graph.Value // [N, k]
}

// route chooses experts for tokens x [N, d_model]. The router is f32. Experts are chosen by the scores and the
// balancing bias, and weighted by the scores alone.
func (n *net) route(i int, x *graph.Value) (c choice) {
	m := n.MoE
	logits := op.MatMul(op.Cast(x, graph.F32), n.parameter(layerName(i, routerName)), false, true)
	scores := op.Softmax(logits)
	if m.Score == SigmoidScore {
		scores = op.Sigmoid(logits)
	}
	c.logits, c.scores = logits, scores
	by := op.StopGradient(scores)
	if m.biased() {
		c.bias = op.StopGradient(n.parameter(balancingBias(i)))
		by = op.Add(by, c.bias)
	}
	_, c.ids = op.TopK(by, m.TopK)
	weights := picked(scores, c.ids)
	if m.Normalize {
		sum := op.Sum(weights, []int{1}, true)
		if m.Score == SigmoidScore { // all of a token's scores may be 0
			sum = op.Shift(sum, 1e-20)
		}
		weights = op.Div(weights, sum)
	}
	if m.Scale != 1 {
		weights = op.Scale(weights, m.Scale)
	}
	c.weights = weights
	return c
}

// picked is the elements of scores [N, E] with ids [N, k]: [N, k].
func picked(scores, ids *graph.Value) *graph.Value {
	rows, experts, k := scores.Shape[0], scores.Shape[1], ids.Shape[1]
	each := op.Broadcast(op.Reshape(scores, rows, 1, experts), rows, k, experts)
	return op.Pick(each, ids)
}

// measure computes the load of each expert, the side losses and the statistics.
func (n *net) measure(i int, c choice, offsets *graph.Value) routing {
	m, logits := n.MoE, c.logits
	t := n.measuredTokens(logits.Shape[0])
	r := routing{layer: i, load: t.loads(c.ids, offsets, m.Experts)}
	p := c.scores
	if m.Score == SigmoidScore {
		p = op.Div(p, op.Shift(op.Sum(p, []int{1}, true), 1e-20))
	}
	aux := t.perToken(op.Sum(op.Mul(op.Cast(r.load, graph.F32), t.mean(p, []int{0})), nil, false), m.Experts, m.TopK)
	top := op.StopGradient(op.ReduceMax(logits, []int{1}, true))
	lse := op.Add(op.Log(op.Sum(op.Exp(op.Sub(logits, top)), []int{1}, true)), top)
	z := t.mean(op.Square(lse), nil)
	for _, l := range []struct {
		loss   *graph.Value
		weight float64
	}{{aux, m.Balance.Aux}, {z, m.Balance.Z}} {
		if l.weight > 0 {
			r.losses = append(r.losses, op.Scale(l.loss, l.weight))
		}
	}
	entropy := t.perToken(op.Sum(t.masked(op.Mul(p, op.Log(op.Shift(p, 1e-20)))), nil, false), -1, 1)
	least, most := op.Full(n.b, graph.F32, 0, 1), op.Full(n.b, graph.F32, 0, 1)
	if c.bias != nil {
		least, most = op.ReduceMin(c.bias, []int{0}, true), op.ReduceMax(c.bias, []int{0}, true)
	}
	r.stats = op.Concat(0, op.Reshape(entropy, 1), op.Reshape(aux, 1), op.Reshape(z, 1), least, most)
	return r
}

// measuredTokens are the tokens of a microbatch that a router's loads, losses and statistics are of: all N, or those
// that are not padding.
type measuredTokens struct {
	n       int
	real    *graph.Value // u32 [N, 1]: 0 for padding; nil: there is none
	weights *graph.Value // f32 [N, 1]: real
	number  *graph.Value // f32 []: how many are no padding, at least 1
}

func (n *net) measuredTokens(tokens int) *measuredTokens {
	t := &measuredTokens{n: tokens}
	if n.real != nil {
		t.real = op.Reshape(n.real, tokens, 1)
		t.weights = op.Cast(t.real, graph.F32)
		t.number = op.Maximum(op.Sum(t.weights, nil, false), op.Scalar(n.b, graph.F32, 1))
	}
	return t
}

// loads is how many rows each expert has, u32 [E], given the experts of tokens [N, k] and the offsets of all rows.
func (t *measuredTokens) loads(ids, offsets *graph.Value, experts int) *graph.Value {
	if t.real != nil { // padding goes to an expert that is not there
		none := op.Scalar(ids.Builder(), graph.U32, float64(experts))
		_, _, offsets = op.GroupRows(op.Where(t.real, ids, none), experts+1)
	}
	return op.Sub(op.Slice(offsets, 0, 1, experts+1), op.Slice(offsets, 0, 0, experts))
}

// masked is x [N, …] with 0 for padding.
func (t *measuredTokens) masked(x *graph.Value) *graph.Value {
	if t.real == nil {
		return x
	}
	return op.Mul(x, t.weights)
}

// mean is the mean of x [N, …] over axes. The first axis is the tokens' axis. With nil it is the mean over all axes.
func (t *measuredTokens) mean(x *graph.Value, axes []int) *graph.Value {
	if t.real == nil {
		return op.Mean(x, axes, false)
	}
	return op.Div(op.Sum(t.masked(x), axes, false), t.number)
}

// perToken is x · numerator / (tokens · denominator).
func (t *measuredTokens) perToken(x *graph.Value, numerator, denominator int) *graph.Value {
	if t.real == nil {
		return op.Scale(x, float64(numerator)/float64(t.n*denominator))
	}
	return op.Scale(op.Div(x, t.number), float64(numerator)/float64(denominator))
}
