package optim

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// reference is the published algorithms on gonum, one matrix at a time, written without a look at the graphs. It keeps every
// version of the weights: x[name][t] is x_t, and y[name] the weights that every update was subtracted from just once.
type reference struct {
	cfg    Config
	params []Param
	x      map[string][]*mat.Dense
	y      map[string]*mat.Dense
	m, v   map[string]*mat.Dense
	u, p   map[string]*mat.Dense // the last update, and the last prediction of the next
	kept   map[string]*mat.Dense // what else an optimizer remembers, by kind and name
	begun  bool                  // a step was applied
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
	r := &reference{cfg, params, map[string][]*mat.Dense{}, map[string]*mat.Dense{}, zeros(), zeros(), zeros(), zeros(), map[string]*mat.Dense{}, false}
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

// step applies the gradients of step t (from 0), taken at x_t, at the learning rates times factor, and returns their global
// norm. If that is not finite nothing happens to the weights.
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
			r.x[p.Name] = append(r.x[p.Name], x)
			continue
		}
		rows, cols := extents(p)
		g := mat.NewDense(rows, cols, slices.Clone(gradients[p.Name]))
		g.Scale(clip, g)
		if r.cfg.Correction == "dc_asgd" {
			r.compensate(p, t, g)
		}
		lr := r.cfg.LR * factor
		if r.cfg.Name != "soap" && !r.owns(p) {
			lr = r.cfg.AdamW.LR * factor
		}
		u, prediction := r.update(p, g, t, lr)
		decay := new(mat.Dense)
		if decay.Scale(lr*r.cfg.WeightDecay, x); !p.Decay || r.cfg.Name == "soap" && r.owns(p) && r.begins(t) {
			decay.Zero()
		}
		next := mat.DenseCopyOf(x)
		next.Sub(next, decay)
		next.Sub(next, u)
		switch r.cfg.Correction {
		case "error_feedback": // once more what should have been subtracted last time, less what was
			next.Sub(next, u)
			next.Add(next, r.u[p.Name])
		case "weight_prediction":
			next.Add(next, r.p[p.Name])
			next.Sub(next, prediction)
		}
		r.x[p.Name] = append(r.x[p.Name], next)
		r.y[p.Name].Sub(r.y[p.Name], decay)
		r.y[p.Name].Sub(r.y[p.Name], u)
		r.u[p.Name], r.p[p.Name] = u, prediction
	}
	r.begun = r.begun || !math.IsNaN(norm)
	return norm
}

// begins tells whether SOAP only begins at step t: tests of a run that is under way begin later, and pass over none.
func (r *reference) begins(t int) bool { return !r.begun && (t == 0 || r.cfg.SkipNonfinite) }

// compensate moves a gradient taken at x_t to x_{t+1}.
func (r *reference) compensate(p Param, t int, g *mat.Dense) {
	from, to := r.x[p.Name][t], r.x[p.Name][t+1]
	g.Apply(func(i, j int, g float64) float64 { return g + r.cfg.DCLambda*g*g*(to.At(i, j)-from.At(i, j)) }, g)
}

// owns tells whether a parameter is under the optimizer that was asked for, or left to AdamW.
func (r *reference) owns(p Param) bool {
	switch r.cfg.Name {
	case "muon", "normuon":
		return p.Matrix
	case "mars":
		return len(p.Type.Shape) == 2
	case "soap":
		return p.Matrix && (p.Type.Shape[0] <= r.cfg.MaxPrecondDim || p.Type.Shape[1] <= r.cfg.MaxPrecondDim)
	}
	return true
}

