package optim

import (
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// Muon is the config of Muon (Jordan et al., 2024, KellerJordan/Muon), the momentum of the gradient made orthogonal:
// m ← lerp(m, g, 1−β); n = lerp(g, m, β) with Nesterov, else m; u = lr·scale·NewtonSchulz(n).
type Muon struct {
	LR           float64
	Momentum     float64 // β
	Nesterov     bool
	NewtonSchulz string // the coefficients: jordan, or polar_express (arXiv:2505.16932)
	Scale        string // spectral: √max(1, rows/cols); match_rms_adamw: 0.2·√max(rows, cols)
}

// DefaultMuon has the defaults of Muon.
func DefaultMuon() *Muon {
	return &Muon{LR: 0.02, Momentum: 0.95, Nesterov: true, NewtonSchulz: "jordan", Scale: "spectral"}
}

// Fields lists the hyperparameters.
func (c *Muon) Fields() []Field {
	return []Field{
		learningRateField(&c.LR), momentumField(&c.Momentum), nesterovField(&c.Nesterov),
		{Name: "newton_schulz", About: "coefficients of the orthogonalization", Value: &c.NewtonSchulz,
			Choices: choiceNames(newtonSchulzCoefficients())},
		{Name: "scale", About: "factor by shape: √max(1, rows/cols) or 0.2·√max(rows, cols)", Value: &c.Scale,
			Choices: choiceNames(muonScales())},
	}
}

// LearningRate is LR.
func (c *Muon) LearningRate() float64 { return c.LR }
func (*Muon) takes(p Param) bool      { return p.Matrix }
func (c *Muon) rule() Rule            { return newMuon(c) }

func newtonSchulzCoefficients() []choice[[][3]float64] {
	return []choice[[][3]float64]{{"jordan", jordan()}, {"polar_express", polarExpress()}}
}

func muonScales() []choice[func(rows, cols float64) float64] {
	return []choice[func(rows, cols float64) float64]{
		{"spectral", func(rows, cols float64) float64 { return math.Sqrt(max(1, rows/cols)) }},
		{"match_rms_adamw", func(rows, cols float64) float64 { return 0.2 * math.Sqrt(max(rows, cols)) }},
	}
}

// jordan and polarExpress are the coefficients of five Newton–Schulz steps. The published coefficients of Polar Express
// are divided by (s, s³, s⁵), s = 1.01, in all steps but the last: rounding then cannot push singular values out of the
// range in which the iteration converges.
func jordan() [][3]float64 {
	k := [3]float64{3.4445, -4.7750, 2.0315}
	return [][3]float64{k, k, k, k, k}
}

func polarExpress() [][3]float64 {
	ks := [][3]float64{
		{8.28721201814563, -23.595886519098837, 17.300387312530933},
		{4.107059111542203, -2.9478499167379106, 0.5448431082926601},
		{3.9486908534822946, -2.908902115962949, 0.5518191394370137},
		{3.3184196573706015, -2.488488024314874, 0.51004894012372},
		{2.300652019954817, -1.6689039845747493, 0.4188073119525673},
	}
	for i := range ks[:4] {
		for j, power := range []float64{1, 3, 5} {
			ks[i][j] /= math.Pow(1.01, power)
		}
	}
	return ks
}

type muon struct {
	momentum     float64
	nesterov     bool
	coefficients [][3]float64
	scale        func(rows, cols float64) float64
	maxBatch     int64 // bytes
}

func newMuon(c *Muon) *muon {
	return &muon{c.Momentum, c.Nesterov, chosen(newtonSchulzCoefficients(), c.NewtonSchulz), chosen(muonScales(), c.Scale), maxBatchBytes}
}

func (m *muon) batchBytes() int64 { return m.maxBatch }

func (*muon) State(p Param) []graph.Named { return kinds(p, "momentum") }

func (*muon) Hyperparameters(_ int, rate float64) Hyperparameters {
	return Hyperparameters{{"lr", rate}}
}

func (m *muon) Update(ts []Tensor, h Scalars) []Update {
	us := make([]Update, len(ts))
	ns := make([]*graph.Value, len(ts))
	for i, t := range ts {
		us[i].State = make([]*graph.Value, 1)
		us[i].State[0], ns[i] = m.averaged(t)
	}
	for i, u := range m.orthogonal(ns, h.Get("lr")) {
		us[i].U = u
	}
	return us
}

// averaged returns the new momentum of a parameter, and the matrix to orthogonalize.
func (m *muon) averaged(t Tensor) (momentum, n *graph.Value) {
	momentum = lerp(t.State[0], t.Gradient, 1-m.momentum)
	if !m.nesterov {
		return momentum, momentum
	}
	return momentum, lerp(t.Gradient, momentum, m.momentum)
}

// Momentum is lr·scale·NewtonSchulz(m).
func (m *muon) Momentum(_ []Tensor, us []Update, h Scalars) []*graph.Value {
	ms := make([]*graph.Value, len(us))
	for i, u := range us {
		ms[i] = u.State[0]
	}
	return m.orthogonal(ms, h.Get("lr"))
}

// orthogonal is rate·scale·NewtonSchulz of every matrix.
func (m *muon) orthogonal(ns []*graph.Value, rate *graph.Value) []*graph.Value {
	return batched(ns, m.maxBatch, func(x *graph.Value, _ batch) *graph.Value {
		return m.scaled(newtonSchulz(x, m.coefficients), rate)
	})
}

// scaled is rate·scale·x for x [n, rows, cols].
func (m *muon) scaled(x, rate *graph.Value) *graph.Value {
	return op.Scale(op.Mul(x, rate), m.scale(float64(x.Shape[1]), float64(x.Shape[2])))
}

// newtonSchulz moves the singular values of each matrix of x [n, rows, cols] towards 1: for each (a, b, c),
// X ← aX + (bR + cR²)X with R = XXᵀ. For a tall matrix, XᵀX is smaller, and X ← aX + X(bR + cR²) with R = XᵀX gives the
// same.
func newtonSchulz(x *graph.Value, coefficients [][3]float64) *graph.Value {
	norm := op.Sqrt(op.Sum(op.Square(x), []int{1, 2}, true))
	x = op.Div(x, op.Shift(norm, 1e-7))
	for ks := range slices.Chunk(coefficients, stepsPerGram(x.Shape[1], x.Shape[2])) {
		x = gramNewtonSchulz(x, ks)
	}
	return x
}

// stepsPerGram returns the number of steps that share one Gram matrix R: three if the longer side is at least twice the
// shorter, since these have fewer products with X and more of the size of R. More than three lose accuracy: a step
// multiplies the rounding errors of R by up to a².
func stepsPerGram(rows, cols int) int {
	if max(rows, cols) >= 2*min(rows, cols) {
		return 3
	}
	return 1
}

// gramNewtonSchulz applies the steps to X at once (Gram Newton–Schulz, Zhang et al., 2026). With P = (bR + cR²)/a, a
// step is X ← a(I + P)X and R ← a²(I + P)²R. S is the product of all I + P so far, less I, and scale is the product of
// all a.
func gramNewtonSchulz(x *graph.Value, steps [][3]float64) *graph.Value {
	tall := x.Shape[1] > x.Shape[2]
	r := op.MatMul(x, x, tall, !tall)
	var s *graph.Value
	scale := 1.0
	for i, k := range steps {
		a, b, c := k[0], k[1], k[2]
		p := op.Scale(op.Add(r, op.Scale(op.SymmetricMatMul(r, r), c/b)), b/a)
		if i == 0 {
			s = p
		} else {
			s = op.Add(op.Add(s, p), op.SymmetricMatMul(p, s))
		}
		scale *= a
		if i+1 < len(steps) {
			r = op.Add(r, op.SymmetricMatMul(p, r))
			r = op.Scale(op.Add(r, op.SymmetricMatMul(p, r)), a*a)
		}
	}
	left, right := s, x
	if tall {
		left, right = x, s
	}
	return op.Scale(op.Add(x, op.MatMul(left, right, false, false)), scale)
}
