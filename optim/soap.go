package optim

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// SOAP is the config of SOAP (Vyas et al., arXiv:2409.11321, algorithm 3): AdamW in the eigenbasis of Shampoo's
// preconditioners. As in the official code (nikhilvyas/SOAP, soap.py), with L and R for the running means of g·gᵀ and
// gᵀ·g, and their eigenvectors as the columns of Q_L and Q_R,
//
//	g' = Q_Lᵀ·g·Q_R;  m ← lerp(m, g', 1−β₁);  v ← lerp(v, g'², 1−β₂);
//	u = lr·√(1−β₂ᵗ)/(1−β₁ᵗ) · Q_L·(m / (√v + ε))·Q_Rᵀ;
//	L ← lerp(L, g·gᵀ, 1−β);  R ← lerp(R, gᵀ·g, 1−β)
//
// Every PreconditionFrequency steps, after that, the basis is renewed: its vectors are sorted by the diagonal of
// Qᵀ·L·Q, the largest first, and v with them; Q ← QR(L·Q), one power iteration; m is rotated into the new basis. A side
// longer than MaxPrecondDim has the identity as its basis. The first step that is applied is the initialization step:
// it sets L and R and decomposes them, and neither updates nor decays the weights.
//
// Weight decay is (1 − lr·λ)·x − u, as with all optimizers here; the official code decays x − u.
type SOAP struct {
	AdamW                 AdamW   // LR, Betas and Eps in the basis, and of the parameters that SOAP does not take
	ShampooBeta           float64 // β; unless given, the second of AdamW.Betas
	PreconditionFrequency int     // steps
	MaxPrecondDim         int
}

// DefaultSOAP has the defaults of SOAP.
func DefaultSOAP() *SOAP {
	return &SOAP{AdamW: AdamW{LR: 6e-3, Betas: [2]float64{0.95, 0.95}, Eps: 1e-8}, ShampooBeta: 0.95, PreconditionFrequency: 10,
		MaxPrecondDim: 4096}
}

const shampooBetaField = "shampoo_beta"

// Fields lists the hyperparameters.
func (c *SOAP) Fields() []Field {
	return append(c.AdamW.Fields(),
		Field{Name: shampooBetaField, About: "decay rate of the preconditioners; unless given, the second of betas",
			Value: &c.ShampooBeta, Range: fractions},
		Field{Name: "precondition_frequency", About: "steps from one renewal of the eigenbasis to the next",
			Value: &c.PreconditionFrequency, Range: counts},
		Field{Name: "max_precond_dim", About: "longest side of a matrix that has a preconditioner", Value: &c.MaxPrecondDim,
			Range: counts, Shapes: true})
}

// Complete sets ShampooBeta unless it is given.
func (c *SOAP) Complete(given func(field string) bool) {
	if !given(shampooBetaField) {
		c.ShampooBeta = c.AdamW.Betas[1]
	}
}

// LearningRate is LR.
func (c *SOAP) LearningRate() float64 { return c.AdamW.LR }
func (c *SOAP) adamW() *AdamW         { return &c.AdamW }

func (c *SOAP) takes(p Param) bool {
	if !p.Matrix {
		return false
	}
	_, sides := p.matrices()
	return min(sides[0], sides[1]) <= c.MaxPrecondDim
}

func (c *SOAP) rule() Rule {
	return &soap{c.AdamW.Betas, c.AdamW.Eps, c.ShampooBeta, c.PreconditionFrequency, c.MaxPrecondDim, maxBatchBytes}
}

type soap struct {
	betas     [2]float64
	eps       float64
	beta      float64 // of L and R
	frequency int     // steps from one renewal of the basis to the next
	maxDim    int
	maxBatch  int64 // bytes
}

// sides are the two sides of a matrix. Each has a preconditioner and its eigenvectors as state, unless it is too long.
var sides = [2]string{"left", "right"}

func (s *soap) batchBytes() int64 { return s.maxBatch }

func (s *soap) State(p Param) []graph.Named {
	state := kinds(p, "exp_avg", "exp_avg_sq")
	stack, extents := p.matrices()
	for i, side := range sides {
		if n := extents[i]; n <= s.maxDim {
			t := graph.T(graph.F32, append(stack.Clone(), n, n)...)
			state = append(state, graph.Named{ID: "precond_" + side, Type: t}, graph.Named{ID: "basis_" + side, Type: t})
		}
	}
	return state
}

// exact is true of the preconditioners, whose small eigenvalues rounding would drown, and of the bases, which would not
// be orthogonal.
func (*soap) exact(kind string) bool { return kind != "exp_avg" && kind != "exp_avg_sq" }

// The programs of the update.
const (
	soapStep       = iota
	soapRenew      // a step, after which the basis is renewed
	soapInitialize // the initialization step
	soapPrograms
)

func (*soap) Variants() int { return soapPrograms }

func (s *soap) Variant(step int) int {
	if step%s.frequency == 0 {
		return soapRenew
	}
	return soapStep
}

func (*soap) InitializationVariant() int { return soapInitialize }

// Hyperparameters is the rate with both bias corrections. Step 0 is the initialization step and does not count.
func (s *soap) Hyperparameters(step int, rate float64) Hyperparameters {
	if step == 0 {
		return Hyperparameters{{"bias_corrected_lr", 0}}
	}
	return Hyperparameters{{"bias_corrected_lr", rate * math.Sqrt(bias(s.betas[1], step-1)) / bias(s.betas[0], step-1)}}
}

