package hook_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

const examples = "../../examples/hooks/"

func newHost(t testing.TB) *hook.Host {
	t.Helper()
	h, err := hook.NewHost("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

func load(t testing.TB, h *hook.Host, s hook.Spec) *hook.Module {
	t.Helper()
	m, err := h.Load(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func hash(t *testing.T, g *graph.Graph) string {
	t.Helper()
	s, err := graph.Hash(g)
	require.NoError(t, err)
	return s
}

// focal is examples/hooks/focal_loss.c in Go.
func focal(logits, targets *graph.Value, z float64) *graph.Value {
	top := op.StopGradient(op.ReduceMax(logits, []int{-1}, true))
	lse := op.Add(op.Log(op.Sum(op.Exp(op.Sub(logits, top)), []int{-1}, false)), op.Sum(top, []int{-1}, false))
	nll := op.Sub(lse, op.Pick(logits, targets))
	focus := op.Square(op.Shift(op.Neg(op.Exp(op.Neg(nll))), 1))
	return op.Add(op.Mul(focus, nll), op.Scale(op.Square(lse), z))
}

// A loss written in C and the same loss written in Go are equal graphs.
func TestFocalLossInCIsThatInGo(t *testing.T) {
	h := newHost(t)
	for config, z := range map[string]float64{"": 1e-4, `{"z": 0.1, "gamma": 2}`: 0.1, `{"gamma":2,"z":-12.5e-3}`: -12.5e-3} {
		m := load(t, h, hook.Spec{File: examples + "focal_loss.wasm", Hook: hook.BuildLoss, Config: []byte(config)})
		got, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 6, Vocab: 11})
		require.NoError(t, err)
		want, err := graph.Build(func(b *graph.Builder) {
			b.Output("loss", focal(b.Input("logits", graph.T(graph.F32, 6, 11)), b.Input("targets", graph.T(graph.U32, 6)), z))
		})
		require.NoError(t, err)
		assert.Equal(t, hash(t, want), hash(t, got.Graph), config)
	}
	m := load(t, h, hook.Spec{File: examples + "focal_loss.wasm", Hook: hook.BuildLoss, Config: []byte(`{"gamma": "two"}`)})
	_, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 6, Vocab: 11})
	assert.ErrorContains(t, err, `focal_loss.wasm: build_loss: failed: gamma is not a number`)
}

// The same in Rust, for another loss.
func TestLabelSmoothingInRustIsThatInGo(t *testing.T) {
	h := newHost(t)
	for config, e := range map[string]float64{"": 0.1, "{ \"epsilon\" :\t0.25 }": 0.25} {
		m := load(t, h, hook.Spec{File: examples + "label_smoothing.wasm", Hook: hook.BuildLoss, Config: []byte(config)})
		got, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 6, Vocab: 11})
		require.NoError(t, err)
		want, err := graph.Build(func(b *graph.Builder) {
			logits, targets := b.Input("logits", graph.T(graph.F32, 6, 11)), b.Input("targets", graph.T(graph.U32, 6))
			p := op.LogSoftmax(logits)
			b.Output("loss", op.Neg(op.Add(op.Scale(op.Pick(p, targets), 1-e), op.Scale(op.Mean(p, []int{-1}, false), e))))
		})
		require.NoError(t, err)
		assert.Equal(t, hash(t, want), hash(t, got.Graph), config)
	}
	m := load(t, h, hook.Spec{File: examples + "label_smoothing.wasm", Hook: hook.BuildLoss, Config: []byte(`{"epsilon": 2}`)})
	_, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 6, Vocab: 11})
	assert.ErrorContains(t, err, "epsilon must be at least 0 and below 1")
	m = load(t, h, hook.Spec{File: examples + "label_smoothing.wasm", Hook: hook.BuildLoss, Config: []byte(`{"epsilon": true}`)})
	_, err = m.BuildLoss(ctx, graphhook.Inputs{Rows: 6, Vocab: 11})
	assert.ErrorContains(t, err, "config: epsilon is true, expected a number")
}

