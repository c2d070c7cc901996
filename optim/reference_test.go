package optim

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// reference is the published algorithms on gonum, one matrix at a time, written independently of the graphs. It keeps
// every version of the weights: x[name][t] is x_t, and y[name] the weights from which every update was subtracted once.
type reference struct {
	cfg         Config
	params      []Param
	x           map[string][]*mat.Dense
	y           map[string]*mat.Dense
	m, v        map[string]*mat.Dense
	u, p        map[string]*mat.Dense // the last update, and the last prediction of the next, times the staleness
	kept        map[string]*mat.Dense // other state of an optimizer, by kind and name
	initialized bool                  // a step was applied
	rounding    *Optimizer            // its moments are rounded to bf16; nil: nothing is rounded
}

func newReference(cfg Config, params []Param, x map[string][]float64) *reference {
	zeros := func() map[string]*mat.Dense {
		all := map[string]*mat.Dense{}
		for _, p := range params {
			rows, cols := extents(p)
			all[p.Name] = mat.NewDense(rows, cols, nil)
		}
		return all
	}
	r := &reference{cfg, params, map[string][]*mat.Dense{}, map[string]*mat.Dense{}, zeros(), zeros(), zeros(), zeros(),
		map[string]*mat.Dense{}, false, nil}
	for _, p := range params {
		rows, cols := extents(p)
		for range cfg.Delay + 1 { // x_0, and with delay x_1 = x_0
			r.x[p.Name] = append(r.x[p.Name], mat.NewDense(rows, cols, slices.Clone(x[p.Name])))
		}
		r.y[p.Name] = mat.NewDense(rows, cols, slices.Clone(x[p.Name]))
	}
	return r
}

// newest is the last version of a parameter.
func (r *reference) newest(name string) *mat.Dense { return r.x[name][len(r.x[name])-1] }

func extents(p Param) (rows, cols int) {
	if len(p.Type.Shape) == 2 {
		return p.Type.Shape[0], p.Type.Shape[1]
	}
	return 1, p.Type.Shape.Len()
}

// step applies the gradients of step t (from 0), taken at x_t, at the learning rates times factor, and returns their
// global norm. If that is not finite nothing happens to the weights.
func (r *reference) step(t int, factor float64, gradients map[string][]float64) float64 {
	sum := 0.0
	for _, p := range r.params {
		sum += math.Pow(floats.Norm(gradients[p.Name], 2), 2)
	}
	norm, clip := math.Sqrt(sum), 1.0
	if r.cfg.Clip > 0 {
		clip = math.Min(1, r.cfg.Clip/(norm+1e-6))
	}
	for _, p := range r.params {
		x := r.newest(p.Name)
		if math.IsNaN(norm) || math.IsInf(norm, 0) {
			delete(r.kept, AppliedState+" "+p.Name)
			r.x[p.Name] = append(r.x[p.Name], x)
			continue
		}
		rows, cols := extents(p)
		g := mat.NewDense(rows, cols, slices.Clone(gradients[p.Name]))
		g.Scale(clip, g)
		if c, ok := r.cfg.Correction.(*DCASGD); ok {
			r.compensate(c.Lambda*r.staleness(), p, t, g)
		}
		u, prediction, lr := r.update(p, g, t, factor)
		r.roundState(t, p)
		decay := new(mat.Dense)
		if decay.Scale(lr*r.cfg.WeightDecay, x); !p.Decay {
			decay.Zero()
		}
		next := mat.DenseCopyOf(x)
		next.Sub(next, decay)
		next.Sub(next, u)
		switch r.cfg.Correction.(type) {
		case *ErrorFeedback: // once more what should have been subtracted last time, less what was
			next.Add(next, r.u[p.Name])
			r.u[p.Name] = r.ahead(t, p, "last_update", u)
			next.Sub(next, r.u[p.Name])
		case *WeightPrediction:
			next.Add(next, r.p[p.Name])
			r.p[p.Name] = r.ahead(t, p, "prediction", prediction)
			next.Sub(next, r.p[p.Name])
		case *DCASGD:
			applied := r.remembered(AppliedState, p, rows, cols)
			applied.Sub(x, next)
			r.round(t, p, AppliedState, applied)
		}
		r.x[p.Name] = append(r.x[p.Name], next)
		r.y[p.Name].Sub(r.y[p.Name], decay)
		r.y[p.Name].Sub(r.y[p.Name], u)
	}
	r.initialized = r.initialized || !math.IsNaN(norm)
	return norm
}