func (s *soap) Update(ts []Tensor, h Scalars) []Update {
	return s.UpdateVariant(soapStep, ts, h)
}

func (s *soap) UpdateVariant(variant int, ts []Tensor, h Scalars) []Update {
	ps := make([]*preconditioned, len(ts))
	for i, t := range ts {
		ps[i] = s.preconditioned(t)
	}
	us := make([]Update, len(ts))
	for i, p := range ps {
		if variant == soapInitialize {
			us[i].U = op.Full(p.m.Builder(), graph.F32, 0, p.m.Shape...)
		} else {
			us[i].U = p.step(ts[i].Gradient, s, h.Get("bias_corrected_lr"))
		}
	}
	switch variant {
	case soapInitialize:
		s.initialize(ps)
	case soapRenew:
		s.renew(ps)
	}
	for i, p := range ps {
		us[i].State = p.state()
	}
	return us
}

// preconditioned is a parameter's new state, under construction.
type preconditioned struct {
	m, v  *graph.Value   // in the basis
	sides [2]*eigenbasis // nil: the identity
}

// eigenbasis is a preconditioner [n, n] and its eigenvectors, as columns. Those of a stack of matrices are stacks.
type eigenbasis struct {
	precond, basis *graph.Value
	order          *graph.Value // the permutation that sorts the old basis, while it is renewed
}

// preconditioned returns the state of a parameter with the gradient in the preconditioners, and the old basis.
func (s *soap) preconditioned(t Tensor) *preconditioned {
	p := &preconditioned{m: t.State[0], v: t.State[1]}
	at := 2
	_, extents := t.matrices()
	for i, n := range extents {
		if n <= s.maxDim {
			outer := op.MatMul(t.Gradient, t.Gradient, i == 1, i == 0)
			p.sides[i] = &eigenbasis{precond: lerp(t.State[at], outer, 1-s.beta), basis: t.State[at+1]}
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
func (p *preconditioned) into(x *graph.Value) *graph.Value  { return p.rotate(x, p.bases(), true) }
func (p *preconditioned) outOf(x *graph.Value) *graph.Value { return p.rotate(x, p.bases(), false) }

func (p *preconditioned) bases() (qs [2]*graph.Value) {
	for i, e := range p.sides {
		if e != nil {
			qs[i] = e.basis
		}
	}
	return qs
}

func (*preconditioned) rotate(x *graph.Value, qs [2]*graph.Value, into bool) *graph.Value {
	if qs[0] != nil {
		x = op.MatMul(qs[0], x, into, false)
	}
	if qs[1] != nil {
		x = op.MatMul(x, qs[1], false, !into)
	}
	return x
}

// initialize decomposes every preconditioner.
func (s *soap) initialize(ps []*preconditioned) {
	es := eigenbases(ps)
	var preconds []*graph.Value
	for _, e := range es {
		preconds = append(preconds, e.precond)
	}
	for i, q := range batched(preconds, s.maxBatch, func(l *graph.Value, _ batch) *graph.Value {
		_, vectors := op.Eigh(l)
		return vectors
	}) {
		es[i].basis = q
	}
}

// eigenbases lists the bases of all parameters.
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

// renew improves every basis by a power iteration, and rotates the first moments into it.
func (s *soap) renew(ps []*preconditioned) {
	es := eigenbases(ps)
	var preconds, bases []*graph.Value
	for _, e := range es {
		preconds, bases = append(preconds, e.precond), append(bases, e.basis)
	}
	renewed := batched(preconds, s.maxBatch, func(l *graph.Value, b batch) *graph.Value {
		q := b.gather(bases)
		power := op.MatMul(l, q, false, false)
		order := descending(op.Sum(op.Mul(q, power), []int{1}, false))
		for i, o := range b.entries(order) {
			es[i].order = o
		}
		return op.QR(op.MatMul(power, order, false, false))
	})
	old := make([]*graph.Value, len(ps))
	for i, p := range ps {
		old[i] = p.outOf(p.m)
		var order [2]*graph.Value
		for side, e := range p.sides {
			if e != nil {
				order[side] = e.order
			}
		}
		p.v = p.rotate(p.v, order, true)
	}
	for i, e := range es {
		e.basis = renewed[i]
	}
	for i, p := range ps {
		p.m = p.into(old[i])
	}
}

// descending returns, for each row of x [k, n], the permutation matrix [n, n] that sorts columns by x, the largest
// first: element (i, j) is 1 where x_i is the j-th largest. Equal elements keep their order.
func descending(x *graph.Value) *graph.Value {
	b, k, n := x.Builder(), x.Shape[0], x.Shape[1]
	mine, other := op.Reshape(x, k, n, 1), op.Reshape(x, k, 1, n)
	before := op.Less(op.Iota(b, graph.U32, 2, k, n, n), op.Iota(b, graph.U32, 1, k, n, n))
	ahead := op.Or(op.Greater(other, mine), op.And(op.Equal(other, mine), before))
	rank := op.Sum(ahead, []int{2}, true)
	return op.Cast(op.Equal(rank, op.Iota(b, graph.U32, 2, k, n, n)), graph.F32)
}