// Functions that the guests below import, by index.
const (
	graphInput = iota
	graphOp
	graphShape
	graphDType
	graphScalar
	emit
	fail
	imported
)

const words = 1024 // the address of a guest's text

// guest is a module with a text, and a function for each hook.
func guest(text string, funcs ...w.Func) []byte {
	i32s := func(n int) w.Types { return bytes.Repeat(w.Types{w.I32}, n) }
	imports := []w.Import{
		{Name: "graph_input", Params: i32s(2), Results: i32s(1)}, {Name: "graph_op", Params: i32s(6), Results: i32s(1)},
		{Name: "graph_shape", Params: i32s(3), Results: i32s(1)}, {Name: "graph_dtype", Params: i32s(1), Results: i32s(1)},
		{Name: "graph_scalar", Params: i32s(2), Results: i32s(1)},
		{Name: "emit", Params: i32s(2)}, {Name: "fail", Params: i32s(2)},
	}
	for i := range imports {
		imports[i].Module = "gpupipe"
	}
	m := w.Module{
		Imports: imports, Memories: []w.Limits{{Min: 4, Export: "memory"}}, Data: []w.Data{{Offset: w.Const(words), Bytes: []byte(text)}},
		Globals: []w.Global{{Type: w.I32, Mutable: true, Init: w.Const(65536)}, {Type: w.I32, Mutable: true, Init: w.Const(0)}},
		Funcs: append([]w.Func{
			{Export: "gpupipe_abi_v1", Results: i32s(1), Body: w.Const(0)},
			{Export: "gpupipe_alloc", Params: i32s(1), Results: i32s(1), Locals: i32s(1), Body: w.Seq(
				w.GGet(0), w.Tee(1), w.Get(0), w.I32Add, w.Const(15), w.I32Add, w.Const(-16), w.I32And, w.GSet(0), w.Get(1))},
		}, funcs...),
	}
	return m.Encode()
}

func function(name string, body ...any) w.Func {
	return w.Func{Export: name, Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Locals: w.Types{w.I32}, Body: w.Seq(body...)}
}

// named puts the address and length of a part of the text on the stack.
func named(text, part string) []byte {
	at := strings.Index(text, part)
	if at < 0 {
		panic(part)
	}
	return w.Seq(w.Const(int32(words+at)), w.Const(int32(len(part))))
}

// apply is graph_op with one input that lies in memory.
func apply(text, name, attributes string, input int32) []byte {
	return w.Seq(w.Const(512), w.Const(input), w.Store(0), named(text, name), w.Const(512), w.Const(1), named(text, attributes),
		w.Call(graphOp))
}

// array is the field at an offset of a hook's argument.
func array(n int, offset uint32) []byte { return w.Seq(w.Get(0), w.Load(uint32(32*n)+offset)) }

func spin() []byte { return w.Loop(w.Empty, w.Br(0)) }

