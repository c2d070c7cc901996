package optim

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

func init() {
	rules["soap"] = registered{
		make: newSOAP,
		takes: func(c Config, p Param) bool {
			return p.Matrix && min(p.Type.Shape[0], p.Type.Shape[1]) <= c.MaxPrecondDim
		},
		rest: func(c Config) AdamWConfig {
			return AdamWConfig{LR: c.LR, Betas: [2]float64(c.Betas), Eps: c.Eps}
		},
	}
}

// soap is SOAP (Vyas et al., arXiv:2409.11321, algorithm 3): AdamW in the eigenbasis of Shampoo's preconditioners. As in the
// official code (nikhilvyas/SOAP, soap.py), with L and R for the running means of g·gᵀ and gᵀ·g, and their eigenvectors as
// the columns of Q_L and Q_R,
//
//	g' = Q_Lᵀ·g·Q_R;  m ← lerp(m, g', 1−β₁);  v ← lerp(v, g'², 1−β₂);
//	u = lr·√(1−β₂ᵗ)/(1−β₁ᵗ) · Q_L·(m / (√v + ε))·Q_Rᵀ;
//	L ← lerp(L, g·gᵀ, 1−β);  R ← lerp(R, gᵀ·g, 1−β)
//
// and every some steps, after that, the basis is renewed: its vectors are sorted by Qᵀ·L·Q's diagonal, the largest first,
// and v with them; Q ← QR(L·Q), one power iteration; m turns with the basis. A side that is longer than maxDim has
// the identity for its basis. The first step that is applied makes no update, and no decay: it begins L and R, and decomposes them.
//
// The order of decay is the project's, (1 − lr·λ)·x − u; the official code decays x − u.
type soap struct {
	betas     [2]float64
	eps       float64
	beta      float64 // of L and R
	frequency int     // steps from one renewal of the basis to the next
	maxDim    int
	maxBatch  int64 // bytes
}

func newSOAP(c Config) (Rule, error) {
	betas, err := c.betas(2)
	if err != nil {
		return nil, err
	}
	if c.PreconditionFrequency < 1 {
		return nil, fmt.Errorf("optimizer.soap.precondition_frequency: found %d, expected at least 1", c.PreconditionFrequency)
	}
	return &soap{[2]float64(betas), c.Eps, c.ShampooBeta, c.PreconditionFrequency, c.MaxPrecondDim, maxBatchBytes}, nil
}

func (*soap) Name() string { return "soap" }

// sides are the two of a matrix; each has state for a preconditioner and its eigenvectors unless it is too long.
var sides = [2]string{"left", "right"}

func (s *soap) State(p Param) []graph.Named {
	state := kinds(p, "exp_avg", "exp_avg_sq")
	for i, side := range sides {
		if n := p.Type.Shape[i]; n <= s.maxDim {
			t := graph.T(graph.F32, n, n)
			state = append(state, graph.Named{ID: "precond_" + side, Type: t}, graph.Named{ID: "basis_" + side, Type: t})
		}
	}
	return state
}

// The programs of the update.
const (
	soapStep  = iota
	soapRenew // a step, after which the basis is renewed
	soapBegin // the first step that is applied
	soapPrograms
)

func (*soap) Variants() int { return soapPrograms }

func (s *soap) Variant(step int) int {
	if step%s.frequency == 0 {
		return soapRenew
	}
	return soapStep
}

func (*soap) Begin() int { return soapBegin }

// Numbers is the rate with both bias corrections. Step 0 does not count.
func (s *soap) Numbers(step int, rate float64) []float64 {
	if step == 0 {
		return []float64{0}
	}
	bias := func(beta float64) float64 { return 1 - math.Pow(beta, float64(step)) }
	return []float64{rate * math.Sqrt(bias(s.betas[1])) / bias(s.betas[0])}
}

func (s *soap) Update(ts []Tensor, numbers []*graph.Value) []Update {
	return s.UpdateVariant(soapStep, ts, numbers)
}

func (s *soap) UpdateVariant(variant int, ts []Tensor, numbers []*graph.Value) []Update {
	ps := make([]*preconditioned, len(ts))
	for i, t := range ts {
		ps[i] = s.preconditioned(t)
	}
	us := make([]Update, len(ts))
	for i, p := range ps {
		if variant == soapBegin {
			us[i].U = op.Full(p.m.Builder(), graph.F32, 0, p.m.Shape...)
		} else {
			us[i].U = p.step(ts[i].Gradient, s, numbers[0])
		}
	}
	switch variant {
	case soapBegin:
		s.begin(ps)
	case soapRenew:
		s.renew(ps)
	}
	for i, p := range ps {
		us[i].State = p.state()
	}
	return us
}

// preconditioned is a parameter's state in the making.
type preconditioned struct {
	m, v  *graph.Value   // in the basis
	sides [2]*eigenbasis // nil: the identity
}

// eigenbasis is a preconditioner [n, n] and its eigenvectors, as columns.
type eigenbasis struct{ precond, basis *graph.Value }

