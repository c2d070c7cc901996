package train

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// loader makes the batches of a run.
type loader struct {
	source engine.Source
	feeder *hooks.Feeder // nil: no hook changes batches
}

// openLoader starts the hooks that change batches, from where a run starts.
func openLoader(j *job, at start) (*loader, error) {
	b := &batches{config: j.config, corpus: j.corpus.train, inputs: j.task.Inputs}
	l := &loader{source: plainSource{b}}
	if !j.hooks.Batches.None() {
		if size := 4 * j.config.Largest().BatchTokens(); size > hooks.MaxBatchBytes {
			return l, usererror.Errorf("train.batch_size: the tokens of a batch have %d bytes, expected at most %d with hooks that change batches",
				size, hooks.MaxBatchBytes)
		}
		l.feeder = j.hooks.Feed(hooks.Feed{Start: hooks.Position{Step: at.step, Batch: int64(at.step) + at.omitted}, States: at.states,
			Steps: j.lastOfSize(at.step), Instances: cmp.Or(j.options.Hooks.Instances, runtime.GOMAXPROCS(0)),
			Read: b.read, Finish: b.finish})
		l.source = l.feeder
	}
	if j.task.Inputs.Scalars > 0 {
		l.source = withScalars{l.source, l.feeder, j.hooks.Scalars, j.config.Train.Microbatches}
	}
	return l, nil
}

// await waits for the batch of a step, if hooks change it.
func (l *loader) await(ctx context.Context, step int) error {
	if l.feeder == nil {
		return nil
	}
	_, err := l.feeder.Await(ctx, step)
	return usererror.New(err)
}

// close ends the hooks and all that wait for a batch.
func (l *loader) close() {
	l.feeder.Close()
}

// batches makes a run's batches from its corpus.
type batches struct {
	config config.Config
	corpus *data.Batcher
	inputs model.Inputs // that the programs read besides tokens and targets
}

// read returns the batch of a position as hooks get it: weights are 1 and segments 0, unless batches know documents.
func (b *batches) read(p hooks.Position) (*hook.Batch, error) {
	tokens, targets, err := b.corpus.Batch(p.Batch)
	if err != nil {
		return nil, err
	}
	aligned, err := b.corpus.AlignedBatch(p.Batch)
	if err != nil {
		return nil, err
	}
	c := b.config
	out := &hook.Batch{Rows: c.Train.BatchSize, SeqLen: c.Model.SeqLen, Vocab: c.Model.VocabSize, Step: p.Step, Steps: c.Train.Steps,
		Tokens: asU32(tokens), Targets: asU32(targets), Weights: make([]float32, len(tokens)), Segments: make([]uint32, len(tokens))}
	if d := b.corpus.Documents(p.Batch, tokens); d != nil {
		out.Weights = d.Weights
		copy(out.Segments, d.Segments)
	} else {
		for i := range out.Weights {
			out.Weights[i] = 1
		}
	}
	for i, a := range b.corpus.Aligned() {
		out.Aligned = append(out.Aligned, hooks.AlignedOf(a, aligned[i]))
	}
	return out, nil
}

// finish returns the batch of a position, which hooks have changed, as the engine takes it.
func (b *batches) finish(p hooks.Position, changed *hook.Batch) engine.Batch {
	normalize(changed.Weights)
	out := engine.Batch{model.TokensInput: exec.IntBytes(changed.Tokens), model.TargetsInput: exec.IntBytes(changed.Targets),
		model.WeightsInput: exec.F32Bytes(changed.Weights)}
	if b.inputs.Segments {
		out[model.SegmentsInput] = exec.IntBytes(changed.Segments)
	}
	b.addReal(out, p.Batch)
	for _, a := range changed.Aligned {
		b.addAligned(out, a.Name, a.Data)
	}
	return out
}

// plain returns a batch that no hook changes.
func (b *batches) plain(number int64) (engine.Batch, error) {
	tokens, targets, err := b.corpus.Batch(number)
	if err != nil {
		return nil, usererror.New(err)
	}
	out := engine.Batch{model.TokensInput: exec.IntBytes(tokens), model.TargetsInput: exec.IntBytes(targets)}
	if d := b.corpus.Documents(number, tokens); d != nil {
		normalize(d.Weights)
		out[model.WeightsInput] = exec.F32Bytes(d.Weights)
		if b.inputs.Segments {
			out[model.SegmentsInput] = exec.IntBytes(d.Segments)
		}
	}
	b.addReal(out, number)
	if len(b.inputs.Aligned) == 0 {
		return out, nil
	}
	aligned, err := b.corpus.AlignedBatch(number)
	if err != nil {
		return nil, usererror.New(err)
	}
	for i, a := range b.corpus.Aligned() {
		b.addAligned(out, a.Name, aligned[i])
	}
	return out, nil
}

// addReal adds the marks of tokens that are not padding, if the model reads them.
func (b *batches) addReal(out engine.Batch, number int64) {
	if b.inputs.Real {
		out[model.RealInput] = exec.IntBytes(b.corpus.Real(number))
	}
}

// addAligned adds a tensor if the loss reads it.
func (b *batches) addAligned(out engine.Batch, name string, content []byte) {
	if slices.ContainsFunc(b.inputs.Aligned, func(a graph.Named) bool { return a.ID == name }) {
		out[model.AlignedInput(name)] = content
	}
}

// normalize scales weights to a mean of 1, so that the mean of weighted losses is their weighted mean. Equal weights
// become exactly 1. Weights that are all 0 stay so.
func normalize(weights []float32) {
	sum := 0.0
	for _, w := range weights {
		sum += float64(w)
	}
	if sum == 0 {
		return
	}
	for i, w := range weights {
		weights[i] = float32(float64(w) * (float64(len(weights)) / sum))
	}
}

// plainSource is the engine's source without hooks that change batches.
type plainSource struct{ batches *batches }

// Batch implements engine.Source.
func (s plainSource) Batch(number int64) (engine.Batch, error) { return s.batches.plain(number) }

// withScalars adds the scalars of the loss to batches.
type withScalars struct {
	engine.Source
	feeder       *hooks.Feeder // nil without hooks that change batches
	scalars      *hooks.Scalars
	microbatches int
}

// Batch implements engine.Source.
func (s withScalars) Batch(step int64) (engine.Batch, error) {
	b, err := s.Source.Batch(step)
	if err != nil {
		return nil, err
	}
	b = maps.Clone(b) // others read it
	b[model.ScalarsInput] = bytes.Repeat(exec.F32Bytes(s.scalars.At(int(step))), s.microbatches)
	return b, nil
}

// Prepare implements engine.Preparer.
func (s withScalars) Prepare(step int64) error { return s.feeder.Prepare(step) }

// asU32 converts tokens to the type that hooks use.
func asU32(x []int32) []uint32 {
	out := make([]uint32, len(x))
	for i, v := range x {
		out[i] = uint32(v)
	}
	return out
}