// A mistake of a module in a hook is an error that names the module, the hook and the mistake. The host keeps working.
func TestModulesThatMisbehaveInTheirHooks(t *testing.T) {
	const text = `logits targets exp add scale pick {"factor":2} {"factor":"two"} warp`
	input := w.Seq(named(text, "logits"), w.Call(graphInput))
	build := func(body ...any) []byte { return guest(text, function(hook.BuildLoss, body...)) }
	address := func(a, n int32) []byte { return w.Seq(w.Const(a), w.Const(n)) }
	for _, c := range []struct {
		name string
		bin  []byte
		hook string
		want string
	}{
		{"no such handle", build(input, w.Drop, w.Const(99)), "", "build_loss: failed: the loss: there is no value 99, expected 1 to 1"},
		{"no handle", build(w.Const(0)), "", "the loss: there is no value 0"},
		{"a negative result", build(w.Const(-3)), "", "build_loss: failed: returned -3"},
		{"logits as the loss", build(input), "", "found a loss of type f32[4,7], expected f32[4]"},
		{"targets as the loss", build(named(text, "targets"), w.Call(graphInput)), "", "found a loss of type u32[4]"},
		{"an input that there is not", build(named(text, "warp"), w.Call(graphInput)), "",
			`graph_input: unknown input "warp", expected one of logits, targets, weights`},
		{"an op that there is not", build(input, w.Drop, apply(text, "warp", `{"factor":2}`, 1)), "", `graph_op: unknown op "warp"`},
		{"an attribute that is none", build(input, w.Drop, apply(text, "scale", `{"factor":"two"}`, 1)), "",
			`graph_op: scale: attributes: found "two", expected a number`},
		{"an attribute too many", build(input, w.Drop, apply(text, "exp", `{"factor":2}`, 1)), "",
			`graph_op: exp: unknown attribute "factor"`},
		{"too few inputs", build(input, w.Drop, apply(text, "add", `{"factor":2}`, 1)), "", `graph_op: add: found 1 inputs, expected 2`},
		{"a handle from nowhere", build(apply(text, "exp", `{"factor":2}`, -1)), "",
			"graph_op: exp: input 0: there is no value 4294967295"},
		{"a wrong dtype", build(named(text, "targets"), w.Call(graphInput), w.Drop, apply(text, "scale", `{"factor":2}`, 1)), "",
			"graph_op: scale(u32[4]): input 0 is u32[4]"},
		{"a name outside of memory", build(address(-8, 100), w.Call(graphInput)), "",
			"build_loss: bad pointer: graph_input: found 100 bytes at 0xfffffff8"},
		{"an endless name", build(address(words, math.MaxInt32), w.Call(graphInput)), "",
			"graph_input: found a name of 2147483647 bytes, expected at most 256"},
		{"inputs outside of memory", build(named(text, "exp"), w.Const(-4), w.Const(1), address(0, 0), w.Call(graphOp)), "",
			"bad pointer: graph_op: found 4 bytes at 0xfffffffc"},
		{"a million inputs", build(named(text, "add"), w.Const(0), w.Const(1<<20), address(0, 0), w.Call(graphOp)), "",
			`graph_op: "add": found 1048576 inputs, expected at most 64`},
		{"a negative number of inputs", build(named(text, "add"), w.Const(0), w.Const(-1), address(0, 0), w.Call(graphOp)), "",
			`inputs, expected at most 64`},
		{"attributes outside of memory", build(input, w.Drop, named(text, "exp"), w.Const(0), w.Const(0), address(4<<16-1, 2),
			w.Call(graphOp)), "", "bad pointer: graph_op: found 2 bytes at 0x3ffff"},
		{"huge attributes", build(named(text, "exp"), w.Const(0), w.Const(0), address(0, -1), w.Call(graphOp)), "", "build_loss:"},
		{"the shape of nothing", build(w.Const(5), address(0, 8), w.Call(graphShape)), "", "graph_shape: there is no value 5"},
		{"a shape into nothing", build(input, address(-1, 8), w.Call(graphShape)), "",
			"bad pointer: graph_shape: found 8 bytes at 0xffffffff"},
		{"the dtype of nothing", build(w.Const(0), w.Call(graphDType)), "", "graph_dtype: there is no value 0"},
		{"values without end", build(w.Loop(w.Empty, named(text, "logits"), w.Call(graphInput), w.Drop, w.Br(0)), w.Const(1)), "",
			"input: the graph has more than 16384 values"},
		{"a loop without end", build(spin(), w.Const(1)), "", "build_loss: budget exceeded"},
		{"a trap", build(w.Unreachable), "", "build_loss: trap"},
		{"failure said politely", build(named(text, "warp"), w.Call(fail), w.Const(1)), "", "build_loss: failed: warp"},
		{"a document in a loss", build(named(text, "warp"), w.Call(emit), w.Const(1)), "", "emit: called outside of map_document"},
		{"a graph in a document", guest(text, function(hook.MapDocument, input)), hook.MapDocument,
			"graph_input: called outside of build_loss"},
		{"a graph while it opens", guest(text, function(hook.BuildLoss, w.Const(0)), w.Func{Export: "gpupipe_open",
			Params: w.Types{w.I32, w.I32, w.I64}, Results: w.Types{w.I32}, Body: input}), "",
			"failed: graph_input: called outside of build_loss"},
		{"a document outside of memory", guest(text, function(hook.MapDocument, address(4<<16, 1), w.Call(emit), w.Const(0))),
			hook.MapDocument, "map_document: batch 3: bad pointer: emit: found 1 bytes at 0x40000"},
		{"documents without end", guest(text, function(hook.MapDocument, w.Loop(w.Empty, address(0, 0), w.Call(emit), w.Br(0)),
			w.Const(0))), hook.MapDocument, "map_document: batch 3:"},
		{"large documents without end", guest(text, function(hook.MapDocument, w.Loop(w.Empty, address(0, 4<<16), w.Call(emit), w.Br(0)),
			w.Const(0))), hook.MapDocument, "map_document: batch 3:"},
		{"a rate that is no number", guest(text, function(hook.LearningRate, array(1, 28), w.ConstF64(math.NaN()), []byte{0x39, 3, 0},
			w.Const(0))), hook.LearningRate, "learning_rate: batch 5: failed: the factor is NaN, expected a number from 0 to 1000000"},
		{"a negative rate", guest(text, function(hook.LearningRate, array(1, 28), w.ConstF64(-1), []byte{0x39, 3, 0}, w.Const(0))),
			hook.LearningRate, "the factor is -1,"},
		{"a large rate", guest(text, function(hook.LearningRate, array(1, 28), w.ConstF64(1234567.5), []byte{0x39, 3, 0}, w.Const(0))),
			hook.LearningRate, "the factor is 1234567.5, expected a number from 0 to 1000000"},
		{"an infinite rate", guest(text, function(hook.LearningRate, array(1, 28), w.ConstF64(math.Inf(1)), []byte{0x39, 3, 0},
			w.Const(0))), hook.LearningRate, "the factor is +Inf,"},
		{"no rate", guest(text, function(hook.LearningRate, w.Get(0), w.Const(0), w.Store(32+12), w.Const(0))), hook.LearningRate,
			"found 0 factors, expected one"},
		{"two rates", guest(text, function(hook.LearningRate, w.Get(0), w.Const(2), w.Store(32+12), w.Const(0))), hook.LearningRate,
			"learning_rate: batch 5: bad array"},
		{"a rate elsewhere", guest(text, function(hook.LearningRate, w.Get(0), w.Const(0), w.Store(32+28), w.Const(0))),
			hook.LearningRate, "learning_rate: batch 5: bad array"},
		{"an odd answer to metrics", guest(text, function(hook.OnMetrics, w.Const(7))), hook.OnMetrics,
			"on_metrics: batch 6: failed: found result 7, expected 0 (continue) or 1 (stop)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			if c.hook == "" {
				c.hook = hook.BuildLoss
			}
			m, err := h.LoadBytes(hook.Spec{File: "bad.wasm", Hook: c.hook, Limits: wasm.Limits{MemoryPages: 64, Budget: 400_000_000}},
				c.bin)
			require.NoError(t, err)
			err = try(m)
			var known *wasm.Error
			require.ErrorAs(t, err, &known)
			assert.ErrorContains(t, err, "hook bad.wasm: ")
			assert.ErrorContains(t, err, c.want)

			good := load(t, h, hook.Spec{File: examples + "focal_loss.wasm", Hook: hook.BuildLoss})
			_, err = good.BuildLoss(ctx, graphhook.Inputs{Rows: 4, Vocab: 7})
			assert.NoError(t, err)
		})
	}
}

