package wasm

import (
	"context"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

// Functions that a guest of the tests imports, by index.
const (
	fnLog = iota
	fnFail
	fnExit
	fnRandom
	fnClock
	fnWrite
	fnPoll
	imported
)

// guestModule is a valid module to which tests add errors. It has memory, an allocator that never frees, and imports.
// Global 0 is the start of free memory.
func guestModule(funcs ...w.Func) *w.Module {
	alloc := w.Func{Export: abi.Alloc, Params: w.Types{w.I32}, Results: w.Types{w.I32}, Locals: w.Types{w.I32}, Body: w.Seq(
		w.GGet(0), w.Set(1),
		w.GGet(0), w.Get(0), w.I32Add, w.Const(15), w.I32Add, w.Const(-16), w.I32And, w.GSet(0),
		w.Block(w.Empty, // grow if the end lies beyond the memory
			w.GGet(0), w.MemorySize(), w.Const(65536), w.I32Mul, 0x4d /* i32.le_u */, w.BrIf(0),
			w.GGet(0), w.MemorySize(), w.Const(65536), w.I32Mul, w.I32Sub, w.Const(65535), w.I32Add, w.Const(16), w.I32ShrU,
			w.MemoryGrow(), w.Const(-1), w.I32Eq, w.If(w.Empty, w.Const(0), w.Return)),
		w.Get(1))}
	return &w.Module{
		Imports: []w.Import{
			{Module: "gpupipe", Name: "log", Params: w.Types{w.I32, w.I32}},
			{Module: "gpupipe", Name: "fail", Params: w.Types{w.I32, w.I32}},
			{Module: wasiModule, Name: "proc_exit", Params: w.Types{w.I32}},
			{Module: wasiModule, Name: "random_get", Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}},
			{Module: wasiModule, Name: "clock_time_get", Params: w.Types{w.I32, w.I64, w.I32}, Results: w.Types{w.I32}},
			{Module: wasiModule, Name: "fd_write", Params: w.Types{w.I32, w.I32, w.I32, w.I32}, Results: w.Types{w.I32}},
			{Module: wasiModule, Name: "poll_oneoff", Params: w.Types{w.I32, w.I32, w.I32, w.I32}, Results: w.Types{w.I32}},
		},
		Memories: []w.Limits{{Min: 2, Export: abi.Memory}},
		Globals:  []w.Global{{Type: w.I32, Mutable: true, Init: w.Const(65536)}},
		Funcs:    append([]w.Func{version(0), alloc}, funcs...),
	}
}

func version(v int32) w.Func {
	return w.Func{Export: abi.Version, Results: w.Types{w.I32}, Body: w.Const(v)}
}

// hook is an exported function of the hooks' type.
func hook(name string, locals w.Types, parts ...any) w.Func {
	return w.Func{Export: name, Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Locals: locals, Body: w.Seq(parts...)}
}

// newRuntime returns a Runtime that is closed at the end of the test.
func newRuntime(t testing.TB, c Config) *Runtime {
	r, err := NewRuntime(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// smallLimits make hostile modules fail soon.
var smallLimits = Limits{MemoryPages: 64, Budget: 3_000_000}

func load(t testing.TB, r *Runtime, m *w.Module, l Limits) *Module {
	mod, err := r.Load("test.wasm", m.Encode(), l)
	require.NoError(t, err)
	t.Cleanup(func() { mod.Close() })
	return mod
}

func open(t testing.TB, m *Module, o Options) *Instance {
	i, err := m.Open(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() { i.Close() })
	return i
}
