package hook_test

import (
	"math"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sampleBatch is one of 2 × 3 tokens of 10, with two tensors.
func sampleBatch() *hook.Batch {
	return &hook.Batch{Rows: 2, SeqLen: 3, Vocab: 10, Step: 4, Steps: 9, Tokens: []uint32{0, 1, 2, 3, 4, 5},
		Targets: []uint32{1, 2, 3, 4, 5, 6}, Weights: []float32{1, 1, 1, 1, 1, 1}, Segments: make([]uint32, 6),
		Aligned: []hook.Aligned{{Name: "ids", DType: wasm.I32, Data: make([]byte, 24)},
			{Name: "teacher", DType: wasm.F32, Dims: []int{2}, Data: make([]byte, 48)}}}
}

// copyOver copies n bytes of one array to another.
func copyOver(to, from int, n int32) []byte {
	return w.Seq(array(to, 28), array(from, 28), w.Const(n), w.MemoryCopy())
}

func batches(t *testing.T, name string, n int, bin []byte) *hook.Batches {
	t.Helper()
	m, err := newHost(t).LoadBytes(hook.Spec{File: "batch.wasm", Hook: name, Limits: wasm.Limits{MemoryPages: 64, Budget: 400_000_000}},
		bin)
	require.NoError(t, err)
	b := m.Batches(n)
	t.Cleanup(b.Close)
	return b
}

// A module reads the host's values of each array, and the host finds the values that it writes.
func TestBatchesAreMapped(t *testing.T) {
	at := func(n int, offset int32) []byte { return w.Seq(array(n, 28), w.Const(offset), w.I32Add) }
	p := batches(t, hook.MapBatch, 1, guest("", function(hook.MapBatch,
		copyOver(5, 0, 24),                                                                           // ids become the tokens
		at(3, 0), array(4, 28), w.Load(0), w.Store(0), at(3, 4), array(4, 28), w.Load(8), w.Store(0), // segments the clock
		at(0, 8), array(1, 28), w.Load(20), w.Store(0), // a token a target
		at(6, 44), w.ConstF32(2.5), w.StoreF32(0), at(2, 4), w.ConstF32(0), w.StoreF32(0),
		at(1, 0), w.Get(1), w.Store(0), // a target the number of arrays
		w.Const(0))))
	b := sampleBatch()
	require.NoError(t, p.Apply(ctx, 4, b))
	want := sampleBatch()
	want.Tokens[2], want.Targets[0], want.Weights[1] = 6, 7, 0
	want.Segments[0], want.Segments[1] = 4, 9
	copy(want.Aligned[0].Data, []byte{0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0})
	copy(want.Aligned[1].Data[44:], []byte{0, 0, 0x20, 0x40})
	assert.Equal(t, want, b)
	state, err := p.Save(ctx)
	assert.NoError(t, err)
	assert.Nil(t, state)
}

// token_weights can change the weights only.
func TestTokensAreWeighed(t *testing.T) {
	p := batches(t, hook.TokenWeights, 1, guest("", function(hook.TokenWeights,
		array(2, 28), w.ConstF32(3), w.StoreF32(12), array(0, 28), w.Const(9), w.Store(0), array(2, 28), array(3, 28), w.Load(8), 0xb3,
		w.StoreF32(0), w.Const(0))))
	b := sampleBatch()
	require.NoError(t, p.Apply(ctx, 4, b))
	want := sampleBatch()
	want.Weights[3], want.Weights[0] = 3, 9
	assert.Equal(t, want, b)
}

func TestBatchesThatAreWrong(t *testing.T) {
	store := func(n int, offset uint32, v int32) []byte { return w.Seq(array(n, 28), w.Const(v), w.Store(offset)) }
	weight := func(x float32) []byte { return store(2, 20, int32(math.Float32bits(x))) }
	dim := func(n, axis int, v int32) []byte { return w.Seq(w.Get(0), w.Const(v), w.Store(uint32(32*n+12+4*axis))) }
	mapped := func(body ...any) []byte { return guest("wrong", function(hook.MapBatch, append(body, w.Const(0))...)) }
	weighed := func(body ...any) []byte {
		return guest("wrong", function(hook.TokenWeights, append(body, w.Const(0))...))
	}
	for want, c := range map[string]struct {
		hook string
		bin  []byte
	}{
		"map_batch: batch 7: failed: tokens[1,2] is 10, expected a token below 10":                 {hook.MapBatch, mapped(store(0, 20, 10))},
		"map_batch: batch 7: failed: targets[0,1] is 4294967295, expected a token below 10":        {hook.MapBatch, mapped(store(1, 4, -1))},
		"map_batch: batch 7: failed: weights[1,2] is -0.5, expected a finite number of at least 0": {hook.MapBatch, mapped(weight(-0.5))},
		"map_batch: batch 7: failed: weights[1,2] is NaN, expected a finite number of at least 0": {hook.MapBatch,
			mapped(weight(float32(math.NaN())))},
		"map_batch: batch 7: failed: weights[1,2] is +Inf, expected": {hook.MapBatch, mapped(weight(float32(math.Inf(1))))},
		"map_batch: batch 7: failed: weights are all 0, expected at least one above 0": {hook.MapBatch,
			mapped(array(2, 28), w.Const(0), w.Const(24), w.MemoryFill())},
		"map_batch: batch 7: failed: tokens: found shape [1 3], expected [2 3]":                                                    {hook.MapBatch, mapped(dim(0, 0, 1))},
		"map_batch: batch 7: failed: segments: found shape [3 2], expected [2 3]":                                                  {hook.MapBatch, mapped(dim(3, 0, 3), dim(3, 1, 2))},
		"map_batch: batch 7: failed: teacher: found shape [2 3 1], expected [2 3 2]":                                               {hook.MapBatch, mapped(dim(6, 2, 1))},
		"map_batch: batch 7: bad array: array 1: found the shape [4 3] after the call, expected at most the u32 elements of [2 3]": {hook.MapBatch, mapped(dim(1, 0, 4))},
		"map_batch: batch 7: failed: wrong":                                                                                        {hook.MapBatch, mapped(named("wrong", "wrong"), w.Call(fail))},
		"map_batch: batch 7: trap: ":                                                                                               {hook.MapBatch, mapped(w.Unreachable)},
		"map_batch: batch 7: budget exceeded":                                                                                      {hook.MapBatch, mapped(spin())},
		"token_weights: batch 7: failed: weights[1,2] is NaN, expected":                                                            {hook.TokenWeights, weighed(weight(float32(math.NaN())))},
		"token_weights: batch 7: failed: weights: found shape [2 2], expected [2 3]":                                               {hook.TokenWeights, weighed(dim(2, 1, 2))},
		"token_weights: batch 7: bad array: array 0: found address 0x0 after the call": {hook.TokenWeights,
			weighed(w.Get(0), w.Const(0), w.Store(28))},
	} {
		p := batches(t, c.hook, 2, c.bin)
		err := p.Apply(ctx, 7, sampleBatch())
		var known *wasm.Error
		require.ErrorAs(t, err, &known, want)
		assert.ErrorContains(t, err, "hook batch.wasm: "+want)
		assert.ErrorContains(t, p.Apply(ctx, 7, sampleBatch()), "hook batch.wasm: "+want, "and so again")
	}
}

// counter writes the number of batches that it has seen, its state, to a token. It traps after the third.
func counter() []byte {
	return guest("", function(hook.MapBatch, w.GGet(1), w.Const(1), w.I32Add, w.GSet(1), w.GGet(1), w.Const(3), w.I32GeU,
		w.If(w.Empty, w.Unreachable), array(0, 28), w.GGet(1), w.Store(0), w.Const(0)),
		w.Func{Export: "gpupipe_save", Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Body: w.Seq(
			w.Get(1), w.Const(4), w.I32GeU, w.If(w.Empty, w.Get(0), w.GGet(1), w.Store(0)), w.Const(4))},
		w.Func{Export: "gpupipe_load", Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32},
			Body: w.Seq(w.Get(0), w.Load(0), w.GSet(1), w.Const(0))})
}

