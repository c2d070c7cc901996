package train

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/wasmtest"
	"github.com/stretchr/testify/require"
)

// guest writes a module with the given functions to a new folder and returns its path. The module has a text at address
// 1024 and a counter, global 1. A stateful module saves the counter.
func guest(t *testing.T, name, text string, remembers bool, funcs ...w.Func) string {
	t.Helper()
	i32 := func(n int) w.Types { return bytes.Repeat(w.Types{w.I32}, n) }
	m := w.Module{
		Imports: []w.Import{{Name: "fail", Params: i32(2)}, {Name: "emit", Params: i32(2)}, {Name: "graph_input", Params: i32(2), Results: i32(1)},
			{Name: "graph_scalar", Params: i32(2), Results: i32(1)}, {Name: "graph_op", Params: i32(6), Results: i32(1)}},
		Memories: []w.Limits{{Min: 4, Export: "memory"}}, Data: []w.Data{{Offset: w.Const(words), Bytes: []byte(text)}},
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

const words = 1024

// The guests' imports, by index.
const (
	callFail = iota
	callEmit
	callInput
	callScalar
	callOp
)

// exported is a hook with the locals 2 and 3.
func exported(name string, body ...any) w.Func {
	return w.Func{Export: name, Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Locals: w.Types{w.I32, w.I32}, Body: w.Seq(body...)}
}

// array is the address of the bytes of one of a hook's arrays.
func array(n uint32) []byte { return w.Seq(w.Get(0), w.Load(32*n+28)) }

// part puts address and length of a part of the text on the stack.
func part(text, of string) []byte {
	at := strings.Index(text, of)
	if at < 0 {
		panic(of)
	}
	return w.Seq(w.Const(int32(words+at)), w.Const(int32(len(of))))
}

// counted adds to the module's number.
func counted() []byte { return w.Seq(w.GGet(1), w.Const(1), w.I32Add, w.GSet(1)) }

// apply is graph_op of the values in the locals 2 and 3, or the first of them.
func apply(text, name string, inputs int32, attributes string) []byte {
	return w.Seq(w.Const(512), w.Get(2), w.Store(0), w.Const(512), w.Get(3), w.Store(4),
		part(text, name), w.Const(512), w.Const(inputs), part(text, attributes), w.Call(callOp))
}
