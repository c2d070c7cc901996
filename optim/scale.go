package optim

import (
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// LossScale is dynamic loss scaling (Micikevicius et al., arXiv:1710.03740, section 3.2; its defaults as in NVIDIA's
// apex). Gradients are taken of S times the loss, so that f16 keeps the small ones, and are divided by S before use. S
// is a power of two: in f32 both are exact. A batch with a finite loss whose gradient is not finite is skipped, and S
// is halved. After GrowthEvery applied batches in a row S doubles.
type LossScale struct {
	Initial     float64 // S of the first batches, a power of two from 1 to MaxLossScale
	GrowthEvery int     // batches, from 1 to MaxGrowthEvery
}

// The bounds of a LossScale. S grows up to the first. Counts up to the second are exact in f32.
const (
	MaxLossScale   = 1 << 24
	MaxGrowthEvery = 1 << 24
)

// The loss scale is state that has versions as weights have. The norms of batch t decide the S of batch t + 1. With a
// delay they decide the S of batch t + 2. It is written while batch t + 1 may be under way with its own S.
const (
	// ScaleVariable is kept with the weights: f32 [n], whose first element is the S of the batch that reads them. With
	// a delay this is the batch whose stale microbatches read them.
	ScaleVariable = "optim/loss_scale"
	// NextScaleVariable is kept with the gradients: an update with a delay writes the S of the new weights there.
	NextScaleVariable = "optim/loss_scale/next"
	// ScaleOutput is the S of a batch's gradients: f32 [1].
	ScaleOutput = "loss_scale"
)

// The values of StatusOutput.
const (
	Applied    = 0
	Refused    = 1
	Overflowed = 2 // refused, and a smaller loss scale may help
)

func (l LossScale) check() error {
	fraction, _ := math.Frexp(l.Initial)
	switch {
	case fraction != 0.5 || l.Initial < 1 || l.Initial > MaxLossScale:
		return fielderror.New("loss_scale.initial", l.Initial, "a power of two from 1 to %d", MaxLossScale)
	case l.GrowthEvery < 1 || l.GrowthEvery > MaxGrowthEvery:
		return fielderror.New("loss_scale.growth_every", l.GrowthEvery, "an integer from 1 to %d", MaxGrowthEvery)
	}
	return nil
}

// Scaling is the variable that holds an optimizer's loss scale.
type Scaling struct {
	scale LossScale
	delay int
}

// Type is the type of ScaleVariable: S, 1/S, the number of batches applied in a row and, with a delay, S and 1/S of the
// batch before.
func (s *Scaling) Type() graph.Type { return graph.T(graph.F32, 3+2*s.delay) }

// Initial is the first value of all versions of ScaleVariable.
func (s *Scaling) Initial() []float32 {
	x := float32(s.scale.Initial)
	return []float32{x, 1 / x, 0, x, 1 / x}[:s.Type().Shape[0]]
}

// state lists the variables that outlive a step. A nil Scaling has none.
func (s *Scaling) state() (vs []graph.Named) {
	if s == nil {
		return nil
	}
	vs = append(vs, graph.Named{ID: ScaleVariable, Type: s.Type()})
	if s.delay > 0 {
		vs = append(vs, graph.Named{ID: NextScaleVariable, Type: s.Type()})
	}
	return vs
}

// lossScale is the elements of ScaleVariable, as [1] each, while a batch's norms are taken or its update is applied.
// With a delay the variable belongs to the next batch.
type lossScale struct {
	own, ownInverse       *graph.Value // of the batch
	newest, newestInverse *graph.Value
	applied               *graph.Value // batches in a row
}

// read reads the variable.
func (s *Scaling) read(b *graph.Builder) lossScale {
	v := unstack(b.Variable(ScaleVariable, s.Type()))
	l := lossScale{own: v[0], ownInverse: v[1], newest: v[0], newestInverse: v[1], applied: v[2]}
	if s.delay > 0 {
		l.own, l.ownInverse = v[3], v[4]
	}
	return l
}

// overflowed is 1 if a batch's gradient is not finite, its loss is finite, and S can become smaller.
func (s lossScale) overflowed(norm, loss *graph.Value) *graph.Value {
	return op.And(op.And(op.Not(op.IsFinite(norm)), op.IsFinite(loss)), op.Greater(s.own, op.Scalar(norm.Builder(), graph.F32, 1)))
}

// rescale assigns the next S. With a delay two batches have the same S before the norms of the first one count: if both
// overflow, S is halved once.
func (u *update) rescale(s lossScale, overflowed *graph.Value) {
	number := func(x float64) *graph.Value { return op.Scalar(u.b, graph.F32, x) }
	applied := op.Shift(s.applied, 1)
	full := op.GreaterEqual(applied, number(float64(u.o.cfg.LossScale.GrowthEvery)))
	grows := op.And(op.And(u.ok, full), op.Less(s.newest, number(MaxLossScale)))
	by := func(grown, shrunk, stays *graph.Value) *graph.Value {
		return op.Where(overflowed, shrunk, op.Where(grows, grown, stays))
	}
	next := []*graph.Value{
		by(op.Scale(s.newest, 2), op.Minimum(s.newest, op.Scale(s.own, 0.5)), s.newest),
		by(op.Scale(s.newestInverse, 0.5), op.Maximum(s.newestInverse, op.Scale(s.ownInverse, 2)), s.newestInverse),
		op.Where(overflowed, number(0), op.Where(u.ok, op.Where(full, number(0), applied), s.applied)),
	}
	target := ScaleVariable
	if u.o.cfg.Delay > 0 {
		target, next = NextScaleVariable, append(next, s.newest, s.newestInverse)
	}
	u.b.Assign(u.b.Variable(target, u.o.Scaling().Type()), op.Concat(0, next...))
}
