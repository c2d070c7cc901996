package traintest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/require"
)

// Guest writes a module with the given functions to a new folder and returns its path. The module has a text at
// TextAddress and a counter, global 1. A stateful module saves the counter.
func Guest(t *testing.T, name, text string, remembers bool, funcs ...w.Func) string {
	t.Helper()
	i32 := func(n int) w.Types { return bytes.Repeat(w.Types{w.I32}, n) }
	m := w.Module{
		Imports: []w.Import{{Name: "fail", Params: i32(2)}, {Name: "emit", Params: i32(2)},
			{Name: "graph_input", Params: i32(2), Results: i32(1)},
			{Name: "graph_scalar", Params: i32(2), Results: i32(1)}, {Name: "graph_op", Params: i32(6), Results: i32(1)}},
		Memories: []w.Limits{{Min: 4, Export: "memory"}}, Data: []w.Data{{Offset: w.Const(TextAddress), Bytes: []byte(text)}},
		Globals: []w.Global{{Type: w.I32, Mutable: true, Init: w.Const(65536)}, {Type: w.I32, Mutable: true, Init: w.Const(0)}},
		Funcs: append([]w.Func{
			{Export: "gpupipe_abi_v1", Results: i32(1), Body: w.Const(0)},
			{Export: "gpupipe_alloc", Params: i32(1), Results: i32(1), Locals: i32(1), Body: w.Seq(
				w.GGet(0), w.Tee(1), w.Get(0), w.I32Add, w.Const(15), w.I32Add, w.Const(-16), w.I32And, w.GSet(0), w.Get(1))},
		}, funcs...),
	}
	for i := range m.Imports {
		m.Imports[i].Module = "gpupipe"
	}
	if remembers {
		m.Funcs = append(m.Funcs,
			w.Func{Export: "gpupipe_save", Params: i32(2), Results: i32(1), Body: w.Seq(
				w.Get(1), w.Const(4), w.I32GeU, w.If(w.Empty, w.Get(0), w.GGet(1), w.Store(0)), w.Const(4))},
			w.Func{Export: "gpupipe_load", Params: i32(2), Results: i32(1), Body: w.Seq(w.Get(0), w.Load(0), w.GSet(1), w.Const(0))})
	}
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, m.Encode(), 0o666))
	return path
}

// TextAddress is where a guest keeps its text.
const TextAddress = 1024

// The imports of a guest, by index.
const (
	CallFail = iota
	CallEmit
	CallInput
	CallScalar
	CallOp
)

// Hook is an exported function with the locals 2 and 3.
func Hook(name string, body ...any) w.Func {
	return w.Func{Export: name, Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Locals: w.Types{w.I32, w.I32}, Body: w.Seq(body...)}
}

// Array pushes the address of the bytes of one of a hook's arrays.
func Array(n uint32) []byte { return w.Seq(w.Get(0), w.Load(32*n+28)) }

// Text pushes the address and the length of a substring of the text.
func Text(text, of string) []byte {
	at := strings.Index(text, of)
	if at < 0 {
		panic(of)
	}
	return w.Seq(w.Const(int32(TextAddress+at)), w.Const(int32(len(of))))
}

// Count increments the counter.
func Count() []byte { return w.Seq(w.GGet(1), w.Const(1), w.I32Add, w.GSet(1)) }

// Apply calls graph_op with the values in the locals 2 and 3, or with the first of them.
func Apply(text, name string, inputs int32, attributes string) []byte {
	return w.Seq(w.Const(512), w.Get(2), w.Store(0), w.Const(512), w.Get(3), w.Store(4),
		Text(text, name), w.Const(512), w.Const(inputs), Text(text, attributes), w.Call(CallOp))
}

// low keeps the lowest byte of a number, which is a valid token of the demo.
var low = w.Seq(w.Const(255), w.I32And)

// Mixer is a module that changes each array of a batch. A stateful one also counts batches and writes the count to one
// array.
func Mixer(t *testing.T, remembers bool) string {
	body := w.Seq(
		Array(0), Array(0), w.Load(0), Array(4), w.Load(0), w.I32Add, low, w.Store(0), // a token depends on the step
		Array(1), Array(1), w.Load(4), w.Const(1), w.I32Add, low, w.Store(4),
		Array(2), w.ConstF32(0.25), w.StoreF32(8), Array(2), w.ConstF32(3), w.StoreF32(60), Array(2), w.ConstF32(0), w.StoreF32(36),
		Array(3), w.Const(12), w.I32Add, w.Const(1), w.Const(8), w.MemoryFill(), // two tokens of the first sequence are one of their own
	)
	if remembers {
		body = w.Seq(body, Count(), Array(0), w.GGet(1), w.Const(17), w.I32Mul, low, w.Store(20))
	}
	return Guest(t, "mixer.wasm", "", remembers, Hook("map_batch", body, w.Const(0)))
}

// Weigher doubles the weight of one token and sets another's to zero.
func Weigher(t *testing.T) string {
	return Guest(t, "weigher.wasm", "", false, Hook("token_weights",
		Array(2), Array(2), []byte{0x2a, 2, 16}, w.ConstF32(2), 0x94, w.StoreF32(16), Array(2), w.ConstF32(0), w.StoreF32(76), w.Const(0)))
}

// LossText has the names that losses of guests use.
const LossText = `logits targets weights hidden teacher beta cross_entropy {} mul scale {"factor":0} add`

// ScaledLoss is the cross-entropy times a scalar, which is 1 + (calls so far) / 8.
func ScaledLoss(t *testing.T) string {
	return Guest(t, "scaled.wasm", LossText, false,
		Hook("build_loss", Text(LossText, "logits"), w.Call(CallInput), w.Set(2), Text(LossText, "targets"), w.Call(CallInput), w.Set(3),
			Apply(LossText, "cross_entropy", 2, "{}"), w.Set(2), Text(LossText, "beta"), w.Call(CallScalar), w.Set(3),
			Apply(LossText, "mul", 2, "{}")),
		Hook("loss_scalars", Count(), Array(1), w.GGet(1), 0xb3, /* f32.convert_i32_u */
			w.ConstF32(0.125), 0x94, w.ConstF32(1), w.F32Add, w.StoreF32(0), w.Const(0)))
}

// InputLoss is a module whose loss is one input or scalar, without the cross-entropy.
func InputLoss(t *testing.T, name string, call uint32) string {
	return Guest(t, "input_loss.wasm", LossText, false,
		Hook("build_loss", Text(LossText, "logits"), w.Call(CallInput), w.Set(2), Text(LossText, "targets"), w.Call(CallInput), w.Set(3),
			Apply(LossText, "cross_entropy", 2, "{}"), w.Set(2), Apply(LossText, "scale", 1, `{"factor":0}`), w.Set(2),
			Text(LossText, name), w.Call(call), w.Set(3), Apply(LossText, "add", 2, "{}")),
		Hook("loss_scalars", Count(), Array(1), w.GGet(1), 0xb3, w.StoreF32(0), w.Const(0))) + ", hook: build_loss"
}
