package wasm

import (
	"context"
	"math"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

// hostileDeepCalls call recursively, through tables, and with large stack frames.
func hostileDeepCalls() []hostile {
	indirect := func(code ...any) *w.Module {
		return with(misbehaves(code...), func(m *w.Module) {
			m.Types = []w.Func{{Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}}, {Params: w.Types{w.I32, w.I32}}}
			m.Tables, m.Elements = []w.Limits{{Min: 4}}, [][]byte{w.ActiveElements(0, self, fnLog, fnFail, self+1)}
			m.Funcs = append(m.Funcs, hook("", nil, w.Get(0), w.Get(1), w.Const(0), w.CallIndirect(0)))
		})
	}
	operands := w.Repeat(20_000, w.Seq(w.Get(0), w.Load(0)))
	list := []hostile{
		{name: "recursion in a circle through a table", module: indirect(w.Get(0), w.Get(1), w.Const(3), w.CallIndirect(0)), kind: Stack},
		{name: "endless tail calls through a table", module: indirect(w.Get(0), w.Get(1), w.Const(0), []byte{0x13, 0, 0}), kind: Budget},
		{name: "recursion with many operands", module: misbehaves(operands, w.Get(0), w.Get(1), w.Call(self),
			w.Repeat(20_000, []byte{w.I32Add})), kind: Stack},
		{name: "recursion with many results", kind: Stack,
			module: with(misbehaves(w.Repeat(90, w.Call(self+1)), w.Get(0), w.Get(1), w.Call(self), w.Return), func(m *w.Module) {
				m.Funcs = append(m.Funcs, w.Func{Results: w.Repeat(100, []byte{w.I32}), Body: w.Repeat(100, w.Const(1))})
			})},
		{name: "the host's function through a table", module: indirect(w.Const(-1), w.Const(16), w.Const(1), w.CallIndirect(1),
			w.Const(0)), kind: Pointer, says: "log: found 16 bytes"},
		{name: "failure through a table", module: indirect(w.Const(0), w.Const(0), w.Const(2), w.CallIndirect(1), w.Const(0)),
			kind: Failed, says: "called fail without a message"},
		{name: "log of its own descriptors", module: misbehaves(w.Get(0), w.Const(64), w.Call(fnLog), w.Get(0), w.Const(1),
			w.Call(fnRandom), w.Drop, w.Const(0)), kind: Shape, says: "array 0: found dtype"},
		// random bytes onto the descriptors
		{name: "an import as the hook", kind: Shape, says: "array 0: found", module: with(replacedName("h", ""), func(m *w.Module) {
			m.Exports = [][]byte{w.Export("h", 0, fnRandom)}
			m.Funcs[1].Body = w.Seq(w.Get(0), w.Drop, w.Const(16)) // an allocator that always gives the same
		})},
		{name: "every access at the memory's end", kind: Trap, says: "out of bounds", module: misbehaves(
			w.Const(131072-4), w.Const(131072-4), w.Load(0), w.Store(0), w.Const(131072-3), w.Load(0))},
		{name: "huge copies without end", limits: Limits{MemoryPages: 4096, Budget: 1 << 27}, kind: Budget, module: with(
			misbehaves(endless["copies"], w.Const(0)), func(m *w.Module) { m.Memories[0].Min = 4000 })},
		{name: "one copy that costs more than there is", limits: Limits{MemoryPages: 4096, Budget: 1_000_000}, kind: Budget, module: with(
			misbehaves(w.Const(0), w.Const(1), w.Const(200<<20), w.MemoryCopy(), w.Const(0)),
			func(m *w.Module) { m.Memories[0].Min = 4000 })},
		{name: "growth by all there is, filled", limits: Limits{MemoryPages: 4096, Budget: 1 << 40}, module: misbehaves(
			w.Const(4000), w.MemoryGrow(), w.Drop, w.Const(0), w.Const(7), w.Const(250<<20), w.MemoryFill(), w.Const(0)), kind: Shape},
	}
	for k := range list {
		list[k].export = "h"
	}
	return list
}

