package optim

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// jordan and polarExpress are the coefficients of five Newton–Schulz steps. The published numbers of Polar Express,
// except the last step's, are divided by (s, s³, s⁵), s = 1.01, so that rounding cannot push singular values out of the
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

// maxBatchBytes bounds the tensor into which matrices of one shape are gathered.
const maxBatchBytes = 64 << 20

// muon is the momentum of the gradient made orthogonal: m ← lerp(m, g, 1−β); n = lerp(g, m, β) with Nesterov, else m;
// u = lr·scale·NewtonSchulz(n).
type muon struct {
	momentum     float64
	nesterov     bool
	coefficients [][3]float64
	scale        func(rows, cols float64) float64
	maxBatch     int64 // bytes
}

func init() {
	rules["muon"] = registered{make: func(c Config) (Rule, error) { return newMuon(c) }, takes: hiddenMatrix}
}

func newMuon(cfg Config) (*muon, error) {
	m := &muon{momentum: cfg.Momentum, nesterov: cfg.Nesterov, maxBatch: maxBatchBytes}
	switch cfg.NewtonSchulz {
	case "jordan":
		m.coefficients = jordan()
	case "polar_express":
		m.coefficients = polarExpress()
	default:
		return nil, fmt.Errorf("optimizer.newton_schulz: found %q, expected jordan or polar_express", cfg.NewtonSchulz)
	}
	switch cfg.Scale {
	case "spectral":
		m.scale = func(rows, cols float64) float64 { return math.Sqrt(max(1, rows/cols)) }
	case "match_rms_adamw":
		m.scale = func(rows, cols float64) float64 { return 0.2 * math.Sqrt(max(rows, cols)) }
	default:
		return nil, fmt.Errorf("optimizer.scale: found %q, expected spectral or match_rms_adamw", cfg.Scale)
	}
	return m, nil
}

func (*muon) Name() string                          { return "muon" }
func (*muon) State(p Param) []graph.Named           { return kinds(p, "momentum") }
func (*muon) Numbers(_ int, rate float64) []float64 { return []float64{rate} }

func (m *muon) Update(ts []Tensor, numbers []*graph.Value) []Update {
	us := make([]Update, len(ts))
	ns := make([]*graph.Value, len(ts))
	for i, t := range ts {
		us[i].State = make([]*graph.Value, 1)
		us[i].State[0], ns[i] = m.averaged(t)
	}
	for i, u := range m.orthogonal(ns, numbers[0]) {
		us[i].U = u
	}
	return us
}

// averaged is the new momentum of a parameter, and what is to be made orthogonal.
func (m *muon) averaged(t Tensor) (momentum, n *graph.Value) {
	momentum = lerp(t.State[0], t.Gradient, 1-m.momentum)
	if !m.nesterov {
		return momentum, momentum
	}
	return momentum, lerp(t.Gradient, momentum, m.momentum)
}

// Momentum is lr·scale·NewtonSchulz(m).
func (m *muon) Momentum(_ []Tensor, us []Update, numbers []*graph.Value) []*graph.Value {
	ms := make([]*graph.Value, len(us))
	for i, u := range us {
		ms[i] = u.State[0]
	}
	return m.orthogonal(ms, numbers[0])
}

// orthogonal is rate·scale·NewtonSchulz of every matrix.
func (m *muon) orthogonal(ns []*graph.Value, rate *graph.Value) []*graph.Value {
	return batched(ns, m.maxBatch, func(x *graph.Value, _ []int) *graph.Value { return m.scaled(newtonSchulz(x, m.coefficients), rate) })
}

// scaled is rate·scale·x for x [n, rows, cols].
func (m *muon) scaled(x, rate *graph.Value) *graph.Value {
	return op.Scale(op.Mul(x, rate), m.scale(float64(x.Shape[1]), float64(x.Shape[2])))
}

// batched gathers matrices of one shape as x [n, rows, cols], to at most limit bytes, and gives back what f makes of them,
// in the order of xs. The batch is the indices of x's matrices.
func batched(xs []*graph.Value, limit int64, f func(x *graph.Value, batch []int) *graph.Value) []*graph.Value {
	ys := make([]*graph.Value, len(xs))
	for _, batch := range batches(xs, limit) {
		y := f(stack(xs, batch), batch)
		for j, i := range batch {
			ys[i] = op.Reshape(op.Slice(y, 0, j, j+1), y.Shape[1:]...)
		}
	}
	return ys
}

// stack is some of xs, of one shape, as one tensor with a new first axis.
func stack(xs []*graph.Value, batch []int) *graph.Value {
	var parts []*graph.Value
	for _, i := range batch {
		parts = append(parts, op.Reshape(xs[i], append([]int{1}, xs[i].Shape...)...))
	}
	return op.Concat(0, parts...)
}

// batches gathers the indices of matrices of one shape, in order.
func batches(xs []*graph.Value, limit int64) [][]int {
	var batches [][]int
	open := map[string]int{} // batch by shape
	for i, x := range xs {
		key := x.Shape.String()
		at, ok := open[key]
		if !ok || int64(len(batches[at])+1)*x.Type.Bytes() > limit {
			at = len(batches)
			batches, open[key] = append(batches, nil), at
		}
		batches[at] = append(batches[at], i)
	}
	return batches
}

// newtonSchulz moves the singular values of each matrix of x [n, rows, cols] towards 1: X ← aX + (bA + cA²)X with
// A = XXᵀ, or, where that is smaller, X ← aX + X(bA + cA²) with A = XᵀX, which is the same of the transposed matrix.
func newtonSchulz(x *graph.Value, coefficients [][3]float64) *graph.Value {
	norm := op.Sqrt(op.Sum(op.Square(x), []int{1, 2}, true))
	x = op.Div(x, op.Shift(norm, 1e-7))
	tall := x.Shape[1] > x.Shape[2]
	for _, k := range coefficients {
		a := op.MatMul(x, x, tall, !tall)
		// Factored so that every product's epilogue has one result: P = (b/a)·(A + (c/b)·A²), X ← a·(X + PX).
		p := op.Scale(op.Add(a, op.Scale(op.MatMul(a, a, false, false), k[2]/k[1])), k[1]/k[0])
		left, right := p, x
		if tall {
			left, right = x, p
		}
		x = op.Scale(op.Add(x, op.MatMul(left, right, false, false)), k[0])
	}
	return x
}
