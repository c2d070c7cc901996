package wasm

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile is a module that attacks the host. Loading, opening an instance or calling the hook "h" must fail with an
// error of the kind. With kind 0 the call must succeed.
type hostile struct {
	name   string
	module *w.Module
	limits Limits // default smallLimits
	array  *Array // of the call; default 16 f32, in and out
	export string // the function that fails; "" for a module that is refused
	kind   Kind
	says   string // part of the message
}

// misbehaves is a module whose hook runs code.
func misbehaves(code ...any) *w.Module {
	return guestModule(hook("h", w.Types{w.I32, w.I32, w.I64, w.F32, w.F64}, code...))
}

// with changes a module.
func with(m *w.Module, change func(*w.Module)) *w.Module {
	change(m)
	return m
}

// replaced is a well-behaved module with another function in place of the one exported by that name, or beside the
// others.
func replaced(f w.Func) *w.Module {
	return with(misbehaves(w.Const(0)), func(m *w.Module) {
		for i := range m.Funcs {
			if m.Funcs[i].Export == f.Export {
				m.Funcs[i] = f
				return
			}
		}
		m.Funcs = append(m.Funcs, f)
	})
}

var (
	forever  = w.Loop(w.Empty, w.Br(0))
	voidHook = w.Func{Export: "h", Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}, Body: w.Const(0)}
)

// self calls the hook's own function recursively.
const self = imported + 2

func TestHostileModules(t *testing.T) {
	require.GreaterOrEqual(t, len(hostiles()), 120)
	engines(t, func(t *testing.T, r *Runtime) {
		for _, h := range hostiles() {
			t.Run(strings.ReplaceAll(h.name, " ", "_"), func(t *testing.T) { h.run(t, r) })
		}
	})
}

func (h hostile) run(t *testing.T, r *Runtime) {
	set(&h.limits, smallLimits)
	if h.array == nil {
		h.array = Of(InOut, make([]float32, 16))
	}
	i, err := h.open(r)
	if err == nil {
		defer i.Close()
		_, err = i.Call(context.Background(), "h", 12, h.array)
	}
	if h.kind == 0 {
		require.NoError(t, err)
		return
	}
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, h.kind, e.Kind, "%v", err)
	assert.Equal(t, h.export, e.Export, "%v", err)
	assert.ErrorContains(t, err, h.says)
	assert.Contains(t, err.Error(), "hook bad.wasm: ")
	assert.NotContains(t, err.Error(), "goroutine", "a panic of ours")
	if i == nil {
		return
	}
	assert.Equal(t, 12, e.Batch)
	_, again := i.Call(context.Background(), "h", 13, Of(InOut, make([]float32, 16)))
	if h.kind == Failed {
		assert.True(t, i.Alive())
		return
	}
	require.False(t, i.Alive())
	assert.ErrorIs(t, again, err, "the first error is the reason of the second")
	assert.Nil(t, i.guest, "its memory is given back")
}

func (h hostile) open(r *Runtime) (*Instance, error) {
	m, err := r.Load("bad.wasm", h.module.Encode(), h.limits)
	if err != nil {
		return nil, err
	}
	return m.Open(context.Background(), Options{Seed: 1})
}

// hostiles lists modules that misbehave while they are loaded, opened or called.
func hostiles() []hostile {
	return slices.Concat(refusedModules(), compileBombs(), unopened(), hostileCalls(), hostileDeepCalls(), hostileAllocators())
}

// Hostile instances leak neither memory nor goroutines.
func TestNothingLeaks(t *testing.T) {
	r := newRuntime(t, Config{})
	m := load(t, r, misbehaves(w.Const(900), w.MemoryGrow(), w.Drop, w.Unreachable), Limits{MemoryPages: 1000})
	before, goroutines := heap(), runtime.NumGoroutine()
	for n := range 20 {
		i, err := m.Open(context.Background(), Options{})
		require.NoError(t, err)
		_, err = i.Call(context.Background(), "h", n)
		require.Error(t, err)
	}
	assert.Less(t, heap(), before+30<<20, "20 instances of 60 MB")
	assert.Equal(t, goroutines, runtime.NumGoroutine())
}

func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
