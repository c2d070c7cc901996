package page

import (
	"bytes"
	"math"
	"strings"
	"syscall/js"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// example fetches a module of examples/hooks.
func example(t *testing.T, name string) []byte {
	t.Helper()
	response, err := await(js.Global().Call("fetch", "/repository/examples/hooks/"+name))
	require.NoError(t, err)
	require.True(t, response.Get("ok").Bool(), name)
	content, err := await(response.Call("arrayBuffer"))
	require.NoError(t, err)
	b := make([]byte, content.Get("byteLength").Int())
	js.CopyBytesToGo(b, js.Global().Get("Uint8Array").New(content))
	return b
}

var inputs = graphhook.Inputs{Rows: 6, Vocab: 11}

func buildLoss(t *testing.T, name, config string) (*graphhook.Loss, error) {
	t.Helper()
	m, err := Load(name, hook.BuildLoss, example(t, name), wasm.Limits{})
	require.NoError(t, err)
	return m.BuildLoss(wasm.Options{Config: []byte(config)}, inputs)
}

// A loss written in C is the graph that one written in Go is.
func TestFocalLossInCIsThatInGo(t *testing.T) {
	got, err := buildLoss(t, "focal_loss.wasm", `{"z": 0.1, "gamma": 2}`)
	require.NoError(t, err)
	want, err := graph.Build(func(b *graph.Builder) {
		logits, targets := b.Input("logits", graph.T(graph.F32, 6, 11)), b.Input("targets", graph.T(graph.U32, 6))
		top := op.StopGradient(op.ReduceMax(logits, []int{-1}, true))
		lse := op.Add(op.Log(op.Sum(op.Exp(op.Sub(logits, top)), []int{-1}, false)), op.Sum(top, []int{-1}, false))
		nll := op.Sub(lse, op.Pick(logits, targets))
		focus := op.Square(op.Shift(op.Neg(op.Exp(op.Neg(nll))), 1))
		b.Output("loss", op.Add(op.Mul(focus, nll), op.Scale(op.Square(lse), 0.1)))
	})
	require.NoError(t, err)
	assert.Equal(t, hash(t, want), hash(t, got.Graph))
	assert.True(t, got.PerToken)
	_, err = buildLoss(t, "focal_loss.wasm", `{"gamma": "two"}`)
	assert.ErrorContains(t, err, "focal_loss.wasm: build_loss: failed: ")
	assert.ErrorContains(t, err, "gamma")
}

func hash(t *testing.T, g *graph.Graph) string {
	s, err := graph.Hash(g)
	require.NoError(t, err)
	return s
}

// A module in Rust, with a memory and a data section of some size, works as well.
func TestLabelSmoothingInRust(t *testing.T) {
	_, err := buildLoss(t, "label_smoothing.wasm", `{"epsilon": 0.25}`)
	require.NoError(t, err)
	_, err = buildLoss(t, "label_smoothing.wasm", `{"epsilon": 2}`)
	assert.ErrorContains(t, err, "epsilon must be at least 0 and below 1")
}

func TestLearningRate(t *testing.T) {
	m, err := Load("inverse_sqrt.wasm", hook.LearningRate, example(t, "inverse_sqrt.wasm"), wasm.Limits{})
	require.NoError(t, err)
	r, err := m.Rate(wasm.Options{Config: []byte(`{"warmup": 4}`)})
	require.NoError(t, err)
	defer r.Close()
	for step, want := range []float64{0.25, 0.5, 0.75, 1, math.Sqrt(4. / 5), math.Sqrt(4. / 6)} {
		f, err := r.Factor(step, 10, 1)
		require.NoError(t, err)
		assert.InDelta(t, want, f, 1e-12, step)
	}
}

// The functions that the guests below import, by index.
const (
	graphInput = iota
	graphShape
	emit
	fail
)

// guest is a module with a text at address 1024, and a function for each hook.
func guest(funcs ...w.Func) []byte {
	i32s := func(n int) w.Types { return bytes.Repeat(w.Types{w.I32}, n) }
	m := w.Module{
		Imports: []w.Import{{Module: "gpupipe", Name: "graph_input", Params: i32s(2), Results: i32s(1)},
			{Module: "gpupipe", Name: "graph_shape", Params: i32s(3), Results: i32s(1)},
			{Module: "gpupipe", Name: "emit", Params: i32s(2)}, {Module: "gpupipe", Name: "fail", Params: i32s(2)}},
		Memories: []w.Limits{{Min: 4, Export: "memory"}}, Data: []w.Data{{Offset: w.Const(1024), Bytes: []byte("logitswarp")}},
		Globals: []w.Global{{Type: w.I32, Mutable: true, Init: w.Const(65536)}},
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

// What a module does wrong is an error as it is under package wasm, and the page lives on.
func TestModulesThatMisbehave(t *testing.T) {
	logits := w.Seq(w.Const(1024), w.Const(6), w.Call(graphInput))
	warp := w.Seq(w.Const(1030), w.Const(4))
	spin := w.Loop(w.Empty, w.Br(0))
	out := w.Seq(w.Get(0), w.Load(32+28))
	build := func(body ...any) []byte { return guest(function(hook.BuildLoss, body...)) }
	rate := func(body ...any) []byte { return guest(function(hook.LearningRate, body...)) }
	for name, c := range map[string]struct {
		bin  []byte
		want string
	}{
		"no such handle":     {build(w.Const(99)), "build_loss: failed: the loss: there is no value 99"},
		"a negative result":  {build(w.Const(-3)), "build_loss: failed: returned -3"},
		"logits as the loss": {build(logits), "found a loss of type f32[6,11], expected f32[6]"},
		"no such input":      {build(warp, w.Call(graphInput)), `build_loss: failed: graph_input: unknown input "warp"`},
		"outside of memory": {build(w.Const(-8), w.Const(100), w.Call(graphInput)),
			"build_loss: bad pointer: graph_input: found 100 bytes at 0xfffffff8, but the memory ends at 0x40000"},
		"a shape into nothing": {build(logits, w.Const(-1), w.Const(8), w.Call(graphShape)),
			"bad pointer: graph_shape: found 8 bytes at 0xffffffff"},
		"a loop without end": {build(spin, w.Const(1)), "build_loss: budget exceeded: took more than 400000000 units of work"},
		"calls without end":  {build(w.Get(0), w.Get(1), w.Call(6)), "build_loss: stack overflow: made more than 1900 nested calls"},
		"a trap":             {build(w.Unreachable), "build_loss: trap: RuntimeError: unreachable"},
		"too much memory": {build(w.Const(1000), w.MemoryGrow(), w.Drop, w.Unreachable),
			"build_loss: memory limit: asked for more than 64 pages of memory"},
		"failure said politely": {build(warp, w.Call(fail), w.Const(1)), "build_loss: failed: warp"},
		"a document in a loss":  {build(warp, w.Call(emit), w.Const(1)), "emit: called outside of map_document"},
		"a graph in a rate":     {rate(logits), "learning_rate: batch 5: failed: graph_input: called outside of build_loss"},
		"a rate that is no number": {rate(out, w.ConstF64(math.NaN()), []byte{0x39, 3, 0}, w.Const(0)),
			"learning_rate: batch 5: failed: the factor is NaN, expected a number from 0 to 1000000"},
		"no rate":          {rate(w.Get(0), w.Const(0), w.Store(32+12), w.Const(0)), "found 0 factors, expected one"},
		"two rates":        {rate(w.Get(0), w.Const(2), w.Store(32+12), w.Const(0)), "learning_rate: batch 5: bad array"},
		"a rate elsewhere": {rate(w.Get(0), w.Const(0), w.Store(32+28), w.Const(0)), "learning_rate: batch 5: bad array"},
	} {
		t.Run(name, func(t *testing.T) {
			err := try(c.bin)
			var known *wasm.Error
			require.ErrorAs(t, err, &known)
			assert.ErrorContains(t, err, "hook bad.wasm: ")
			assert.ErrorContains(t, err, c.want)
		})
	}
}

// try loads a module and calls its hook.
func try(bin []byte) error {
	limits := wasm.Limits{MemoryPages: 64, Budget: 400_000_000}
	if m, err := Load("bad.wasm", hook.BuildLoss, bin, limits); err == nil {
		_, err := m.BuildLoss(wasm.Options{}, inputs)
		return err
	}
	m, err := Load("bad.wasm", hook.LearningRate, bin, limits)
	if err != nil {
		return err
	}
	r, err := m.Rate(wasm.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = r.Factor(5, 10, 1)
	return err
}

// A loop that its budget allows for long ends with the wall clock.
func TestDeadline(t *testing.T) {
	m, err := Load("slow.wasm", hook.BuildLoss, guest(function(hook.BuildLoss, w.Loop(w.Empty, w.Br(0)), w.Const(1))),
		wasm.Limits{Budget: math.MaxInt64, Deadline: 200 * time.Millisecond})
	require.NoError(t, err)
	began := time.Now()
	_, err = m.BuildLoss(wasm.Options{}, inputs)
	require.ErrorContains(t, err, "slow.wasm: build_loss: deadline exceeded: took more than 200ms")
	assert.Less(t, time.Since(began), time.Minute)
}

// A start function runs before the host can reach the module's counter.
func TestStartFunctionWithoutEnd(t *testing.T) {
	start := uint32(0)
	m := w.Module{Start: &start, Memories: []w.Limits{{Min: 1, Export: "memory"}}, Funcs: []w.Func{
		{Body: w.Loop(w.Empty, w.Br(0))},
		{Export: "gpupipe_abi_v1", Results: w.Types{w.I32}, Body: w.Const(0)},
		{Export: "gpupipe_alloc", Params: w.Types{w.I32}, Results: w.Types{w.I32}, Body: w.Const(16)},
		function(hook.BuildLoss, w.Const(1))}}
	loaded, err := Load("start.wasm", hook.BuildLoss, m.Encode(), wasm.Limits{Deadline: 200 * time.Millisecond})
	require.NoError(t, err)
	_, err = loaded.BuildLoss(wasm.Options{}, inputs)
	require.ErrorContains(t, err, "start.wasm: start function: deadline exceeded: took more than 200ms")
}

func TestModulesThatAreRefused(t *testing.T) {
	for want, bin := range map[string][]byte{
		"hook x.wasm: refused: module (byte 0): is not WebAssembly":                []byte("text"),
		"does not export the function build_loss":                                  guest(),
		"imports wasi_snapshot_preview1.proc_exit, expected a function of gpupipe": (&w.Module{Imports: []w.Import{{Module: "wasi_snapshot_preview1", Name: "proc_exit", Params: w.Types{w.I32}}}}).Encode(),
		"imports gpupipe.log as (i32) → (), expected (i32, i32) → ()": (&w.Module{Imports: []w.Import{{Module: "gpupipe", Name: "log",
			Params: w.Types{w.I32}}}}).Encode(),
		"imports gpupipe.more, expected a function that exists": (&w.Module{Imports: []w.Import{{Module: "gpupipe",
			Name: "more"}}}).Encode(),
		`exports no memory "memory"`: (&w.Module{}).Encode(),
	} {
		_, err := Load("x.wasm", hook.BuildLoss, bin, wasm.Limits{})
		assert.ErrorContains(t, err, want)
	}
	broken := []byte(strings.Replace(string(guest(function(hook.BuildLoss, w.Const(1)))), "\x41\x01\x0b", "\x41\x01\x0f", 1))
	_, err := Load("x.wasm", hook.BuildLoss, broken, wasm.Limits{})
	assert.ErrorContains(t, err, "hook x.wasm: refused")
}