// staleness is the share of the microbatches that is one step old.
func (r *reference) staleness() float64 {
	if r.cfg.Staleness == 0 {
		return 1
	}
	return r.cfg.Staleness
}

// initializesAt reports whether step t is the initialization step of SOAP. Tests of a run that is under way start
// later.
func (r *reference) initializesAt(t int) bool {
	return !r.initialized && (t == 0 || r.cfg.SkipNonfinite)
}

// compensate moves a gradient taken at one version of the weights to the next, to which it is applied.
func (r *reference) compensate(lambda float64, p Param, t int, g *mat.Dense) {
	from, to := r.x[p.Name][t], r.x[p.Name][t+1]
	moved := new(mat.Dense)
	moved.Sub(to, from)
	if r.rounding != nil {
		rows, cols := extents(p)
		moved.Scale(-1, r.remembered(AppliedState, p, rows, cols))
	}
	g.Apply(func(i, j int, g float64) float64 { return g + lambda*g*g*moved.At(i, j) }, g)
}

// algorithm is the optimizer of a parameter: the chosen one, or AdamW.
func (r *reference) algorithm(p Param) Algorithm {
	owns := true
	rest := r.cfg.AdamW
	switch c := r.cfg.Algorithm.(type) {
	case *Muon, *NorMuon:
		owns = p.Matrix
	case *MARS:
		owns = len(p.Type.Shape) == 2
	case *SOAP:
		owns = p.Matrix && (p.Type.Shape[0] <= c.MaxPrecondDim || p.Type.Shape[1] <= c.MaxPrecondDim)
		rest = c.AdamW
	}
	if owns {
		return r.cfg.Algorithm
	}
	return &rest
}

// update returns u_t, the update that the momentum after it would make next, and the learning rate for weight decay.
func (r *reference) update(p Param, g *mat.Dense, t int, factor float64) (u, prediction *mat.Dense, lr float64) {
	switch c := r.algorithm(p).(type) {
	case *SGD:
		lr = factor * c.LR
		u, prediction = r.sgd(c, p, g, lr), new(mat.Dense)
		if prediction.Scale(lr, r.m[p.Name]); c.Momentum == 0 {
			prediction = u
		}
		return u, prediction, lr
	case *Muon:
		lr = factor * c.LR
		u = r.muon(c, p, g, lr)
		return u, r.orthogonal(c, r.m[p.Name], lr), lr
	case *NorMuon:
		lr = factor * c.Muon.LR
		u, prediction = r.norMuon(c, p, g, lr)
		return u, prediction, lr
	case *Lion:
		lr = factor * c.LR
		u, prediction = r.lion(c, p, g, lr)
		return u, prediction, lr
	case *Adan:
		lr = factor * c.LR
		u = r.adan(c, p, g, t, lr)
	case *MARS:
		lr = factor * c.AdamW.LR
		u = r.mars(c, p, g, t, lr)
	case *SOAP:
		lr = factor * c.AdamW.LR
		if r.initializesAt(t) {
			lr = 0
		}
		u = r.soap(c, p, g, t, lr)
	case *AdamW:
		lr = factor * c.LR
		u = r.adamW(c, p, g, t, lr)
	default:
		panic(fmt.Sprintf("no reference implementation of %T: write one here", c))
	}
	return u, u, lr
}

