package optim

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
)

// remembered is a matrix that an optimizer keeps per parameter. It starts as zero.
func (r *reference) remembered(kind string, p Param, rows, cols int) *mat.Dense {
	key := kind + " " + p.Name
	if r.kept[key] == nil {
		r.kept[key] = mat.NewDense(rows, cols, nil)
	}
	return r.kept[key]
}

// lion is algorithm 2 of arXiv:2302.06675.
func (r *reference) lion(c *Lion, p Param, g *mat.Dense, lr float64) (u, prediction *mat.Dense) {
	m, b1, b2 := r.m[p.Name], c.Betas[0], c.Betas[1]
	sign := func(_, _ int, x float64) float64 {
		switch {
		case x > 0:
			return lr
		case x < 0:
			return -lr
		}
		return 0
	}
	u, prediction = new(mat.Dense), new(mat.Dense)
	u.Apply(sign, add(b1, m, 1-b1, g))
	m.Copy(add(b2, m, 1-b2, g))
	prediction.Apply(sign, m)
	return u, prediction
}

// adan is the official code's single-tensor loop, element by element.
func (r *reference) adan(c *Adan, p Param, g *mat.Dense, t int, lr float64) *mat.Dense {
	rows, cols := g.Dims()
	of := func(kind string) []float64 { return r.remembered(kind, p, rows, cols).RawMatrix().Data }
	m, n := r.m[p.Name].RawMatrix().Data, r.v[p.Name].RawMatrix().Data
	diff, negative := of("diff"), of("negative gradient")
	b1, b2, b3 := c.Betas[0], c.Betas[1], c.Betas[2]
	bias := func(b float64) float64 { return 1 - math.Pow(b, float64(t+1)) }
	u := mat.NewDense(rows, cols, nil)
	for i, x := range g.RawMatrix().Data {
		if t == 0 {
			negative[i] = -x
		}
		d := negative[i] + x
		m[i] = b1*m[i] + (1-b1)*x
		diff[i] = b2*diff[i] + (1-b2)*d
		n[i] = b3*n[i] + (1-b3)*(b2*d+x)*(b2*d+x)
		root := math.Sqrt(n[i])/math.Sqrt(bias(b3)) + c.Eps
		u.RawMatrix().Data[i] = lr/bias(b1)*m[i]/root + lr*b2/bias(b2)*diff[i]/root
		negative[i] = -x
	}
	return u
}

// mars is algorithm 2 of arXiv:2411.10438 with the last gradient in the place of the one at the old weights.
func (r *reference) mars(c *MARS, p Param, g *mat.Dense, t int, lr float64) *mat.Dense {
	rows, cols := g.Dims()
	last := r.remembered("gradient", p, rows, cols)
	k := c.Gamma * c.AdamW.Betas[0] / (1 - c.AdamW.Betas[0])
	corrected := add(1+k, g, -k, last)
	last.Copy(g)
	if norm := mat.Norm(corrected, 2); norm > 1 {
		corrected.Scale(1/norm, corrected)
	}
	return r.adamW(&c.AdamW, p, corrected, t, lr)
}

// norMuon is normuon_update of the official code.
func (r *reference) norMuon(c *NorMuon, p Param, g *mat.Dense, lr float64) (u, prediction *mat.Dense) {
	rows, _ := g.Dims()
	v := r.remembered("second", p, rows, 1)
	o := r.muon(&c.Muon, p, g, lr)
	second := r.orthogonal(&c.Muon, r.m[p.Name], lr)
	// Both include lr·scale, which the mean squares must not.
	unscaled := lr * muonScale(&c.Muon, g)
	for i := range rows {
		row := o.RawRowView(i)
		v.Set(i, 0, c.Beta2*v.At(i, 0)+(1-c.Beta2)*meanSquare(row)/(unscaled*unscaled))
	}
	for _, x := range []*mat.Dense{o, second} {
		before := mat.Norm(x, 2)
		x.Apply(func(i, _ int, e float64) float64 { return e / (math.Sqrt(v.At(i, 0)) + 1e-10) }, x)
		x.Scale(before/mat.Norm(x, 2), x)
	}
	return o, second
}

func meanSquare(xs []float64) (mean float64) {
	for _, x := range xs {
		mean += x * x / float64(len(xs))
	}
	return mean
}