// update is u_t, and what the momentum after it would subtract next.
func (r *reference) update(p Param, g *mat.Dense, t int, lr float64) (u, prediction *mat.Dense) {
	name := r.cfg.Name
	if !r.owns(p) {
		name = "adamw"
	}
	switch name {
	case "sgd":
		u, prediction = r.sgd(p, g, lr), new(mat.Dense)
		if prediction.Scale(lr, r.m[p.Name]); r.cfg.Momentum == 0 {
			prediction = u
		}
		return u, prediction
	case "muon":
		u = r.muon(p, g, lr)
		return u, r.orthogonal(r.m[p.Name], lr)
	case "normuon":
		return r.norMuon(p, g, lr)
	case "lion":
		return r.lion(p, g, lr)
	case "adan":
		u = r.adan(p, g, t, lr)
	case "mars":
		u = r.mars(p, g, t, lr)
	case "soap":
		u = r.soap(p, g, t, lr)
	default:
		u = r.adamW(p, g, t, lr)
	}
	return u, u
}

func (r *reference) sgd(p Param, g *mat.Dense, lr float64) *mat.Dense {
	buf, u := r.m[p.Name], new(mat.Dense)
	buf.Scale(r.cfg.Momentum, buf)
	buf.Add(buf, g)
	u.CloneFrom(buf)
	if r.cfg.Nesterov {
		u.Scale(r.cfg.Momentum, buf)
		u.Add(u, g)
	}
	u.Scale(lr, u)
	return u
}

func (r *reference) adamW(p Param, g *mat.Dense, t int, lr float64) *mat.Dense {
	b1, b2, eps := r.cfg.AdamW.Betas[0], r.cfg.AdamW.Betas[1], r.cfg.AdamW.Eps
	if r.cfg.Name == "soap" || r.cfg.Name == "mars" && r.owns(p) {
		b1, b2, eps = r.cfg.Betas[0], r.cfg.Betas[1], r.cfg.Eps
	}
	m, v, u := r.m[p.Name].RawMatrix().Data, r.v[p.Name].RawMatrix().Data, mat.DenseCopyOf(g)
	for i, x := range g.RawMatrix().Data {
		m[i] = b1*m[i] + (1-b1)*x
		v[i] = b2*v[i] + (1-b2)*x*x
		mh, vh := m[i]/(1-math.Pow(b1, float64(t+1))), v[i]/(1-math.Pow(b2, float64(t+1)))
		u.RawMatrix().Data[i] = lr * mh / (math.Sqrt(vh) + eps)
	}
	return u
}

func (r *reference) muon(p Param, g *mat.Dense, lr float64) *mat.Dense {
	b, m := r.cfg.Momentum, r.m[p.Name]
	m.Copy(add(b, m, 1-b, g))
	x := mat.DenseCopyOf(m)
	if r.cfg.Nesterov {
		x = add(1-b, g, b, m)
	}
	return r.orthogonal(x, lr)
}

func add(x float64, a *mat.Dense, y float64, b *mat.Dense) *mat.Dense {
	var s, t mat.Dense
	s.Scale(x, a)
	t.Scale(y, b)
	s.Add(&s, &t)
	return &s
}

// orthogonal is lr·scale·NewtonSchulz(x).
func (r *reference) orthogonal(x *mat.Dense, lr float64) *mat.Dense {
	x = mat.DenseCopyOf(x)
	rows, cols := x.Dims()
	if rows > cols {
		x = mat.DenseCopyOf(x.T())
	}
	x.Scale(1/(mat.Norm(x, 2)+1e-7), x)
	// The coefficients as the papers print them.
	jordan := [3]float64{3.4445, -4.7750, 2.0315}
	as := [][3]float64{jordan, jordan, jordan, jordan, jordan}
	if r.cfg.NewtonSchulz == "polar_express" {
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
	x.Scale(lr*r.muonScale(x), x)
	return x
}

func (r *reference) muonScale(x *mat.Dense) float64 {
	rows, cols := x.Dims()
	if r.cfg.Scale == "match_rms_adamw" {
		return 0.2 * math.Sqrt(math.Max(float64(rows), float64(cols)))
	}
	return math.Sqrt(math.Max(1, float64(rows)/float64(cols)))
}
