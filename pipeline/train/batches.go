package train

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"runtime"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// batchHook is a module that maps batches or weighs their tokens.
type batchHook struct {
	*loadedHook
	instances *hook.Batches
	turns     *turns
}

// batchHooks are those that map batches, and then those that weigh tokens.
func (h *hooks) batchHooks(instances int) (all []*batchHook) {
	for _, m := range append(h.of(hook.MapBatch), h.of(hook.TokenWeights)...) {
		all = append(all, &batchHook{loadedHook: m, instances: m.Batches(instances)})
	}
	return all
}

// begin prepares for the batches from a step on. What is being computed has ended.
func (h *batchHook) begin(step int, state []byte) {
	h.turns = newTurns(int64(step))
	h.instances.Restore(state)
}

// apply works on a batch, in its turn if the module keeps something from one to the next, and gives the state after it.
func (h *batchHook) apply(ctx context.Context, p place, b *hook.Batch) (state []byte, err error) {
	work := func() (err error) {
		if err = h.instances.Apply(ctx, int(p.batch), b); err == nil {
			state, err = h.instances.Save(ctx)
		}
		return err
	}
	if !h.Stateful() {
		return nil, work()
	}
	err = h.turns.take(ctx, int64(p.step), work)
	return state, err
}

// mostBytes of a batch's array: what a module can address, and more than devices take.
const mostBytes = 1 << 31

// alignedInputs are the tensors that go along with the tokens, as losses may read them.
func alignedInputs(c config.Config, m model.Model, all []data.Aligned) (inputs []graph.Named, err error) {
	taken := []string{graphhook.Logits, graphhook.Targets, graphhook.Weights, graphhook.Hidden}
	for _, p := range m.LossParameters() {
		taken = append(taken, p.ID)
	}
	for _, a := range all {
		if slices.Contains(taken, a.Name) {
			return nil, usererror.Errorf("data.aligned: tensor %q: losses have an input of this name, expected another", a.Name)
		}
		if size := a.Bytes() * c.BatchTokens(); size > mostBytes {
			return nil, usererror.Errorf("data.aligned: tensor %q has %d bytes a batch, expected at most %d", a.Name, size, mostBytes)
		}
		inputs = append(inputs, graph.Named{ID: a.Name, Type: graph.T(alignedTypes[a.DType].graph, a.Shape...)})
	}
	return inputs, nil
}

var alignedTypes = map[safetensors.DType]struct {
	graph graph.DType
	wasm  wasm.DType
}{safetensors.F32: {graph.F32, wasm.F32}, safetensors.I32: {graph.I32, wasm.I32}, safetensors.U32: {graph.U32, wasm.U32}}

// feedBatches begins to compute batches if hooks change them, and says where the engine gets them from.
func (r *run) feedBatches(context.Context) error {
	r.source = engineSource(r.plainBatch)
	if r.inputs.Scalars > 0 {
		defer func() { r.source = withScalars{r.source, r} }()
	}
	instances := cmp.Or(r.Instances, runtime.GOMAXPROCS(0))
	all := r.hooks.batchHooks(instances)
	if len(all) == 0 {
		return nil
	}
	if size := 4 * r.BatchTokens(); size > mostBytes {
		return usererror.Errorf("train.batch_size: the tokens of a batch have %d bytes, of which hooks take at most %d", size, mostBytes)
	}
	f := feed{first: standing{place{r.step, int64(r.step) + r.leftOut}, make([][]byte, len(all))}, steps: r.Train.Steps, instances: instances,
		hooks: all, begin: r.rawBatch, end: r.finishBatch, note: r.hooks.note}
	for i, h := range all {
		f.first.states[i] = r.states[h.loadedHook]
	}
	r.feeder = newFeeder(f)
	r.source = r.feeder
	return nil
}

// firstBatch waits for the batch that comes next, so that a module that cannot make it is known of before anything is written.
func (r *run) firstBatch(ctx context.Context) error {
	if r.feeder == nil || r.step >= r.Train.Steps {
		return nil
	}
	_, err := r.feeder.await(ctx, r.step)
	return usererror.New(err)
}