// try calls a module's hook.
func try(m *hook.Module) error {
	switch m.Hook {
	case hook.BuildLoss:
		_, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 4, Vocab: 7})
		return err
	case hook.MapDocument:
		p := m.Mapper(1)
		defer p.Close()
		_, err := p.Map(ctx, 3, []byte("document"))
		return err
	case hook.LearningRate:
		r, err := m.Rate(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = r.Factor(ctx, 5, 10, 1)
		return err
	default:
		l, err := m.Listener(ctx, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		_, err = l.Observe(ctx, 6, []byte("{}"))
		return err
	}
}

func TestModulesThatAreRefused(t *testing.T) {
	h := newHost(t)
	_, err := h.Load(hook.Spec{File: "none.wasm", Hook: hook.BuildLoss})
	assert.ErrorContains(t, err, "hook none.wasm: refused: stat none.wasm: no such file")
	_, err = h.Load(hook.Spec{File: examples + "focal_loss.wasm", Hook: "build_loos"})
	assert.ErrorContains(t, err, `unknown hook "build_loos", expected one of build_loss, build_model, map_document, map_batch, token_weights, learning_rate, on_metrics`)
	_, err = h.Load(hook.Spec{File: examples + "focal_loss.wasm", Hook: hook.MapDocument})
	assert.ErrorContains(t, err, "focal_loss.wasm: refused: does not export the function map_document (i32, i32)")
	_, err = h.LoadBytes(hook.Spec{File: "x.wasm", Hook: hook.BuildLoss}, []byte("text"))
	assert.ErrorContains(t, err, "hook x.wasm: refused:")
	for _, companion := range []string{hook.LossScalars, hook.LossGrad} {
		loss := function(hook.BuildLoss, w.Const(0))
		_, err = h.LoadBytes(hook.Spec{File: "x.wasm", Hook: hook.BuildLoss}, guest("", loss, w.Func{Export: companion}))
		assert.ErrorContains(t, err, "hook x.wasm: refused: ")
		assert.ErrorContains(t, err, companion)
	}
}

