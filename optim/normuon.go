package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	rules["normuon"] = registered{make: func(c Config) (Rule, error) {
		m, err := newMuon(c)
		return &norMuon{m, c.Beta2}, err
	}, takes: hiddenMatrix}
}

// norMuon is NorMuon (Li et al., arXiv:2510.05491, algorithm 1): Muon's orthogonal matrix o, each row (a neuron) divided by the
// root of the running mean of its mean square, v ← lerp(v, mean(o²), 1−β₂), and the whole brought back to o's norm, as the
// official code has it (zichongli5/NorMuon, normuon.py); then Muon's scale. The paper's own scale, 0.2·√(rows·cols) over
// the norm, is that with the scale match_rms_adamw, for o's singular values are about 1.
type norMuon struct {
	*muon
	beta2 float64
}

func (*norMuon) Name() string { return "normuon" }

func (*norMuon) State(p Param) []graph.Named {
	return append(kinds(p, "momentum"), graph.Named{ID: "second_momentum", Type: graph.T(graph.F32, p.Type.Shape[0])})
}

func (n *norMuon) Update(ts []Tensor, numbers []*graph.Value) []Update {
	us := make([]Update, len(ts))
	ns := make([]*graph.Value, len(ts))
	for i, t := range ts {
		us[i].State = make([]*graph.Value, 2)
		us[i].State[0], ns[i] = n.averaged(t)
	}
	seconds := func(mean *graph.Value, batch []int) *graph.Value {
		vs := make([]*graph.Value, len(ts))
		for j, i := range batch {
			row := op.Reshape(op.Slice(mean, 0, j, j+1), mean.Shape[1])
			us[i].State[1] = lerp(ts[i].State[1], row, 1-n.beta2)
			vs[i] = us[i].State[1]
		}
		return stack(vs, batch)
	}
	for i, u := range n.normalised(ns, numbers[0], seconds) {
		us[i].U = u
	}
	return us
}

// Momentum is the update of m with the second moments as they are.
func (n *norMuon) Momentum(_ []Tensor, us []Update, numbers []*graph.Value) []*graph.Value {
	ms, vs := make([]*graph.Value, len(us)), make([]*graph.Value, len(us))
	for i, u := range us {
		ms[i], vs[i] = u.State[0], u.State[1]
	}
	return n.normalised(ms, numbers[0], func(_ *graph.Value, batch []int) *graph.Value { return stack(vs, batch) })
}

// normalised is rate·scale·o·r for every matrix, where r are the factors of its rows; seconds gives the second moments [n, rows]
// of a batch of which the rows have the mean squares [n, rows].
func (n *norMuon) normalised(xs []*graph.Value, rate *graph.Value, seconds func(mean *graph.Value, batch []int) *graph.Value) []*graph.Value {
	return batched(xs, n.maxBatch, func(x *graph.Value, batch []int) *graph.Value {
		o := newtonSchulz(x, n.coefficients)
		mean := op.Mean(op.Square(o), []int{2}, false)
		r := op.Reciprocal(op.Shift(op.Sqrt(seconds(mean, batch)), 1e-10))
		// The norms of o and of o·r, from those of the rows.
		cols := float64(o.Shape[2])
		norm := op.Sqrt(op.Scale(op.Sum(mean, []int{1}, true), cols))
		changed := op.Sqrt(op.Scale(op.Sum(op.Mul(mean, op.Square(r)), []int{1}, true), cols))
		r = op.Mul(r, op.Div(norm, op.Shift(changed, 1e-10)))
		return n.scaled(op.Mul(o, op.Reshape(r, r.Shape[0], r.Shape[1], 1)), rate)
	})
}