// preconditioned has the preconditioners with the gradient, and the old basis.
func (s *soap) preconditioned(t Tensor) *preconditioned {
	p := &preconditioned{m: t.State[0], v: t.State[1]}
	at := 2
	for i := range sides {
		if t.Type.Shape[i] <= s.maxDim {
			outer := op.MatMul(t.Gradient, t.Gradient, i == 1, i == 0)
			p.sides[i] = &eigenbasis{lerp(t.State[at], outer, 1-s.beta), t.State[at+1]}
			at += 2
		}
	}
	return p
}

// state is in the order of soap.State.
func (p *preconditioned) state() []*graph.Value {
	state := []*graph.Value{p.m, p.v}
	for _, e := range p.sides {
		if e != nil {
			state = append(state, e.precond, e.basis)
		}
	}
	return state
}

// step is AdamW in the basis, and back.
func (p *preconditioned) step(g *graph.Value, s *soap, rate *graph.Value) *graph.Value {
	g = p.into(g)
	p.m = lerp(p.m, g, 1-s.betas[0])
	p.v = lerp(p.v, op.Square(g), 1-s.betas[1])
	return op.Mul(p.outOf(op.Div(p.m, op.Shift(op.Sqrt(p.v), s.eps))), rate)
}

// into is Q_Lᵀ·x·Q_R, outOf Q_L·x·Q_Rᵀ.
func (p *preconditioned) into(x *graph.Value) *graph.Value  { return p.turn(x, p.bases(), true) }
func (p *preconditioned) outOf(x *graph.Value) *graph.Value { return p.turn(x, p.bases(), false) }

func (p *preconditioned) bases() (qs [2]*graph.Value) {
	for i, e := range p.sides {
		if e != nil {
			qs[i] = e.basis
		}
	}
	return qs
}

func (*preconditioned) turn(x *graph.Value, qs [2]*graph.Value, into bool) *graph.Value {
	if qs[0] != nil {
		x = op.MatMul(qs[0], x, into, false)
	}
	if qs[1] != nil {
		x = op.MatMul(x, qs[1], false, !into)
	}
	return x
}

// begin decomposes every preconditioner.
func (s *soap) begin(ps []*preconditioned) {
	es := eigenbases(ps)
	var preconds []*graph.Value
	for _, e := range es {
		preconds = append(preconds, e.precond)
	}
	for i, q := range batched(preconds, s.maxBatch, func(l *graph.Value, _ []int) *graph.Value {
		_, vectors := op.Eigh(l)
		return vectors
	}) {
		es[i].basis = q
	}
}

// eigenbases lists those that there are.
func eigenbases(ps []*preconditioned) (es []*eigenbasis) {
	for _, p := range ps {
		for _, e := range p.sides {
			if e != nil {
				es = append(es, e)
			}
		}
	}
	return es
}

// renew improves every basis by a power iteration, and turns the moments with it.
func (s *soap) renew(ps []*preconditioned) {
	es := eigenbases(ps)
	var preconds, bases []*graph.Value
	for _, e := range es {
		preconds, bases = append(preconds, e.precond), append(bases, e.basis)
	}
	orders := map[*eigenbasis]*graph.Value{}
	renewed := batched(preconds, s.maxBatch, func(l *graph.Value, batch []int) *graph.Value {
		q := stack(bases, batch)
		power := op.MatMul(l, q, false, false)
		order := descending(op.Sum(op.Mul(q, power), []int{1}, false))
		for j, i := range batch {
			orders[es[i]] = op.Reshape(op.Slice(order, 0, j, j+1), order.Shape[1:]...)
		}
		return op.QR(op.MatMul(power, order, false, false))
	})
	old := make([]*graph.Value, len(ps))
	for i, p := range ps {
		old[i] = p.outOf(p.m)
		var order [2]*graph.Value
		for side, e := range p.sides {
			order[side] = orders[e]
		}
		p.v = p.turn(p.v, order, true)
	}
	for i, e := range es {
		e.basis = renewed[i]
	}
	for i, p := range ps {
		p.m = p.into(old[i])
	}
}

// descending is, for each row of x [k, n], the permutation matrix [n, n] that sorts columns by x, the largest first: its
// element (i, j) is 1 where x_i is the j-th largest, with equals in their order.
func descending(x *graph.Value) *graph.Value {
	b, k, n := x.Builder(), x.Shape[0], x.Shape[1]
	mine, other := op.Reshape(x, k, n, 1), op.Reshape(x, k, 1, n)
	before := op.Less(op.Iota(b, graph.U32, 2, k, n, n), op.Iota(b, graph.U32, 1, k, n, n))
	ahead := op.Or(op.Greater(other, mine), op.And(op.Equal(other, mine), before))
	rank := op.Sum(ahead, []int{2}, true)
	return op.Cast(op.Equal(rank, op.Iota(b, graph.U32, 2, k, n, n)), graph.F32)
}