// prose is documents of which some are kept.
func prose(n int) (texts [][]byte) {
	for i := range n {
		sentence := "The quick brown fox jumps over the lazy dog.\n\n \n"
		if i%3 == 0 {
			sentence = "1 2 3 # # ... "
		}
		texts = append(texts, []byte(fmt.Sprintf("Document %d. ", i)+strings.Repeat(sentence, 1+i%17)))
	}
	return texts
}

func TestQualityFilterInC(t *testing.T) {
	m := load(t, newHost(t), hook.Spec{File: examples + "quality_filter.wasm", Hook: hook.MapDocument,
		Config: []byte(`{"least_words": 20}`)})
	p := m.Mapper(1)
	defer p.Close()
	kept := 0
	for i, text := range prose(60) {
		got, err := p.Map(ctx, i, text)
		require.NoError(t, err)
		if i%3 == 0 || i%17 == 0 { // no words, or too few: two and nine a sentence
			assert.Empty(t, got, "%s", text)
			continue
		}
		kept++
		want := strings.ReplaceAll(strings.ReplaceAll(string(text), "\n \n", "\n"), "\n\n", "\n")
		require.Len(t, got, 1)
		assert.Equal(t, want, string(got[0]))
	}
	assert.Equal(t, 38, kept)
}

// The mapped documents do not depend on the number of instances.
func TestMappersOfAnySizeAgree(t *testing.T) {
	m := load(t, newHost(t), hook.Spec{File: examples + "quality_filter.wasm", Hook: hook.MapDocument})
	texts := prose(300)
	mapped := func(n int) [][][]byte {
		p := m.Mapper(n)
		defer p.Close()
		out := make([][][]byte, len(texts))
		var group sync.WaitGroup
		for worker := range 8 {
			group.Go(func() {
				for i := worker; i < len(texts); i += 8 {
					var err error
					out[i], err = p.Map(ctx, i, texts[i])
					assert.NoError(t, err)
				}
			})
		}
		group.Wait()
		return out
	}
	one := mapped(1)
	for _, n := range []int{2, 8} {
		assert.Equal(t, one, mapped(n), "%d instances", n)
	}
}