// soap follows SOAP.step of the official code.
func (r *reference) soap(c *SOAP, p Param, g *mat.Dense, t int, lr float64) *mat.Dense {
	rows, cols := g.Dims()
	var outer [2]mat.Dense
	outer[0].Mul(g, g.T())
	outer[1].Mul(g.T(), g)
	accumulate := func() (changed [2]*mat.Dense) {
		for i, n := range []int{rows, cols} {
			if n <= c.MaxPrecondDim {
				changed[i] = r.remembered([]string{"L", "R"}[i], p, n, n)
				changed[i].Copy(add(c.ShampooBeta, changed[i], 1-c.ShampooBeta, &outer[i]))
			}
		}
		return changed
	}
	qs := [2]*mat.Dense{r.kept["QL "+p.Name], r.kept["QR "+p.Name]}
	if r.initializesAt(t) {
		for i, a := range accumulate() {
			if a != nil {
				r.kept[[]string{"QL ", "QR "}[i]+p.Name] = eigenvectors(a)
			}
		}
		return mat.NewDense(rows, cols, nil)
	}
	m, v, b1, b2 := r.m[p.Name], r.v[p.Name], c.AdamW.Betas[0], c.AdamW.Betas[1]
	projected := rotated(g, qs, false)
	m.Copy(add(b1, m, 1-b1, projected))
	projected.MulElem(projected, projected)
	v.Copy(add(b2, v, 1-b2, projected))
	u := new(mat.Dense)
	u.Apply(func(i, j int, m float64) float64 { return m / (math.Sqrt(v.At(i, j)) + c.AdamW.Eps) }, m)
	u = rotated(u, qs, true)
	u.Scale(lr*math.Sqrt(1-math.Pow(b2, float64(t)))/(1-math.Pow(b1, float64(t))), u)

	back := rotated(m, qs, true)
	preconditioners := accumulate()
	if t%c.PreconditionFrequency == 0 {
		for i, a := range preconditioners {
			if a != nil {
				qs[i] = r.renewed(a, qs[i], v, i)
				r.kept[[]string{"QL ", "QR "}[i]+p.Name] = qs[i]
			}
		}
	}
	m.Copy(rotated(back, qs, false))
	return u
}

// renewed is get_orthogonal_matrix_QR for one side; v's rows (side 0) or columns are brought to the order of the basis.
func (r *reference) renewed(a, q, v *mat.Dense, side int) *mat.Dense {
	n, _ := q.Dims()
	var aq, estimate, power, full mat.Dense
	aq.Mul(a, q)
	estimate.Mul(q.T(), &aq)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(estimate.At(j, j), estimate.At(i, i)) })
	sorted, old := mat.NewDense(n, n, nil), mat.DenseCopyOf(v)
	for to, from := range order {
		sorted.SetCol(to, mat.Col(nil, from, q))
		if side == 0 {
			v.SetRow(to, old.RawRowView(from))
		} else {
			v.SetCol(to, mat.Col(nil, from, old))
		}
	}
	power.Mul(a, sorted)
	var qr mat.QR
	qr.Factorize(&power)
	qr.QTo(&full)
	return &full
}

// rotated is Q_Lᵀ·x·Q_R, or Q_L·x·Q_Rᵀ when back; what is nil is the identity.
func rotated(x *mat.Dense, qs [2]*mat.Dense, back bool) *mat.Dense {
	left, right := mat.Matrix(qs[0]), mat.Matrix(qs[1])
	if qs[0] != nil && !back {
		left = left.T()
	}
	if qs[1] != nil && back {
		right = right.T()
	}
	y := mat.DenseCopyOf(x)
	if qs[0] != nil {
		y.Mul(left, x)
	}
	if qs[1] != nil {
		y.Mul(mat.DenseCopyOf(y), right)
	}
	return y
}

// eigenvectors are those of a symmetric matrix, as columns, of the largest eigenvalue first.
func eigenvectors(a *mat.Dense) *mat.Dense {
	n, _ := a.Dims()
	s := mat.NewSymDense(n, nil)
	for i := range n {
		for j := range i + 1 {
			s.SetSym(i, j, a.At(i, j))
		}
	}
	var e mat.EigenSym
	if !e.Factorize(s, true) {
		panic("no convergence")
	}
	var ascending mat.Dense
	e.VectorsTo(&ascending)
	q := mat.NewDense(n, n, nil)
	for j := range n {
		q.SetCol(n-1-j, mat.Col(nil, j, &ascending))
	}
	return q
}
