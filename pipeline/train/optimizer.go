package train

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// TEMPORARY local SGD until optim lands
type updater struct {
	graph      *graph.Graph
	assignment string
}
type updated struct {
	lr, gradNorm float64
	halted       bool
}

func newUpdater(c Config) (*updater, error) {
	g, err := graph.Build(func(b *graph.Builder) {
		var norm *graph.Value
		var parts []*graph.Value
		for _, p := range c.Model.Parameters() {
			parts = append(parts, op.Reshape(op.Sum(op.Square(b.Variable(model.Gradient(p.Name), p.Type)), nil, false), 1))
		}
		norm = op.Sum(op.Concat(0, parts...), nil, false)
		norm = op.Sqrt(norm)
		halt := b.Variable("halted", graph.T(graph.U32))
		h := op.Or(halt, op.Not(op.IsFinite(norm)))
		b.Assign(halt, h)
		b.Output("status", op.Reshape(norm, 1))
		for _, p := range c.Model.Parameters() {
			v := b.Variable(p.Name, p.Type)
			g := b.Variable(model.Gradient(p.Name), p.Type)
			m := b.Variable("optimizer/m/"+p.Name, p.Type)
			nm := op.Add(op.Scale(m, 0.9), g)
			b.Assign(m, nm)
			b.Assign(v, op.Where(h, v, op.Sub(v, op.Scale(nm, c.Optimizer.LR))))
		}
	})
	return &updater{g, "sgd"}, err
}
func (u *updater) enqueue(s Session, step int) (device.Pending, error) {
	if err := s.Run(updateProgram); err != nil {
		return nil, err
	}
	return s.Output(updateProgram, "status")
}
func (u *updater) read(p device.Pending, step int) (updated, error) {
	b, err := p.Wait()
	if err != nil {
		return updated{}, err
	}
	return updated{gradNorm: float64(floats(b)[0])}, nil
}
