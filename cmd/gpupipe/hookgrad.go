package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// mostError is the largest relative error of losses and gradients.
const mostError = 1e-3

// gradient compares a module's loss_grad with its build_loss on sample logits, in float64: the losses, and the gradient
// of their mean.
func (f *moduleFlags) gradient(a *app, m *hook.Module) (v verdict, err error) {
	v.Hook = hook.LossGrad
	const rows = 8
	loss, err := m.BuildLoss(a.ctx, f.lossInputs(rows))
	if err != nil {
		return v, err
	}
	if i := slices.IndexFunc(loss.Asked, func(name string) bool {
		return name != graphhook.Logits && name != graphhook.Targets && name != graphhook.Weights
	}); i >= 0 {
		return v, fmt.Errorf("%s cannot be compared with a loss of %s: it gets only logits and targets", hook.LossGrad, loss.Asked[i])
	}
	if n := elementCount(loss.Graph); n > maxElements {
		return v, fmt.Errorf("the loss has %s elements in all its values, expected at most %s: choose a smaller --vocab", grouped(n),
			grouped(maxElements))
	}
	logits, targets := make([]float32, rows*f.Vocab), make([]uint32, rows)
	for i := range logits {
		logits[i] = float32(3 * math.Sin(1.7*float64(i)))
	}
	for i := range targets {
		targets[i] = uint32(31 * i % f.Vocab)
	}
	given, gradient, err := m.LossGrad(a.ctx, logits, targets)
	if err != nil {
		return v, err
	}
	scalars, err := f.firstScalars(a, m, loss)
	if err != nil {
		return v, err
	}
	want, err := evaluated(loss, logits, targets, scalars)
	if err != nil {
		return v, err
	}
	if !loss.PerToken {
		given = []float32{mean(given)}
	}
	ofLoss, ofGradient := relative(given, want["loss"].Data), relative(gradient, want["gradient"].Data)
	v.Found = fmt.Sprintf("relative error of the losses %.2g, of the gradient %.2g, against build_loss in float64", ofLoss, ofGradient)
	if !(ofLoss <= mostError && ofGradient <= mostError) {
		return v, fmt.Errorf("%s and %s disagree: %s; at most %g is right", hook.LossGrad, hook.BuildLoss, v.Found, mostError)
	}
	return v, nil
}

// firstScalars returns the scalars of step 0.
func (f *moduleFlags) firstScalars(a *app, m *hook.Module, loss *graphhook.Loss) (map[string]*graph.Tensor, error) {
	all := map[string]*graph.Tensor{}
	if len(loss.Scalars) == 0 {
		return all, nil
	}
	s, err := m.Scalars(a.ctx, len(loss.Scalars))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	values, err := s.Values(a.ctx, 0, trialSteps)
	for i, name := range loss.Scalars {
		if err == nil {
			all[graphhook.ScalarInput(name)] = &graph.Tensor{Type: graph.T(graph.F32), Data: []float64{float64(values[i])}}
		}
	}
	return all, err
}

// evaluated computes a loss, and the gradient of its mean by the logits, with the reference evaluator.
func evaluated(loss *graphhook.Loss, logits []float32, targets []uint32, in map[string]*graph.Tensor) (map[string]*graph.Tensor, error) {
	rows := len(targets)
	types := map[string]graph.Type{graphhook.Logits: graph.T(graph.F32, rows, len(logits)/rows),
		graphhook.Targets: graph.T(graph.U32, rows), graphhook.Weights: graph.T(graph.F32, rows)}
	for name, t := range types {
		in[name] = graph.NewTensor(t)
	}
	for i, x := range logits {
		in[graphhook.Logits].Data[i] = float64(x)
	}
	for i, id := range targets {
		in[graphhook.Targets].Data[i], in[graphhook.Weights].Data[i] = float64(id), 1
	}
	g, err := graph.Build(func(b *graph.Builder) {
		inputs := map[string]*graph.Value{}
		for _, v := range loss.Sources("input") {
			name := v.Node.Op.(*graph.Input).ID
			inputs[name] = b.Input(name, v.Type)
		}
		out := b.Inline(loss.Graph, inputs)[graphhook.Output]
		b.Output("loss", out)
		b.Output("gradient", autodiff.Gradients(op.Mean(out, nil, false), nil, inputs[graphhook.Logits])[0])
	})
	if err != nil {
		return nil, err
	}
	if n := elementCount(g); n > maxElements {
		return nil, fmt.Errorf("the loss has %s elements in all its values, expected at most %s: choose a smaller --vocab", grouped(n),
			grouped(maxElements))
	}
	for name := range in {
		if !slices.ContainsFunc(g.Sources("input"), func(v *graph.Value) bool { return v.Node.Op.(*graph.Input).ID == name }) {
			delete(in, name)
		}
	}
	return eval.Run(g, in, nil)
}

// maxElements bounds the elements to evaluate, of 8 bytes each.
const maxElements = 1 << 26

// elementCount returns the number of elements of all values of a graph.
func elementCount(g *graph.Graph) (n int64) {
	for _, node := range g.Nodes {
		for _, v := range node.Outputs {
			n += int64(v.Shape.Len())
		}
	}
	return n
}

func mean(x []float32) float32 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v)
	}
	return float32(sum / float64(len(x)))
}

// relative returns the largest difference, relative to the largest expected element. NaN and infinities are always
// wrong.
func relative(got []float32, want []float64) float64 {
	largest, off := 0.0, 0.0
	for i, w := range want {
		d := math.Abs(float64(got[i]) - w)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		largest, off = max(largest, math.Abs(w)), max(off, d)
	}
	if off == 0 {
		return 0
	}
	return off / largest
}
