package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Functions that the modules below import, by index, and where their text lies.
const (
	fnInput = iota
	fnOp
	fnEmit
	moduleWords = 1024
	moduleText  = `logits sum {"axes":[-1]}`
)

// moduleFile writes a module with these functions; global 1 is for them to count in.
func moduleFile(t *testing.T, funcs ...w.Func) string {
	i32 := w.Types{w.I32}
	m := w.Module{
		Imports: []w.Import{{Module: "gpupipe", Name: "graph_input", Params: w.Types{w.I32, w.I32}, Results: i32},
			{Module: "gpupipe", Name: "graph_op", Params: w.Repeat(6, i32), Results: i32},
			{Module: "gpupipe", Name: "emit", Params: w.Types{w.I32, w.I32}}},
		Memories: []w.Limits{{Min: 40, Export: "memory"}}, Data: []w.Data{{Offset: w.Const(moduleWords), Bytes: []byte(moduleText)}},
		Globals: []w.Global{{Type: w.I32, Mutable: true, Init: w.Const(65536)}, {Type: w.I32, Mutable: true, Init: w.Const(0)}},
		Funcs: append([]w.Func{
			{Export: "gpupipe_abi_v1", Results: i32, Body: w.Const(0)},
			{Export: "gpupipe_alloc", Params: i32, Results: i32, Locals: i32, Body: w.Seq(
				w.GGet(0), w.Tee(1), w.Get(0), w.I32Add, w.Const(15), w.I32Add, w.Const(-16), w.I32And, w.GSet(0), w.Get(1))},
		}, funcs...),
	}
	path := filepath.Join(t.TempDir(), "m.wasm")
	require.NoError(t, os.WriteFile(path, m.Encode(), 0o666))
	return path
}

func hookFunc(name string, body ...any) w.Func {
	return w.Func{Export: name, Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Locals: w.Types{w.I32, w.I32, w.I32, w.F32},
		Body: w.Seq(body...)}
}

// field of an array's descriptor.
func field(array, offset uint32) []byte { return w.Seq(w.Get(0), w.Load(32*array+offset)) }

// named is the address and length of a part of the text.
func named(part string) []byte {
	return w.Seq(w.Const(int32(moduleWords+strings.Index(moduleText, part))), w.Const(int32(len(part))))
}

// sumOfLogits is a loss, and its loss_grad with a gradient of this much for each logit.
func sumOfLogits(gradient float32) []w.Func {
	return []w.Func{
		hookFunc(hook.BuildLoss, w.Const(512), named("logits"), w.Call(fnInput), w.Store(0),
			named("sum"), w.Const(512), w.Const(1), named(`{"axes":[-1]}`), w.Call(fnOp)),
		hookFunc(hook.LossGrad, // locals 2: logits, 3: their number left in the row, 4: where in the gradient, 5: sum
			field(0, 28), w.Set(2), field(3, 28), w.Set(4),
			w.Loop(w.Empty,
				w.ConstF32(0), w.Set(5), field(0, 16), w.Set(3),
				w.Loop(w.Empty,
					w.Get(5), w.Get(2), w.LoadF32(0), w.F32Add, w.Set(5), w.Get(4), w.ConstF32(gradient), w.StoreF32(0),
					w.Get(2), w.Const(4), w.I32Add, w.Set(2), w.Get(4), w.Const(4), w.I32Add, w.Set(4), w.Get(3), w.Const(1), w.I32Sub,
					w.Tee(3), w.BrIf(0)),
				// the number of rows done so far is counted in global 1
				field(2, 28), w.GGet(1), w.Const(4), w.I32Mul, w.I32Add, w.Get(5), w.StoreF32(0),
				w.GGet(1), w.Const(1), w.I32Add, w.GSet(1), w.GGet(1), field(0, 12), w.I32LtU, w.BrIf(0)),
			w.Const(0)),
	}
}

func TestHookCheckOfGradients(t *testing.T) {
	code, out, errs := command("hook", "check", moduleFile(t, sumOfLogits(1./8)...))
	require.Equal(t, exitOK, code, errs)
	assert.Regexp(t, `loss_grad +yes .* relative error of the losses [0-9.e-]+, of the gradient 0, against build_loss in float64`, out)
	code, out, errs = command("hook", "check", moduleFile(t, sumOfLogits(1.002/8)...))
	assert.Equal(t, exitMistake, code)
	assert.Regexp(t, `build_loss +yes`, out)
	assert.Regexp(t, `loss_grad +NO`, out)
	assert.Contains(t, errs, "loss_grad and build_loss disagree: relative error of the losses")
	assert.Contains(t, errs, "of the gradient 0.002, against build_loss in float64; at most 0.001 is right")
}

