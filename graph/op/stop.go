package op

import "github.com/gpupipe/gpupipe/graph"

// StopGradientOp is its input, through which no gradient flows.
type StopGradientOp struct{}

func (*StopGradientOp) Name() string  { return "stop_gradient" }
func (*StopGradientOp) TakesFloat16() {}

func (*StopGradientOp) Infer(in []graph.Type) ([]graph.Type, error) {
	return in, graph.Arity(in, 1)
}

func (*StopGradientOp) Grad(*graph.Node, []*graph.Value) []*graph.Value { return []*graph.Value{nil} }

func (*StopGradientOp) Kernel(*graph.Node) graph.Kernel {
	return view(func(at []graph.Index) []graph.Index { return at })
}

func (*StopGradientOp) Eval(in, out []*graph.Tensor) { copy(out[0].Data, in[0].Data) }

func (*StopGradientOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, t := range []graph.Type{graph.T(graph.F32), graph.T(graph.F32, 3, 5), graph.T(graph.U32, 7), graph.T(graph.BF16, 7),
		graph.T(graph.F32, 70001)} {
		cs = append(cs, graph.Case{Op: new(StopGradientOp), Inputs: []graph.Type{t}, NoGrad: true})
	}
	return cs
}

// StopGradient is x as a constant: the gradient does not flow through it.
func StopGradient(x *graph.Value) *graph.Value { return graph.Apply1(new(StopGradientOp), x) }