func (r *reference) sgd(c *SGD, p Param, g *mat.Dense, lr float64) *mat.Dense {
	buf, u := r.m[p.Name], new(mat.Dense)
	buf.Scale(c.Momentum, buf)
	buf.Add(buf, g)
	u.CloneFrom(buf)
	if c.Nesterov {
		u.Scale(c.Momentum, buf)
		u.Add(u, g)
	}
	u.Scale(lr, u)
	return u
}

func (r *reference) adamW(c *AdamW, p Param, g *mat.Dense, t int, lr float64) *mat.Dense {
	b1, b2, eps := c.Betas[0], c.Betas[1], c.Eps
	m, v, u := r.m[p.Name].RawMatrix().Data, r.v[p.Name].RawMatrix().Data, mat.DenseCopyOf(g)
	for i, x := range g.RawMatrix().Data {
		m[i] = b1*m[i] + (1-b1)*x
		v[i] = b2*v[i] + (1-b2)*x*x
		mh, vh := m[i]/(1-math.Pow(b1, float64(t+1))), v[i]/(1-math.Pow(b2, float64(t+1)))
		u.RawMatrix().Data[i] = lr * mh / (math.Sqrt(vh) + eps)
	}
	return u
}

func (r *reference) muon(c *Muon, p Param, g *mat.Dense, lr float64) *mat.Dense {
	b, m := c.Momentum, r.m[p.Name]
	m.Copy(add(b, m, 1-b, g))
	x := mat.DenseCopyOf(m)
	if c.Nesterov {
		x = add(1-b, g, b, m)
	}
	return r.orthogonal(c, x, lr)
}

func add(x float64, a *mat.Dense, y float64, b *mat.Dense) *mat.Dense {
	var s, t mat.Dense
	s.Scale(x, a)
	t.Scale(y, b)
	s.Add(&s, &t)
	return &s
}

// orthogonal is lr·scale·NewtonSchulz(x).
func (r *reference) orthogonal(c *Muon, x *mat.Dense, lr float64) *mat.Dense {
	x = mat.DenseCopyOf(x)
	rows, cols := x.Dims()
	if rows > cols {
		x = mat.DenseCopyOf(x.T())
	}
	x.Scale(1/(mat.Norm(x, 2)+1e-7), x)
	// The coefficients as the papers print them.
	jordan := [3]float64{3.4445, -4.7750, 2.0315}
	as := [][3]float64{jordan, jordan, jordan, jordan, jordan}
	if c.NewtonSchulz == "polar_express" {
		s, s3, s5 := 1.01, math.Pow(1.01, 3), math.Pow(1.01, 5)
		as = [][3]float64{
			{8.28721201814563 / s, -23.595886519098837 / s3, 17.300387312530933 / s5},
			{4.107059111542203 / s, -2.9478499167379106 / s3, 0.5448431082926601 / s5},
			{3.9486908534822946 / s, -2.908902115962949 / s3, 0.5518191394370137 / s5},
			{3.3184196573706015 / s, -2.488488024314874 / s3, 0.51004894012372 / s5},
			{2.300652019954817, -1.6689039845747493, 0.4188073119525673},
		}
	}
	for _, k := range as {
		var a, aa, y mat.Dense
		a.Mul(x, x.T())
		aa.Mul(&a, &a)
		y.Mul(add(k[1], &a, k[2], &aa), x)
		x = add(k[0], x, 1, &y)
	}
	if rows > cols {
		x = mat.DenseCopyOf(x.T())
	}
	x.Scale(lr*muonScale(c, x), x)
	return x
}

func muonScale(c *Muon, x *mat.Dense) float64 {
	rows, cols := x.Dims()
	if c.Scale == "match_rms_adamw" {
		return 0.2 * math.Sqrt(math.Max(float64(rows), float64(cols)))
	}
	return math.Sqrt(math.Max(1, float64(rows)/float64(cols)))
}