// A module with state has one instance, for every n. It continues from any state.
func TestBatchesOfAModuleThatRemembers(t *testing.T) {
	p := batches(t, hook.MapBatch, 8, counter())
	b := sampleBatch()
	apply := func() error { return p.Apply(ctx, 1, b) }
	require.NoError(t, apply())
	assert.EqualValues(t, 1, b.Tokens[0])
	first, err := p.Save(ctx)
	require.NoError(t, err)
	require.NoError(t, apply())
	assert.EqualValues(t, 2, b.Tokens[0])
	require.ErrorContains(t, apply(), "map_batch: batch 1: trap: ")
	require.ErrorContains(t, apply(), "closed")
	for range 2 {
		p.Restore(first)
		kept, err := p.Save(ctx)
		require.NoError(t, err)
		assert.Equal(t, first, kept)
		require.NoError(t, apply())
		assert.EqualValues(t, 2, b.Tokens[0])
	}
	p.Restore(nil)
	require.NoError(t, apply())
	assert.EqualValues(t, 1, b.Tokens[0])
}

func TestAStateThatIsTooLargeToKeep(t *testing.T) {
	p := batches(t, hook.MapBatch, 1, guest("", function(hook.MapBatch, w.Const(0)),
		w.Func{Export: "gpupipe_save", Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Body: w.Const(1<<20 + 1)},
		w.Func{Export: "gpupipe_load", Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Body: w.Const(0)},
		w.Func{Export: "gpupipe_open", Params: w.Types{w.I32, w.I32, w.I64}, Results: w.Types{w.I32},
			Body: w.Seq(w.Const(32), w.MemoryGrow())}))
	require.NoError(t, p.Apply(ctx, 0, sampleBatch()))
	_, err := p.Save(ctx)
	assert.ErrorContains(t, err, "the state has 1048577 bytes, expected at most 1048576")
}