// hostileAllocators return invalid addresses to the host.
func hostileAllocators() []hostile {
	alloc := func(code ...any) *w.Module {
		return replaced(w.Func{Export: abi.Alloc, Params: w.Types{w.I32}, Results: w.Types{w.I32}, Body: w.Seq(code...)})
	}
	list := []hostile{
		{name: "an allocator that gives the same again and again", module: alloc(w.Const(64))},
		{name: "an allocator that gives what overlaps", module: alloc(w.GGet(0), w.Const(16), w.I32Add, w.GSet(0), w.GGet(0))},
		{name: "an allocator that grows the memory", module: alloc(w.Const(1), w.MemoryGrow(), w.Const(65536), w.I32Mul)},
		{name: "an allocator that grows the memory and gives its end", module: alloc(w.Const(1), w.MemoryGrow(), w.Drop, w.MemorySize(),
			w.Const(65536), w.I32Mul), kind: Pointer, says: "the memory ends at"},
		{name: "an allocator that fails", module: alloc(w.Const(0), w.Const(0), w.Call(fnFail), w.Const(16)), kind: Failed,
			says: "called fail"},
		{name: "an allocator that traps", module: alloc(w.Unreachable), kind: Trap, says: "unreachable"},
		{name: "an allocator that exits", module: alloc(w.Const(1), w.Call(fnExit), w.Const(16)), kind: Exit, says: "code 1"},
		{name: "an allocator that calls itself", module: alloc(w.Get(0), w.Call(self-1)), kind: Stack},
		{name: "an allocator that grows without end",
			module: alloc(w.Loop(w.Empty, w.Const(1), w.MemoryGrow(), w.Const(-1), w.I32Eq, w.I32Eqz, w.BrIf(0)), w.Const(0)),
			kind:   Memory},
		{name: "an allocator at address 16 that overwrites", module: alloc(w.Const(0), w.Const(255), w.Const(65536), w.MemoryFill(),
			w.Const(16))},
	}
	for k := range list {
		if list[k].kind != 0 {
			list[k].export = "h"
		}
	}
	return list
}

// A module that reports a wrong length of its state, or refuses to load it, fails with an error.
func TestHostileState(t *testing.T) {
	ctx := context.Background()
	two, one := w.Types{w.I32, w.I32}, w.Types{w.I32}
	module := func(save, load []byte) *w.Module {
		return guestModule(hook("h", nil, w.Const(0)),
			w.Func{Export: abi.Save, Params: two, Results: one, Body: save}, w.Func{Export: abi.Load, Params: two, Results: one,
				Body: load})
	}
	engines(t, func(t *testing.T, r *Runtime) {
		for _, c := range []struct {
			name string
			save []byte
			kind Kind
			says string
		}{
			{"a length that changes", w.Get(1), Shape, ""},
			{"another length the second time", w.Seq(w.Get(1), w.If(w.I32, w.Const(9), w.Else, w.Const(8))), Shape,
				"reported a state of 8 bytes, then one of 9"},
			{"a negative length", w.Const(-1), Failed, "returned -1"},
			{"two billion bytes", w.Const(math.MaxInt32), Memory, ""},
			{"more than its memory", w.Const(8 << 20), Memory, ""},
			{"writes beyond", w.Seq(w.Get(0), w.Const(1), w.Const(-1), w.MemoryFill(), w.Const(8)), Trap, "out of bounds"},
			{"never ends", w.Seq(forever, w.Const(8)), Budget, ""},
			{"exits", w.Seq(w.Const(2), w.Call(fnExit), w.Const(8)), Exit, "code 2"},
			{"fails when it writes", w.Seq(w.Get(1), w.If(w.Empty, w.Const(0), w.Const(0), w.Call(fnFail)), w.Const(8)), Failed,
				"called fail"},
		} {
			t.Run(c.name, func(t *testing.T) {
				i := open(t, load(t, r, module(c.save, w.Const(0)), smallLimits), Options{})
				state, err := i.Save(ctx)
				if c.name == "a length that changes" { // 0, and 0 again
					require.NoError(t, err)
					assert.Empty(t, state)
					return
				}
				var e *Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, c.kind, e.Kind, "%v", err)
				assert.Equal(t, abi.Save, e.Export)
				assert.ErrorContains(t, err, c.says)
				assert.Nil(t, state)
				assert.Equal(t, c.kind == Failed, i.Alive())
			})
		}
		for kind, body := range map[Kind][]byte{Failed: w.Const(-7), Trap: {w.Unreachable}, Budget: w.Seq(forever, w.Const(0))} {
			i := open(t, load(t, r, module(w.Const(4), body), smallLimits), Options{})
			var e *Error
			require.ErrorAs(t, i.Load(ctx, []byte("abcd")), &e)
			assert.Equal(t, kind, e.Kind)
			assert.Equal(t, abi.Load, e.Export)
		}
	})
}