// rawBatch is a batch as the data have it, for hooks.
func (r *run) rawBatch(p place) (*hook.Batch, error) {
	tokens, targets, err := r.data.train.Batch(p.batch)
	if err != nil {
		return nil, err
	}
	aligned, err := r.data.train.AlignedBatch(p.batch)
	if err != nil {
		return nil, err
	}
	b := &hook.Batch{Rows: r.Train.BatchSize, SeqLen: r.Model.SeqLen, Vocab: r.Model.VocabSize, Step: p.step, Steps: r.Train.Steps,
		Tokens: asU32(tokens), Targets: asU32(targets), Weights: make([]float32, len(tokens)), Segments: make([]uint32, len(tokens))}
	for i := range b.Weights {
		b.Weights[i] = 1
	}
	for i, a := range r.data.train.Aligned() {
		b.Aligned = append(b.Aligned, hook.Aligned{Name: a.Name, DType: alignedTypes[a.DType].wasm, Dims: a.Shape, Data: aligned[i]})
	}
	return b, nil
}

// finishBatch is a batch that hooks have changed, as the engine takes it.
func (r *run) finishBatch(b *hook.Batch) engine.Batch {
	normalize(b.Weights)
	out := engine.Batch{model.TokensInput: bytesOfU32(b.Tokens), model.TargetsInput: bytesOfU32(b.Targets), model.WeightsInput: exec.F32Bytes(b.Weights)}
	if r.inputs.Segments {
		out[model.SegmentsInput] = bytesOfU32(b.Segments)
	}
	for _, a := range b.Aligned {
		r.addAligned(out, a.Name, a.Data)
	}
	return out
}

// plainBatch is a batch that no hook changes.
func (r *run) plainBatch(number int64) (engine.Batch, error) {
	tokens, targets, err := r.data.train.Batch(number)
	if err != nil {
		return nil, usererror.New(err)
	}
	out := engine.Batch{model.TokensInput: bytesOfU32(asU32(tokens)), model.TargetsInput: bytesOfU32(asU32(targets))}
	if len(r.inputs.Aligned) == 0 {
		return out, nil
	}
	aligned, err := r.data.train.AlignedBatch(number)
	if err != nil {
		return nil, usererror.New(err)
	}
	for i, a := range r.data.train.Aligned() {
		r.addAligned(out, a.Name, aligned[i])
	}
	return out, nil
}

// addAligned adds a tensor if the loss reads it.
func (r *run) addAligned(b engine.Batch, name string, data []byte) {
	if slices.ContainsFunc(r.inputs.Aligned, func(a graph.Named) bool { return a.ID == name }) {
		b[model.AlignedInput(name)] = data
	}
}

// normalize makes the mean of weights 1, so that the mean of weighted losses is their weighted mean. Those that are all alike become
// exactly 1.
func normalize(weights []float32) {
	sum := 0.0
	for _, w := range weights {
		sum += float64(w)
	}
	for i, w := range weights {
		weights[i] = float32(float64(w) * (float64(len(weights)) / sum))
	}
}

// engineSource is a function as a Source.
type engineSource func(number int64) (engine.Batch, error)

// Batch is as a Source has it.
func (f engineSource) Batch(number int64) (engine.Batch, error) { return f(number) }

// withScalars adds the scalars of the loss.
type withScalars struct {
	engine.Source
	r *run
}

// Batch is as a Source has it.
func (s withScalars) Batch(step int64) (engine.Batch, error) {
	b, err := s.Source.Batch(step)
	if err != nil {
		return nil, err
	}
	b = maps.Clone(b) // others read it
	b[model.ScalarsInput] = bytes.Repeat(exec.F32Bytes(s.r.hooks.values[int(step)]), s.r.Train.Microbatches)
	return b, nil
}

// Prepare is as an engine.Preparer has it.
func (s withScalars) Prepare(step int64) error { return s.r.feeder.Prepare(step) }

func asU32(x []int32) []uint32 {
	out := make([]uint32, len(x))
	for i, v := range x {
		out[i] = uint32(v)
	}
	return out
}

func bytesOfU32(x []uint32) []byte {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	return b
}