// Several goroutines may use the instances of a module without state.
func TestBatchesOnSeveralInstances(t *testing.T) {
	p := batches(t, hook.MapBatch, 3, guest("", function(hook.MapBatch, array(0, 28), array(4, 28), w.Load(0), w.Store(0), w.Const(0))))
	var group sync.WaitGroup
	for n := range 8 {
		group.Go(func() {
			for range 20 {
				b := sampleBatch()
				b.Step = n
				assert.NoError(t, p.Apply(ctx, n, b))
				assert.EqualValues(t, n, b.Tokens[0])
			}
		})
	}
	group.Wait()
}

const scalarText = `logits beta gamma hidden lm_head.weight teacher {"trans_b":true} {"axes":[-1]} matmul mul sum {}`

// opOfTwo is graph_op of the values in two locals.
func opOfTwo(text, name, attributes string) []byte {
	return w.Seq(w.Const(512), w.Get(2), w.Store(0), w.Const(512), w.Get(3), w.Store(4), named(text, name), w.Const(512), w.Const(2),
		named(text, attributes), w.Call(graphOp))
}

func lossOf(body ...any) w.Func {
	f := function(hook.BuildLoss, body...)
	f.Locals = append(f.Locals, w.I32)
	return f
}

func inputNamed(name string) []byte { return w.Seq(named(scalarText, name), w.Call(graphInput)) }

func scalarNamed(name string) []byte { return w.Seq(named(scalarText, name), w.Call(graphScalar)) }

// In a loss with scalars equal names are the same scalar, and the names are listed in the order of their first use.
func TestLossesOfScalars(t *testing.T) {
	h := newHost(t)
	in := graphhook.Inputs{Rows: 4, Vocab: 7}
	sum := w.Seq(w.Const(512), w.Get(2), w.Store(0), named(scalarText, "sum"), w.Const(512), w.Const(1), named(scalarText, "{}"),
		w.Call(graphOp))
	build := lossOf(inputNamed("logits"), w.Set(2), sum, w.Set(2), scalarNamed("gamma"), w.Set(3), opOfTwo(scalarText, "mul", "{}"),
		w.Set(2), scalarNamed("beta"), w.Set(3), opOfTwo(scalarText, "mul", "{}"), w.Set(2), scalarNamed("gamma"), w.Set(3),
		opOfTwo(scalarText, "mul", "{}"))
	values := function(hook.LossScalars, array(1, 28), array(0, 28), []byte{0x2b, 3, 0}, 0xb6 /* f32.demote */, w.StoreF32(4), w.Const(0))
	m, err := h.LoadBytes(hook.Spec{File: "s.wasm", Hook: hook.BuildLoss}, guest(scalarText, build, values))
	require.NoError(t, err)
	loss, err := m.BuildLoss(ctx, in)
	require.NoError(t, err)
	assert.Equal(t, []string{"gamma", "beta"}, loss.Scalars)
	assert.Equal(t, []string{"logits"}, loss.Asked)
	assert.False(t, loss.PerToken)
	assert.Len(t, loss.Sources("input"), 3)
	s, err := m.Scalars(ctx, 2)
	require.NoError(t, err)
	for step := range 3 {
		got, err := s.Values(ctx, step, 10)
		require.NoError(t, err)
		assert.Equal(t, []float32{0, float32(step)}, got)
	}
	require.NoError(t, s.Close())

	m, err = h.LoadBytes(hook.Spec{File: "s.wasm", Hook: hook.BuildLoss}, guest(scalarText, build))
	require.NoError(t, err)
	_, err = m.BuildLoss(ctx, in)
	assert.ErrorContains(t, err, `hook s.wasm: build_loss: failed: the loss reads the scalar "gamma", but the module exports no loss_scalars`)
	for want, body := range map[string][]byte{
		"loss_scalars: batch 5: failed: scalar 1 is NaN, expected a finite number": w.Seq(array(1, 28), w.ConstF32(float32(math.NaN())),
			w.StoreF32(4)),
		"loss_scalars: batch 5: failed: found shape [1], expected [2]": w.Seq(w.Get(0), w.Const(1), w.Store(32+12)),
		"loss_scalars: batch 5: trap":                                  w.Seq(w.Unreachable),
	} {
		m, err := h.LoadBytes(hook.Spec{File: "s.wasm", Hook: hook.BuildLoss}, guest(scalarText, build,
			function(hook.LossScalars, body, w.Const(0))))
		require.NoError(t, err)
		s, err := m.Scalars(ctx, 2)
		require.NoError(t, err)
		_, err = s.Values(ctx, 5, 10)
		assert.ErrorContains(t, err, want)
	}
}

