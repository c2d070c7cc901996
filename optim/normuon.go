package optim

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// NorMuon is the config of NorMuon (Li et al., arXiv:2510.05491, algorithm 1). Each row (a neuron) of Muon's orthogonal
// matrix o is divided by the root of the running mean of its mean square, v ← lerp(v, mean(o²), 1−β₂). The whole is
// scaled back to o's norm, as in the official code (zichongli5/NorMuon, normuon.py), and then by Muon's scale. The
// paper's own scale, 0.2·√(rows·cols) over the norm, equals match_rms_adamw, since o's singular values are about 1.
type NorMuon struct {
	Muon  Muon
	Beta2 float64
}

// DefaultNorMuon has the defaults of NorMuon.
func DefaultNorMuon() *NorMuon { return &NorMuon{Muon: *DefaultMuon(), Beta2: 0.95} }

// Fields lists the hyperparameters.
func (c *NorMuon) Fields() []Field {
	return append(c.Muon.Fields(), Field{Name: "beta2", About: "decay rate of the second moments of the rows", Value: &c.Beta2,
		Range: fractions})
}

// LearningRate is LR.
func (c *NorMuon) LearningRate() float64 { return c.Muon.LR }
func (*NorMuon) takes(p Param) bool      { return p.Matrix }
func (c *NorMuon) rule() Rule            { return &norMuon{newMuon(&c.Muon), c.Beta2} }

type norMuon struct {
	*muon
	beta2 float64
}

func (*norMuon) State(p Param) []graph.Named {
	rows := p.Type.Shape[:len(p.Type.Shape)-1]
	return append(kinds(p, "momentum"), graph.Named{ID: "second_momentum", Type: graph.T(graph.F32, rows...)})
}

// exact is true of the second moments: there is one a row.
func (*norMuon) exact(kind string) bool { return kind == "second_momentum" }

func (n *norMuon) Update(ts []Tensor, h Scalars) []Update {
	us := make([]Update, len(ts))
	ns := make([]*graph.Value, len(ts))
	for i, t := range ts {
		us[i].State = make([]*graph.Value, 2)
		us[i].State[0], ns[i] = n.averaged(t)
	}
	secondMoments := func(mean *graph.Value, b batch) *graph.Value {
		vs := make([]*graph.Value, len(ts))
		for i, rows := range b.entries(mean) {
			us[i].State[1] = lerp(ts[i].State[1], rows, 1-n.beta2)
			vs[i] = us[i].State[1]
		}
		return b.gather(vs)
	}
	for i, u := range n.normalized(ns, h.Get("lr"), secondMoments) {
		us[i].U = u
	}
	return us
}

// Momentum is the update of m with the second moments as they are.
func (n *norMuon) Momentum(_ []Tensor, us []Update, h Scalars) []*graph.Value {
	ms, vs := make([]*graph.Value, len(us)), make([]*graph.Value, len(us))
	for i, u := range us {
		ms[i], vs[i] = u.State[0], u.State[1]
	}
	return n.normalized(ms, h.Get("lr"), func(_ *graph.Value, b batch) *graph.Value { return b.gather(vs) })
}

// normalized is rate·scale·o·r for every matrix, where r holds the factors of its rows. secondMoments returns
// those of a batch, [n, rows], given the mean squares [n, rows] of its rows.
func (n *norMuon) normalized(xs []*graph.Value, rate *graph.Value,
	secondMoments func(mean *graph.Value, b batch) *graph.Value) []*graph.Value {
	return batched(xs, n.maxBatch, func(x *graph.Value, b batch) *graph.Value {
		o := newtonSchulz(x, n.coefficients)
		mean := op.Mean(op.Square(o), []int{2}, false)
		r := op.Reciprocal(op.Shift(op.Sqrt(secondMoments(mean, b)), 1e-10))
		// The norms of o and of o·r follow from the norms of the rows.
		cols := float64(o.Shape[2])
		norm := op.Sqrt(op.Scale(op.Sum(mean, []int{1}, true), cols))
		changed := op.Sqrt(op.Scale(op.Sum(op.Mul(mean, op.Square(r)), []int{1}, true), cols))
		r = op.Mul(r, op.Div(norm, op.Shift(changed, 1e-10)))
		return n.scaled(op.Mul(o, op.Reshape(r, r.Shape[0], r.Shape[1], 1)), rate)
	})
}
