package train

import (
	"context"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// moduleLoss is a loss that a module wrote, and what it reads of a batch.
type moduleLoss struct {
	*graphhook.Loss
	module *loadedHook
}

// loss builds the loss of microbatches; nil if no module does. weighted tells whether hooks set weights.
func (h *hooks) loss(ctx context.Context, in graphhook.Inputs, weighted bool) (*moduleLoss, error) {
	ms := h.of(hook.BuildLoss)
	if len(ms) == 0 {
		return nil, nil
	}
	loss, err := ms[0].BuildLoss(ctx, in)
	if err != nil {
		return nil, usererror.New(err)
	}
	if weighted && !loss.PerToken && !slices.Contains(loss.Asked, graphhook.Weights) {
		return nil, usererror.Errorf("hook %s: %s: the loss is one number, %v, and does not ask for %q, which %s or %s sets: expected f32[%d], a number for each token, or a loss that uses them",
			ms[0].config.File, hook.BuildLoss, loss.Outputs[0].Value.Type, graphhook.Weights, hook.MapBatch, hook.TokenWeights, in.Rows)
	}
	return &moduleLoss{loss, ms[0]}, nil
}

// build adds the loss to the model's graph.
func (l *moduleLoss) build(in model.LossInputs) *graph.Value {
	b := in.Targets.Builder()
	inputs := map[string]*graph.Value{graphhook.Logits: in.Logits, graphhook.Targets: in.Targets, graphhook.Hidden: in.Hidden, graphhook.Weights: in.Weights}
	if in.Weights == nil && slices.Contains(l.Asked, graphhook.Weights) {
		inputs[graphhook.Weights] = op.Full(b, graph.F32, 1, in.Targets.Shape...)
	}
	maps.Copy(inputs, in.Parameters)
	maps.Copy(inputs, in.Aligned)
	for i, name := range l.Scalars {
		inputs[graphhook.ScalarInput(name)] = op.Reshape(op.Slice(in.Scalars, 0, i, i+1))
	}
	return b.Inline(l.Graph, inputs)[graphhook.Output]
}

// task is what training computes besides the model.
type task struct {
	loss   *moduleLoss  // nil: cross-entropy
	inputs model.Inputs // what it reads of a batch besides tokens and targets
}

// newTask asks the modules of a config for what they add to a model, given the tensors of data.aligned.
func newTask(ctx context.Context, c config.Config, h *hooks, m model.Model, aligned []data.Aligned) (t task, err error) {
	all, err := alignedInputs(c, m, aligned)
	if err != nil {
		return t, err
	}
	maps, weighs := len(h.of(hook.MapBatch)) > 0, len(h.of(hook.TokenWeights)) > 0
	t.inputs = model.Inputs{Segments: maps, Weights: maps || weighs}
	in := graphhook.Inputs{Rows: c.Rows() * c.Model.SeqLen, Vocab: c.Model.VocabSize, Width: m.Size().Hidden, More: m.LossParameters()}
	for _, a := range all {
		in.More = append(in.More, graph.Named{ID: a.ID, Type: graph.Type{DType: a.Type.DType, Shape: append(graph.Shape{in.Rows}, a.Type.Shape...)}})
	}
	if t.loss, err = h.loss(ctx, in, t.inputs.Weights); err != nil || t.loss == nil {
		return t, err
	}
	t.inputs.Scalars = len(t.loss.Scalars)
	t.inputs.Aligned = slices.DeleteFunc(all, func(a graph.Named) bool { return !slices.Contains(t.loss.Asked, a.ID) })
	return t, nil
}

// build is the loss as models take it; nil: cross-entropy.
func (t task) build() model.Loss {
	if t.loss == nil {
		return nil
	}
	return t.loss.build
}

// makeLoss builds the loss of a module, and says what the model reads of a batch.
func (r *run) makeLoss(ctx context.Context) (err error) {
	aligned := r.data.train.Aligned()
	if r.task, err = newTask(ctx, r.Config, r.hooks, r.model, aligned); err != nil {
		return err
	}
	if len(r.inputs.Aligned) < len(aligned) && len(r.hooks.of(hook.MapBatch)) == 0 {
		r.Report.Note("data.aligned: hooks read %d of its %d tensors", len(r.inputs.Aligned), len(aligned))
	}
	return r.openScalars(ctx)
}

// openScalars opens the instance that sets the scalars of the loss, if there is one.
func (r *run) openScalars(ctx context.Context) error {
	if r.loss == nil {
		return nil
	}
	return r.hooks.openScalars(ctx, r.loss, r.Train.Steps)
}

// openScalars opens the instance that sets the scalars of a loss, and asks for the first.
func (h *hooks) openScalars(ctx context.Context, l *moduleLoss, steps int) (err error) {
	if len(l.Scalars) == 0 {
		return nil
	}
	if h.scalars, err = l.module.Scalars(ctx, len(l.Scalars)); err != nil {
		h.scalars = nil
		return usererror.New(err)
	}
	h.steps, h.values = steps, map[int][]float32{}
	return h.askScalars(ctx, 0, min(1, steps))
}

// askScalars asks for the scalars of the steps before to. The module is asked once for each, from the first on, also in a run that goes
// on later: what it remembers is the same. Those of the steps before from are forgotten.
func (h *hooks) askScalars(ctx context.Context, from, to int) error {
	if h.scalars == nil {
		return nil
	}
	for ; h.asked < to && ctx.Err() == nil; h.asked++ {
		v, err := h.scalars.Values(context.WithoutCancel(ctx), h.asked, h.steps)
		if err != nil {
			return usererror.New(err)
		}
		if h.asked >= from {
			h.values[h.asked] = v
		}
	}
	maps.DeleteFunc(h.values, func(step int, _ []float32) bool { return step < from })
	return nil
}