// A loss need not read the logits: hidden, the head's parameters and aligned tensors are inputs, too.
func TestLossesOfHidden(t *testing.T) {
	m, err := newHost(t).LoadBytes(hook.Spec{File: "h.wasm", Hook: hook.BuildLoss}, guest(scalarText, lossOf(inputNamed("hidden"), w.Set(2),
		inputNamed("lm_head.weight"), w.Set(3), opOfTwo(scalarText, "matmul", `{"trans_b":true}`), w.Set(2), inputNamed("teacher"),
		w.Set(3), opOfTwo(scalarText, "mul", "{}"), w.Set(2),
		w.Const(512), w.Get(2), w.Store(0), named(scalarText, "sum"), w.Const(512), w.Const(1), named(scalarText, `{"axes":[-1]}`),
		w.Call(graphOp))))
	require.NoError(t, err)
	in := graphhook.Inputs{Rows: 4, Vocab: 7, Width: 3, More: []graph.Named{{ID: "lm_head.weight", Type: graph.T(graph.F32, 7, 3)},
		{ID: "teacher", Type: graph.T(graph.F32, 4, 1)}}}
	loss, err := m.BuildLoss(ctx, in)
	require.NoError(t, err)
	assert.Equal(t, []string{"hidden", "lm_head.weight", "teacher"}, loss.Asked)
	assert.True(t, loss.PerToken)
	in.Width, in.More = 0, in.More[1:]
	_, err = m.BuildLoss(ctx, in)
	assert.ErrorContains(t, err, `graph_input: unknown input "hidden", expected one of logits, targets, weights, teacher`)
}

// loss_grad gets logits and targets, and buffers for losses and gradients.
func TestLossGrad(t *testing.T) {
	h := newHost(t)
	logits, targets := []float32{1, 2, 3, 4, 5, 6}, []uint32{2, 1}
	call := func(body ...any) ([]float32, []float32, error) {
		m, err := h.LoadBytes(hook.Spec{File: "g.wasm", Hook: hook.BuildLoss}, guest("", function(hook.BuildLoss, w.Const(0)),
			function(hook.LossGrad, append(body, w.Const(0))...)))
		require.NoError(t, err)
		assert.True(t, m.Has(hook.LossGrad))
		return m.LossGrad(ctx, logits, targets)
	}
	losses, gradient, err := call(copyOver(3, 0, 24), copyOver(2, 0, 4), array(2, 28), array(1, 28), w.Load(4), 0xb3, w.StoreF32(4))
	require.NoError(t, err)
	assert.Equal(t, logits, gradient)
	assert.Equal(t, []float32{1, 1}, losses)
	_, _, err = call(w.Get(0), w.Const(1), w.Store(64+12))
	assert.ErrorContains(t, err, "hook g.wasm: loss_grad: failed: losses: found shape [1], expected [2]")
	_, _, err = call(w.Get(0), w.Const(1), w.Store(96+12))
	assert.ErrorContains(t, err, "loss_grad: failed: gradient: found shape [1 3], expected [2 3]")
	_, _, err = call(w.Unreachable)
	assert.ErrorContains(t, err, "hook g.wasm: loss_grad: trap")
}