// A hook that carries something from one call to the next says so by its state, and keeps all of it there.
func TestHookCheckFindsWhatIsCarried(t *testing.T) {
	two, one := w.Types{w.I32, w.I32}, w.Types{w.I32}
	count := w.Seq(w.GGet(1), w.Const(1), w.I32Add, w.GSet(1))
	save := func(body []byte) w.Func {
		return w.Func{Export: "gpupipe_save", Params: two, Results: one, Body: w.Seq(w.Get(1), w.If(w.Empty, w.Get(0), body, w.Store(0)),
			w.Const(4))}
	}
	restore := w.Func{Export: "gpupipe_load", Params: two, Results: one, Body: w.Seq(w.Get(0), w.Load(0), w.GSet(1), w.Const(0))}
	weigh := hookFunc(hook.TokenWeights, count, field(2, 28), w.GGet(1), 0xb3 /* f32.convert_i32_u */, w.StoreF32(0), w.Const(0))
	everySecond := hookFunc(hook.MapDocument, count, w.GGet(1), w.Const(1), w.I32And,
		w.If(w.Empty, field(0, 28), field(0, 12), w.Call(fnEmit)), w.Const(0))
	mapped := hookFunc(hook.MapBatch, field(0, 28), w.Const(7), w.Store(4), w.Const(0))
	for _, c := range []struct {
		name  string
		funcs []w.Func
		says  string // "": nothing is wrong
	}{
		{"weights that are counted", []w.Func{weigh}, "the hook must keep nothing between calls"},
		{"documents that are counted", []w.Func{everySecond}, "the hook must keep nothing between calls"},
		{"a state that is kept", []w.Func{weigh, save(w.GGet(1)), restore}, ""},
		{"documents in order", []w.Func{everySecond, save(w.GGet(1)), restore}, ""},
		{"a state that is not kept", []w.Func{weigh, save(w.Const(3)), restore},
			"an instance with the restored state of another gives other results"},
		{"batches", []w.Func{mapped}, ""},
		{"a token that there is not", []w.Func{hookFunc(hook.MapBatch, field(0, 28), w.Const(256), w.Store(4), w.Const(0))},
			"tokens[0,1] is 256, expected a token below 256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := command("hook", "check", moduleFile(t, c.funcs...), "--json")
			var got checked
			require.NoError(t, json.Unmarshal([]byte(out), &got), errs)
			require.Len(t, got.Hooks, 1)
			assert.Equal(t, c.says == "", got.Hooks[0].OK, got.Hooks[0].Found)
			assert.Equal(t, len(c.funcs) > 1, got.Stateful)
			assert.Positive(t, got.Hooks[0].Work)
			assert.Equal(t, 2.5, got.Hooks[0].MemoryMB)
			assert.Equal(t, []string{"gpupipe.emit", "gpupipe.graph_input", "gpupipe.graph_op"}, got.Imports)
			assert.Contains(t, got.Exports, "gpupipe_alloc")
			if c.says == "" {
				assert.Equal(t, exitOK, code, errs)
				return
			}
			assert.Equal(t, exitMistake, code)
			assert.Contains(t, errs, c.says)
		})
	}
}

// A key that the module does not know is an error, if the module lists its keys.
func TestHookCheckOfAConfiguration(t *testing.T) {
	code, _, errs := command("hook", "check", hookExamples+"focal_loss.wasm", "--config", `{"gama": 2}`)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "gama")
}

// A model that cannot be built is reported once and not measured.
func TestHookCheckEndsWithWhatFailed(t *testing.T) {
	code, out, _ := command("hook", "check", hookExamples+"gpt2.wasm", "--config", `{"n_heads": 7}`)
	assert.Equal(t, exitMistake, code)
	assert.Equal(t, 1, strings.Count(out, "d_model must be a multiple of n_heads"), out)
	assert.NotContains(t, out, " us ")
}

// A module without a hook is refused, and so is a hook of the wrong type.
func TestHookCheckOfExports(t *testing.T) {
	code, _, errs := command("hook", "check", moduleFile(t))
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "refused: exports none of the hooks build_loss, build_model, map_document")
	bare := func(name string) w.Func { return w.Func{Export: name, Body: w.Seq(w.Nop)} }
	for _, name := range []string{hook.BuildLoss, hook.OnMetrics} { // before and after the other
		code, _, errs = command("hook", "check", moduleFile(t, hookFunc(hook.TokenWeights, w.Const(0)), bare(name)))
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, "refused: exports "+name+" as () → (), expected (i32, i32) → (i32)")
	}
}

// What goes along with the tokens is there for losses and batches.
func TestHookCheckWithAlignedArrays(t *testing.T) {
	copied := hookFunc(hook.MapBatch, field(0, 28), field(5, 28), w.Load(4), w.Store(0), field(6, 28), w.Const(3), w.Store(12), w.Get(1),
		w.Const(7), w.I32Sub)
	file := moduleFile(t, copied)
	code, out, errs := command("hook", "check", file, "--aligned", "teacher=f32[2,4]", "--aligned", "ids=u32")
	require.Equal(t, exitOK, code, errs)
	assert.Regexp(t, `it changed \d+ tokens, 0 targets`, out)
	code, _, _ = command("hook", "check", file, "--aligned", "ids=u32")
	assert.Equal(t, exitMistake, code)
}