// half returns half of base in learning_rate, and asks to stop at the third line of metrics, which its state counts.
func half() []byte {
	i32 := w.Types{w.I32}
	return guest("", function(hook.LearningRate,
		array(1, 28), array(0, 28), []byte{0x2b, 3, 16}, w.ConstF64(0.5), 0xa2, []byte{0x39, 3, 0}, w.Const(0)),
		function(hook.OnMetrics, w.GGet(1), w.Const(1), w.I32Add, w.GSet(1), w.GGet(1), w.Const(3), 0x4e /* i32.ge_s */),
		w.Func{Export: "gpupipe_save", Params: w.Types{w.I32, w.I32}, Results: i32, Body: w.Seq(
			w.Get(1), w.Const(4), w.I32GeU, w.If(w.Empty, w.Get(0), w.GGet(1), w.Store(0)), w.Const(4))},
		w.Func{Export: "gpupipe_load", Params: w.Types{w.I32, w.I32}, Results: i32,
			Body: w.Seq(w.Get(0), w.Load(0), w.GSet(1), w.Const(0))})
}

func TestRatesAndMetrics(t *testing.T) {
	h := newHost(t)
	m, err := h.LoadBytes(hook.Spec{File: "half.wasm", Hook: hook.LearningRate}, half())
	require.NoError(t, err)
	_, exports := m.Interface()
	assert.Subset(t, exports, []string{"learning_rate", "on_metrics"})
	r, err := m.Rate(ctx)
	require.NoError(t, err)
	f, err := r.Factor(ctx, 3, 10, 0.7)
	require.NoError(t, err)
	assert.Equal(t, 0.35, f)
	require.NoError(t, r.Close())

	m, err = h.LoadBytes(hook.Spec{File: "half.wasm", Hook: hook.OnMetrics}, half())
	require.NoError(t, err)
	l, err := m.Listener(ctx, nil)
	require.NoError(t, err)
	var stops []bool
	for step := range 4 {
		stop, err := l.Observe(ctx, step, []byte(`{"step": 1}`))
		require.NoError(t, err)
		stops = append(stops, stop)
		if step == 1 { // continues elsewhere
			state, err := l.Save(ctx)
			require.NoError(t, err)
			require.NoError(t, l.Close())
			l, err = m.Listener(ctx, state)
			require.NoError(t, err)
		}
	}
	assert.Equal(t, []bool{false, false, true, true}, stops)
	require.NoError(t, l.Close())
	_, err = m.Listener(ctx, []byte("what is no state of its own is given all the same"))
	assert.NoError(t, err)
}

// Millions of random calls would find little more: names, handles and attributes of random bytes.
func FuzzGraphCalls(f *testing.F) {
	h, err := hook.NewHost("")
	require.NoError(f, err)
	f.Add([]byte("exp"), int32(1), []byte(`{"axes":[0]}`))
	f.Fuzz(func(t *testing.T, name []byte, handle int32, attributes []byte) {
		text := string(name) + string(attributes) + "logits"
		m, err := h.LoadBytes(hook.Spec{File: "fuzz.wasm", Hook: hook.BuildLoss}, guest(text, function(hook.BuildLoss,
			named(text, "logits"), w.Call(graphInput), w.Drop,
			w.Const(512), w.Const(handle), w.Store(0), w.Const(512), w.Const(1), w.Store(4),
			w.Const(words), w.Const(int32(len(name))), w.Const(512), w.Const(1+handle&1), w.Const(int32(words+len(name))),
			w.Const(int32(len(attributes))), w.Call(graphOp))))
		require.NoError(t, err)
		defer m.Close()
		if _, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 4, Vocab: 7}); err != nil {
			var known *wasm.Error
			require.ErrorAs(t, err, &known)
		}
	})
}

func TestExamplesAreSmall(t *testing.T) {
	names, err := filepath.Glob(examples + "*.wasm")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Less(t, info.Size(), int64(64<<10), name)
	}
}

func TestModulesAreRegularFiles(t *testing.T) {
	for _, path := range []string{os.DevNull, t.TempDir()} {
		_, err := hook.ReadFile(path)
		assert.ErrorContains(t, err, path+" is not a regular file")
	}
	large := filepath.Join(t.TempDir(), "large.wasm")
	require.NoError(t, os.WriteFile(large, nil, 0o666))
	require.NoError(t, os.Truncate(large, 256<<20+1))
	_, err := hook.ReadFile(large)
	assert.ErrorContains(t, err, "expected at most 268435456")
}
