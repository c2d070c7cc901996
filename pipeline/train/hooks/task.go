package hooks

import (
	"context"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Task is what training computes besides the model.
type Task struct {
	Loss   *Loss        // nil: cross-entropy
	Inputs model.Inputs // that model and loss read besides tokens and targets
	Unread int          // tensors of data.aligned that no module reads
}

// BatchInputs are what the config's data and the modules that change batches add to tokens and targets.
func (s *Set) BatchInputs(d config.Data) model.Inputs {
	return model.Inputs{Segments: s.Batches.mapsBatches() || d.DocumentMask, EvalSegments: d.DocumentMask, Weights: !s.Batches.None() ||
		d.Documents(), Real: d.Pack == data.PackBestFit}
}

// NewTask builds the loss of the set's modules for a model, given the tensors of data.aligned and what modules add to
// batches.
func NewTask(ctx context.Context, c config.Config, s *Set, m model.Model, aligned []data.Aligned, added model.Inputs) (t Task, err error) {
	all, err := alignedInputs(c, m, aligned)
	if err != nil {
		return t, err
	}
	if err := s.checkSegments(c, m); err != nil {
		return t, err
	}
	t.Inputs = added
	t.Inputs.Real = added.Real && m.Experts() > 0
	in := graphhook.Inputs{Rows: c.Rows() * c.Model.SeqLen, Vocab: c.Model.VocabSize, Width: m.Size().Hidden, More: m.LossParameters()}
	for _, a := range all {
		in.More = append(in.More, graph.Named{ID: a.ID,
			Type: graph.Type{DType: a.Type.DType, Shape: append(graph.Shape{in.Rows}, a.Type.Shape...)}})
	}
	if t.Loss, err = s.buildLoss(ctx, in, t.Inputs.Weights); err != nil {
		return t, err
	}
	if t.Loss != nil {
		t.Inputs.Scalars = len(t.Loss.Scalars)
		t.Inputs.Aligned = slices.DeleteFunc(all, func(a graph.Named) bool { return !slices.Contains(t.Loss.Asked, a.ID) })
	}
	if !s.Batches.mapsBatches() {
		t.Unread = len(aligned) - len(t.Inputs.Aligned)
	}
	return t, nil
}

// checkSegments refuses data.document_mask with a module's model that attends beyond documents.
func (s *Set) checkSegments(c config.Config, m model.Model) error {
	if s.model == nil || !c.Data.DocumentMask {
		return nil
	}
	g, err := m.Eval(1, true)
	if err != nil {
		return usererror.New(err)
	}
	segments := func(v *graph.Value) bool { return v.Node.Op.(graph.Source).Label() == model.SegmentsInput }
	if !slices.ContainsFunc(g.Sources("input"), segments) {
		return usererror.Errorf("hook %s: %s: the model does not read the input %q, expected one that does with data.document_mask",
			s.model.config.File, hook.BuildModel, model.SegmentsInput)
	}
	return nil
}

// Build is the loss as models take it; nil: cross-entropy.
func (t Task) Build() model.Loss {
	if t.Loss == nil {
		return nil
	}
	return t.Loss.build
}

// MaxBatchBytes is the size limit of one array of a batch: what a module can address, and more than devices take.
const MaxBatchBytes = 1 << 31

// alignedInputs are the tensors of data.aligned as losses may read them.
func alignedInputs(c config.Config, m model.Model, all []data.Aligned) (inputs []graph.Named, err error) {
	taken := []string{graphhook.Logits, graphhook.Targets, graphhook.Weights, graphhook.Hidden}
	for _, p := range m.LossParameters() {
		taken = append(taken, p.ID)
	}
	for _, a := range all {
		if slices.Contains(taken, a.Name) {
			return nil, usererror.Errorf("data.aligned: tensor %q: losses have an input of this name, expected another", a.Name)
		}
		if size := a.Bytes() * c.BatchTokens(); size > MaxBatchBytes {
			return nil, usererror.Errorf("data.aligned: tensor %q has %d bytes a batch, expected at most %d", a.Name, size, MaxBatchBytes)
		}
		inputs = append(inputs, graph.Named{ID: a.Name, Type: graph.T(alignedTypes[a.DType].graph, a.Shape...)})
	}
	return inputs, nil
}

// alignedTypes are the dtypes that tensors of data.aligned may have.
var alignedTypes = map[safetensors.DType]struct {
	graph graph.DType
	wasm  wasm.DType
}{safetensors.F32: {graph.F32, wasm.F32}, safetensors.I32: {graph.I32, wasm.I32}, safetensors.U32: {graph.U32, wasm.U32}}

// AlignedOf is a batch of a tensor of data.aligned, as modules get it.
func AlignedOf(a data.Aligned, content []byte) hook.Aligned {
	return hook.Aligned{Name: a.Name, DType: alignedTypes[a.DType].wasm, Dims: a.Shape, Data: content}
}

// Loss is a loss that a module built.
type Loss struct {
	*graphhook.Loss
	module *module
}

// File is the name of the module's file.
func (l *Loss) File() string { return l.module.config.File }

// buildLoss builds the loss of microbatches; nil without a module. weighted reports whether hooks set token weights.
func (s *Set) buildLoss(ctx context.Context, in graphhook.Inputs, weighted bool) (*Loss, error) {
	if s.loss == nil {
		return nil, nil
	}
	loss, err := s.loss.BuildLoss(ctx, in)
	if err != nil {
		return nil, usererror.New(err)
	}
	if weighted && !loss.PerToken && !slices.Contains(loss.Asked, graphhook.Weights) {
		return nil, usererror.Errorf("hook %s: %s: the loss is one number, %v, and does not use %q, which %s, %s, data.pack or data.document_mask sets: expected f32[%d], a number for each token, or a loss that uses them",
			s.loss.config.File, hook.BuildLoss, loss.Outputs[0].Value.Type, graphhook.Weights, hook.MapBatch, hook.TokenWeights, in.Rows)
	}
	return &Loss{loss, s.loss}, nil
}

// build adds the loss to the model's graph.
func (l *Loss) build(in model.LossInputs) *graph.Value {
	b := in.Targets.Builder()
	inputs := map[string]*graph.Value{graphhook.Logits: in.Logits, graphhook.Targets: in.Targets, graphhook.Hidden: in.Hidden,
		graphhook.Weights: in.Weights}
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
